"""Vendor libraries: cuBLAS and cublasLt on a GPU, NumPy's BLAS and its threads on the CPU. Kernels of our own are never
here."""
