"""Benchmark of data that one GPU does not hold."""
