"""Benchmark of the ladder: every rung from a thread per element to today's kernels, on GPUs and CPUs."""
