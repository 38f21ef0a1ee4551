"""Shared parts of benchmarks: records, timing, the device's roofline, precompilation."""
