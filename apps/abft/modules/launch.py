"""Launches of the kernels of protected modules, for matrices at given addresses; knows no torch.

    weights of columns v                     → `weights_of`
    checksums along rows or columns          → `row_products`, `column_products`
    check of the rows of a finished product  → `RowCheck`

Launch functions take the address of a CUDA stream. Arguments are packed once for each layout; each launch only changes
addresses.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.abft.modules.bounds import LinearBounds
from tsapps.apps.abft.modules.faults import FaultLog
from tsapps.apps.abft.product.plan import ELEMENT_BOUNDS, OPERANDS, element_bounds
from tsapps.kernels.arrays import address
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.problem import ITEMSIZE
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch, Machine

__all__ = [
    "CHANGED_WORDS",
    "CHECK_ARGS",
    "FOLDER",
    "KERNELS",
    "ROWS",
    "ROW_FAULTS",
    "ROW_LIMITS",
    "ProductLayout",
    "check_args",
    "checksum_dtype",
    "column_products",
    "parts_of",
    "row_check",
    "row_products",
    "weights_of",
]

ROW_LIMITS = np.dtype([(name, "f8") for name in ("output", "sum", "absolute")])
ROW_FAULTS = np.dtype([("faults", "u8"), ("count", "u8"), ("capacity", "i8")])
#: The C++ class `CheckArgs` (row_check.cuh) as a NumPy structure.
CHECK_ARGS = np.dtype(
    [("of", OPERANDS)]
    + [(name, "u8") for name in ("bias", "bias_sum", "v", "x", "y", "p", "is_stale")]
    + [("call", "i8"), ("repairs", "i8"), ("limits", ROW_LIMITS), ("bounds", ELEMENT_BOUNDS), ("list", ROW_FAULTS)]
)
#: The C++ class `Rows` (vector_products.cuh) as a NumPy structure.
ROWS = np.dtype([("data", "u8"), *((name, "i8") for name in ("row_stride", "rows", "columns"))])
#: The folder of the kernels.
FOLDER = Path(__file__).resolve().parent
_LINE_THREADS, _COLUMN_THREADS, _PART_THREADS, _CHECK_THREADS, _CHECK_ROWS, _VECTOR_BYTES = 32, 256, 256, 256, 4, 16
# Blocks of column_products per multiprocessor, and the least number of rows for each.
_COLUMN_BLOCKS, _LEAST_ROWS = 4, 64
#: The kernels, by source file and name; {0} is the element type.
KERNELS = {
    "row_check.cuh": ("check_product_rows<{0}, true>", "check_product_rows<{0}, false>"),
    "vector_products.cuh": (
        *("row_products<{0}>", "column_products<{0}, true>", "column_products<{0}, false>", "add_parts<{0}>"),
    ),
}
_GOLDEN = (5**0.5 - 1) / 2


class ProductLayout(NamedTuple):
    """Shape and strides of a product's operands A (m × k), B (k × w) and C (m × w); strides count elements."""

    dtype: str
    m: int
    k: int
    w: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int]


def checksum_dtype(dtype: str) -> type:
    """Return the NumPy type of checksums of a matrix of type `dtype`."""
    return np.float32 if ITEMSIZE[dtype] == 2 else np.float64


def weights_of(n: int) -> np.ndarray:
    """Return the weights v_j of n columns, in (½, 1]: as different as possible, so that wrong elements do not cancel.

    The fractional parts of multiples of the golden ratio are evenly spread, and those of neighbors far apart.
    """
    return 1 - (np.arange(n) * _GOLDEN % 1) / 2


def _kernel(machine: Machine, file: str, number: int, dtype: str) -> Any:
    """Return a kernel of `KERNELS` for a dtype; all kernels of its file for that dtype are compiled together."""
    names = [f"abft::{name}".format(ELEMENT[dtype]) for name in KERNELS[file]]
    return machine.kernels(FOLDER / file, *names)[number]


@lru_cache(maxsize=4096)
def _row_launch(machine: Machine, dtype: str, m: int, n: int, stride: int) -> tuple[Launch, Lock]:
    of = structure(ROWS, data=None, row_stride=stride, rows=m, columns=n)
    arguments = of, *(np.uint64(0),) * 3
    kernel = _kernel(machine, "vector_products.cuh", 0, dtype)
    with machine.current():
        return machine.bind(kernel, (m,), (_LINE_THREADS,), arguments, dependent=False), Lock()


def row_products(
    machine: Machine, stream: int, matrix: tuple[str, int, int, int], pointers: tuple[int, int, int, int]
) -> None:
    """Launch row_products (vector_products.cuh).

    Parameters
    ----------
    machine : Machine
    stream : int
    matrix : tuple
        The dtype, the numbers of rows and columns, and the distance of rows in elements.
    pointers : tuple of int
        Addresses of the matrix, the vector, the sums and the roots.
    """
    launch, lock = _row_launch(machine, *matrix)
    with lock:
        for place, pointer in enumerate(pointers):
            launch.change(place, pointer)
        launch.on(stream)


@lru_cache(maxsize=4096)
def parts_of(machine: Machine, dtype: str, m: int, n: int) -> int:
    """Return the number of parts of the rows of a matrix (m × n) whose columns are summed."""
    strips = max(1, -(-n // (32 * _VECTOR_BYTES // ITEMSIZE[dtype])))
    return max(1, min(-(-m // _LEAST_ROWS), _COLUMN_BLOCKS * machine.gpu.multiprocessors // strips))


@lru_cache(maxsize=4096)
def _column_launches(
    machine: Machine, dtype: str, m: int, n: int, stride: int, squares: bool
) -> tuple[Launch, Launch, Lock]:
    of = structure(ROWS, data=None, row_stride=stride, rows=m, columns=n)
    nothing, parts = np.uint64(0), parts_of(machine, dtype, m, n)
    strips = -(-n // (32 * _VECTOR_BYTES // ITEMSIZE[dtype]))
    sums = _kernel(machine, "vector_products.cuh", 1 if squares else 2, dtype)
    total = _kernel(machine, "vector_products.cuh", 3, dtype)
    sizes = nothing, np.int64(parts), np.int64(n), *(nothing,) * 3
    with machine.current():
        first = machine.bind(sums, (strips, parts), (_COLUMN_THREADS,), (of, nothing, nothing), dependent=False)
        grid = (-(-n // _PART_THREADS),)
        return first, machine.bind(total, grid, (_PART_THREADS,), sizes, dependent=False), Lock()


def column_products(
    machine: Machine,
    stream: int,
    matrix: tuple[str, int, int, int],
    pointers: tuple[int, int, int, int],
    *,
    roots: int = 0,
    totals: int = 0,
) -> None:
    """Launch column_products and add_parts (vector_products.cuh).

    Parameters
    ----------
    machine, stream, matrix
        As for `row_products`.
    pointers : tuple of int
        Addresses of the matrix, the vector, the partial sums, an array (2, `parts_of`, columns), and the sums.
    roots, totals : int
        The address of the roots of squared sums, or of the columns' sums without weights; one of both is 0.
    """
    first, second, lock = _column_launches(machine, *matrix, roots != 0)
    data, u, parts, sums = pointers
    with lock:
        for place, pointer in enumerate((data, u, parts)):
            first.change(place, pointer)
        first.on(stream)
        for place, pointer in ((0, parts), (3, sums), (4, roots), (5, totals)):
            second.change(place, pointer)
        second.on(stream)


#: A function that launches the check of a product on a stream, with addresses by the names of `_CHANGED`.
Check = Callable[..., None]
# The members of CheckArgs that differ between launches, in the order of arguments.
_CHANGED = ("of.A.data", "of.C.data", "of.B.data", "bias", "bias_sum", "v", "x", "y", "p", "is_stale", "call")


def check_args(layout: ProductLayout, bounds: LinearBounds, log: FaultLog, repairs: bool) -> Any:
    """Return `CHECK_ARGS` for products of a layout, but for what differs between launches."""
    args = np.zeros((), CHECK_ARGS)
    of = args["of"]
    for name, strides in (("A", layout.a), ("B", layout.b), ("C", layout.c)):
        of[name]["row_stride"], of[name]["column_stride"] = strides
    of["m"], of["k"], of["w"] = layout.m, layout.k, layout.w
    args["repairs"], args["bounds"] = repairs, element_bounds(bounds.element)
    for name in ROW_LIMITS.names or ():
        args["limits"][name] = getattr(bounds, name)
    args["list"] = (address(log.faults), address(log.count), log.capacity)
    return args[()]


def row_check(
    machine: Machine, layout: ProductLayout, bounds: LinearBounds, log: FaultLog, fused: bool, repairs: bool
) -> Check:
    """Return a function that launches check_product_rows (row_check.cuh) for products of one layout.

    Parameters
    ----------
    machine : Machine
    layout : ProductLayout
        A with contiguous rows if `fused`; C with contiguous rows.
    bounds : LinearBounds
    log : FaultLog
    fused : bool
        Whether the kernel also computes the products of A's rows with x; otherwise they are given as p.
    repairs : bool

    Returns
    -------
    callable
        Called with a stream, and values for the names of `_CHANGED`, in this order.
    """
    kernel = _kernel(machine, "row_check.cuh", 0 if fused else 1, layout.dtype)
    grid, lock = (-(-layout.m // _CHECK_ROWS),), Lock()
    with machine.current():
        launch = machine.bind(kernel, grid, (_CHECK_THREADS,), (check_args(layout, bounds, log, repairs),))
    (of_a, of_c, *words), change, on = CHANGED_WORDS, launch.change, launch.on
    before: tuple[int, ...] = ()

    def check(stream: int, a: int, c: int, *others: int) -> None:
        nonlocal before
        with lock:
            change(0, a, of_a)
            change(0, c, of_c)
            if before != others:
                for word, value in zip(words, others, strict=True):
                    change(0, value, word)
                before = others
            on(stream)

    return check


def _word(dtype: np.dtype, path: str) -> int:
    """Return the offset of a member of a structure in 8-byte words."""
    at = 0
    for name in path.split("."):
        assert dtype.fields is not None  # a structure
        dtype, offset = dtype.fields[name][:2]
        at += offset
    return at // 8


#: Their offsets in 8-byte words.
CHANGED_WORDS = [_word(CHECK_ARGS, path) for path in _CHANGED]
