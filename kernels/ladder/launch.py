"""Launches of the ladder: the rungs of rungs.py, and TSM2 as published, versions V0 to V3 in tsm2_paper.cuh."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.kernels.ladder.operands import destination, is_row_major, product_sizes
from tsapps.kernels.ladder.rungs import PITCH, Rung
from tsapps.kernels.runtime.machine import Machine, cuda_machine

__all__ = ["PAPER_KERNELS", "bind_rung", "kernel_of", "multiply", "paper_columns", "tsm2_paper"]

#: The names of the four published versions, from V0 to V3.
PAPER_KERNELS = ("tsm2_v0", "tsm2_v1", "tsm2_v2", "tsm2_v3")

_FOLDER = Path(__file__).parent
_SCALARS = {"float32": "float", "float64": "double"}
# Largest size of a matrix: kernels count in 32-bit integers, beyond it by up to a tile.
_MOST = 2**31 - 1 - 128


def multiply(
    rung: Rung, A: Any, B: Any, C: Any = None, *, alpha: float = 1.0, beta: float = 0.0, machine: Machine | None = None
) -> Any:
    """Compute alpha · A · B + beta · C by a rung of the ladder.

    Parameters
    ----------
    rung : Rung
    A : array of shape (m, k), float32 or float64
        On the GPU, of at most 2³¹ − 129 rows and columns. Row-major, or column-major like all others: the kernel then
        computes Cᵀ = Bᵀ · Aᵀ.
    B : array of shape (k, n), of A's dtype
    C : array of shape (m, n), of A's dtype, optional
        Overwritten with the result. Without it, `beta` must be 0, and a new array is returned.
    alpha, beta : float
        With ``beta=0``, the values of C are not read.
    machine : Machine, optional
        By default the GPU that holds A.

    Returns
    -------
    array of shape (m, n)

    Raises
    ------
    ValueError
        If shapes, dtypes or layouts are not these, C overlaps A or B, or `beta` is not 0 and there is no C.
    """
    launch, C = bind_rung(rung, A, B, C, alpha=alpha, beta=beta, machine=machine)
    launch()
    return C


def bind_rung(
    rung: Rung, A: Any, B: Any, C: Any = None, *, alpha: float = 1.0, beta: float = 0.0, machine: Machine | None = None
) -> tuple[Callable[[], None], Any]:
    """Return a function that runs a rung on these matrices, and the array that it writes; for timing.

    Parameters and errors are those of `multiply`. A pitched rung copies A and B now; its function includes the copies
    of C.
    """
    *_, k = _sizes(A, B, C)
    machine = cuda_machine(A.device.id) if machine is None else machine
    by_rows = all(X is None or is_row_major(X) for X in (A, B, C))
    if not by_rows and not all(X is None or is_row_major(X.T) for X in (A, B, C)):
        raise ValueError("expected A, B and C row-major, or all of them column-major; copy them to one order")
    C = destination(machine.xp, A, B, C, beta, order="C" if by_rows else "F")
    left, right, to = (A, B, C) if by_rows else (B.T, A.T, C.T)
    rows, columns = to.shape
    placed = [_pitched(machine.xp, X) for X in (left, right, to)] if rung.pitched else [left, right, to]
    scalar = A.dtype.type
    sizes = np.int32(rows), np.int32(columns), np.int32(k), *(np.int64(_leading(X.T)) for X in placed)
    arguments = *placed, *sizes, scalar(alpha), scalar(beta)
    kernel = kernel_of(rung, A.dtype.name, machine)
    grid = (rung.blocks(rows, columns, machine.gpu),)

    def launch() -> None:
        if rung.pitched and beta != 0:
            placed[2][...] = to
        kernel(grid, rung.block, arguments)
        if rung.pitched:
            to[...] = placed[2]

    return launch, C


def kernel_of(rung: Rung, dtype: str, machine: Machine) -> Any:
    """Return the kernel of a rung for matrices of a dtype."""
    (kernel,) = machine.kernels(_FOLDER / rung.file, f"ladder::{rung.kernel.format(_SCALARS[dtype])}")
    return kernel


def _pitched(xp: Any, X: Any) -> Any:
    """Return a copy of a row-major matrix whose rows begin at multiples of `PITCH` bytes."""
    each = PITCH // X.itemsize
    copy = xp.zeros((X.shape[0], -(-X.shape[1] // each) * each), X.dtype)[:, : X.shape[1]]
    copy[...] = X
    return copy


def _sizes(A: Any, B: Any, C: Any) -> tuple[int, int, int]:
    """Return the `product_sizes` m, n, k; raise ValueError for sizes that no kernel supports."""
    sizes = product_sizes(A, B, C)
    if 0 in sizes:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}; expected at least one row and column")
    if max(sizes) > _MOST:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}; expected at most {_MOST} rows and columns")
    return sizes


def paper_columns(w: int) -> int:
    """Return the number of columns of C that a thread of TSM2 as published computes at a time: w, but at most 8."""
    return min(w, 8)


def tsm2_paper(
    variant: str,
    A: Any,
    B: Any,
    *,
    out: Any = None,
    t1: int = 128,
    t2: int | None = None,
    t3: int = 4,
    machine: Machine | None = None,
) -> Any:
    """Compute A · B by a published version of TSM2.

    Parameters
    ----------
    variant : {"tsm2_v0", "tsm2_v1", "tsm2_v2", "tsm2_v3"}
    A : cupy.ndarray of shape (m, k), float32 or float64, column-major
    B : cupy.ndarray of shape (k, w), of A's dtype, column-major
    out : cupy.ndarray of shape (m, w), of A's dtype, column-major, optional
        Overwritten with the product; a new array by default.
    t1, t2, t3 : int
        Number of threads per block, of columns of C that a thread computes at a time (by default `paper_columns`), and
        of elements of A that a thread loads at a time.
    machine : Machine, optional
        By default the GPU that holds A.

    Returns
    -------
    cupy.ndarray of shape (m, w), column-major

    Raises
    ------
    ValueError
        If the variant is unknown, the matrices do not have these shapes, dtypes and layouts, or out overlaps A or B.
    """
    if variant not in PAPER_KERNELS:
        raise ValueError(f"variant must be one of {', '.join(PAPER_KERNELS)}, got {variant!r}")
    m, w, k = _sizes(A, B, out)
    machine = cuda_machine(A.device.id) if machine is None else machine
    for name, X in (("A", A), ("B", B), ("out", out)):
        if X is not None and (X.strides[0] != X.itemsize or not is_row_major(X.T)):
            raise ValueError(
                f"{name} has strides {X.strides}; expected column-major, (itemsize, leading dimension · itemsize)"
            )
    C = destination(machine.xp, A, B, out, 0, order="F")
    t2 = paper_columns(w) if t2 is None else t2
    name = f"tsm2::{variant}<{_SCALARS[A.dtype.name]}, {t1}, {t2}, {t3}>"
    sizes = (np.int64(m), np.int64(k), np.int32(w), *(np.int64(_leading(X)) for X in (A, B, C)))
    (kernel,) = machine.kernels(_FOLDER / "tsm2_paper.cuh", name)
    kernel((-(-m // t1),), (t1,), (A, B, C, *sizes))
    return C


def _leading(X: Any) -> int:
    """Return the leading dimension of a column-major matrix in elements; for a single column, the number of rows."""
    return int(X.strides[1] // X.itemsize if X.shape[1] > 1 else X.shape[0])
