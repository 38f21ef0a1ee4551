"""Latency of the first call of `tsapps.matmul`: with an empty compile cache, with a full one, and in a warm process.

    python -m tsapps.bench.gemm.first_call

Each product runs in separate processes, once with an empty cache and then with a full one. The wall time runs from
the call until the GPU is idle, without imports and creation of the GPU context. CuPy's first and later calls are
measured for comparison.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

from tsapps.bench.common import record
from tsapps.kernels.devices import gpus, why_no_gpu

FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("shape", "dtype", "kernel", "stage"), (str,)),
    **dict.fromkeys(("m", "k", "w"), (int,)),
    **dict.fromkeys(("ms", "cupy_ms"), (float,)),
}
KEY = ("what", "shape", "dtype", "m", "k", "w", "stage")
#: TSM2R, TSM2L and TSMTTSM as m, k, w of C (m × w) = A (m × k) · B (k × w), small enough to show the host's share.
PRODUCTS = (
    ("tsm2r", "float32", 10_240, 10_240, 16),
    ("tsm2l", "float32", 1_000_000, 16, 16),
    ("tsmttsm", "float32", 16, 1_000_000, 16),
    ("tsm2l", "float64", 1_000_000, 4, 4),
)
#: Stages: nothing is cached; machine code is cached on disk; the plan is also cached in the process.
STAGES = ("compile", "cached", "prepared")


def child(dtype: str, m: int, k: int, w: int) -> dict[str, Any]:
    """Time the first and later calls in this process."""
    import cupy

    import tsapps
    from tsapps.kernels import matmul as product
    from tsapps.kernels.arrays import device_matrix
    from tsapps.kernels.gpu_specs import live

    A, B = cupy.ones((m, k), dtype), cupy.ones((k, w), dtype)
    idle = cupy.cuda.Device().synchronize

    def timed(call: Any) -> float:
        idle()
        start = time.perf_counter()
        call()
        idle()
        return 1e3 * (time.perf_counter() - start)

    found = {"first": timed(lambda: tsapps.matmul(A, B))}
    found["later"] = median(timed(lambda: tsapps.matmul(A, B)) for _ in range(100))
    found["cupy_first"] = timed(lambda: cupy.matmul(A, B))
    found["cupy_later"] = median(timed(lambda: cupy.matmul(A, B)) for _ in range(100))
    a, b, c = product.oriented(*(device_matrix(name, x) for name, x in (("A", A), ("B", B), ("out", A @ B))))
    plan = product.planned(product.problem_of(a, b, c), live(0))
    return {**found, "kernel": plan if isinstance(plan, str) else plan.kernel_name}


def measure(index: int, cache: str) -> dict[str, Any]:
    """Measure one product in a process with its caches in a given folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache, "CUDA_CACHE_PATH": f"{cache}/nv"}
    command = [sys.executable, "-m", "tsapps.bench.gemm.first_call", "--child", str(index)]
    done = subprocess.run(command, env=environment, cwd=record.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the process that times {PRODUCTS[index]} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    record.add_options(parser, "first-call")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    if options.child is not None:
        print(json.dumps(child(*PRODUCTS[options.child][1:])))
        return 0
    device = gpus()[0].name
    path = options.out or record.results_path(device, "first-call")
    versions = record.module_versions({"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy"})
    common = {**record.of_run("first-call", device, versions, options.commit), "engine": "tsapps"}
    for index, (shape, dtype, m, k, w) in enumerate(PRODUCTS):
        with tempfile.TemporaryDirectory() as cache:
            empty, full = measure(index, cache), measure(index, cache)
        milliseconds = (empty["first"], full["first"], full["later"])
        beside = (empty["cupy_first"], full["cupy_first"], full["cupy_later"])
        for stage, ms, cupy_ms in zip(STAGES, milliseconds, beside, strict=True):
            one = {**common, "shape": shape, "dtype": dtype, "m": m, "k": k, "w": w, "kernel": full["kernel"]}
            one |= {"stage": stage, "ms": ms, "cupy_ms": cupy_ms}
            record.store(path, one, KEY, FIELDS)
            print(f"{shape} {dtype} {m:,} × {k:,} × {w}, {stage}: {ms:.3f} ms; CuPy {cupy_ms:.3f} ms", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
