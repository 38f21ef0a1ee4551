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
import sys
import time
from functools import partial
from itertools import groupby
from secrets import randbelow
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.common.dtypes import ITEMSIZE
from tsapps.bench.gemm.grid import LAYOUTS, SHAPES, Cell, Sizes, grid
from tsapps.bench.gemm.measure import FIELDS, KEY, GpuBench, compile_all, problem_of
from tsapps.kernels import matmul
from tsapps.kernels.blas.cublaslt import LibraryError
from tsapps.kernels.devices import gpus, why_no_gpu
from tsapps.kernels.gpu_specs import live

# Number of cells whose records are written at a time.
_TOGETHER = 200


# --- One process per GPU ----------------------------------------------------------------------------------------------

_bench: GpuBench


def _start(indices: Any, seed: int) -> None:
    """Claim a GPU for this process and measure its peak rates."""
    global _bench
    import cupy

    cupy.cuda.Device(indices.get()).use()
    _bench = GpuBench(seed)


def _measured(sizes: Sizes, cell: Cell) -> tuple[Cell, list[dict[str, Any]] | str]:
    """Return the records of a cell, or an error message."""
    try:
        return cell, _bench.records(cell, sizes)
    except (ValueError, LibraryError) as error:
        return cell, str(error)


def run(options: argparse.Namespace, cells: list[Cell]) -> int:
    """Measure cells on all GPUs and store records as they come; return the number of failed cells."""
    import cupy

    runtime = cupy.cuda.runtime
    devices = {runtime.getDeviceProperties(i)["name"].decode() for i in range(len(gpus()))}
    if len(devices) > 1:
        raise SystemExit(f"the GPUs differ ({', '.join(sorted(devices))}): select equal ones by CUDA_VISIBLE_DEVICES")
    (device,) = devices
    path = options.out or record.results_path(device, "gemm")
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy"}) | record.cuda_versions()
    common = {**record.of_run("gemm", device, versions, options.commit), "engine": "tsapps", "seed": options.seed}
    compile_all(matmul.planned(problem_of(cell), live()) for cell in cells)
    context = multiprocessing.get_context("spawn")
    indices = context.Queue()
    for i in range(len(gpus())):
        indices.put(i)
    failed, started = 0, time.monotonic()
    waiting: list[dict[str, Any]] = []
    with context.Pool(len(gpus()), _start, (indices, options.seed)) as pool:
        for dtype, same in groupby(cells, lambda one: one.dtype):
            alike = list(same)
            a, b, c = (max(one.sizes[i] for one in alike) for i in range(3))
            for done, (cell, found) in enumerate(pool.imap_unordered(partial(_measured, (a, b, c)), alike), 1):
                if isinstance(found, str):
                    failed += 1
                    print(f"{cell}: {found}", file=sys.stderr, flush=True)
                    continue
                waiting += [{**common, **one} for one in found]
                if len(waiting) >= _TOGETHER or done == len(alike):
                    record.store_sorted(path, waiting, ("device", *KEY), FIELDS)
                    print(f"{dtype}: {done} of {len(alike)} cells, {time.monotonic() - started:.0f} s", flush=True)
                    waiting = []
    return failed


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, action="append", help="shape class; may be repeated")
    parser.add_argument("--dtype", choices=ITEMSIZE, action="append", help="element type; may be repeated")
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
        and one.dtype in (options.dtype or ITEMSIZE)
        and one.layout in (options.layout or LAYOUTS)
        and one.w in (options.w or [one.w])
    ][:: options.every]
    failed = run(options, cells)
    if failed:
        print(f"{failed} of {len(cells)} cells were not recorded", file=sys.stderr)
    return 1 if failed else 0
