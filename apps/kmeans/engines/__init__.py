"""Engines: X on its device, and the Lloyd step selected for it.

A Lloyd step launches one iteration after the other. Its kernels are in the packages assign, update, bounds and small_d.
"""
