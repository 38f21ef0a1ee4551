"""Kernels compiled by NVRTC, and kept between processes."""
