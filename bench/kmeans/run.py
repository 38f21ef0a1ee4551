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
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import randbelow
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.common.outcome import LEFT_OUT, LeftOutError, NotRightError, check_memory, missing
from tsapps.bench.common.precompile import call_ahead
from tsapps.bench.common.roofline import Ceilings, measure
from tsapps.bench.common.timing import GpuClock
from tsapps.bench.kmeans import problems as data
from tsapps.bench.kmeans.measure import Problem, Timing, check_step, compare_on_cpu, time_peer
from tsapps.bench.kmeans.peers import PEERS
from tsapps.bench.kmeans.problems import CPU_SHAPES, GPU_SHAPES, GRIDS, Shape
from tsapps.kernels.devices import Choice, gpus, why_no_gpu
from tsapps.kernels.system.host_memory import available_host_memory

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
# Bytes of buffers of an engine and of the reference on a GPU, at most; arrays of the size of X on a CPU, in float64.
_BUFFERS, _COPIES = 6 << 30, 4
# Types in which scikit-learn computes.
_CPU_DTYPES = ("float64", "float32")


@dataclass(frozen=True)
class Limits:
    """Limits of a run: timings and seconds for an engine and a shape, the end of the run by `time.perf_counter`.

    With `all_fits` False, only the recorded shapes have whole fits timed.
    """

    repeats: int
    seconds: float = math.inf
    end: float = math.inf
    all_fits: bool = True

    def fits(self, shape: Shape) -> bool:
        """Return whether to time whole fits; the recorded shapes keep the fits of their records."""
        return self.all_fits or shape in GPU_SHAPES


class OnGpu:
    """Measures engines on the current GPU.

    Parameters
    ----------
    seed : int
        Seed of the data.
    """

    def __init__(self, seed: int) -> None:
        import cupy

        self.seed, self.cupy, self.clock = seed, cupy, GpuClock()
        self.device = record.gpu_name()
        self.ceilings = measure(self.clock)

    def measured(self, shape: Shape, engines: Sequence[str], limits: Limits) -> Iterator[dict[str, Any] | str]:
        """Yield the fields of a record of each engine, or a line that says why there is none."""
        free_memory(self.cupy)
        try:
            check_memory(*needed_and_free(shape, self.cupy))
            problem = Problem.draw(shape, self.seed, self.cupy)
        except Exception as error:  # noqa: BLE001 (as below)
            yield missing(shape.name, error)
            return
        for name in engines:
            if shape.dtype not in PEERS[name].dtypes:
                yield f"{shape.name} {name}: {LEFT_OUT}does not support {shape.dtype}"
                continue
            free_memory(self.cupy)
            if time.perf_counter() > limits.end:
                return
            try:
                checked, timing = self._check_and_time(name, problem, limits)
            except Exception as error:  # noqa: BLE001 (a peer may raise anything; nothing is recorded)
                yield missing(f"{shape.name} {name}", error)
                continue
            versions = versions_of(name, self.cupy)
            yield {**_measured(name, shape, timing, self.ceilings), **checked, "versions": versions}

    def _check_and_time(self, name: str, problem: Problem, limits: Limits) -> tuple[dict[str, Any], Timing]:
        peer = PEERS[name](problem.X, problem.centers)
        checked = check_step(peer, problem, self.cupy)
        fits = limits.fits(problem.shape)
        return checked, time_peer(peer, self.clock, limits.repeats, limits.seconds, fits=fits)


class OnCpu:
    """Measures `TSKMeans` and scikit-learn on the CPU.

    Parameters
    ----------
    seed : int
        Seed of the data.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.device = seed, record.cpu_name()

    def measured(self, shape: Shape, _: Sequence[str], limits: Limits) -> Iterator[dict[str, Any] | str]:
        """Yield the fields of a record of each of the two, or a line that says why there is none."""
        try:
            if shape.dtype not in _CPU_DTYPES:
                raise LeftOutError(f"{shape.dtype} is only measured on a GPU")
            check_memory(_COPIES * shape.n * shape.d * 8, available_host_memory())
            found = compare_on_cpu(shape, self.seed, limits.repeats, limits.seconds)
        except (LeftOutError, NotRightError, MemoryError) as error:
            yield missing(shape.name, error)
            return
        for one in found:
            yield {**one, "versions": versions_of(), "cores": os.cpu_count()}


def opened(choice: Choice, seed: int) -> OnGpu | OnCpu:
    """Return what measures K-means on a device."""
    if not choice.is_gpu:
        return OnCpu(seed)
    import cupy

    cupy.cuda.Device(choice.index).use()
    return OnGpu(seed)


def recorded(
    on: OnGpu | OnCpu, shape: Shape, engines: Sequence[str], path: Path, commit: str, limits: Limits
) -> Iterator[dict[str, Any] | str]:
    """Add the records of a shape to a file, and yield them, and lines on engines without a record."""
    for one in on.measured(shape, engines, limits):
        if not isinstance(one, str):
            one |= {"device": on.device, "commit": commit, "seed": on.seed, "date": record.today()}
            record.store(path, one, ("device", *KEY), FIELDS)
        yield one


def run_gpu(options: argparse.Namespace) -> int:
    """Time the requested engines on the requested shapes on the current GPU; return the exit code."""
    limits = _limits_of(options)
    engines = [name for name in options.engine if _installed(name)]
    if not engines:
        return 1
    on = OnGpu(options.seed)
    path = options.out or record.results_path(on.device, "kmeans")
    rates = ", ".join(f"{unit} {rate:.0f}" for unit, rate in on.ceilings.matmul_tflops.items())
    print(f"{on.device}: read {on.ceilings.read_gbs:.0f} GB/s; 8192³ TFLOP/s: {rates or 'not measured'}", flush=True)
    common = {"device": on.device, "commit": options.commit or record.commit_of()}
    failures = 0
    plan = _to_be_timed(options.shapes or GPU_SHAPES, engines, _recorded(path, common) if options.missing else set())
    steps = [(name, shape) for shape, names in plan.items() for name in names if PEERS[name].compiles]
    free_memory(on.cupy)
    call_ahead(one_step, steps, options.ahead)
    for shape, names in plan.items():
        if time.perf_counter() > limits.end:
            print(f"{shape.name}: {options.minutes:g} minutes are over; continue with --missing", flush=True)
            break
        for one in recorded(on, shape, names, path, common["commit"], limits):
            failures += isinstance(one, str) and LEFT_OUT not in one
            print(one if isinstance(one, str) else _line(one), flush=True)
    return 1 if failures else 0


def _limits_of(options: argparse.Namespace) -> Limits:
    end = time.perf_counter() + 60 * options.minutes
    return Limits(options.repeats, options.seconds_budget, end, all_fits=not options.no_fit)


def one_step(name: str, shape: Shape) -> None:
    """Run one iteration on some data, to compile its kernels."""
    import cupy

    X = cupy.random.default_rng(0).standard_normal((shape.n, shape.d), dtype=cupy.float32)
    X = X.astype(data.numpy_dtype(shape.dtype), copy=False)
    PEERS[name](X, X[: shape.k].copy()).step()
    cupy.cuda.Device().synchronize()
    del X
    free_memory(cupy)


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


def _installed(name: str) -> bool:
    found = PEERS[name].installed()
    if not found:
        print(f"{name}: not installed")
    return found


def needed_and_free(shape: Shape, cupy: Any) -> tuple[int, int]:
    """Return the bytes that a problem needs on the GPU, and those that are free.

    It needs X, a copy in the computing dtype, a label and a check per sample, and buffers.
    """
    free, total = cupy.cuda.runtime.memGetInfo()
    data_bytes = shape.n * (shape.d * (shape.itemsize + max(4, shape.itemsize)) + 32)
    return data_bytes + min(_BUFFERS, total // 4), free


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
    on, failures = OnCpu(options.seed), 0
    path, commit = options.out or record.results_path(on.device, "kmeans"), options.commit or record.commit_of()
    limits = Limits(options.repeats)
    for shape in options.shapes or CPU_SHAPES:
        fits = {}
        for one in recorded(on, shape, (), path, commit, limits):
            if isinstance(one, str):
                failures += LEFT_OUT not in one
            else:
                fits[one["engine"]] = one["fit_ms"]
            print(one if isinstance(one, str) else _line(one), flush=True)
        if fits:
            print(
                f"{shape.name:<22} tsapps / scikit-learn: {fits['tsapps-cpu'] / fits['scikit-learn']:.3f}", flush=True
            )
    return 1 if failures else 0


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
