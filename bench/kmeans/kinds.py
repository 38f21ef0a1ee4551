"""Benchmark of whole K-means fits on kinds of data: heavy tails, uneven clusters, no clusters, real files.

    python -m tsapps.bench.kmeans.kinds --engine tsapps --engine flashlib --engine flash-kmeans
    python -m tsapps.bench.kmeans.kinds --data sorted --data china --shape 273280,3,64 --shape 1M,64,300
    python -m tsapps.bench.kmeans.kinds --more-shapes --missing --minutes 8

Fits of 20 iterations from given rows by public calls. The kinds of data are those of `data_kinds.KINDS`.

first_call_ms  wall time of the first fit, with kernels that are compiled because they are not in the cache
fit_ms         wall time of a fit, median of at most three, or of up to 31 that take less than half a second together
seeded_fit_ms  wall time of a fit with k-means++, our engines only; the others have none, or not with scikit-learn's
               draws
wrong          share of sampled rows that an engine labels with a center that is not the nearest, beyond the rounding of
               float32 (`wrong_share`). All engines label at the same centers: those of tsapps' fit
ambiguous      for each iteration [a, b]: the share of the rows whose label rescoring selects among a list of
               candidates, and the share that it compares with all centers (`ambiguous.py`). Our kernels only, without
               bounds, and not those for small d, which rescore a row when they find it
extra_bytes    largest number of bytes of GPU memory in use during a fit, beyond X and the initial centers
               (`memory.peak_bytes`). Buffers that a library keeps from one fit to the next are not included

Every record is saved immediately. `--missing` continues a run that `--minutes` ended: it skips records of the same
commit.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.memory import peak_bytes
from tsapps.bench.common.timing import Clock, GpuClock, median, repeats_within
from tsapps.bench.kmeans.ambiguous import ambiguous_shares
from tsapps.bench.kmeans.data_kinds import KINDS, draw
from tsapps.bench.kmeans.peers import PEERS, Peer, Tsapps
from tsapps.bench.kmeans.problems import Shape
from tsapps.bench.kmeans.run import free_memory, versions_of
from tsapps.kernels.arrays import as_array, to_host
from tsapps.kernels.devices import gpus, why_no_gpu

__all__ = ["FIELDS", "KEY", "MORE_SHAPES", "SHAPES", "Problem", "measured", "shape_named", "wrong_share"]

#: Fields of a new record in addition to `record.COMMON`, and the fields that identify it. Older records may lack
#: `ambiguous` and `extra_bytes`.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("n", "d", "k", "n_iter", "repeats", "seed"), (int,)),
    **dict.fromkeys(("dtype", "data"), (str,)),
    **dict.fromkeys(("fit_ms", "first_call_ms", "wrong"), (float,)),
    "seeded_fit_ms": (float, type(None)),
    "ambiguous": (list, type(None)),
    "extra_bytes": (int,),
}
KEY = ("what", "engine", "n", "d", "k", "dtype", "data")
ITERATIONS = 20
# Engines on a GPU.
_ENGINES = [name for name in PEERS if name != "scikit-learn"]
# Number of rows whose labels are checked.
_CHECKED = 50_000
# A fit is repeated up to `_REPEATS` times within the budget, or up to `_REPEATS_OF_SHORT` times if that takes less than
# `_SHORT` seconds: the host's share of a fit of a few milliseconds varies.
_REPEATS, _SHORT, _REPEATS_OF_SHORT = 3, 0.5, 31


def shape_named(text: str) -> Shape:
    """Parse n,d,k, such as 1M,64,300, as a shape of float32 data."""
    try:
        n, d, k = text.split(",")
        return Shape.parse(f"{n}-{d}-{k}-f32")
    except ValueError:
        raise ValueError(f"shape {text!r}: expected n,d,k, such as 1M,64,300, with 1 <= k <= n and d >= 1") from None


def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(map(shape_named, text.split()))


#: The shapes with published records, and more of them.
SHAPES = _shapes("2M,384,1024 1M,768,1000 5M,64,32 1M,16,256")
MORE_SHAPES = _shapes(
    "1M,2,300 1M,4,1024 10M,8,16 1M,32,1000 2M,48,512 1M,64,64 4M,96,4096 500k,128,256 3M,128,1000 200k,1536,512"
)


class Problem:
    """X of a kind and initial centers on the GPU, and the centers at which labels are compared.

    Parameters
    ----------
    kind : str
    shape : Shape
    seed : int
    xp : module
        CuPy, or NumPy in tests.
    """

    device = "cuda"

    def __init__(self, kind: str, shape: Shape, seed: int, xp: Any) -> None:
        self.kind, self.shape, self.seed, self.xp = kind, shape, seed, xp
        self.X, self.initial = draw(kind, shape.n, shape.d, shape.k, seed, xp)

    @cached_property
    def centers(self) -> Any:
        """The centers of a fit by tsapps, (k, d), float32."""
        from tsapps import TSKMeans

        options: dict[str, Any] = {"n_init": 1, "max_iter": ITERATIONS, "tol": 0, "device": self.device}
        model = TSKMeans(self.shape.k, init=to_host(self.initial), **options).fit(self.X)
        return self.xp.asarray(model.cluster_centers_, dtype=np.float32)


def wrong_share(X: Any, labels: Any, centers: Any, seed: int, xp: Any) -> float:
    """Return the share of sampled rows with a center nearer than their label's, beyond the rounding of float32.

    With m the mean of X, the label of x has center b, and the nearest center is c. The label is wrong if
    (‖x − b‖² − ‖x − c‖²) / 2 exceeds 2⁻²⁴ · (‖x‖ · max(‖b‖, ‖c‖) + 2 ‖m‖ · (‖x − b‖ + ‖x − c‖)). The first term allows
    for a score in float32, and the second for x − m, b − m and c − m in float32.
    """
    rows = xp.random.default_rng(seed + 1).integers(0, len(X), min(_CHECKED, len(X)))
    x, c, own = X[rows].astype(np.float64), centers.astype(np.float64), labels[rows]
    mean_norm = xp.linalg.norm(X.mean(axis=0, dtype=np.float64))
    wrong = 0
    for start in range(0, len(rows), 4096):
        some, label = x[start : start + 4096], own[start : start + 4096]
        half_squares = (c * c).sum(axis=1) / 2 - some @ c.T
        nearest = half_squares.argmin(axis=1)
        each = xp.arange(len(some))
        excess = half_squares[each, label] - half_squares[each, nearest]
        norms = xp.maximum(xp.linalg.norm(c[label], axis=1), xp.linalg.norm(c[nearest], axis=1))
        distances = xp.linalg.norm(some - c[label], axis=1) + xp.linalg.norm(some - c[nearest], axis=1)
        rounding = 2.0**-24 * (xp.linalg.norm(some, axis=1) * norms + 2 * mean_norm * distances)
        wrong += int((excess > rounding).sum())
    return wrong / len(rows)


def _repeated(call: Callable[[], Any], clock: Clock, seconds: float) -> list[tuple[float, Any]]:
    """Return the wall time in ms and the result of each of several calls, as many as the constants above say."""
    found = [clock.wall_ms(call)]
    within = ((seconds, _REPEATS), (_SHORT, _REPEATS_OF_SHORT))
    more = max(repeats_within(time_limit, found[0][0], most) for time_limit, most in within) - 1
    return found + [clock.wall_ms(call) for _ in range(more)]


def _times(engine: type[Peer], problem: Problem, clock: Clock, seconds: float) -> dict[str, Any]:
    """Return the times of one engine's fits, each repeated as often as `seconds` allow."""
    bound = engine(problem.X, problem.initial)
    first, _ = clock.wall_ms(lambda: bound.fit(ITERATIONS))
    found = _repeated(lambda: bound.fit(ITERATIONS), clock, seconds)
    times = {
        "first_call_ms": first,
        "fit_ms": median(ms for ms, _ in found),
        "n_iter": int(found[-1][1]),
        "repeats": len(found),
        "seeded_fit_ms": None,
    }
    if isinstance(bound, Tsapps) and bound.seeds:
        clock.wall_ms(lambda: bound.fit_seeded(ITERATIONS, 0))  # compiles the kernels
        seeded = _repeated(lambda: bound.fit_seeded(ITERATIONS, 0), clock, seconds)
        times["seeded_fit_ms"] = median(ms for ms, _ in seeded)
    return times


def _ambiguous(engine: type[Peer], problem: Problem) -> list[list[float]] | None:
    """Return the shares of ambiguous rows by iteration, of our engines."""
    if not issubclass(engine, Tsapps):
        return None
    from tsapps.apps.kmeans.open_engine import open_engine

    options: dict[str, Any] = {"engine": engine.engine, "precision": engine.precision, "bounds": False}
    opened = open_engine(problem.X, device=problem.device, **options)
    return ambiguous_shares(opened, to_host(problem.initial), ITERATIONS)


def measured(engine: type[Peer], problem: Problem, clock: Clock, seconds: float) -> dict[str, Any]:
    """Return the fields that are measured of one engine on one problem."""
    # First, so that no other fit has compiled the kernels.
    times = _times(engine, problem, clock, seconds)
    labels, _ = engine(problem.X, problem.centers).step()
    labels = problem.xp.asarray(as_array(labels))
    wrong = wrong_share(problem.X, labels, problem.centers, problem.seed, problem.xp)
    bound = engine(problem.X, problem.initial)
    extra = peak_bytes(lambda: bound.fit(ITERATIONS), engine.allocator)
    return {**times, "wrong": wrong, "ambiguous": _ambiguous(engine, problem), "extra_bytes": extra}


def _line(one: dict[str, Any]) -> str:
    """Return what is printed of a record."""
    text = f"{one['fit_ms']:.2f} ms, wrong {one['wrong']:.2g}, {one['extra_bytes'] / 2**20:,.0f} MiB more than X"
    if one["ambiguous"]:
        listed, every = np.mean(one["ambiguous"], axis=0)
        text += f", ambiguous {listed:.2%}, compared with all {every:.2%}"
    return f"{one['n']}-{one['d']}-{one['k']} {one['data']} {one['engine']}: {text}"


def _missing(path: Any, common: dict[str, Any], plan: list[tuple[Shape, str, str]]) -> list[tuple[Shape, str, str]]:
    """Return the part of the plan that has no record of the present commit and device."""
    same = [one for one in record.load(path) if all(one[name] == common[name] for name in ("device", "commit"))]
    done = {(one["n"], one["d"], one["k"], one["data"], one["engine"]) for one in same}
    return [(shape, kind, name) for shape, kind, name in plan if (shape.n, shape.d, shape.k, kind, name) not in done]


def run(options: argparse.Namespace) -> int:
    """Time the requested engines on the current GPU; return the exit code."""
    import cupy

    end = time.perf_counter() + 60 * options.minutes
    engines = [name for name in options.engine if PEERS[name].installed()]
    for name in options.engine:
        if name not in engines:
            print(f"{name}: not installed")
    device, clock = gpus()[0].name, GpuClock()
    path = options.out or record.results_path(device, "kmeans-data")
    shared = record.of_run("kmeans-data", device, {}, options.commit)
    plan = [(shape, kind, name) for shape in options.shapes for kind in options.data for name in engines]
    failures, problem = 0, None
    for shape, kind, name in _missing(path, shared, plan) if options.missing else plan:
        if time.perf_counter() > end:
            print(f"{options.minutes:g} minutes are over; continue with --missing", flush=True)
            break
        try:
            if problem is None or (problem.shape, problem.kind) != (shape, kind):
                problem = None
                free_memory(cupy)
                problem = Problem(kind, shape, options.seed, cupy)
            free_memory(cupy)
            found = measured(PEERS[name], problem, clock, options.seconds_budget)
        except Exception as error:  # noqa: BLE001 (a peer may raise anything; nothing is recorded)
            text = f"{type(error).__name__}: {str(error)[:160]}"
            print(f"{shape.n}-{shape.d}-{shape.k} {kind} {name} NOT RECORDED: {text}", flush=True)
            failures += 1
            continue
        one = {**shared, "engine": name, "n": shape.n, "d": shape.d, "k": shape.k, "dtype": shape.dtype, "data": kind}
        one |= {**found, "seed": options.seed, "versions": versions_of(name, cupy)}
        record.store(path, one, KEY, FIELDS)
        print(_line(one), flush=True)
    return 1 if failures or not engines else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--engine", action="append", choices=_ENGINES, help="engine to time; may be repeated (default: tsapps)"
    )
    parser.add_argument(
        "--data", action="append", choices=sorted(KINDS), help="kind of data; may be repeated (default: all)"
    )
    parser.add_argument(
        "--shape", action="append", help="n,d,k, such as 1M,64,300; may be repeated (default: the recorded shapes)"
    )
    parser.add_argument("--more-shapes", action="store_true", help="time ten more shapes instead of the recorded ones")
    record.add_options(parser, "kmeans-data")
    parser.add_argument(
        "--seconds-budget", type=float, default=10, help="time limit of the repetitions of a fit (default 10)"
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="time after which no engine is started")
    parser.add_argument("--missing", action="store_true", help="skip records of the same commit")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default 0)")
    options = parser.parse_args(arguments)
    # tsapps first: its fit of `Problem.centers` would compile its kernels.
    options.engine = sorted(dict.fromkeys(options.engine or ["tsapps"]), key=lambda name: name != "tsapps")
    options.data = list(dict.fromkeys(options.data or KINDS))
    try:
        shapes = [shape_named(text) for text in options.shape or ()]
    except ValueError as error:
        parser.error(str(error))
    shapes += MORE_SHAPES if options.more_shapes else ()
    options.shapes = list(dict.fromkeys(shapes or SHAPES))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parse(arguments)
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
