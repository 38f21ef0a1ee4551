"""Matrix products by vendor libraries: cuBLAS and cublasLt on a GPU, NumPy's BLAS on the CPU; BLAS thread counts.

The kernels of tsapps itself are in other packages.
"""
