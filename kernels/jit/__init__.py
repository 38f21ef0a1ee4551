"""Compilation by NVRTC: compiler, disk cache of machine code, kernels compiled in the background. Kernel source and the
choice of a kernel are never here."""
