"""Engines: X on its device and the Lloyd step selected for it. Steps are composed from the stages in other packages.

Kernels of the assign, update, bounds and init stages are never here.
"""
