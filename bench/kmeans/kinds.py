"""Benchmark of whole K-means fits on kinds of data: heavy tails, uneven clusters, no clusters.

    python -m bench.kmeans.kinds --engine tsapps --engine flashlib --engine flash-kmeans

Fits of 20 iterations from given rows by public calls, wall time. `seeded_fit_ms` is a fit of tsapps with k-means++
instead; the others have none, or not with scikit-learn's draws. `first_call_ms` includes compiling kernels that are
not in the cache. `wrong` is the share of sampled rows that an engine labels with a center that is not the nearest,
beyond the rounding of float32. All engines label at the same centers: those of tsapps' fit.
"""

import argparse
import sys
from typing import Any

import numpy as np

from bench.common import record
from bench.common.timing import GpuClock, median
from bench.kmeans.peers import PEERS, Peer
from tsapps.kernels.devices import gpus, why_no_gpu

__all__ = ["FIELDS", "KEY", "KINDS", "draw", "wrong_share"]

FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("n", "d", "k", "n_iter", "repeats", "seed"), (int,)),
    **dict.fromkeys(("dtype", "data"), (str,)),
    **dict.fromkeys(("fit_ms", "first_call_ms", "wrong"), (float,)),
    "seeded_fit_ms": (float, type(None)),
}
KEY = ("what", "engine", "n", "d", "k", "dtype", "data")
SHAPES = ((2_000_000, 384, 1024), (1_000_000, 768, 1000), (5_000_000, 64, 32), (1_000_000, 16, 256))
ITERATIONS = 20
# Rows drawn at a time; rows whose labels are checked; repetitions of a fit.
_BLOCK, _CHECKED, _REPEATS = 1 << 20, 50_000, 3


def _zipf_clusters(rng: Any, size: int, k: int, xp: Any) -> Any:
    shares = xp.arange(1, k + 1, dtype=np.float64) ** -1.1
    return xp.searchsorted(xp.cumsum(shares / shares.sum()), rng.random(size)).clip(0, k - 1)


#: Kinds of data by name. Middles of clusters are 0.6 times standard normal points.
KINDS: dict[str, str] = {
    "mixture": "clusters of equal size and spread",
    "zipf": "populations of clusters by Zipf's law, spreads from 0.2 to 1.7",
    "outliers": "0.1 % of the rows of a mixture multiplied by 1,000",
    "student": "Student's t with two degrees of freedom about the middles",
    "uniform": "uniform in a cube: no clusters",
    "embeddings": "rows of norm 1 whose features fall off as a power law, as embeddings do",
    "counts": "small non-negative integers, most of them zero",
    "scales": "a mixture whose features are scaled by 10⁻³ to 10³",
    "offset": "a mixture that is 3,000 from the origin in every feature",
}


def draw(kind: str, n: int, d: int, k: int, seed: int, xp: Any) -> tuple[Any, Any]:
    """Draw float32 data of a kind, (n, d), and initial centers: its first k rows, which are as random as others."""
    rng = xp.random.default_rng(seed)
    middles = np.float32(0.6) * rng.standard_normal((k, d), dtype=np.float32)
    X = xp.empty((n, d), np.float32)
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        clusters = _zipf_clusters(rng, size, k, xp) if kind == "zipf" else rng.integers(0, k, size)
        noise = rng.standard_normal((size, d), dtype=np.float32)
        X[start : start + size] = _rows(kind, rng, middles[clusters], noise, clusters / k, xp)
    return X, X[:k].copy()


def _rows(kind: str, rng: Any, middles: Any, noise: Any, place: Any, xp: Any) -> Any:
    """Return rows of a kind about `middles`; `place` is each row's cluster as a number from 0 to 1."""
    size, d = noise.shape
    if kind == "zipf":
        return noise * (0.2 + 1.5 * place)[:, np.newaxis] + middles
    if kind == "outliers":
        far = (rng.random(size) < 1e-3)[:, np.newaxis]
        return xp.where(far, 1000, 1) * (noise + middles)
    if kind == "student":
        return noise / xp.sqrt(rng.standard_exponential((size, d), dtype=np.float32)) + middles
    if kind == "uniform":
        return rng.random((size, d), dtype=np.float32)
    if kind == "embeddings":
        rows = (0.8 * noise + middles / 0.6) * xp.arange(1, d + 1, dtype=np.float32) ** -0.7
        return rows / xp.linalg.norm(rows, axis=1, keepdims=True)
    if kind == "counts":
        return xp.floor(3 * (1 + xp.abs(middles)) * rng.random((size, d), dtype=np.float32) ** 12 + 0.2)
    if kind == "scales":
        return (noise + middles) * xp.logspace(-3, 3, d, dtype=np.float32)
    return 0.5 * noise + middles + 3000 if kind == "offset" else noise + middles


def wrong_share(X: Any, labels: Any, centers: Any, seed: int, xp: Any) -> float:
    """Return the share of sampled rows with a center nearer than their label's, beyond the rounding of float32."""
    rows = xp.random.default_rng(seed + 1).integers(0, len(X), min(_CHECKED, len(X)))
    x, c, own = X[rows].astype(np.float64), centers.astype(np.float64), labels[rows]
    wrong = 0
    for start in range(0, len(rows), 4096):
        some = x[start : start + 4096]
        half_squares = (c * c).sum(axis=1) / 2 - some @ c.T
        excess = half_squares[xp.arange(len(some)), own[start : start + 4096]] - half_squares.min(axis=1)
        rounding = xp.linalg.norm(some, axis=1) * xp.linalg.norm(c, axis=1).max() * 2.0**-24
        wrong += int((excess > rounding).sum())
    return wrong / len(rows)


def _measured(peer: type[Peer], X: Any, initial: Any, clock: GpuClock) -> dict[str, Any]:
    """Return the times of one engine's fits."""
    bound = peer(X, initial)
    first, _ = clock.wall_ms(lambda: bound.fit(ITERATIONS))
    repeats = 1 if first > 5000 else _REPEATS
    found = [clock.wall_ms(lambda: bound.fit(ITERATIONS)) for _ in range(repeats)]
    return {
        "first_call_ms": first,
        "fit_ms": median(ms for ms, _ in found),
        "n_iter": int(found[-1][1]),
        "repeats": repeats,
    }


def _seeded_ms(X: Any, k: int, clock: GpuClock) -> float:
    """Return the time of a fit of tsapps with k-means++."""
    from tsapps import TSKMeans

    def fit() -> Any:
        return TSKMeans(k, n_init=1, max_iter=ITERATIONS, tol=0, random_state=0, device="cuda").fit(X)

    fit()  # compiles the kernels
    return median(clock.wall_ms(fit)[0] for _ in range(_REPEATS))


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", action="append", choices=sorted(PEERS), help="engine to time (default: tsapps)")
    parser.add_argument("--data", action="append", choices=sorted(KINDS), help="kind of data (default: all)")
    record.add_options(parser, "kmeans-data")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default 0)")
    options = parser.parse_args()
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    import cupy

    from tsapps import TSKMeans

    engines = [PEERS[name] for name in options.engine or ["tsapps"]]
    device, clock = gpus()[0].name, GpuClock()
    path = options.out or record.results_path(device, "kmeans-data")
    modules = {"numpy": "numpy", "cupy": "cupy", **{engine.name: engine.module for engine in engines}}
    common = record.of_run("kmeans-data", device, record.module_versions(modules), options.commit)
    for n, d, k in SHAPES:
        for kind in options.data or KINDS:
            X, initial = draw(kind, n, d, k, options.seed, cupy)
            model = TSKMeans(k, init=initial.get(), n_init=1, max_iter=ITERATIONS, tol=0, device="cuda").fit(X)
            centers = cupy.asarray(model.cluster_centers_, dtype=np.float32)
            for engine in engines:
                times = _measured(engine, X, initial, clock)
                times["seeded_fit_ms"] = _seeded_ms(X, k, clock) if engine.name == "tsapps" else None
                labels, _ = engine(X, centers).step()
                wrong = wrong_share(X, cupy.from_dlpack(labels), centers, options.seed, cupy)
                one = {**common, "engine": engine.name, "n": n, "d": d, "k": k, "dtype": "float32", "data": kind}
                record.store(path, one | times | {"wrong": wrong, "seed": options.seed}, KEY, FIELDS)
                print(f"{n}-{d}-{k} {kind} {engine.name}: {times['fit_ms']:.2f} ms, wrong {wrong:.2g}", flush=True)
                cupy.get_default_memory_pool().free_all_blocks()
            del X, initial
            cupy.get_default_memory_pool().free_all_blocks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
