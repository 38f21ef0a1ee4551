"""Autotuning: measures candidate plans and cuBLAS on a GPU, and yields the rows of a tuning table.

Each plan is checked against cuBLAS before it is timed. The tables that ship with tsapps (kernels/plan/tuned/) were
measured the same way on the GPUs in their names; redundant rows were then removed.
"""

import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import median
from typing import Any

import numpy as np

from tsapps.kernels.arrays import device_matrix, gapless
from tsapps.kernels.blas import cublas, cublaslt
from tsapps.kernels.blas.cublaslt import LibraryError
from tsapps.kernels.devices import available_cores
from tsapps.kernels.dispatch import compile_any, prepare
from tsapps.kernels.gpu_specs import GpuSpec, live
from tsapps.kernels.jit import compiler
from tsapps.kernels.jit.compiler import architecture
from tsapps.kernels.matmul import problem_of
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.select import (
    ALGORITHM,
    LIBRARY,
    VERSION,
    configuration_of,
    key_of,
    library_algorithms,
    promising,
)
from tsapps.kernels.plan.simt import AnyPlan
from tsapps.kernels.plan.user_table import user_path, user_table, write_table
from tsapps.kernels.problem import ITEMSIZE, NARROW, Problem
from tsapps.kernels.runtime.machine import cuda_machine

__all__ = ["CELLS", "Cell", "own_cell", "promising", "tune", "user_path", "user_table", "write_table"]

#: Minimum speedup over the best plan at which a row names cuBLAS instead, and minimum speedup over both the best plan
#: and cuBLAS at which a row names a cublasLt algorithm.
LEAST_GAIN = 1.02


@dataclass(frozen=True)
class Cell:
    """One product to tune.

    Attributes
    ----------
    shape : {"tsm2r", "tsm2l", "tsmttsm"}
    dtype : str
    m, k, w : int
    along : bool
        True if A is row-major, False if A is column-major.
    """

    shape: str
    dtype: str
    m: int
    k: int
    w: int
    along: bool

    def __str__(self) -> str:
        order = "row" if self.along else "column"
        return f"{self.shape} {self.dtype} {self.m:,} × {self.k:,} × {self.w}, A {order}-major"

    def _by_rows(self) -> tuple[bool, bool, bool]:
        """Return (A is row-major, B is row-major, C is row-major); C of a TSMTTSM is always row-major."""
        small = self.shape == "tsmttsm"
        return self.along, not self.along if small else self.along, self.along or small

    def problem(self) -> Problem:
        """Return the cell as a `Problem` whose operands are aligned and have no gaps."""
        shapes = (self.m, self.k), (self.k, self.w), (self.m, self.w)
        orders = zip(shapes, self._by_rows(), strict=True)
        return problem_of(*(gapless(shape, self.dtype, ITEMSIZE[self.dtype], by_rows=one) for shape, one in orders))

    def operands(self) -> tuple[Any, Any, Any]:
        """Return A and B with normally distributed elements and an uninitialized C, on the current GPU."""
        import cupy

        random = cupy.random.default_rng(1)

        def draw(rows: int, columns: int, by_rows: bool) -> Any:
            shape = (rows, columns) if by_rows else (columns, rows)
            wide = random.standard_normal(shape, dtype="f8" if self.dtype == "float64" else "f4").astype(self.dtype)
            return wide if by_rows else wide.T

        a_by_rows, b_by_rows, c_by_rows = self._by_rows()
        C = cupy.empty((self.m, self.w), self.dtype, order="C" if c_by_rows else "F")
        return draw(self.m, self.k, a_by_rows), draw(self.k, self.w, b_by_rows), C


def _cells() -> Iterable[Cell]:
    """Yield the cells of a full tuning table; the matrices of a cell occupy at most about 3.4 GB."""
    pairs = ((2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (33, 33), (64, 64), (4, 16), (16, 4), (32, 4), (64, 16))
    for dtype, size in (("float64", 8), ("float32", 4), ("float16", 2)):
        for along in (True, False):
            for w in (1, 2, 4, 8, 16, 24, 32, 48, 64):
                yield Cell("tsm2r", dtype, 20_480, 20_480, w, along)
            for k, w in (*pairs, (4, 64), (16, 64)):
                long = min(20_000_000, (2 << 30) // (size * (k + w)) // 1000 * 1000)
                yield Cell("tsm2l", dtype, long, k, w, along)
            for m, w in pairs:
                if w <= m:  # a product with w > m is computed as its transpose
                    yield Cell(
                        "tsmttsm", dtype, m, min(20_000_000, (2 << 30) // (size * (m + w)) // 1000 * 1000), w, along
                    )


CELLS = tuple(_cells())


def own_cell(m: int, k: int, w: int, dtype: str, *, along: bool) -> Cell:
    """Return the cell of one product that the user gives; raise ValueError if w is more than m or `NARROW`."""
    if w > m:
        raise ValueError(f"C is {m:,} × {w:,}; expected w ≤ m: give Cᵀ = Bᵀ · Aᵀ, with m and w exchanged")
    if w > NARROW:
        raise ValueError(f"C is {m:,} × {w:,}; expected w ≤ {NARROW}: cuBLAS computes all wider products")
    return Cell("tsmttsm" if m <= NARROW else "tsm2l" if k <= NARROW else "tsm2r", dtype, m, k, w, along)


def tune(
    cells: Iterable[Cell],
    *,
    most: int = 18,
    index: int = 0,
    architectures: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> Iterator[dict[str, Any]]:
    """Measure the most promising plans of each cell on a GPU, and yield a table row as soon as a cell is done.

    Parameters
    ----------
    cells : iterable of Cell
    most : int
        Maximum number of plans to measure per cell, the fastest by `predict`. Plans that `predict` does not support and
        cublasLt algorithms are measured in addition.
    index : int
        Number of the GPU.
    architectures : sequence of str
        Further architectures for which a plan must compile without register spills, such as ``"sm_80"``.
    report : callable
        Called with one line of progress before each batch of compilations and after each cell.

    Yields
    ------
    dict
        A table row: the key of the cell; the fastest plan, or cuBLAS if that was faster; and the milliseconds of the
        plan and of cuBLAS. If an algorithm of cublasLt was faster than both, the row also names that algorithm.

    Warns
    -----
    UserWarning
        If a cell is skipped: its operands do not fit in GPU memory, or all its plans spill registers.

    Raises
    ------
    ValueError
        If tsapps has no kernel for any of the cells on this GPU.
    RuntimeError
        If a plan's result differs from that of cuBLAS by more than rounding.
    """
    device, kinds = live(index), (architecture(index), *architectures)
    cells = list(cells)
    waiting = [(cell, plans) for cell in cells if (plans := promising(cell.problem(), device, most))]
    if len(waiting) < len(cells):
        report(f"{len(cells) - len(waiting)} of {len(cells)} products run only by cuBLAS on {device.name}")
    if not waiting:
        raise ValueError(
            f"no kernel of tsapps runs these products on {device.name} (compute capability "
            f"{device.compute_capability}); expected 8.0 or later: cuBLAS computes them, there is nothing to tune"
        )
    # Compilation dominates the time and would disturb the measurements. So each batch is compiled first, with enough
    # cells to occupy all cores, and measured afterwards.
    at_once = max(1, 8 * available_cores() // most)
    with _compilers() as pool:
        for first in range(0, len(waiting), at_once):
            batch = waiting[first : first + at_once]
            plans = list(dict.fromkeys(plan for _, its_plans in batch for plan in its_plans))
            report(f"compiling {len(plans)} plans of {batch[0][0]} and {len(batch) - 1} more")
            sound = dict(zip(plans, pool.map(partial(_is_sound, kinds), plans), strict=True))
            for cell, its_plans in batch:
                kept = [plan for plan in its_plans if sound[plan]]
                if not kept:
                    warnings.warn(f"skipped {cell}: all its plans spill registers on {device.name}", stacklevel=2)
                    continue
                try:
                    row = _measured(cell, kept, device, index, report)
                except MemoryError as error:
                    warnings.warn(f"skipped {cell}: {error}", stacklevel=2)
                    continue
                yield row


@contextmanager
def _compilers() -> Iterator[Executor]:
    """Provide a pool of compiler processes; on exit, cancel waiting compilations and end the processes."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(available_cores(), spawn, initializer=_begin_compiling)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_compiling() -> None:
    """Initialize a compiler process: the parent process handles Ctrl-C and prints all messages."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    compiler.PATIENCE_SECONDS = inf


def _is_sound(architectures: Sequence[str], plan: AnyPlan) -> bool:
    """Return True if a plan compiles without register spills for all architectures."""
    return all(compile_any(plan, arch).spill_stores == 0 for arch in architectures)


def _measured(
    cell: Cell, plans: Sequence[AnyPlan], device: GpuSpec, index: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Measure one cell on a GPU, and return its table row."""
    import cupy

    with cupy.cuda.Device(index):
        flush = cupy.zeros(max(256 << 20, 4 * device.l2) // 8, cupy.uint64)
        return _fastest(cell, plans, flush, report)


def _fastest(cell: Cell, plans: Sequence[AnyPlan], flush: Any, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure one cell on the current GPU, and return its table row; `flush` is as for `_milliseconds`."""
    A, B, C = cell.operands()
    a, b, c = device_matrix("A", A), device_matrix("B", B), device_matrix("C", C)
    problem = cell.problem()
    operands = a.pointer, b.pointer, c.pointer, 1.0, 0.0
    call = partial(cublas.gemm(a, b, c), *operands)
    call()
    expected = C.astype("f8")
    library_ms = _milliseconds(call, flush)
    # The allowed difference: one rounding of the result, and sums of k products in any order, for operands near 1.
    allowed = float(np.finfo(A.dtype).eps) * (256 * cell.k**0.5 + 4 * cell.k)
    found: dict[AnyPlan, float] = {}
    for plan in (*plans, *library_algorithms(problem)):
        C.fill(float("nan"))
        try:
            call = partial(prepare(plan, problem, c, cuda_machine(c.device)), *operands)
            call()
        except LibraryError:  # cublasLt offers no algorithm for these orders, or an offered one fails to run
            continue
        if not float(abs(C.astype("f8") - expected).max()) <= allowed:
            raise RuntimeError(f"{plan} gives a wrong result for {cell}")
        found[plan] = _milliseconds(call, flush)
    row = _row(problem, found, library_ms)
    gbs, fastest = problem.bytes / 1e6, row.get(ALGORITHM, {}).get("ms", library_ms)
    report(f"{cell}: {gbs / row['ms']:.0f} GB/s, the best of {len(plans)} plans; cuBLAS {gbs / fastest:.0f} GB/s")
    return row


def _row(problem: Problem, milliseconds: Mapping[AnyPlan, float], library_ms: float) -> dict[str, Any]:
    """Return the table row for a problem from the milliseconds of its plans and of cuBLAS."""
    order = sorted(milliseconds, key=milliseconds.__getitem__)
    best = next(plan for plan in order if not isinstance(plan, LibraryAlgorithm))
    algorithm = next((plan for plan in order if isinstance(plan, LibraryAlgorithm)), None)
    ms = milliseconds[best]
    row = {
        **key_of(problem),
        **configuration_of(LIBRARY if library_ms * LEAST_GAIN < ms else best),
        "ms": round(ms, 5),
        "library_ms": round(library_ms, 5),
    }
    if algorithm is not None and (algorithm_ms := milliseconds[algorithm]) * LEAST_GAIN < min(ms, library_ms):
        row[ALGORITHM] = configuration_of(algorithm)[ALGORITHM] | {
            VERSION: cublaslt.version(),
            "ms": round(algorithm_ms, 5),
        }
    return row


def _milliseconds(call: Callable[[], Any], flush: Any) -> float:
    """Return the median milliseconds of a call with a cold level-2 cache.

    Before each call, the GPU reads `flush`. This buffer is larger than the cache, so the read evicts the operands.
    """
    import cupy

    start, stop, times = cupy.cuda.Event(), cupy.cuda.Event(), []
    largest = cupy.empty((), flush.dtype)
    for _ in range(5):
        cupy.max(flush, out=largest)
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop))
    return float(median(times))
