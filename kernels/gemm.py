"""Plans and arrays to results: the only place of the core that knows grids and streams.

Everything here is launched on CuPy's current stream.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.blas import cublas
from tsapps.kernels.jit.compiler import Cubin, Kernel, Resources, architecture, build
from tsapps.kernels.plan.mma import STORE_HEADER, SUM, LibraryAlgorithm, Plan, WarpgroupPlan
from tsapps.kernels.plan.simt import AnyPlan, ColumnsPlan, RowsPlan, SmallTsmttsmPlan, SplitPlan, WidePlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import DependentLaunch
from tsapps.kernels.runtime.workspace import scratch, zeroed_counts

__all__ = [
    "PAPER_KERNELS",
    "Launch",
    "PlannedKernel",
    "blocks_of",
    "compile_any",
    "prepare",
    "tall_skinny",
    "tsm2_paper",
    "tsm2l_columns",
    "tsm2l_rows",
    "tsm2r_columns",
    "tsmttsm_few",
]

#: Computes C ← alpha · A · B + beta · C on CuPy's current stream, of the addresses of A, B and C, and alpha and beta.
Launch = Callable[[int, int, int, float, float], None]

_SCALARS = {"float32": "float", "float64": "double"}
#: TSM2 as published: its steps, by name.
PAPER_KERNELS = ("tsm2_v0", "tsm2_v1", "tsm2_v2", "tsm2_v3")


@cache
def _kernel(header: str, name: str, device: int) -> Any:
    """Return a kernel of a header, by its name expression, loaded on a GPU."""
    import cupy

    cubin = compiled(header, name, architecture(device))
    with cupy.cuda.Device(device):
        return cupy.RawModule(path=str(cubin.path)).get_function(cubin.names[name])


def compiled(header: str, name: str, arch: str) -> Cubin:
    """Compile one kernel of a header for an architecture; needs no GPU."""
    return build(f'#include "{header}"\n', [name], arch)


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


def tsm2_paper(variant: str, A: Any, B: Any, *, t1: int = 128, t2: int = 4, t3: int = 4) -> Any:
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

    if variant not in PAPER_KERNELS:
        raise ValueError(f"variant must be one of {', '.join(PAPER_KERNELS)}, got {variant!r}")
    m, k, w = _check(A, B)
    if B.strides[0] != B.itemsize:
        raise ValueError(f"B has strides {B.strides}; expected column-major, (itemsize, leading dimension · itemsize)")
    C = cupy.empty((m, w), A.dtype, order="F")
    name = f"tsm2::{variant}<{_SCALARS[A.dtype.name]}, {t1}, {t2}, {t3}>"
    sizes = (np.int64(m), np.int64(k), np.int32(w), *(np.int64(_leading(X)) for X in (A, B, C)))
    _kernel("kernels/ladder/tsm2_paper.cuh", name, A.device.id)((-(-m // t1),), (t1,), (A, B, C, *sizes))
    return C


def _leading(X: Any) -> int:
    """Return the leading dimension of a column-major matrix; of a single column, its length."""
    return X.strides[1] // X.itemsize if X.shape[1] > 1 else X.shape[0]


# --- gemm_mma.cuh and gemm_wgmma.cuh ------------------------------------------------------------------

_SOURCE = np.dtype([("data", "u8"), ("leading", "i8"), ("outer", "i8"), ("depth", "i8"), ("size", "i8")])
_WORK = np.dtype([("m", "i8"), ("n", "i8"), ("k", "i8")])


def _source_of(plan: Plan, epilogue: str = "", header: str = "") -> tuple[str, str]:
    """Return the source of a plan's kernel, and its name expression.

    `epilogue` is the class of an app's own, and `header` where it is; else it is the plan's, which stores C.
    """
    source = f'#include "{plan.header}"\n#include "{header or STORE_HEADER}"\n{plan.struct()}\n'
    return source, f"tsm2::{plan.kernel_name}<Plan, {epilogue or plan.epilogue()}>"


def compiled_plan(plan: Plan, arch: str, epilogue: str = "", header: str = "") -> tuple[Cubin, str]:
    """Compile the kernel of a plan for an architecture, and return it with its name expression; needs no GPU.

    `epilogue` and `header` as for `_source_of`.
    """
    source, name = _source_of(plan, epilogue, header)
    return build(source, [name], arch), name


@cache
def _planned_kernel(plan: Plan, device: int, epilogue: str = "", header: str = "") -> Kernel:
    """Return the kernel of a plan, for a GPU."""
    source, name = _source_of(plan, epilogue, header)
    kernel = Kernel(source, [name], name, device)
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    return kernel


@cache
def _multiprocessors(device: int) -> int:
    import cupy

    return int(cupy.cuda.Device(device).attributes["MultiProcessorCount"])


def _workspace(device: int, bytes_of_sums: int, counts: int) -> tuple[Any, Any]:
    """Return memory for partial sums and zeroed counts on the current stream."""
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    return scratch(device, stream, bytes_of_sums), zeroed_counts(device, stream, counts)


def tall_skinny(plan: Plan, problem: Problem, C: DeviceMatrix) -> Launch:
    """Return what computes a product by gemm_mma.cuh, or by gemm_wgmma.cuh.

    Parameters
    ----------
    plan : Plan
        Made for `problem`.
    problem : Problem
    C : DeviceMatrix of shape (m, w)
        The result, or one that lies like it: of the same strides, and aligned alike.
    """
    total = np.dtype(np.float64 if SUM[plan.dtype] == "double" else np.float32)
    rows, columns = (stride // C.itemsize for stride in C.strides)
    fields = ("C", "u8"), ("rows", "i8"), ("columns", "i8"), ("regular", "i8"), ("alpha", total), ("beta", total)
    store = np.array((0, rows, columns, _regular(plan, problem), 0, 0), [*fields])
    multiply = PlannedKernel(plan, problem, C.device)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        store_here = store.copy()  # as other threads may be launching the same
        store_here["C"], store_here["alpha"], store_here["beta"] = C, alpha, beta
        multiply(A, B, store_here[()])

    return launch


def blocks_of(plan: Plan, problem: Problem, device: int) -> int:
    """Return how many blocks a plan is launched with."""
    m, k, w = problem.m * plan.fold, -(-problem.k // plan.fold), problem.w * plan.fold
    return min(-(-plan.units(m, k, w) // plan.teams), _multiprocessors(device) * plan.blocks)


class PlannedKernel:
    """A plan's kernel with an epilogue, for products that lie alike.

    Products are given by the addresses of A and B, and by the epilogue as a NumPy structure.

    Parameters
    ----------
    plan : Plan
        Made for `problem`.
    problem : Problem
    device : int
    epilogue, header : str
        As for `compiled_plan`.
    """

    def __init__(self, plan: Plan, problem: Problem, device: int, epilogue: str = "", header: str = "") -> None:
        total = np.dtype(np.float64 if SUM[plan.dtype] == "double" else np.float32)
        m, k, w = problem.m * plan.fold, -(-problem.k // plan.fold), problem.w * plan.fold
        self._device, self._grid, self._block = device, (blocks_of(plan, problem, device),), (plan.threads,)
        self._sums, self._counts = 2 * self._grid[0] * plan.tile_sums * total.itemsize, 3 * self._grid[0]
        self._shared_bytes = plan.shared_bytes
        self._a = np.array((0, problem.a.leading * plan.fold, m, k, problem.a.size(problem.m, problem.k)), _SOURCE)
        self._b = np.array((0, problem.b.leading * plan.fold, w, k, problem.b.size(problem.w, problem.k)), _SOURCE)
        self._work = np.array((m, w, k), _WORK)[()]
        self._kernel = _planned_kernel(plan, device, epilogue, header)

    def __call__(self, A: int, B: int, epilogue: Any) -> None:
        """Compute one product on the current stream."""
        arguments = self._arguments(A, B, self._workspace(), epilogue)
        self._kernel(self._grid, self._block, arguments, shared_mem=self._shared_bytes)

    def packed(self, A: int, B: int, epilogue: Any) -> DependentLaunch:
        """Return the launch of the same product again and again, on the stream that is current now."""
        return self._overlapping(A, B, self._workspace(), epilogue)

    def unbound(self, epilogue: Any) -> DependentLaunch:
        """Return the launch of products that `run` tells it of; what is an address in the epilogue may be any."""
        return self._overlapping(0, 0, (np.uint64(0), np.uint64(0)), epilogue)

    def run(self, launch: DependentLaunch, A: int, B: int, epilogue: Iterable[tuple[int, int]]) -> None:
        """Compute one product by a launch from `unbound`; not by several threads at a time.

        `epilogue` tells which words of eight bytes of the epilogue are which addresses.
        """
        workspace = self._workspace()  # held until it is launched
        # The places of `_arguments`.
        for place, address in ((0, A), (1, B), (3, workspace[0].data.ptr), (4, workspace[1].data.ptr)):
            launch.change(place, address)
        for word, address in epilogue:
            launch.change(5, address, word)
        launch()

    def _workspace(self) -> tuple[Any, Any]:
        return _workspace(self._device, self._sums, self._counts)

    def _overlapping(self, A: int, B: int, workspace: tuple[Any, Any], epilogue: Any) -> DependentLaunch:
        arguments = self._arguments(A, B, workspace, epilogue)
        return DependentLaunch(self._kernel, self._grid, self._block, arguments, self._shared_bytes)

    def _arguments(self, A: int, B: int, workspace: tuple[Any, Any], epilogue: Any) -> tuple[Any, ...]:
        a, b = self._a.copy(), self._b.copy()  # as other threads may be launching the same
        a["data"], b["data"] = A, B
        return a[()], b[()], self._work, *workspace, epilogue


def _regular(plan: Plan, problem: Problem) -> bool:
    """Return whether C lies as is best for the plan's epilogue (epilogue.cuh)."""
    if plan.store == "StoreLines":
        return problem.c == "aligned columns"
    return problem.c == "packed" and plan.tile_n == problem.w and plan.warps_n == 1


# --- tsm2l_rows.cuh, tsm2l_wide.cuh and tsm2l_columns.cuh ----------------------------------------------------------

# Blocks that are launched for each multiprocessor: more than fit at a time, so that all end at about the same time.
_ROWS_BLOCKS, _COLUMNS_BLOCKS = 64, 16


def _b_strides(problem: Problem) -> tuple[np.int64, np.int64]:
    along, leading = problem.b.along_depth, problem.b.leading
    return np.int64(1 if along else leading), np.int64(leading if along else 1)


def tsm2l_rows(plan: RowsPlan | WidePlan, problem: Problem, C: DeviceMatrix) -> Launch:
    """Return what computes a product by tsm2l_rows.cuh, or by tsm2l_wide.cuh; arguments as for `tall_skinny`."""
    total = np.float64 if SUM[plan.dtype] == "double" else np.float32
    blocks = -(-problem.m // (plan.rows * plan.threads if isinstance(plan, RowsPlan) else plan.rows))
    grid, block = (max(1, min(blocks, _multiprocessors(C.device) * _ROWS_BLOCKS)),), (plan.threads,)
    strides, m, kernel = _b_strides(problem), np.int64(problem.m), _kernel(plan.header, plan.kernel(), C.device)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        kernel(grid, block, (np.uint64(A), np.uint64(B), *strides, np.uint64(C), m, total(alpha), total(beta)))

    return launch


def tsm2l_columns(plan: ColumnsPlan, problem: Problem, C: DeviceMatrix) -> Launch:
    """Return what computes a product by simt/tsm2l_columns.cuh; arguments as for `tall_skinny`."""
    total = np.float64 if SUM[plan.dtype] == "double" else np.float32
    blocks = -(-problem.m // (16 // C.itemsize * plan.threads))
    grid, block = (min(blocks, _multiprocessors(C.device) * _COLUMNS_BLOCKS),), (plan.threads,)
    lda, ldc = np.int64(problem.a.leading), np.int64(C.strides[1] // C.itemsize)
    strides, m, kernel = _b_strides(problem), np.int64(problem.m), _kernel(plan.header, plan.kernel(), C.device)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        pointers = np.uint64(A), lda, np.uint64(B), *strides, np.uint64(C), ldc
        kernel(grid, block, (*pointers, m, total(alpha), total(beta)))

    return launch


# --- tsm2r_columns.cuh ---------------------------------------------------------------------------------------------


def tsm2r_columns(plan: SplitPlan, problem: Problem, C: DeviceMatrix) -> Launch:
    """Return what computes a product by simt/tsm2r_columns.cuh; arguments as for `tall_skinny`."""
    device, size, total = C.device, C.itemsize, np.dtype(np.float64 if SUM[plan.dtype] == "double" else np.float32)
    tiles = -(-problem.m // (plan.threads * 16 // size)), -(-problem.w // plan.width)
    grid, block = (tiles[0], plan.splits, tiles[1]), (plan.threads,)
    counts = tiles[0] * tiles[1] if plan.splits > 1 else 0
    sums = counts * plan.splits * plan.threads * 16 // size * plan.width * total.itemsize
    rows, columns = (stride // size for stride in C.strides)
    fields = ("C", "u8"), ("row_stride", "i8"), ("column_stride", "i8"), ("alpha", total), ("beta", total)
    store = np.array((0, rows, columns, 0, 0), [*fields])
    lda, strides = np.int64(problem.a.leading), _b_strides(problem)
    sizes = np.int64(problem.m), np.int64(problem.k), np.int32(problem.w), np.int64(plan.per_split)
    kernel = _kernel(plan.header, plan.kernel(), device)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        store_here = store.copy()
        store_here["C"], store_here["alpha"], store_here["beta"] = C, alpha, beta
        workspace = _workspace(device, sums, counts)
        kernel(grid, block, (np.uint64(A), lda, np.uint64(B), *strides, *sizes, *workspace, store_here[()]))

    return launch


# --- tsmttsm_small.cuh -----------------------------------------------------------------------------------------------

_SMALL_BLOCKS = 4  # a multiprocessor


def tsmttsm_few(plan: SmallTsmttsmPlan, problem: Problem, C: DeviceMatrix) -> Launch:
    """Return what computes a product by simt/tsmttsm_small.cuh; arguments as for `tall_skinny`."""
    device, total = C.device, np.dtype(np.float64 if SUM[plan.dtype] == "double" else np.float32)
    blocks = -(-problem.k // (plan.depth * plan.threads))
    grid, block = (min(blocks, _multiprocessors(device) * _SMALL_BLOCKS),), (plan.threads,)
    sums, kernel = grid[0] * plan.m * plan.w * total.itemsize, _kernel(plan.header, plan.kernel(), device)
    lda, ldb, k = np.int64(problem.a.leading), np.int64(problem.b.leading), np.int64(problem.k)
    strides = tuple(np.int64(stride // C.itemsize) for stride in C.strides)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        pointers = np.uint64(A), lda, np.uint64(B), ldb, np.uint64(C)
        workspace = _workspace(device, sums, 1)
        kernel(grid, block, (*pointers, *strides, k, *workspace, total.type(alpha), total.type(beta)))

    return launch


_LAUNCHERS: dict[str, Callable[..., Launch]] = {
    Plan.kernel_name: tall_skinny,
    WarpgroupPlan.kernel_name: tall_skinny,
    RowsPlan.kernel_name: tsm2l_rows,
    WidePlan.kernel_name: tsm2l_rows,
    ColumnsPlan.kernel_name: tsm2l_columns,
    SplitPlan.kernel_name: tsm2r_columns,
    SmallTsmttsmPlan.kernel_name: tsmttsm_few,
    LibraryAlgorithm.kernel_name: cublas.algorithm,
}


def prepare(plan: AnyPlan, problem: Problem, C: DeviceMatrix) -> Launch:
    """Return what computes a product by the plan's kernel; arguments as for `tall_skinny`."""
    return _LAUNCHERS[plan.kernel_name](plan, problem, C)


def compile_any(plan: AnyPlan, arch: str) -> Resources:
    """Compile the kernel of a plan for an architecture, and return what it uses; needs no GPU."""
    if isinstance(plan, LibraryAlgorithm):
        return Resources(0, 0, 0, 0, 0)
    if isinstance(plan, Plan):
        cubin, name = compiled_plan(plan, arch)
    else:
        name = plan.kernel()
        cubin = compiled(plan.header, name, arch)
    return cubin.resources[name]
