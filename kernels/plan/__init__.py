"""Selection of a kernel and its parameters from problem sizes, layouts and GPU specifications.

Arrays, CuPy and launches are never here: all functions run without a GPU.
"""
