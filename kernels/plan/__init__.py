"""Selection of a kernel and its parameters from problem sizes, layouts and GPU specifications.

All functions run without a GPU; arrays, CuPy and launches are in other packages.
"""
