"""Products by cuBLAS and cublasLt, for problems where they are faster or where tsapps has no kernel."""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.blas import cublaslt
from tsapps.kernels.blas.cublaslt import COL, ROW, LtProduct, Matrix, Product
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import ProductLaunch
from tsapps.kernels.runtime.workspace import scratch

__all__ = ["algorithm", "gemm"]

_TRANSPOSED, _PLAIN = 1, 0
_DEFAULT_ALGORITHM = -1
# CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: 16-bit matrices are accumulated in float32. Without the TF32 flag,
# float32 matrices are not rounded to TF32.
_MATH = 16


def _column_major(X: DeviceMatrix) -> tuple[bool, int]:
    """Return (True if X is column-major, False if it is row-major; leading dimension of X in elements)."""
    (rows, columns), size = X.shape, X.itemsize
    if X.strides[0] == size and (columns == 1 or X.strides[1] >= rows * size):
        return True, X.strides[1] // size if columns > 1 else rows
    return False, X.strides[0] // size if rows > 1 else columns


def gemm(A: DeviceMatrix, B: DeviceMatrix, out: DeviceMatrix) -> ProductLaunch:
    """Return a function that computes a product by cublasGemmEx on CuPy's current stream.

    Parameters
    ----------
    A, B, out : DeviceMatrix of shapes (m, k), (k, n), (m, n)
        Each matrix is row- or column-major. All have one dtype: float64, float32, float16 or bfloat16. The addresses
        of the matrices are not used.

    Returns
    -------
    callable
        Computes out ← alpha · A · B + beta · out. Its arguments are the addresses of A, B and out, then alpha and beta.
    """
    cublas = _cublas()
    from cupy.cuda import device

    # cuBLAS writes column-major results. A row-major `out` is a column-major outᵀ = Bᵀ · Aᵀ in the same memory.
    swapped = not _column_major(out)[0]
    first, second, result = (B.transposed, A.transposed, out.transposed) if swapped else (A, B, out)
    (plain, lda), (second_plain, ldb), ldc = _column_major(first), _column_major(second), _column_major(result)[1]
    transposed = tuple(_PLAIN if one else _TRANSPOSED for one in (plain, second_plain))
    sizes, (data, compute, _) = (*result.shape, first.shape[1]), cublaslt.TYPES[A.dtype]
    scale = np.float64 if A.dtype == "float64" else np.float32

    def launch(A: int, B: int, out: int, alpha: float, beta: float) -> None:
        scalars = np.array([alpha, beta], scale)
        at, first, second = scalars.ctypes.data, *((B, A) if swapped else (A, B))
        handle = device.get_cublas_handle()
        before = cublas.getMathMode(handle)
        cublas.setMathMode(handle, _MATH)
        try:
            cublas.gemmEx(
                *(handle, *transposed, *sizes, at, first, data, lda, second, data, ldb),
                *(at + scalars.itemsize, out, data, ldc, compute, _DEFAULT_ALGORITHM),
            )
        finally:
            cublas.setMathMode(handle, before)

    return launch


@cache
def _cublas() -> Any:
    from cupy.cuda import cublas

    return cublas


# CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: partial sums are added in the compute type, float32 for 16-bit matrices.
_IN_COMPUTE_TYPE = 2


def algorithm(plan: LibraryAlgorithm, problem: Problem, C: DeviceMatrix) -> ProductLaunch:
    """Return a function that computes a product by an algorithm of cublasLt on CuPy's current stream.

    Parameters
    ----------
    plan : LibraryAlgorithm
    problem : Problem
    C : DeviceMatrix of shape (m, w)
        The result, or a matrix with the layout and the alignment of the result.

    Raises
    ------
    LibraryError
        If cublasLt offers no algorithm for the product.
    """
    import cupy

    with cupy.cuda.Device(C.device):
        library, handle = cublaslt.of_device(C.device)
        described = LtProduct(library, _described(plan, problem, C), *cublaslt.TYPES[problem.dtype], _IN_COMPUTE_TYPE)
        algos = described.algorithms(handle)
    if not algos:
        raise cublaslt.LibraryError(f"cublasLt offers no algorithm for {problem}")
    _, algo, needed = algos[min(plan.rank, len(algos)) - 1]
    kind = ctypes.c_double if problem.dtype == "float64" else ctypes.c_float
    swapped = not (plan.own_orders or _column_major(C)[0])

    def launch(A: int, B: int, C_: int, alpha: float, beta: float) -> None:
        stream = cupy.cuda.get_current_stream().ptr
        pointers, scalars = ((B, A, C_) if swapped else (A, B, C_)), (kind(alpha), kind(beta))
        memory = scratch(C.device, stream, needed)
        described.run(algo, handle, pointers, scalars, (memory.data.ptr if needed else 0, needed), stream)

    return launch


def _described(plan: LibraryAlgorithm, problem: Problem, C: DeviceMatrix) -> Product:
    """Return the product for cublasLt, with the alignment of each matrix in place of its address."""
    m, k, w = problem.m, problem.k, problem.w
    by_columns, leading = _column_major(C)
    own = Product(
        Matrix(problem.a.base_alignment, m, k, ROW if problem.a.along_depth else COL, problem.a.leading),
        False,
        Matrix(problem.b.base_alignment, k, w, COL if problem.b.along_depth else ROW, problem.b.leading),
        False,
        Matrix(C.pointer % 16 or 16, m, w, COL if by_columns else ROW, leading),
    )
    return own if plan.own_orders else own.column_major()
