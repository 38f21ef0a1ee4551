"""Time tall-and-skinny products beside cuBLAS: TSM2 as published, V0 to V3, and the kernels that followed.

    python bench/gemm.py

A is n × n and column-major, B n × w. Every kernel's result is compared with float64 on some of its rows before it is
timed, against the bound γ(k)·|A||B|; what is not right is neither timed nor recorded. A timing is the median of CUDA
event times of the kernel alone, queued behind a write of more than the level-2 cache holds.
"""

import argparse
import sys
from pathlib import Path
from secrets import randbelow
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench import record
from bench.ceilings import measure_read_gbs
from bench.timing import GpuClock, median
from tsapps.kernels import launch
from tsapps.kernels.backend import gpus, why_no_gpu

FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("shape", "kernel", "dtype", "layout", "library"), (str,)),
    **dict.fromkeys(("m", "k", "w", "seed"), (int,)),
    **dict.fromkeys(("ms", "gbs", "floor_ms", "library_ms", "max_rel_err"), (float,)),
}
KEY = ("what", "shape", "kernel", "m", "k", "w", "dtype", "layout")
SIZES, WIDTHS = (10_240, 20_480, 30_720), (1, 2, 4, 8, 16)
#: The paper's picks for wide and narrow products lie between these: t1 = 128, t2 = w up to 8, t3 = 4.
T1, MOST_T2, T3 = 128, 8, 4


def kernels(w: int) -> dict[str, Any]:
    """Return every kernel by name, as a function of A and B."""
    tiles = {"t1": T1, "t2": min(w, MOST_T2), "t3": T3}
    found: dict[str, Any] = {
        name: lambda A, B, name=name: launch.published(name, A, B, **tiles) for name in launch.PUBLISHED
    }
    return {**found, "tsm2r_columns": launch.tsm2r_columns}


def largest_error(C: Any, A: Any, B: Any, xp: Any) -> float:
    """Return the largest |C − AB| / (|A||B|) over about 100 rows, against float64.

    Raises
    ------
    ValueError
        If it is over γ(k), the bound of any order of summation.
    """
    rows = xp.arange(0, len(A), max(1, len(A) // 100))
    some, B = A[rows].astype(np.float64), B.astype(np.float64)
    error = float((abs(C[rows] - some @ B) / (abs(some) @ abs(B))).max())
    k_u = A.shape[1] * float(np.finfo(A.dtype).eps) / 2
    if not error <= k_u / (1 - k_u):
        raise ValueError(f"the relative error is {error:.1e}, over the bound of {k_u / (1 - k_u):.1e}")
    return error


def run(options: argparse.Namespace) -> None:
    """Measure every cell, saving each record as it is done."""
    import cupy

    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    path = options.out or record.results_path(device, "gemm")
    clock = GpuClock()
    read_gbs = measure_read_gbs(clock)
    print(f"{device}: read {read_gbs:.0f} GB/s", flush=True)
    runtime = cupy.cuda.runtime
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy"})
    versions |= {"cuda-runtime": str(runtime.runtimeGetVersion()), "cuda-driver": str(runtime.driverGetVersion())}
    common = {
        "what": "gemm",
        "shape": "tsm2r",
        "engine": "tsapps",
        "layout": "col",
        "library": "cublas, as cupy.matmul calls it",
        "device": device,
        "commit": options.commit or record.commit_of(),
        "seed": options.seed,
        "versions": versions,
        "read_ceiling_gbs": read_gbs,
    }
    for dtype in (np.float32, np.float64):
        for n in SIZES:
            random = cupy.random.default_rng(options.seed + n)
            A = random.standard_normal((n, n), dtype=dtype).T
            for w in WIDTHS:
                B = random.standard_normal((w, n), dtype=dtype).T
                out = cupy.empty((w, n), dtype).T
                size = (n * n + 2 * n * w) * A.itemsize
                library_ms = median(_times(clock, lambda A=A, B=B, out=out: cupy.matmul(A, B, out=out)))
                line = [f"{np.dtype(dtype).name} {n} {w}: library {size / library_ms / 1e6:.0f}"]
                for name, kernel in kernels(w).items():
                    error = largest_error(kernel(A, B), A, B, cupy)
                    ms = median(_times(clock, lambda A=A, B=B, kernel=kernel: kernel(A, B)))
                    cell = {"kernel": name, "m": n, "k": n, "w": w, "dtype": np.dtype(dtype).name, "ms": ms}
                    cell |= {"gbs": size / ms / 1e6, "floor_ms": size / read_gbs / 1e6, "library_ms": library_ms}
                    one = {**common, **cell, "max_rel_err": error, "date": record.today()}
                    record.check(one, FIELDS)
                    record.store(path, one, KEY)
                    line.append(f"{name.removeprefix('tsm2_')} {one['gbs']:.0f}")
                print(", ".join(line), "GB/s", flush=True)
            del A


def _times(clock: GpuClock, call: Any) -> list[float]:
    call()
    first = clock.kernel_ms(call)
    return [first, *(clock.kernel_ms(call) for _ in range(6 if first < 20 else 2))]


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="the records' file; bench/results/<device>/gemm.json if not given")
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="of the data; a fresh one if not given")
    parser.add_argument("--commit", help="what is measured, where there is no git to ask")
    options = parser.parse_args()
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
