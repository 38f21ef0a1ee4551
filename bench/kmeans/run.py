"""Benchmark of K-means: one Lloyd iteration and a whole fit, by tsapps and other libraries, on named shapes.

    python -m tsapps.bench.kmeans --engine cublas --engine torch --shapes all
    python -m tsapps.bench.kmeans --engine tsapps --shapes 10M-128-64-f32,100M-4-16-f32 --repeats 15
    python -m tsapps.bench.kmeans --engine tsapps --engine flashlib --shapes grid --ahead 8 --missing --minutes 8
    python -m tsapps.bench.kmeans --device cpu

The benchmark draws fresh data for every run (`--seed` repeats one). On a GPU, it first compares the labels of one
iteration with the float64 arg-min and its new centers with float64 means; wrong results are neither timed nor recorded.
Then:

iter_ms   time of one iteration from given centers, X on the GPU, L2 cold: median of CUDA event times, queued behind the
          cache flush to exclude host work before the first kernel ("step"). If iterations get faster as fewer labels
          change, the mean of the first 20, starting without labels ("mean of 20"); fewer if the fit converges, a
          cluster becomes empty, or `--seconds-budget` ends. For a library with whole fits only, the time that one more
          iteration adds ("slope")
settled_ms  our engines only: time of one of five iterations after those 20, in which few labels change, or of the last
          five if it converges earlier; by the difference of two runs
fit_ms    wall time of a whole fit of 20 iterations from given centers with tol=0; skipped if it exceeds
          `--seconds-budget`, which limits the timing of one engine on one shape, and by `--no-fit`
seeded_fit_ms  the same with init by greedy k-means++, our engines only
floor_ms  roofline time, from rates measured in the same run; see `problems.floor_ms`

On a CPU, `TSKMeans(device="cpu")` and scikit-learn's `KMeans` fit the same data alternately; the ratio is printed.
Every record is saved immediately. `--missing` continues a run that `--minutes` ended: it skips records of the same
commit.
"""

import argparse
import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from secrets import randbelow
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.common.precompile import call_ahead
from tsapps.bench.common.roofline import Ceilings, measure
from tsapps.bench.common.timing import Clock, GpuClock
from tsapps.bench.kmeans import problems as data
from tsapps.bench.kmeans.measure import Problem, Timing, check_step, compare_on_cpu, time_peer
from tsapps.bench.kmeans.peers import PEERS
from tsapps.bench.kmeans.problems import CPU_SHAPES, GPU_SHAPES, GRIDS, Shape
from tsapps.kernels.devices import gpus, why_no_gpu

_TIME = (float, type(None))
#: Fields of a record in addition to `record.COMMON`, and the fields that identify it.
FIELDS: dict[str, tuple[type, ...]] = {
    "n": (int,),
    "d": (int,),
    "k": (int,),
    "dtype": (str,),
    "iter_ms": _TIME,
    "iter_from": (str,),
    "fit_ms": _TIME,
    "n_iter": (int, type(None)),
    "floor_ms": _TIME,
    "read_gbs": _TIME,
    "labels_equal_f64": (float,),
    "rows_compared": (int,),
    "repeats": (int,),
    "seed": (int,),
}
KEY = ("what", "engine", "n", "d", "k", "dtype")


def run_gpu(options: argparse.Namespace) -> int:
    """Time the requested engines on the requested shapes on the current GPU; return the exit code."""
    end = time.perf_counter() + 60 * options.minutes
    engines = [name for name in options.engine if _installed(name)]
    if not engines:
        return 1
    import cupy

    device = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode()
    path = options.out or record.results_path(device, "kmeans")
    clock = GpuClock()
    ceilings = measure(clock)
    rates = ", ".join(f"{unit} {rate:.0f}" for unit, rate in ceilings.matmul_tflops.items())
    print(f"{device}: read {ceilings.read_gbs:.0f} GB/s; 8192³ TFLOP/s: {rates or 'not measured'}", flush=True)
    common = {"device": device, "commit": options.commit or record.commit_of(), "seed": options.seed}
    failures = 0
    plan = _to_be_timed(options.shapes or GPU_SHAPES, engines, _recorded(path, common) if options.missing else set())
    steps = [(name, shape) for shape, names in plan.items() for name in names if PEERS[name].compiles]
    free_memory(cupy)
    call_ahead(one_step, steps, options.ahead)
    for shape, names in plan.items():
        free_memory(cupy)
        if time.perf_counter() > end:
            print(f"{shape.name}: {options.minutes:g} minutes are over; continue with --missing", flush=True)
            break
        needed, free = _needed(shape), cupy.cuda.runtime.memGetInfo()[0]
        if needed > free:
            print(f"{shape.name}: skipped: needs about {needed >> 30} GiB, {free >> 30} are free", flush=True)
            continue
        try:
            problem = Problem.draw(shape, options.seed, cupy)
        except Exception as error:  # noqa: BLE001 (as below)
            failures += _say_failed(shape, "data", error)
            continue
        for name in names:
            free_memory(cupy)
            if time.perf_counter() > end:
                break
            try:
                checked, timing = _check_and_time(name, problem, clock, options, cupy)
            except Exception as error:  # noqa: BLE001 (a peer may raise anything; nothing is recorded)
                failures += _say_failed(shape, name, error)
                continue
            one = {**_measured(name, shape, timing, ceilings), **checked, **common, "versions": versions_of(name, cupy)}
            _save(path, one)
            print(_line(one), flush=True)
        del problem
    return 1 if failures else 0


def one_step(name: str, shape: Shape) -> None:
    """Run one iteration on some data, to compile its kernels."""
    import cupy

    X = cupy.random.default_rng(0).standard_normal((shape.n, shape.d), dtype=cupy.float32)
    X = X.astype(data.numpy_dtype(shape.dtype), copy=False)
    PEERS[name](X, X[: shape.k].copy()).step()
    cupy.cuda.Device().synchronize()
    del X
    free_memory(cupy)


def _check_and_time(
    name: str, problem: Problem, clock: Clock, options: argparse.Namespace, xp: Any
) -> tuple[dict[str, Any], Timing]:
    peer = PEERS[name](problem.X, problem.centers)
    checked = check_step(peer, problem, xp)
    # The recorded shapes keep the fits of their records.
    fits = not options.no_fit or problem.shape in GPU_SHAPES
    return checked, time_peer(peer, clock, options.repeats, options.seconds_budget, fits=fits)


def _recorded(path: Path, common: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    """Return the keys of a file's records with the present device and commit."""
    same = [one for one in record.load(path) if all(one[name] == common[name] for name in ("device", "commit"))]
    return {tuple(one[name] for name in KEY) for one in same}


def _to_be_timed(
    shapes: Sequence[Shape], engines: Sequence[str], recorded: set[tuple[Any, ...]]
) -> dict[Shape, list[str]]:
    """Return the engines to time for each shape: those that support its dtype and have no record yet."""
    plan: dict[Shape, list[str]] = {}
    for shape in shapes:
        for name in engines:
            if shape.dtype not in PEERS[name].dtypes:
                print(f"{shape.name:<22} {name:<13} does not support {shape.dtype}", flush=True)
            elif ("kmeans", name, shape.n, shape.d, shape.k, shape.dtype) not in recorded:
                plan.setdefault(shape, []).append(name)
    return plan


def _say_failed(shape: Shape, name: str, error: Exception) -> int:
    first_line = (str(error).splitlines() or [""])[0][:160]
    print(f"{shape.name:<22} {name:<13} NOT RECORDED: {type(error).__name__}: {first_line}", flush=True)
    return 1


def _installed(name: str) -> bool:
    found = PEERS[name].installed()
    if not found:
        print(f"{name}: not installed")
    return found


def _needed(shape: Shape) -> int:
    """Return the bytes needed on the GPU: X, a copy in the computing dtype, a label and a check per sample, buffers."""
    return shape.n * (shape.d * (shape.itemsize + max(4, shape.itemsize)) + 32) + (6 << 30)


def free_memory(cupy: Any) -> None:
    """Free the memory pools of CuPy and torch."""
    gc.collect()
    cupy.get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def versions_of(engine: str = "tsapps", cupy: Any = None) -> dict[str, str]:
    """Return the versions of an engine and its dependencies; without CuPy, those of the CPU engines."""
    known = {"tsapps": "tsapps", "numpy": "numpy", "scikit-learn": "sklearn"}
    if cupy is None:
        return record.module_versions(known)
    if PEERS[engine].module not in known.values():
        known[engine] = PEERS[engine].module
    known |= {name: name for name in ("cupy", "torch") if name in sys.modules}
    return {**record.module_versions(known), **record.cuda_versions()}


def _measured(engine: str, shape: Shape, timing: Timing, ceilings: Ceilings) -> dict[str, Any]:
    floor, set_by = data.floor_ms(shape, ceilings)
    return {
        "what": "kmeans",
        "engine": engine,
        **asdict(shape),
        **asdict(timing),
        "floor_ms": floor,
        "floor_set_by": set_by,
        "read_ceiling_gbs": ceilings.read_gbs,
        "matmul_ceiling_tflops": ceilings.matmul_tflops,
        "read_gbs": data.read_bytes(shape) / timing.iter_ms / 1e6,
    }


def _save(path: Path, one: dict[str, Any]) -> None:
    one["date"] = record.today()
    record.store(path, one, KEY, FIELDS)


def _line(one: Mapping[str, Any]) -> str:
    """Return a one-line description of a record."""
    shape = Shape(one["n"], one["d"], one["k"], one["dtype"])
    parts = [f"{shape.name:<22} {one['engine']:<13}"]
    if one["iter_from"] != "fit":
        floor = f" ({one['iter_ms'] / one['floor_ms']:.1f}× the floor)" if one["floor_ms"] else ""
        parts.append(f"iteration {one['iter_ms']:.3f} ms{floor}, {one['read_gbs']:.0f} GB/s")
    parts.append(f"fit {one['fit_ms']:.1f} ms, {one['n_iter']} iterations" if one["fit_ms"] else "no time for a fit")
    parts.append(f"labels {one['labels_equal_f64']:.4%} of {one['rows_compared']}")
    return "; ".join(parts)


def run_cpu(options: argparse.Namespace) -> int:
    """Time scikit-learn and TSKMeans on the CPU alternately; return the exit code."""
    path = options.out or record.results_path(record.cpu_name(), "kmeans")
    common = {"device": record.cpu_name(), "commit": options.commit or record.commit_of(), "seed": options.seed}
    for shape in options.shapes or CPU_SHAPES:
        ours, theirs = compare_on_cpu(shape, options.seed, options.repeats)
        for one in (ours, theirs):
            one |= common | {"versions": versions_of(), "cores": os.cpu_count()}
            _save(path, one)
            print(_line(one))
        print(f"{shape.name:<22} tsapps / scikit-learn: {ours['fit_ms'] / theirs['fit_ms']:.3f}", flush=True)
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--engine", action="append", choices=list(PEERS), help="engine to time; may be repeated (default: cublas)"
    )
    parser.add_argument(
        "--shapes",
        default="all",
        help=f"all, or comma-separated names such as 10M-128-64-f32, or {', '.join(GRIDS)}",
    )
    record.add_options(parser, "kmeans")
    parser.add_argument("--repeats", type=int, default=9, help="maximum number of timings (default 9)")
    parser.add_argument("--seconds-budget", type=float, default=8, help="time limit per engine and shape (default 8)")
    parser.add_argument("--no-fit", action="store_true", help="time only iterations, except on the shapes of `all`")
    parser.add_argument("--missing", action="store_true", help="skip shapes that have a record of this commit")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start nothing new after this time")
    parser.add_argument(
        "--ahead",
        type=int,
        default=0,
        help="number of processes that precompile the kernels of engines that compile per shape (default 0)",
    )
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of the data (default: random)")
    options = parser.parse_args(arguments)
    options.engine = list(dict.fromkeys(options.engine or ["cublas"]))
    try:
        options.shapes = [] if options.shapes == "all" else data.shapes_named(options.shapes)
    except ValueError as error:
        parser.error(str(error))
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parse(arguments)
    if options.device == "cpu":
        return run_cpu(options)
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}; --device cpu needs none", file=sys.stderr)
        return 1
    return run_gpu(options)
