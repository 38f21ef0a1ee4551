"""A table of picks for the GPU at hand: candidate plans, each checked and measured, beside the library.

The tables that come with tsapps (kernels/tuned/) were made by the same functions on the GPUs that they are named after.
"""

import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import gcd
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tsapps.kernels import library
from tsapps.kernels.arrays import device_matrix
from tsapps.kernels.build import architecture, cache_directory
from tsapps.kernels.choose import KEY, PICKED, candidates, predict, stage_bytes, tuned_table
from tsapps.kernels.device import Device, live
from tsapps.kernels.launch import compiled_plan, tall_skinny
from tsapps.kernels.plan import Plan
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem

__all__ = ["CELLS", "Cell", "tune", "user_path", "user_table", "write_table"]

#: The library is called where it is faster by more than this.
MARGIN = 1.02


@dataclass(frozen=True)
class Cell:
    """One product to find a pick for; A's lines run along the depth or across it, and B's the other way."""

    shape: str
    dtype: str
    m: int
    k: int
    w: int
    along: bool

    def _layouts(self) -> tuple[bool, bool]:
        """Whether the lines of A, and those of B, run along the depth."""
        return self.along, self.along if self.shape == "tsmttsm" else not self.along

    def problem(self) -> Problem:
        """Return the problem; its operands are aligned and have no gaps."""

        def layout(along: bool, outer: int) -> Layout:
            leading = self.k if along else outer
            return Layout(along, leading, gcd(16, leading * ITEMSIZE[self.dtype]), 16)

        a_along, b_along = self._layouts()
        a, b = layout(a_along, self.m), layout(b_along, self.w)
        return Problem(self.m, self.k, self.w, self.dtype, a, b)

    def operands(self) -> tuple[Any, Any, Any]:
        """Return A, B and C on the current GPU, from a normal distribution."""
        import cupy

        random = cupy.random.default_rng(1)

        def draw(along: bool, outer: int) -> Any:
            shape = (outer, self.k) if along else (self.k, outer)
            wide = random.standard_normal(shape, dtype="f8" if self.dtype == "float64" else "f4").astype(self.dtype)
            return wide if along else wide.T

        a_along, b_along = self._layouts()
        return draw(a_along, self.m), draw(b_along, self.w).T, cupy.empty((self.m, self.w), self.dtype)


def _cells() -> Iterable[Cell]:
    """Yield the products that a table is made of: up to about 2 GB each."""
    pairs = ((2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (33, 33), (64, 64), (4, 16), (16, 4), (32, 4), (64, 16))
    for dtype, size in (("float64", 8), ("float32", 4), ("float16", 2)):
        for along in (True, False):
            for w in (1, 2, 4, 8, 16, 24, 32, 48, 64):
                yield Cell("tsm2r", dtype, 20_480, 20_480, w, along)
            for k, w in (*pairs, (4, 64), (16, 64)):
                long = min(20_000_000, (2 << 30) // (size * (k + w)) // 1000 * 1000)
                yield Cell("tsm2l", dtype, long, k, w, along)
            for m, w in pairs:
                if w <= m:  # else the operands change roles
                    yield Cell(
                        "tsmttsm", dtype, m, min(20_000_000, (2 << 30) // (size * (m + w)) // 1000 * 1000), w, along
                    )


CELLS = tuple(_cells())


def tune(
    cells: Iterable[Cell],
    *,
    most: int = 18,
    index: int = 0,
    architectures: Sequence[str] = (),
    report: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Measure the most promising plans of each cell on a GPU, and return a table's rows with what was measured.

    Parameters
    ----------
    cells : iterable of Cell
    most : int
        Candidates a cell, the first by `predict`.
    index : int
        The GPU.
    architectures : sequence of str
        Others on which a pick must not spill registers either, such as ``"sm_80"``.
    report : callable
        Told of every cell in one line.

    Returns
    -------
    list of dict
        For each cell its key, whether the library was faster, the pick, and the milliseconds of both.

    Raises
    ------
    RuntimeError
        If a plan's result differs from the library's by more than rounding.
    """
    import cupy

    device, kinds = live(index), (architecture(index), *architectures)
    found = {}
    for cell in cells:
        problem = cell.problem()
        promising = sorted(candidates(problem, device), key=partial(_seconds, problem, device))
        found[cell] = promising[:most]
    # Compiling takes longest, and needs no GPU: in processes of their own, before anything is timed.
    plans = list(dict.fromkeys(plan for promising in found.values() for plan in promising))
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        sound = dict(zip(plans, pool.map(partial(_is_sound, kinds), plans, chunksize=8), strict=True))
    found = {cell: [plan for plan in promising if sound[plan]] for cell, promising in found.items()}
    with cupy.cuda.Device(index):
        flush = cupy.empty(max(256 << 20, 4 * device.l2), cupy.uint8)
        return [_measured(cell, promising, flush, report) for cell, promising in found.items() if promising]


def _is_sound(architectures: Sequence[str], plan: Plan) -> bool:
    """Whether a plan compiles without spills."""
    built = [compiled_plan(plan, arch) for arch in architectures]
    return all(cubin.resources[name].spill_stores == 0 for cubin, name in built)


def _seconds(problem: Problem, device: Device, plan: Plan) -> float:
    return predict(plan, problem, device)


def _measured(cell: Cell, plans: Sequence[Plan], flush: Any, report: Callable[[str], None]) -> dict[str, Any]:
    """Return a table's row for one cell."""
    A, B, C = cell.operands()
    a, b, c = device_matrix("A", A), device_matrix("B", B), device_matrix("C", C)
    problem = cell.problem()
    operands = a.pointer, b.pointer, c.pointer, 1.0, 0.0
    call = partial(library.gemm(a, b, c), *operands)
    call()
    expected = C.astype("f8")
    library_ms = _milliseconds(call, flush)
    # What one rounding of the result and sums of k products in any order may differ by, for operands around 1.
    allowed = float(np.finfo(A.dtype).eps) * (256 * cell.k**0.5 + 4 * cell.k)
    rows = []
    for plan in plans:
        C.fill(float("nan"))
        call = partial(tall_skinny(plan, problem, c), *operands)
        call()
        if not float(abs(C.astype("f8") - expected).max()) <= allowed:
            raise RuntimeError(f"{plan} gives a wrong result for {cell}")
        rows.append((_milliseconds(call, flush), plan))
    ms, best = min(rows, key=lambda row: row[0])
    gbs = problem.bytes / 1e6
    report(f"{cell}: {gbs / ms:.0f} GB/s of {len(plans)} plans, the library {gbs / library_ms:.0f}")
    return {
        **{name: getattr(cell, name) for name in ("shape", "dtype", "along")},
        "k": cell.m if cell.shape == "tsmttsm" else 64 if cell.shape == "tsm2r" else cell.k,
        "w": cell.w,
        "library": bool(library_ms * MARGIN < ms),
        **{name: getattr(best, name) for name in PICKED},
        "stage": stage_bytes(best),
        "ms": round(ms, 5),
        "library_ms": round(library_ms, 5),
    }


def _milliseconds(call: Callable[[], Any], flush: Any) -> float:
    """Return the median milliseconds of a call that is queued behind a write of more than the level-2 cache holds."""
    import cupy

    start, stop, times = cupy.cuda.Event(), cupy.cuda.Event(), []
    for turn in range(5):
        flush.fill(turn)
        start.record()
        call()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop))
    return float(median(times))


def user_path(device_name: str) -> Path:
    """Return where the user's picks for a device of this name are kept; it need not exist."""
    return cache_directory() / "tuned" / f"{'-'.join(device_name.lower().split())}.json"


def user_table(device_name: str) -> Sequence[Mapping[str, Any]]:
    """Return the user's picks, with those that come with tsapps for what they leave out."""
    path = user_path(device_name)
    shipped = tuned_table(device_name)
    if not path.exists():
        return shipped
    own = json.loads(path.read_text(encoding="utf-8"))
    keys = {tuple(row[name] for name in KEY) for row in own}
    return [*own, *(row for row in shipped if tuple(row[name] for name in KEY) not in keys)]


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table of picks, one row a line, by one rename."""
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
