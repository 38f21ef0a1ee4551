"""Benchmarks of K-means: tsapps and other libraries."""
