"""Compilation by NVRTC: the compiler, the disk cache of machine code, and background compilation.

Kernel source and the choice of a kernel are in other packages.
"""
