"""Operating-system services: atomic writes, the user's cache, strict JSON, printable text, memory limits.

Code for matrix products and GPUs is in other packages.
"""
