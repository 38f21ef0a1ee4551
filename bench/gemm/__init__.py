"""Benchmarks of tall-and-skinny products: tsapps, cuBLAS and cublasLt."""
