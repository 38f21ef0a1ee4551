"""Plans and arrays to results: the only place of the core that knows grids and streams.

Everything here is launched on CuPy's current stream.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.build import Cubin, architecture, build
from tsapps.kernels.plan import SUM, Plan, RowsPlan
from tsapps.kernels.problem import Problem

__all__ = [
    "PUBLISHED",
    "ColumnsPlan",
    "Launch",
    "columns_plan",
    "published",
    "tall_skinny",
    "tsm2l_rows",
    "tsm2r_columns",
]

#: Computes C ← alpha · A · B + beta · C on CuPy's current stream, of the addresses of A, B and C, and alpha and beta.
Launch = Callable[[int, int, int, float, float], None]

_FOLDER = Path(__file__).resolve().parent / "tsm2"
_SCALARS = {"float32": "float", "float64": "double"}
#: TSM2 as published: its steps, by name.
PUBLISHED = ("tsm2_v0", "tsm2_v1", "tsm2_v2", "tsm2_v3")


@cache
def _kernel(header: str, name: str, device: int) -> Any:
    """Return a kernel of kernels/tsm2/, by its name expression, loaded on a GPU."""
    import cupy

    cubin = compiled(header, name, architecture(device))
    with cupy.cuda.Device(device):
        return cupy.RawModule(path=str(cubin.path)).get_function(cubin.names[name])


def compiled(header: str, name: str, arch: str) -> Cubin:
    """Compile one kernel of kernels/tsm2/ for an architecture; needs no GPU."""
    return build(f'#include "kernels/tsm2/{header}"\n', [name], arch)


def _check(A: Any, B: Any) -> tuple[int, int, int]:
    """Return m, k, w of a product of two CuPy matrices."""
    if A.ndim != 2 or B.ndim != 2 or A.shape[1] != B.shape[0]:
        raise ValueError(f"A has shape {A.shape} and B {B.shape}; expected (m, k) and (k, w)")
    if 0 in (*A.shape, *B.shape):
        raise ValueError(f"A has shape {A.shape} and B {B.shape}; expected at least one row and column")
    if A.dtype != B.dtype or A.dtype.name not in _SCALARS:
        raise ValueError(f"A has dtype {A.dtype} and B {B.dtype}; expected float32 or float64, the same for both")
    if A.strides[0] != A.itemsize:
        raise ValueError(f"A has strides {A.strides}; expected column-major, (itemsize, leading dimension · itemsize)")
    return *A.shape, B.shape[1]


def published(variant: str, A: Any, B: Any, *, t1: int = 128, t2: int = 4, t3: int = 4) -> Any:
    """Multiply by TSM2 as published.

    Parameters
    ----------
    variant : {"tsm2_v0", "tsm2_v1", "tsm2_v2", "tsm2_v3"}
    A : cupy.ndarray of shape (m, k), float32 or float64, column-major
    B : cupy.ndarray of shape (k, w), of A's dtype, column-major
    t1, t2, t3 : int
        Threads a block, columns of C at a time, and elements of A fetched at a time.

    Returns
    -------
    cupy.ndarray of shape (m, w), column-major

    Raises
    ------
    ValueError
        If an argument is none of these.
    """
    import cupy

    if variant not in PUBLISHED:
        raise ValueError(f"variant must be one of {', '.join(PUBLISHED)}, got {variant!r}")
    m, k, w = _check(A, B)
    if B.strides[0] != B.itemsize:
        raise ValueError(f"B has strides {B.strides}; expected column-major, (itemsize, leading dimension · itemsize)")
    C = cupy.empty((m, w), A.dtype, order="F")
    name = f"tsm2::{variant}<{_SCALARS[A.dtype.name]}, {t1}, {t2}, {t3}>"
    sizes = (np.int64(m), np.int64(k), np.int32(w), *(np.int64(_leading(X)) for X in (A, B, C)))
    _kernel("published.cuh", name, A.device.id)((-(-m // t1),), (t1,), (A, B, C, *sizes))
    return C


def _leading(X: Any) -> int:
    """Return the leading dimension of a column-major matrix; of a single column, its length."""
    return X.strides[1] // X.itemsize if X.shape[1] > 1 else X.shape[0]


@dataclass(frozen=True)
class ColumnsPlan:
    """How tsm2r_columns is instantiated and launched.

    Attributes
    ----------
    width : int
        Columns of C at a time.
    unroll : int
        Columns of A a step.
    threads : int
        A block.
    vector : bool
        Whether A is read 16 bytes at a time.
    splits, per_split : int
        Parts of k, and columns of A in each.
    """

    width: int
    unroll: int
    threads: int
    vector: bool
    splits: int
    per_split: int


# (unroll, threads, blocks an SM) by bytes of an element and width: the fastest of 106 instances on an H200 at
# n = 10,240 and 30,720. Blocks an SM follow from registers, which the tests hold against what the compiler says.
_TUNED = {
    (4, 1): (8, 128, 5),
    (4, 2): (8, 128, 4),
    (4, 4): (4, 128, 6),
    (4, 8): (4, 128, 4),
    (4, 16): (4, 512, 1),
    (8, 1): (4, 256, 4),
    (8, 2): (4, 256, 3),
    (8, 4): (4, 128, 6),
    (8, 8): (4, 128, 5),
    (8, 16): (4, 256, 1),
}
# Splits are whole tiles of B, and no shorter than this: a split costs a round of partial sums.
_TILE, _LEAST_TILES = 64, 4


def columns_plan(m: int, k: int, w: int, itemsize: int, *, vector: bool, multiprocessors: int) -> ColumnsPlan:
    """Plan tsm2r_columns for a product: pure.

    k is split so that the blocks fill the GPU once: a second, partly filled wave cost up to a tenth at n = 10,240.
    """
    width = next((size for size in (1, 2, 4, 8) if w <= size), 16)
    unroll, threads, blocks = _TUNED[itemsize, width]
    tiles = -(-m // (threads * 16 // itemsize)) * -(-w // width)
    splits = max(1, min(multiprocessors * blocks // tiles, k // (_TILE * _LEAST_TILES), 65_535))
    per_split = -(-k // splits // _TILE) * _TILE
    return ColumnsPlan(width, unroll, threads, vector, -(-k // per_split), per_split)


def tsm2r_columns(A: Any, B: Any, *, alpha: float = 1.0, beta: float = 0.0, out: Any = None) -> Any:
    """Compute alpha · A · B + beta · out by tsm2r_columns.cuh.

    Parameters
    ----------
    A : cupy.ndarray of shape (m, k), float32 or float64, column-major, any leading dimension
    B : cupy.ndarray of shape (k, w), of A's dtype, any strides
    alpha, beta : float
    out : cupy.ndarray of shape (m, w), of A's dtype, any strides, optional
        Not read where beta is 0; made, column-major, where it is not given.

    Returns
    -------
    cupy.ndarray of shape (m, w)
        `out`.

    Raises
    ------
    ValueError
        If an argument is none of these.

    Notes
    -----
    |C − AB| ≤ γ(k)·|A||B|, γ(k) = k·u / (1 − k·u), element by element. The same bits on every run.
    """
    import cupy

    m, k, w = _check(A, B)
    if out is None:
        if beta != 0:
            raise ValueError(f"beta is {beta}, and there is no `out` to scale by it")
        out = cupy.empty((m, w), A.dtype, order="F")
    elif out.shape != (m, w) or out.dtype != A.dtype:
        raise ValueError(f"out has shape {out.shape} and dtype {out.dtype}; expected {(m, w)} and {A.dtype}")
    lda, itemsize = _leading(A), A.itemsize
    vector = A.data.ptr % 16 == 0 and lda * itemsize % 16 == 0
    device = A.device.id
    processors = cupy.cuda.Device(device).attributes["MultiProcessorCount"]
    plan = columns_plan(m, k, w, itemsize, vector=vector, multiprocessors=processors)
    scalar = _SCALARS[A.dtype.name]
    store = np.array(
        (out.data.ptr, out.strides[0] // itemsize, out.strides[1] // itemsize, alpha, beta),
        [("C", "u8"), ("row_stride", "i8"), ("column_stride", "i8"), ("alpha", A.dtype), ("beta", A.dtype)],
    )[()]
    tiles = (-(-m // (plan.threads * 16 // itemsize)), -(-w // plan.width))
    count = tiles[0] * tiles[1] if plan.splits > 1 else 0
    partial = cupy.empty(count * plan.splits * plan.threads * 16 // itemsize * plan.width, A.dtype)
    arrived = cupy.zeros(count, np.uint32)
    strides = (np.int64(stride // itemsize) for stride in B.strides)
    sizes = (np.int64(m), np.int64(k), np.int32(w), np.int64(plan.per_split))
    _kernel("tsm2r_columns.cuh", _columns_name(plan, scalar), device)(
        (tiles[0], plan.splits, tiles[1]),
        (plan.threads,),
        (A, np.int64(lda), B, *strides, *sizes, partial, arrived, store),
    )
    return out


def _columns_name(plan: ColumnsPlan, scalar: str) -> str:
    instance = f"{scalar}, {scalar}, {plan.width}, {plan.unroll}, {plan.threads}, {str(plan.vector).lower()}"
    return f"tsm2r_columns<{instance}, Store<{scalar}, {scalar}>>"


# --- tall_skinny.cuh -----------------------------------------------------------------------------------------------

_SOURCE = np.dtype([("data", "u8"), ("leading", "i8"), ("outer", "i8"), ("depth", "i8"), ("size", "i8")])
_WORK = np.dtype([("m", "i8"), ("n", "i8"), ("k", "i8")])


def compiled_plan(plan: Plan, arch: str) -> tuple[Cubin, str]:
    """Compile the kernel of a plan for an architecture, and return it with its name expression; needs no GPU."""
    name = f"tsm2::tall_skinny<Plan, {plan.epilogue()}>"
    return build(f'#include "kernels/tsm2/tall_skinny.cuh"\n{plan.struct()}\n', [name], arch), name


@cache
def _planned_kernel(plan: Plan, device: int) -> Any:
    """Return the kernel of a plan, loaded on a GPU."""
    import cupy

    cubin, name = compiled_plan(plan, architecture(device))
    with cupy.cuda.Device(device):
        kernel = cupy.RawModule(path=str(cubin.path)).get_function(cubin.names[name])
        kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    return kernel


@cache
def _multiprocessors(device: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])


# For each GPU and stream, memory for partial sums and for the counts of blocks that arrived, which every launch leaves
# at zero. Launches on one stream follow each other, so that they can share it.
_workspaces: dict[tuple[int, int], tuple[Any, Any]] = {}


def _workspace(device: int, bytes_of_sums: int, counts: int) -> tuple[Any, Any]:
    """Return memory for partial sums and zeroed counts on the current stream."""
    import cupy

    key = device, cupy.cuda.get_current_stream().ptr
    sums, arrived = _workspaces.get(key, (None, None))
    if sums is None or sums.size < bytes_of_sums:
        sums = cupy.empty(bytes_of_sums, cupy.uint8)
    if arrived is None or arrived.size < counts:
        arrived = cupy.zeros(max(counts, 4096), cupy.uint32)
    _workspaces[key] = sums, arrived
    return sums, arrived


def tall_skinny(plan: Plan, problem: Problem, C: DeviceMatrix) -> Launch:
    """Return what computes a product by tall_skinny.cuh.

    Parameters
    ----------
    plan : Plan
        Made for `problem`.
    problem : Problem
    C : DeviceMatrix of shape (m, w)
        The result, or one that lies like it: of the same strides, and aligned alike.
    """
    total = np.dtype(np.float64 if SUM[plan.dtype] == "double" else np.float32)
    m, k, w = problem.m * plan.fold, -(-problem.k // plan.fold), problem.w * plan.fold
    device = C.device
    grid, block = (min(plan.units(m, k, w), _multiprocessors(device) * plan.blocks),), (plan.threads,)
    sums, counts, shared = 2 * grid[0] * plan.tile_sums * total.itemsize, 3 * grid[0], plan.shared_bytes
    rows, columns = (stride // C.itemsize for stride in C.strides)
    fields = ("C", "u8"), ("rows", "i8"), ("columns", "i8"), ("lies", "i8"), ("alpha", total), ("beta", total)
    store = np.array((0, rows, columns, _lies(plan, problem, C), 0, 0), [*fields])
    a = np.array((0, problem.a.leading * plan.fold, m, k, problem.a.size(problem.m, problem.k)), _SOURCE)
    b = np.array((0, problem.b.leading * plan.fold, w, k, problem.b.size(problem.w, problem.k)), _SOURCE)
    work = np.array((m, w, k), _WORK)[()]
    kernel = _planned_kernel(plan, device)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        # Copies, as other threads may be launching the same.
        a_here, b_here, store_here = a.copy(), b.copy(), store.copy()
        a_here["data"], b_here["data"] = A, B
        store_here["C"], store_here["alpha"], store_here["beta"] = C, alpha, beta
        partial, arrived = _workspace(device, sums, counts)
        arguments = (a_here[()], b_here[()], work, partial, arrived, store_here[()])
        kernel(grid, block, arguments, shared_mem=shared)

    return launch


def _lies(plan: Plan, problem: Problem, C: DeviceMatrix) -> int:
    """Return how C lies in memory, by the numbers of epilogue.cuh's `Lies`."""
    anyhow, packed, in_pairs = range(3)
    rows, columns = (stride // C.itemsize for stride in C.strides)
    blocks, elements = (16, 4) if C.itemsize == 2 else (8, 2)
    if columns != 1 and problem.w > 1:
        return anyhow
    if problem.w % blocks == 0 and rows % elements == 0 and C.pointer % (elements * C.itemsize) == 0:
        return in_pairs
    whole = rows == plan.tile_n == problem.w and plan.warps_n == 1
    return packed if whole and C.pointer % 16 == 0 else anyhow


# --- tsm2l_rows.cuh ------------------------------------------------------------------------------------------------

# Blocks that are launched for each multiprocessor: more than fit at a time, so that all end at about the same time.
_ROWS_BLOCKS = 64


def tsm2l_rows(plan: RowsPlan, problem: Problem, C: DeviceMatrix) -> Launch:
    """Return what computes a product by tsm2l_rows.cuh; arguments as for `tall_skinny`."""
    total = np.float64 if SUM[plan.dtype] == "double" else np.float32
    blocks = -(-problem.m // (plan.rows * plan.threads))
    grid, block = (max(1, min(blocks, _multiprocessors(C.device) * _ROWS_BLOCKS)),), (plan.threads,)
    along, leading = problem.b.along_depth, problem.b.leading
    b_row, b_column = np.int64(1 if along else leading), np.int64(leading if along else 1)
    m, kernel = np.int64(problem.m), _kernel("tsm2l_rows.cuh", plan.kernel(), C.device)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        pointers = np.uint64(A), np.uint64(B), b_row, b_column, np.uint64(C)
        kernel(grid, block, (*pointers, m, total(alpha), total(beta)))

    return launch
