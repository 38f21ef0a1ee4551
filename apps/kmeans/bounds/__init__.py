"""Hamerly's bounds: skip rows whose nearest center cannot have changed, with bit-identical labels.

The package assign labels rows without bounds.
"""
