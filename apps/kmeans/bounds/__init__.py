"""Hamerly's bounds: skip rows whose nearest center cannot have changed, with bit-identical labels.

Assignment without bounds is in the package assign.
"""
