"""Vendor libraries: cuBLAS, cublasLt, and the BLAS of NumPy."""
