"""Benchmarks; their records are in `results/`."""
