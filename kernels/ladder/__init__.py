"""The road to the kernels in tsm2/, for readers and as the baseline of measurements; `matmul` does not call these.

Rungs of the ladder, from one thread per element to tiles in registers, then TSM2 as published in its four stages.
"""
