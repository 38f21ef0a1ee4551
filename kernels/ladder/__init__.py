"""TSM2 as published, step by step: the baseline of the kernels in tsm2/.

Kernels that matmul calls are never here.
"""
