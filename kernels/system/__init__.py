"""Operating-system services: atomic writes, the user's cache, strict JSON, printable text, memory limits.

Matrix products and GPUs are never here.
"""
