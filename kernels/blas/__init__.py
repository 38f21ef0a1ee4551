"""Vendor libraries: cuBLAS and cublasLt on a GPU, NumPy's BLAS and its threads on the CPU.

The kernels of tsapps itself are in other packages.
"""
