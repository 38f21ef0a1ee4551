"""Autotuner for products with checksums on a GPU; writes the tuning table.

    python -m tsapps.bench.abft.tune_plans --minutes 4 --shape tsm2r --w 64 --out nvidia-h200.json

For each product, it compiles the plans predicted to be the fastest and all wgmma plans on all cores. It runs those that
hardly spill registers with the checks of `tsapps.abft.matmul`, compares them with the unprotected result, and times
them with a cold level-2 cache. The fastest becomes a row like those of kernels/plan/tuned/ and replaces an earlier row
of the product; other rows are kept.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.abft.product import thresholds
from tsapps.apps.abft.product.plan import (
    MOST_SPILLED,
    TUNED,
    detect_epilogue,
    with_row_sums,
)
from tsapps.bench.common.timing import GpuClock, median
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.gemm import compiled_plan
from tsapps.kernels.gpu_specs import GpuSpec, file_name_of, live
from tsapps.kernels.jit.compiler import architecture
from tsapps.kernels.plan.candidates import candidates
from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan
from tsapps.kernels.plan.select import completed, configuration_of, key_of, promising
from tsapps.kernels.plan.user_table import write_table
from tsapps.kernels.problem import ITEMSIZE, Problem
from tsapps.kernels.system.strict_json import read_json
from tsapps.kernels.tune import Cell

# Number of gemm_mma.cuh plans per product.
_MOST = 12
_WIDTHS = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
_PAIRS = ((2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (64, 16), (64, 32), (16, 64))


def cells() -> list[Cell]:
    """Return the products to measure, of up to 2 GB."""
    found = []
    for dtype in ("float64", "float32", "float16"):
        size = ITEMSIZE[dtype]
        for along in (True, False):
            side = 30_720 if size == 2 else 20_480
            found += [Cell("tsm2r", dtype, side, side, w, along) for w in (_WIDTHS if along else (2, 16, 32, 64))]
            for k, w in _PAIRS:
                found.append(Cell("tsm2l", dtype, min(10_000_000, (2 << 30) // (size * (k + w))), k, w, along))
    return found


def plans_of(problem: Problem, device: GpuSpec) -> list[MmaPlan]:
    """Return the candidate plans of a problem, with weighted row sums of A."""
    some = [one for one in promising(problem, device, _MOST) if isinstance(one, MmaPlan)]
    some += [one for one in candidates(problem, device) if isinstance(one, WgmmaPlan)]
    return list(dict.fromkeys(filter(None, (with_row_sums(one, device) for one in some))))


def is_sound(arch: str, wanted: tuple[MmaPlan, Epilogue]) -> bool:
    """Return whether a plan compiles with its epilogue and almost no register spills."""
    cubin, name = compiled_plan(wanted[0], arch, wanted[1])
    return cubin.resources[name].spill_stores <= MOST_SPILLED


def measured_row(cell: Cell, plans: list[MmaPlan], clock: GpuClock) -> dict[str, Any]:
    """Return the table row of one product."""
    from tsapps import matmul
    from tsapps.apps.abft.product import gpu as product_gpu
    from tsapps.kernels.arrays import device_matrix
    from tsapps.kernels.runtime.machine import cuda_machine

    A, B, C = cell.operands()
    expected = matmul(A, B).astype("f8")
    a, b, c = device_matrix("A", A), device_matrix("B", B), device_matrix("C", C)
    bounds = thresholds.proven(cell.k, cell.w, cell.dtype)
    allowed = float(np.finfo(A.dtype).eps) * (256 * cell.k**0.5 + 4 * cell.k)
    times = {}
    for plan in plans:
        C.fill(float("nan"))
        fused = product_gpu.ProtectedProduct(cuda_machine(a.device), plan, a, b, c, bounds)
        memory = fused.check.begin(b)
        call = partial(fused.multiply, memory, a, b, c)
        call()
        if not float(abs(C.astype("f8") - expected).max()) <= allowed:
            raise ValueError(f"{plan} gives a wrong result for {cell}")
        if (flagged := int(memory[:8].get().view("u8")[0])) > cell.m // 1000:
            raise ValueError(f"{plan} flags {flagged} rows of {cell}, which is not corrupted")
        times[plan] = median(clock.call_ms(call) for _ in range(5))
    best = min(times, key=times.__getitem__)
    print(f"{cell}: {times[best]:.4f} ms, {best.kernel_name}, of {len(plans)} plans", flush=True)
    return key_of(cell.problem()) | configuration_of(best) | {"ms": round(times[best], 5)}


def main() -> int:
    """Measure plans and write the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing new after this time")
    parser.add_argument("--shape", action="append", choices=("tsm2r", "tsm2l"), help="shape class; may be repeated")
    parser.add_argument("--w", action="append", type=int, help="number of columns of B; may be repeated")
    parser.add_argument("--out", type=Path, help="file of the table (default: that of this device)")
    options = parser.parse_args()
    end = time.perf_counter() + 60 * options.minutes
    device, arch = live(0), architecture(0)
    jobs = []
    for cell in cells():
        if cell.shape not in (options.shape or [cell.shape]) or cell.w not in (options.w or [cell.w]):
            continue
        problem = cell.problem()
        jobs.append((cell, plans_of(problem, device), detect_epilogue(cell.dtype, cell.w, problem.c)))
    wanted = list(dict.fromkeys((plan, epilogue) for _, plans, epilogue in jobs for plan in plans))
    with ProcessPoolExecutor(None, multiprocessing.get_context("spawn")) as pool:
        sound = dict(zip(wanted, pool.map(partial(is_sound, arch), wanted, chunksize=4), strict=True))
    print(f"{sum(sound.values())} of {len(wanted)} plans compile with next to no spills", flush=True)
    clock, rows = GpuClock(), []
    for cell, plans, epilogue in jobs:
        if time.perf_counter() > end:
            print(f"{len(jobs) - len(rows)} products were skipped: --minutes is over")
            break
        kept = [plan for plan in plans if sound[plan, epilogue]]
        if kept:
            rows.append(measured_row(cell, kept, clock))
    path = options.out or TUNED / f"{file_name_of(device.name)}.json"
    before = read_json(path) if path.exists() else []
    write_table(path, completed(rows, before))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
