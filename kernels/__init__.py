"""Tall-and-skinny matrix products, and the support for GPUs and arrays that they need.

Applications, file formats and the command line are in other packages.
"""
