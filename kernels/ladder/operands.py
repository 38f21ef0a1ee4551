"""Checks of A, B and C that the rungs on a GPU and on a CPU share."""

from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix, address

__all__ = ["destination", "is_row_major", "product_sizes"]


def product_sizes(A: Any, B: Any, C: Any = None) -> tuple[int, int, int]:
    """Return m, n and k of the product of A (m × k) and B (k × n), of which C (m × n) is the result.

    Raises
    ------
    ValueError
        If shapes do not match, or the dtypes are not the same, float32 or float64.
    """
    if A.dtype != B.dtype or A.dtype not in (np.float32, np.float64):
        raise ValueError(f"A has dtype {A.dtype} and B {B.dtype}; expected float32 or float64, the same for both")
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0]:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}; expected (m, k) and (k, n)")
    (m, k), n = A.shape, B.shape[1]
    if C is not None and (C.shape != (m, n) or C.dtype != A.dtype):
        raise ValueError(f"C has shape {C.shape} and dtype {C.dtype}; expected ({m}, {n}) and {A.dtype}")
    return m, n, k


def destination(xp: Any, A: Any, B: Any, C: Any, beta: float, *, order: str = "C") -> Any:
    """Return C, or a new array if it is None.

    Raises
    ------
    ValueError
        If C overlaps A or B in memory, or `beta` is not 0 and there is no C.
    """
    if C is None:
        if beta != 0:
            raise ValueError(f"beta is {beta}, but there is no C; give C, or beta=0")
        return xp.empty((A.shape[0], B.shape[1]), A.dtype, order=order)
    for name, X in (("A", A), ("B", B)):
        if _described(C).overlaps(_described(X)):
            raise ValueError(f"C overlaps {name} in memory; give it memory of its own")
    return C


def _described(X: Any) -> DeviceMatrix:
    return DeviceMatrix(address(X), X.shape, X.strides, X.dtype.name, X.itemsize, 0, X)


def is_row_major(X: Any) -> bool:
    """Return True if the elements of each row are neighbors, and no two rows overlap."""
    (rows, columns), (down, right) = X.shape, X.strides
    apart = down >= columns * X.itemsize and down % X.itemsize == 0
    return (columns == 1 or right == X.itemsize) and (rows == 1 or apart)
