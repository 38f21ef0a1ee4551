"""TSM2 as published, in its four optimization stages: the baseline for measurements of the kernels in tsm2/.

`matmul` does not call these kernels.
"""
