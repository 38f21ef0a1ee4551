"""Matrix products on the CPU by NumPy and its BLAS."""

import numpy as np

__all__ = ["gram", "matmul"]

# Maximum bytes of float32 to which rows of a 16-bit matrix are converted at a time.
_BLOCK_BYTES = 64 << 20


def matmul(A: np.ndarray, B: np.ndarray, out: np.ndarray, alpha: float, beta: float) -> None:
    """Compute out ← alpha · A · B + beta · out.

    Parameters
    ----------
    A, B, out : numpy.ndarray of shapes (m, k), (k, w), (m, w)
        All of one dtype: float64, float32, float16 or bfloat16.
    alpha, beta : float
        With beta = 0, `out` is not read.
    """
    if A.itemsize > 2:
        _scaled(A, B, out, alpha, beta)
        return
    wide_B = B.astype(np.float32)
    rows = max(1, _BLOCK_BYTES // (4 * max(1, A.shape[1])))
    for first in range(0, len(A), rows):
        some = slice(first, first + rows)
        product = alpha * (A[some].astype(np.float32) @ wide_B)
        out[some] = product if beta == 0 else product + beta * out[some].astype(np.float32)


def gram(A: np.ndarray, out: np.ndarray, alpha: float, beta: float) -> None:
    """Compute out ← alpha · Aᵀ · A + beta · out; arguments as for `matmul`."""
    if A.itemsize > 2:
        _scaled(A.T, A, out, alpha, beta)
        return
    rows = max(1, _BLOCK_BYTES // (4 * max(1, A.shape[1])))
    total = np.zeros(out.shape, np.float32)
    for first in range(0, len(A), rows):
        wide = A[first : first + rows].astype(np.float32)
        total += wide.T @ wide
    out[...] = alpha * total if beta == 0 else alpha * total + beta * out.astype(np.float32)


def _scaled(A: np.ndarray, B: np.ndarray, out: np.ndarray, alpha: float, beta: float) -> None:
    if beta == 0:
        np.matmul(A, B, out=out)
        if alpha != 1:
            out *= out.dtype.type(alpha)
    else:
        out *= out.dtype.type(beta)
        out += out.dtype.type(alpha) * (A @ B)
