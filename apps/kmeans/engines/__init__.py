"""Engines: X on its device and the Lloyd step selected for it. Steps are composed from the stages in other packages.

The kernels of the stages are in the packages assign, update, bounds and init.
"""
