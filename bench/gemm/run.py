"""Benchmark of tall-and-skinny products: `tsapps.matmul` and TSM2 as published, compared with cuBLAS and cublasLt.

    python -m tsapps.bench.gemm  # the whole grid, on all GPUs of the machine
    python -m tsapps.bench.gemm --shape tsm2l --dtype float32

Every result is first compared with float64 against the error bound stated by `tsapps.matmul`; wrong results are neither
timed nor recorded. A time is the median of CUDA event times of the kernel alone, queued behind a read that flushes the
level-2 cache. The floor is the larger of the time of a plain stream with the same reads and writes and the time of the
arithmetic at the throughput of large products; both rates are measured in the same run.
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby
from secrets import randbelow
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.common.timing import GpuClock, median
from tsapps.bench.gemm import libraries
from tsapps.bench.gemm.grid import DTYPES, LAYOUTS, SHAPES, Cell, Pools, exact, grid, largest_error, spoil
from tsapps.kernels import matmul
from tsapps.kernels.arrays import DeviceMatrix, device_matrix, gapless
from tsapps.kernels.devices import gpus, why_no_gpu
from tsapps.kernels.dispatch import compile_any
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.jit.compiler import architecture
from tsapps.kernels.ladder.launch import PAPER_KERNELS, tsm2_paper
from tsapps.kernels.plan.select import LIBRARY

FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("shape", "kernel", "plan", "dtype", "layout", "library", "bound"), (str,)),
    **dict.fromkeys(("m", "k", "w", "seed"), (int,)),
    **dict.fromkeys(("ms", "gbs", "floor_ms", "library_ms", "max_rel_err", "library_rel_err"), (float,)),
}
KEY = ("what", "shape", "dtype", "layout", "m", "k", "w")
#: TSM2 as published, on squares: t1 = 128, t2 = w up to 8 and t3 = 4 lie between the paper's configurations.
PAPER_WIDTHS, T1, MOST_T2, T3 = (1, 2, 4, 8, 16), 128, 8, 4
# Number of elements of A, B and C.
Sizes = tuple[int, int, int]
# Number of cells whose records are written at a time.
_TOGETHER = 200


class Bench:
    """Measures cells on the current GPU.

    Parameters
    ----------
    seed : int
        Seed of the operands.
    """

    def __init__(self, seed: int) -> None:
        from tsapps.bench.common import roofline

        self.seed, self.clock = seed, GpuClock()
        self.streams = roofline.measure_streams(self.clock)
        self.tflops = roofline.measure_matmul_tflops(self.clock)
        self._pools: tuple[str, Pools] | None = None

    def pools(self, dtype: str, sizes: Sizes) -> Pools:
        """Return the memory pools of the operands, reallocated for each dtype."""
        if self._pools is None or self._pools[0] != dtype:
            self._pools = None  # free the old ones first
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()
            self._pools = dtype, Pools(dtype, sizes, self.seed)
        return self._pools[1]

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Return the median time; repeats the call for some milliseconds."""
        first = self.clock.call_ms(call)
        return median([first, *(self.clock.call_ms(call) for _ in range(8 if first < 1 else 4 if first < 20 else 2))])

    def measure(self, cell: Cell, pools: Pools) -> Iterator[dict[str, Any]]:
        """Yield the records of a cell, that of `tsapps.matmul` first."""
        A, B, C = pools.operands(cell)
        reference = exact(cell, A, B)
        errors: dict[str, float] = {}

        def error() -> float:
            errors["last"] = largest_error(cell, C, reference)
            return errors["last"]

        library, library_ms = libraries.best(
            *(A, B, C),
            dtype=cell.dtype,
            trans_a=cell.shape == "tsmttsm",
            time_ms=self.milliseconds,
            quick_ms=self.clock.call_ms,
            check=error,
        )
        stream_ms, arithmetic_ms = cell.floors_ms(self.streams, self.tflops)
        common = {
            **{name: getattr(cell, name) for name in KEY if name != "what"},
            "floor_ms": max(stream_ms, arithmetic_ms),
            "bound": "memory" if stream_ms >= arithmetic_ms else "arithmetic",
            "library": library,
            "library_ms": library_ms,
            "library_rel_err": errors["last"],
        }
        for kernel, plan, call in calls(cell, A, B, C):
            spoil(C)
            made = call()
            found = largest_error(cell, C if made is None else made, reference)
            ms = self.milliseconds(call)
            gbs = (cell.read + cell.written) / ms / 1e6
            yield {**common, "kernel": kernel, "plan": plan, "ms": ms, "gbs": gbs, "max_rel_err": found}


def calls(cell: Cell, A: Any, B: Any, C: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield the kernels to compare with the libraries: name, plan as text, and a call that computes the product."""
    a, b, c = oriented(cell, *(device_matrix("a matrix", x)._replace(dtype=cell.dtype) for x in (A, B, C)))
    plan = matmul.planned(matmul.problem_of(a, b, c), live(a.device))
    name = plan if isinstance(plan, str) else plan.kernel_name
    yield name, str(plan), partial(matmul.prepared(a, b, c), a.pointer, b.pointer, c.pointer, 1.0, 0.0)
    square = cell.shape == "tsm2r" and cell.layout == "col" and cell.k == cell.m and cell.w in PAPER_WIDTHS
    if square and cell.dtype in ("float32", "float64"):
        tiles = {"t1": T1, "t2": min(cell.w, MOST_T2), "t3": T3}
        for name in PAPER_KERNELS:
            yield name, str(tiles), partial(tsm2_paper, name, A, B, **tiles)


def oriented(cell: Cell, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix) -> tuple[DeviceMatrix, ...]:
    """Return operands and result in the orientation in which `tsapps.matmul` computes them."""
    return matmul.oriented(a.transposed if cell.shape == "tsmttsm" else a, b, c)


def compile_plans(cells: Iterable[Cell]) -> None:
    """Compile the kernels of all cells on all cores, so that no GPU waits for them."""
    device, plans = live(), set()
    for cell in cells:
        by_rows, size = cell.layout == "row", DTYPES[cell.dtype]
        matrices = (gapless(shape, cell.dtype, size, by_rows=by_rows) for shape in cell.shapes)
        plans.add(matmul.planned(matmul.problem_of(*oriented(cell, *matrices)), device))
    compile_one = partial(compile_any, arch=architecture(0))
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_one, plans - {LIBRARY}, chunksize=4))


# --- One process per GPU ----------------------------------------------------------------------------------------------

_bench: Bench


def _start(indices: Any, seed: int) -> None:
    """Claim a GPU for this process and measure its peak rates."""
    global _bench
    import cupy

    cupy.cuda.Device(indices.get()).use()
    _bench = Bench(seed)


def _measured(sizes: Sizes, cell: Cell) -> tuple[Cell, list[dict[str, Any]] | str]:
    """Return the records of a cell, or an error message."""
    try:
        found = list(_bench.measure(cell, _bench.pools(cell.dtype, sizes)))
    except (ValueError, libraries.LibraryError) as error:
        return cell, str(error)
    roofline = {"stream_ceilings_gbs": _bench.streams.points, "matmul_ceiling_tflops": _bench.tflops}
    return cell, [{**one, **roofline} for one in found]


def run(options: argparse.Namespace, cells: list[Cell]) -> int:
    """Measure cells on all GPUs and store records as they come; return the number of failed cells."""
    import cupy

    runtime = cupy.cuda.runtime
    devices = {runtime.getDeviceProperties(i)["name"].decode() for i in range(len(gpus()))}
    if len(devices) > 1:
        raise SystemExit(f"the GPUs differ ({', '.join(sorted(devices))}): select equal ones by CUDA_VISIBLE_DEVICES")
    (device,) = devices
    path = options.out or record.results_path(device, "gemm")
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy"})
    versions |= {"cuda-runtime": str(runtime.runtimeGetVersion()), "cuda-driver": str(runtime.driverGetVersion())}
    common = {**record.of_run("gemm", device, versions, options.commit), "engine": "tsapps", "seed": options.seed}
    compile_plans(cells)
    context = multiprocessing.get_context("spawn")
    indices = context.Queue()
    for i in range(len(gpus())):
        indices.put(i)
    failed, started = 0, time.monotonic()
    waiting: list[dict[str, Any]] = []
    with context.Pool(len(gpus()), _start, (indices, options.seed)) as pool:
        for dtype, same in groupby(cells, lambda one: one.dtype):
            alike = list(same)
            a, b, c = (max(one.shapes[i][0] * one.shapes[i][1] for one in alike) for i in range(3))
            for done, (cell, found) in enumerate(pool.imap_unordered(partial(_measured, (a, b, c)), alike), 1):
                if isinstance(found, str):
                    failed += 1
                    print(f"{cell}: {found}", file=sys.stderr, flush=True)
                    continue
                waiting += [{**common, **one} for one in found]
                if len(waiting) >= _TOGETHER or done == len(alike):
                    record.store_sorted(path, waiting, KEY, FIELDS)
                    print(f"{dtype}: {done} of {len(alike)} cells, {time.monotonic() - started:.0f} s", flush=True)
                    waiting = []
    return failed


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, action="append", help="shape class; may be repeated")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="element type; may be repeated")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="memory layout; may be repeated")
    parser.add_argument("--w", type=int, action="append", help="width w; may be repeated")
    parser.add_argument("--every", type=int, default=1, help="measure only every n-th cell of the grid")
    record.add_options(parser, "gemm")
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of the data (default: random)")
    options = parser.parse_args()
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    cells = [
        one
        for one in grid()
        if one.shape in (options.shape or SHAPES)
        and one.dtype in (options.dtype or DTYPES)
        and one.layout in (options.layout or LAYOUTS)
        and one.w in (options.w or [one.w])
    ][:: options.every]
    failed = run(options, cells)
    if failed:
        print(f"{failed} of {len(cells)} cells were not recorded", file=sys.stderr)
    return 1 if failed else 0
