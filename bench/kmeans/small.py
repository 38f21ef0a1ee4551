"""Benchmark of whole fits of small data on a GPU: k-means++, default parameters, wall time.

    python -m tsapps.bench.kmeans.small

Small fits depend on the number and latency of host synchronizations, not on bandwidth. `tsapps` is `TSKMeans` with
default parameters, `cublas` uses that engine, `scikit-learn` is its `KMeans` on the machine's CPU. The timed fits are
checked in float64: except for rounding, no sample is nearer to another center, and the inertia is the sum over the
samples. Wrong results are not recorded.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.timing import Clock, GpuClock, median
from tsapps.bench.kmeans.problems import Shape, nearest_f64
from tsapps.kernels.arrays import to_host
from tsapps.kernels.devices import gpus, why_no_gpu

FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("n", "d", "k", "n_iter", "repeats", "seed"), (int,)),
    "dtype": (str,),
    **dict.fromkeys(("fit_ms", "inertia"), (float,)),
}
KEY = ("what", "engine", "n", "d", "k", "dtype")
SHAPES = tuple(
    Shape.parse(f"{name}-{short}")
    for name in ("1k-16-8", "10k-64-64", "30k-64-64", "100k-16-16", "100k-64-64", "20k-128-256")
    for short in ("f32", "f64")
)
_REPEATS = {"tsapps": 9, "cublas": 5, "scikit-learn": 2}


def draw(shape: Shape, seed: int) -> np.ndarray:
    """Draw samples around k centers that are closer than the clusters' spread: a fit takes some ten iterations."""
    rng = np.random.default_rng(seed)
    centers = 2 * rng.standard_normal((shape.k, shape.d))
    return (rng.standard_normal((shape.n, shape.d)) + centers[rng.integers(shape.k, size=shape.n)]).astype(shape.dtype)


def check(X: np.ndarray, fitted: Any) -> None:
    """Raise ValueError unless labels and inertia match the centers, in float64."""
    rows, centers = X.astype(np.float64), to_host(fitted.cluster_centers_).astype(np.float64)
    nearest = nearest_f64(X, centers, np.arange(len(X)), np)
    own, best = (((rows - centers[labels]) ** 2).sum(axis=1) for labels in (to_host(fitted.labels_), nearest))
    # X is centered in its own dtype, which rounds the scores of distant samples.
    allowed = 64 * X.shape[1] ** 0.5 * np.finfo(X.dtype).eps * (rows * rows).sum(axis=1).max()
    if not (own <= best + allowed).all():
        raise ValueError(f"{int((own > best + allowed).sum())} samples are nearer to another center")
    if abs(fitted.inertia_ - own.sum()) > 1e-4 * own.sum():
        raise ValueError(f"the inertia is {fitted.inertia_}; expected {own.sum()}")


def timed(fit: Callable[[], Any], repeats: int, clock: Clock) -> tuple[float, Any]:
    """Return the median wall time of a fit in ms, and the last fit."""
    fit()  # compiles kernels
    found = [clock.wall_ms(fit) for _ in range(repeats)]
    return median(ms for ms, _ in found), found[-1][1]


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    record.add_options(parser, "kmeans-small")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default 0)")
    options = parser.parse_args()
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    import cupy
    from sklearn.cluster import KMeans

    from tsapps import TSKMeans

    device = gpus()[0].name
    path = options.out or record.results_path(device, "kmeans-small")
    modules = {"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy", "scikit-learn": "sklearn"}
    common = record.of_run("kmeans-small", device, record.module_versions(modules), options.commit)
    common["cpu"], clock = record.cpu_name(), GpuClock()
    for shape in SHAPES:
        X = draw(shape, options.seed)
        on_gpu = cupy.asarray(X)
        fits: dict[str, Callable[[], Any]] = {
            "tsapps": lambda k=shape.k, X=on_gpu: TSKMeans(k, random_state=0).fit(X),
            "cublas": lambda k=shape.k, X=on_gpu: TSKMeans(k, random_state=0, engine="cublas").fit(X),
            "scikit-learn": lambda k=shape.k, X=X: KMeans(k, random_state=0).fit(X),
        }
        for engine, fit in fits.items():
            ms, fitted = timed(fit, _REPEATS[engine], clock)
            check(X, fitted)
            one = {**common, "engine": engine, "n": shape.n, "d": shape.d, "k": shape.k, "dtype": shape.dtype}
            one |= {"fit_ms": ms, "n_iter": int(fitted.n_iter_), "inertia": float(fitted.inertia_)}
            one |= {"repeats": _REPEATS[engine], "seed": options.seed}
            record.store(path, one, KEY, FIELDS)
            print(f"{shape.name} {engine}: {ms:.2f} ms, {fitted.n_iter_} iterations", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
