"""Benchmark of `choose_k`: the fits and scores of k = 2 … 20 on a GPU, beside the fit of k = 20 alone.

    python -m tsapps.bench.kmeans.sweep

Data of 1M × 64 float32, in host memory and on the GPU: "blobs" around 12 centers, which overlap, and "normal" without
clusters, where fits take 20 to 300 iterations.

fit_ms     wall time of a fit of the largest k, with default parameters
fits_ms    wall time of single fits of all k together
sweep_ms   wall time of `choose_k`; ratio is that to fit_ms

Before times are stored, every clustering must have the labels of the single fit, and silhouettes of 20,000 rows must
be within the stated error of scikit-learn's.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.timing import Clock, GpuClock, median
from tsapps.bench.kmeans.run import versions_of
from tsapps.kernels.arrays import to_host

__all__ = ["DATA", "FIELDS", "KEY", "checked", "drawn", "main", "measured", "sweep_table"]

KEY = ("what", "engine", "data", "where", "n", "d", "k")
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("data", "where"), (str,)),
    **dict.fromkeys(("n", "d", "k", "iterations", "all_iterations", "repeats"), (int,)),
    **dict.fromkeys(("fit_ms", "fits_ms", "sweep_ms", "ratio"), (float,)),
}
DATA = ("blobs", "normal")
_SHAPE, _LARGEST, _SEED = (1_000_000, 64), 20, 0
# What the table calls them.
_SAID = {"blobs": "12 blobs", "normal": "normal, no clusters", "host": "host memory", "gpu": "GPU memory"}
# Rows whose silhouettes are compared with scikit-learn's.
_CHECKED = 20_000


def drawn(data: str, n: int, d: int) -> np.ndarray:
    """Return rows of a kind of data, (n, d), float32."""
    rng = np.random.default_rng(_SEED)
    found = rng.standard_normal((n, d), dtype=np.float32)
    if data == "blobs":
        found += rng.standard_normal((12, d), dtype=np.float32)[rng.integers(0, 12, n)]
    return found


def checked(X: Any, largest: int, device: str) -> None:
    """Raise RuntimeError unless silhouettes of some rows are within the stated error of scikit-learn's of all."""
    from sklearn.metrics import silhouette_score

    from tsapps import choose_k

    rows = to_host(X[:_CHECKED])
    found = choose_k(rows, sorted({2, largest // 2 + 1, largest}), device=device)
    for one in found.scores:
        exact = silhouette_score(rows.astype(np.float64), found.clusterings[one.k].labels)
        if one.silhouette is None or one.silhouette_error is None:
            raise RuntimeError(f"k = {one.k} has no silhouette")
        apart = abs(one.silhouette - exact) - 1e-9
        if apart > one.silhouette_error:
            print(f"k = {one.k}: silhouette {one.silhouette:.4f} ± {one.silhouette_error:.4f}, exact {exact:.4f}")
        if apart > 2 * one.silhouette_error:  # 95 % are within one
            raise RuntimeError(f"the silhouette of k = {one.k} is wrong")


def measured(X: Any, largest: int, device: str, clock: Clock, repeats: int) -> dict[str, Any]:
    """Return the times of a sweep over X, and of single fits."""
    from tsapps import TSKMeans, choose_k

    def fit(k: int) -> TSKMeans:
        return TSKMeans(k, random_state=_SEED, device=device).fit(X)

    numbers = range(2, largest + 1)
    sweep = partial(choose_k, X, numbers, random_state=_SEED, device=device)
    alone, found = {k: fit(k) for k in numbers}, sweep()  # compiles the kernels
    for k in numbers:
        if not np.array_equal(found.clusterings[k].labels, to_host(alone[k].labels_)):
            raise RuntimeError(f"the clustering of k = {k} is not that of a single fit")
    fit_ms = median([clock.wall_ms(partial(fit, largest))[0] for _ in range(2 * repeats + 1)])
    fits_ms = sum(median([clock.wall_ms(partial(fit, k))[0] for _ in range(3)]) for k in numbers)
    sweep_ms = median([clock.wall_ms(sweep)[0] for _ in range(repeats)])
    return {
        "iterations": alone[largest].n_iter_,
        "all_iterations": sum(one.n_iter_ for one in alone.values()),
        "repeats": repeats,
        "fit_ms": fit_ms,
        "fits_ms": fits_ms,
        "sweep_ms": sweep_ms,
        "ratio": sweep_ms / fit_ms,
    }


def sweep_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of the times of sweeps in ms."""
    largest = records[0]["k"]
    lines = [
        f"| data | X in | fit of k = {largest} | fits of k = 2 to {largest}, one by one | `choose_k`, with scores | |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for one in records:
        times = (f"{one[name]:.0f} ms" for name in ("fit_ms", "fits_ms", "sweep_ms"))
        cells = _SAID[one["data"]], _SAID[one["where"]], *times, f"{one['ratio']:.1f} times the fit"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and store its records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    record.add_options(parser, "kmeans-sweep")
    options = parser.parse_args(arguments)
    import cupy

    device, (n, d), found = record.gpu_name(), _SHAPE, []
    common = record.of_run("kmeans-sweep", device, versions_of("tsapps", cupy), options.commit)
    for data in DATA:
        X = drawn(data, n, d)
        checked(X, _LARGEST, "cuda")
        for where, given in (("host", X), ("gpu", cupy.asarray(X))):
            one = measured(given, _LARGEST, "cuda", GpuClock(), options.repeats)
            found.append({"engine": "tsapps", "data": data, "where": where, "n": n, "d": d, "k": _LARGEST, **one})
            print(f"{data}, {where}: fit {one['fit_ms']:.1f} ms, {one['iterations']} iterations; sweep", end=" ")
            print(f"{one['sweep_ms']:.1f} ms, {one['ratio']:.1f} times; single fits {one['fits_ms']:.1f} ms")
    path = options.out or record.results_path(device, "kmeans-sweep")
    record.store_sorted(path, [{**common, **one} for one in found], KEY, FIELDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
