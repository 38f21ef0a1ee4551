"""The library's product: cuBLAS, called where it is faster, or where no kernel of ours applies."""

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


def gemm(A: DeviceMatrix, B: DeviceMatrix, out: DeviceMatrix, alpha: float, beta: float) -> None:
    """Compute out ← alpha · A · B + beta · out by cublasGemmEx, on CuPy's current stream.

    Parameters
    ----------
    A, B, out : DeviceMatrix of shapes (m, k), (k, n), (m, n)
        Each row- or column-major, of one dtype: float64, float32, float16 or bfloat16.
    alpha, beta : float
    """
    if _column_major(out)[0]:
        _column_major_gemm(A, B, out, alpha, beta)
    else:
        _column_major_gemm(B.transposed, A.transposed, out.transposed, alpha, beta)


def _column_major_gemm(A: DeviceMatrix, B: DeviceMatrix, out: DeviceMatrix, alpha: float, beta: float) -> None:
    import cupy

    cublas = _cublas()
    name = A.dtype
    (a_plain, lda), (b_plain, ldb) = _column_major(A), _column_major(B)
    scale = np.float64 if name == "float64" else np.float32
    scalars = np.array([alpha, beta], scale)
    handle = cupy.cuda.device.get_cublas_handle()
    before = cublas.getMathMode(handle)
    cublas.setMathMode(handle, _MATH)
    try:
        cublas.gemmEx(
            handle,
            *(_PLAIN if plain else _TRANSPOSED for plain in (a_plain, b_plain)),
            *(*out.shape, A.shape[1]),
            *(scalars.ctypes.data, A.pointer, _DATA[name], lda, B.pointer, _DATA[name], ldb),
            *(scalars.ctypes.data + scalars.itemsize, out.pointer, _DATA[name], _column_major(out)[1]),
            *(_COMPUTE_64F if name == "float64" else _COMPUTE_32F, _DEFAULT_ALGORITHM),
        )
    finally:
        cublas.setMathMode(handle, before)


@cache
def _cublas() -> Any:
    from cupy.cuda import cublas

    return cublas
