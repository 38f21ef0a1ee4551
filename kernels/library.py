"""The library's product: cuBLAS, called where it is faster, or where no kernel of ours applies."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix

__all__ = ["gemm"]

# cudaDataType_t and cublasComputeType_t, by dtype: float64 in float64, all else in float32, never in TF32.
_DATA = {"float64": 1, "float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_32F, _COMPUTE_64F = 68, 70
_TRANSPOSED, _PLAIN = 1, 0
_DEFAULT_ALGORITHM = -1
# cublasMath_t: no TF32, and no sums of halves in halves.
_MATH = 16


def _column_major(X: DeviceMatrix) -> tuple[bool, int]:
    """Return whether a row-major or column-major matrix is column-major, and its leading dimension."""
    (rows, columns), size = X.shape, X.itemsize
    if X.strides[0] == size and (columns == 1 or X.strides[1] >= rows * size):
        return True, X.strides[1] // size if columns > 1 else rows
    return False, X.strides[0] // size if rows > 1 else columns


def gemm(A: DeviceMatrix, B: DeviceMatrix, out: DeviceMatrix) -> Callable[[int, int, int, float, float], None]:
    """Return what computes a product by cublasGemmEx on CuPy's current stream.

    Parameters
    ----------
    A, B, out : DeviceMatrix of shapes (m, k), (k, n), (m, n)
        Each row- or column-major, of one dtype: float64, float32, float16 or bfloat16; or matrices that lie like them.

    Returns
    -------
    callable
        Of the addresses of A, B and out, and of alpha and beta: out ← alpha · A · B + beta · out.
    """
    cublas = _cublas()
    from cupy.cuda import device

    # A row-major result is the column-major one of the transposed product.
    swapped = not _column_major(out)[0]
    first, second, result = (B.transposed, A.transposed, out.transposed) if swapped else (A, B, out)
    (plain, lda), (second_plain, ldb), ldc = _column_major(first), _column_major(second), _column_major(result)[1]
    transposed = tuple(_PLAIN if one else _TRANSPOSED for one in (plain, second_plain))
    sizes, data = (*result.shape, first.shape[1]), _DATA[A.dtype]
    scale, compute = (np.float64, _COMPUTE_64F) if A.dtype == "float64" else (np.float32, _COMPUTE_32F)

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
