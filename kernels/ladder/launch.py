"""Launches of TSM2 as published: the versions V0 to V3 in tsm2_paper.cuh."""

from pathlib import Path
from typing import Any

import numpy as np

from tsapps.kernels.runtime.machine import cuda_machine

__all__ = ["PAPER_KERNELS", "tsm2_paper"]

#: The names of the four published versions, from V0 to V3.
PAPER_KERNELS = ("tsm2_v0", "tsm2_v1", "tsm2_v2", "tsm2_v3")

_SOURCE = Path(__file__).with_name("tsm2_paper.cuh")
_SCALARS = {"float32": "float", "float64": "double"}


def tsm2_paper(variant: str, A: Any, B: Any, *, t1: int = 128, t2: int = 4, t3: int = 4) -> Any:
    """Compute A · B by a published version of TSM2.

    Parameters
    ----------
    variant : {"tsm2_v0", "tsm2_v1", "tsm2_v2", "tsm2_v3"}
    A : cupy.ndarray of shape (m, k), float32 or float64, column-major
    B : cupy.ndarray of shape (k, w), of A's dtype, column-major
    t1, t2, t3 : int
        Number of threads per block, of columns of C that a thread computes at a time, and of elements of A that a
        thread loads at a time.

    Returns
    -------
    cupy.ndarray of shape (m, w), column-major

    Raises
    ------
    ValueError
        If the variant is unknown, or the matrices do not have these shapes, dtypes and layouts.
    """
    import cupy

    if variant not in PAPER_KERNELS:
        raise ValueError(f"variant must be one of {', '.join(PAPER_KERNELS)}, got {variant!r}")
    m, k, w = _check(A, B)
    if B.strides[0] != B.itemsize:
        raise ValueError(f"B has strides {B.strides}; expected column-major, (itemsize, leading dimension · itemsize)")
    C = cupy.empty((m, w), A.dtype, order="F")
    name = f"tsm2::{variant}<{_SCALARS[A.dtype.name]}, {t1}, {t2}, {t3}>"
    sizes = (np.int64(m), np.int64(k), np.int32(w), *(np.int64(_leading(X)) for X in (A, B, C)))
    (kernel,) = cuda_machine(A.device.id).kernels(_SOURCE, name)
    kernel((-(-m // t1),), (t1,), (A, B, C, *sizes))
    return C


def _check(A: Any, B: Any) -> tuple[int, int, int]:
    """Validate A (m × k) and B (k × w), and return m, k, w."""
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0]:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}; expected (m, k) and (k, w)")
    if 0 in (*A.shape, *B.shape):
        raise ValueError(f"A has shape {A.shape} and B {B.shape}; expected at least one row and column")
    if A.dtype != B.dtype or A.dtype.name not in _SCALARS:
        raise ValueError(f"A has dtype {A.dtype} and B {B.dtype}; expected float32 or float64, the same for both")
    if A.strides[0] != A.itemsize:
        raise ValueError(f"A has strides {A.strides}; expected column-major, (itemsize, leading dimension · itemsize)")
    return *A.shape, B.shape[1]


def _leading(X: Any) -> int:
    """Return the leading dimension of a column-major matrix in elements; for a single column, the number of rows."""
    return X.strides[1] // X.itemsize if X.shape[1] > 1 else X.shape[0]
