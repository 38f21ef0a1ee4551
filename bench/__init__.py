"""Benchmarks, and the records that they leave in `results/`."""
