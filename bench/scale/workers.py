"""Benchmark of K-means on the workers of a Dask cluster on this machine, against one process.

    python -m tsapps.bench.scale.workers                   # all cases, 1, 2 and 4 workers
    python -m tsapps.bench.scale.workers 4M-32-64 --workers 2

Fits of float32 data from given centers, in one process with a thread per core, and on workers that share the cores. The
digest of whole fits must be the same, and the labels of some rows are compared with float64.

iter_ms     an iteration on the workers: the difference of a long and a short fit, by wall clock
single_ms   the same in one process, with the same arithmetic (engine="fused")
fit_ms      a whole fit on the workers, from the Dask array to the labels: 10 iterations
seed_ms     k-means++ on the workers: a fit that begins with it, less one from given centers; `single_seed_ms` in one
            process
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.common.timing import CpuClock, median
from tsapps.bench.paper.run import check_labels
from tsapps.bench.scale.command import Case, chosen_cases, measure_cases
from tsapps.bench.scale.run import digest_of
from tsapps.kernels.devices import available_cores

__all__ = ["CASES", "FIELDS", "KEY", "Case", "OnWorkers", "main"]

#: Fields of a record in addition to `record.COMMON`, and the fields that identify it.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("mode", "dtype", "digest"), (str,)),
    **dict.fromkeys(("n", "d", "k", "parts", "cores", "seed"), (int,)),
    **dict.fromkeys(("iter_ms", "single_ms", "fit_ms", "seed_ms", "single_seed_ms"), (float,)),
}
KEY = ("what", "device", "engine", "mode", "n", "d", "k", "dtype", "parts", "cores")
# Iterations of a short, a whole and a long fit; fits of which medians are recorded; rows whose labels are compared; and
# rows per chunk of the Dask array.
_SHORT, _FIT, _LONG, _REPEATS, _CHECKED, _CHUNK = 2, 10, 12, 3, 20_000, 1 << 18


#: The cases of the benchmark.
CASES = (Case(4_000_000, 32, 64), Case(2_000_000, 128, 256), Case(10_000_000, 16, 16))


class OnWorkers:
    """Measures cases on worker processes that share the cores of this machine.

    Parameters
    ----------
    workers : int
    seed : int
        Seed of the data.
    """

    #: Modules whose versions belong to a record.
    modules = ("dask", "distributed")

    def __init__(self, workers: int, seed: int) -> None:
        self.workers, self.seed, self.device = workers, seed, record.cpu_name()
        self.cores = available_cores()
        self.clock = CpuClock()

    def measured(self, case: Case) -> dict[str, Any]:
        """Return the fields of a case's record.

        Raises
        ------
        NotRightError
            If a label is wrong, or the digests of one process and of the workers differ.
        """
        X, init = self.drawn(case)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "X.npy"
            np.save(path, X)
            single = self._times(X, init, device="cpu", engine="fused")
            with self._cluster():
                shared = self._times(_as_dask(path, case), init)
        if single[0] != shared[0]:
            raise NotRightError(f"the digests are {single[0]} and {shared[0]}")
        return {
            "engine": "tsapps",
            "mode": "dask",
            **{name: getattr(case, name) for name in ("n", "d", "k")},
            "dtype": "float32",
            "parts": self.workers,
            "cores": self.cores,
            "iter_ms": shared[1],
            "single_ms": single[1],
            "fit_ms": shared[2],
            "seed_ms": shared[3],
            "single_seed_ms": single[3],
            "digest": single[0],
        }

    def drawn(self, case: Case) -> tuple[np.ndarray, np.ndarray]:
        """Return a mixture of k overlapping clusters, and k of its rows."""
        rng = np.random.default_rng(self.seed)
        middles = rng.standard_normal((case.k, case.d), dtype=np.float32)
        X = rng.standard_normal((case.n, case.d), dtype=np.float32)
        X += middles[rng.integers(0, case.k, case.n)]
        return X, X[:: case.n // case.k][: case.k].copy()

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        from distributed import Client, LocalCluster

        threads = max(1, self.cores // self.workers)
        options = {"dashboard_address": None, "memory_limit": 0}
        with LocalCluster(self.workers, threads_per_worker=threads, **options) as cluster, Client(cluster):
            yield

    def _times(self, X: Any, init: np.ndarray, **options: Any) -> tuple[str, float, float, float]:
        """Return the digest of a fit, and the times of an iteration, of the fit, and of k-means++, in ms."""
        fit = partial(_fit, X, len(init), **options)
        found = fit(init, _FIT)
        labels = np.asarray(found.labels_)
        rows = np.random.default_rng(self.seed).choice(len(labels), min(len(labels), _CHECKED), replace=False)
        check_labels(np, np.asarray(X[np.sort(rows)]), labels[np.sort(rows)], found.cluster_centers_)
        found.labels_ = labels
        short_ms, fit_ms, long_ms, drawn_ms = (
            median([self.clock.wall_ms(partial(fit, start, count))[0] for _ in range(_REPEATS)])
            for start, count in ((init, _SHORT), (init, _FIT), (init, _LONG), ("k-means++", _SHORT))
        )
        return digest_of(found), (long_ms - short_ms) / (_LONG - _SHORT), fit_ms, max(0.0, drawn_ms - short_ms)


def _fit(X: Any, k: int, init: Any, count: int, **options: Any) -> Any:
    from tsapps import TSKMeans

    return TSKMeans(k, init=init, n_init=1, max_iter=count, tol=0, random_state=0, **options).fit(X)


def _as_dask(path: Path, case: Case) -> Any:
    """Return a .npy file as a Dask array, whose chunks are read where they are needed."""
    import dask
    import dask.array as da

    starts = range(0, case.n, _CHUNK)
    sizes = [min(_CHUNK, case.n - start) for start in starts]
    read = dask.delayed(_read)
    blocks = [
        da.from_delayed(read(path, start, size), (size, case.d), np.float32)
        for start, size in zip(starts, sizes, strict=True)
    ]
    return da.concatenate(blocks)


def _read(path: Path, start: int, size: int) -> np.ndarray:
    return np.array(np.load(path, mmap_mode="r")[start : start + size])


def line(one: dict[str, Any]) -> str:
    """Return what is printed of a record."""
    return (
        f"{one['n']:,} × {one['d']}, k = {one['k']}: an iteration {one['single_ms']:.0f} ms in one process, "
        f"{one['iter_ms']:.0f} on {one['parts']} workers ({one['cores']} cores); k-means++ "
        f"{one['single_seed_ms']:.0f} and {one['seed_ms']:.0f} ms; a fit {one['fit_ms']:.0f} ms; {one['digest']}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tsapps.bench.scale.workers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4], help="numbers of workers (default: 1 2 4)")
    options, cases = chosen_cases(parser, CASES, "scale-workers", arguments)
    codes = [
        measure_cases(OnWorkers(workers, options.seed), cases, options, "scale-workers", KEY, FIELDS, line)
        for workers in options.workers
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
