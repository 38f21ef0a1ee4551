"""Benchmark of Hamerly bounds (`algorithm="elkan"`), on data where bounds save time and where they cannot.

    python -m tsapps.bench.kmeans.bounds --commit HASH

10M × 128 and 20M × 32 float32, 64 clusters, the first samples as initial centers, at most 100 iterations:

separated   normal clusters some 24 standard deviations apart
benchmark   data of tsapps.bench.kmeans
uniform     no clusters

Both fits must end with the same bits, otherwise nothing is recorded. `iter_ms` is the mean wall time of the second to
the last iteration, from the times of a progress callback; `late_ms` is the median of the last five. `examined` is the
number of rows scored in iterations that used bounds; `cut_short` is the number of these iterations.
"""

import argparse
import sys
import time
from dataclasses import asdict
from itertools import pairwise, product
from secrets import randbelow
from statistics import median
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.kmeans.problems import Shape, draw

SHAPES = Shape(10_000_000, 128, 64, "float32"), Shape(20_000_000, 32, 64, "float32")
ITERATIONS = 100
#: Fields of a record in addition to `record.COMMON`, and the fields that identify it.
FIELDS: dict[str, tuple[type, ...]] = {
    "data": (str,),
    "n": (int,),
    "d": (int,),
    "k": (int,),
    "dtype": (str,),
    "iter_ms": (float,),
    "late_ms": (float,),
    "n_iter": (int,),
    "examined": (int, type(None)),
    "cut_short": (int, type(None)),
    "seed": (int,),
}
KEY = ("what", "engine", "data", "n", "d", "k", "dtype")
_AT_ONCE = 1 << 19


def data_of(shape: Shape, kind: str, seed: int, cupy: Any) -> Any:
    """Return X on the GPU."""
    if kind == "benchmark":
        return draw(shape, seed, cupy)[0]
    import numpy as np

    rng = cupy.random.default_rng(seed)
    X = cupy.empty((shape.n, shape.d), np.float32)
    middles = rng.standard_normal((shape.k, shape.d), dtype=np.float32) * np.float32(24 / np.sqrt(2 * shape.d))
    for start in range(0, shape.n, _AT_ONCE):
        rows = min(_AT_ONCE, shape.n - start)
        if kind == "uniform":
            X[start : start + rows] = rng.random((rows, shape.d), dtype=np.float32)
        else:
            noise = rng.standard_normal((rows, shape.d), dtype=np.float32)
            X[start : start + rows] = noise + middles[rng.integers(0, shape.k, rows)]
    return X


def fit(X: Any, k: int, bounds: bool, iterations: int) -> tuple[Any, list[float], tuple[int, int] | None]:
    """Return the clustering, the time of each iteration, and counts: iterations with bounds, rows scored in them."""
    import numpy as np

    from tsapps.apps.kmeans import lloyd
    from tsapps.apps.kmeans.open_engine import open_engine
    from tsapps.kernels.arrays import to_host

    times: list[float] = []
    options = {"init": to_host(X[:k]), "n_init": 1, "tol": 0, "max_iter": iterations}
    with open_engine(X, engine="fused", bounds=bounds) as engine:
        tell = {"progress": lambda _: times.append(time.perf_counter()), "random_state": np.random.RandomState(0)}
        found = lloyd.fit(engine, k, **options, **tell)
        return found, times, engine.step_for(k).examined() if bounds else None


def measure(shape: Shape, kind: str, seed: int, cupy: Any) -> list[dict[str, Any]]:
    """Return the measurements without and with bounds.

    Raises
    ------
    ValueError
        If the two fits differ in any bit.
    """
    X = data_of(shape, kind, seed, cupy)
    measured, fits = [], []
    for engine, bounds in (("tsapps", False), ("tsapps-bounds", True)):
        fit(X, shape.k, bounds, ITERATIONS)  # compiles kernels and warms up
        found, times, examined = fit(X, shape.k, bounds, ITERATIONS)
        steps = [1e3 * (after - before) for before, after in pairwise(times)]
        cut_short, rows = examined or (None, None)
        of_both = {"data": kind, **asdict(shape), "seed": seed}
        times_of = {"iter_ms": sum(steps) / len(steps), "late_ms": median(steps[-5:]), "n_iter": found.n_iter}
        measured.append({"engine": engine, **of_both, **times_of, "examined": rows, "cut_short": cut_short})
        fits.append(found)
    without, bounded = fits
    same = bool((without.labels == bounded.labels).all()) and bool((without.centers == bounded.centers).all())
    if not same or (without.n_iter, without.inertia) != (bounded.n_iter, bounded.inertia):
        raise ValueError(f"{shape.name}, {kind}: the fits with bounds and without differ")
    return measured


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    record.add_options(parser, "kmeans-bounds")
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of the data (default: random)")
    options = parser.parse_args(arguments)
    import cupy

    from tsapps.bench.kmeans.run import versions_of

    device = record.gpu_name()
    path = options.out or record.results_path(device, "kmeans-bounds")
    common = {"what": "kmeans-bounds", "device": device, "commit": options.commit or record.commit_of()}
    for shape, kind in product(SHAPES, ("separated", "benchmark", "uniform")):
        cupy.get_default_memory_pool().free_all_blocks()
        for one in measure(shape, kind, options.seed, cupy):
            one |= common | {"versions": versions_of("tsapps", cupy), "date": record.today()}
            record.store(path, one, KEY, FIELDS)
            print(
                f"{shape.name} {kind:<10} {one['engine']:<14} {one['iter_ms']:.3f} ms per iteration, "
                f"late {one['late_ms']:.3f}; {one['n_iter']} iterations, {one['cut_short']} with bounds",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
