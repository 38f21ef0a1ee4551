"""Benchmark of K-means on several GPUs of one machine, against one of them.

    python -m tsapps.bench.scale.gpus                    # all cases, all GPUs
    python -m tsapps.bench.scale.gpus 20M-128-64 --gpus 2

Iterations of float32 data from given centers, on one GPU and on all, in the same run. X is drawn on the first GPU,
which keeps its rows in place; the others get copies. The digest of whole fits on all GPUs must be that of one GPU, and
the labels of some rows are compared with float64.

iter_ms      an iteration on all GPUs: the difference of a long and a short run, by wall clock
single_ms    the same on one GPU
exchange_ms  the all-reduce of the sums alone
seed_ms      k-means++ on all GPUs; `single_seed_ms` on one
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.common.timing import Clock, GpuClock, median
from tsapps.bench.kmeans.run import free_memory
from tsapps.bench.paper.run import check_labels
from tsapps.bench.scale.command import Case, chosen_cases, measure_cases
from tsapps.bench.scale.run import digest_of
from tsapps.kernels.arrays import to_host
from tsapps.kernels.devices import gpus, why_no_gpu

__all__ = ["CASES", "FIELDS", "KEY", "Case", "OnGpus", "main"]

#: Fields of a record in addition to `record.COMMON`, and the fields that identify it.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("mode", "dtype", "digest"), (str,)),
    **dict.fromkeys(("n", "d", "k", "parts", "seed"), (int,)),
    **dict.fromkeys(("iter_ms", "single_ms", "exchange_ms", "seed_ms", "single_seed_ms"), (float,)),
}
KEY = ("what", "device", "engine", "mode", "n", "d", "k", "dtype", "parts")
# Iterations of a short and of a long run, runs of which medians are recorded, iterations of a whole fit, rows whose
# labels are compared, and rows that are drawn at a time.
_SHORT, _LONG, _REPEATS, _FIT, _CHECKED, _DRAWN = 5, 25, 5, 10, 20_000, 1 << 20
# All-reduces that are timed together.
_EXCHANGES = 100
# Standard deviation of the middles of clusters, whose samples have 1: they overlap, so that runs do not converge soon.
_SPREAD = np.float32(0.35)


#: The cases of the benchmark: 10 GB, and 30 GB where an iteration is memory-bound.
CASES = (
    Case(20_000_000, 128, 64),
    Case(20_000_000, 128, 1024),
    Case(4_000_000, 768, 1000),
    Case(80_000_000, 32, 64),
    Case(60_000_000, 128, 64),
)


class OnGpus:
    """Measures cases on the first `parts` GPUs.

    Parameters
    ----------
    parts : int
        Number of GPUs.
    seed : int
        Seed of the data.
    """

    #: Modules whose versions belong to a record.
    modules = ("cupy",)

    def __init__(self, parts: int, seed: int) -> None:
        import cupy

        self.xp, self.seed, self.device = cupy, seed, record.gpu_name()
        self.devices = "cuda:0", f"cuda:{','.join(map(str, range(parts)))}"
        self.parts = parts
        self.clock: Clock = GpuClock()

    def measured(self, case: Case) -> dict[str, Any]:
        """Return the fields of a case's record.

        Raises
        ------
        NotRightError
            If a label is wrong, or the digests of one GPU and of all differ.
        """
        free_memory(self.xp)
        X, init = self.drawn(case)
        found, times, seeds = [], [], []
        for device in self.devices:
            found.append(self._fit(X, init, device))
            iter_ms, seed_ms, exchange_ms = self._times(X, init, device)
            times.append(iter_ms)
            seeds.append(seed_ms)
        digests = [digest_of(one) for one in found]
        if len(set(digests)) > 1:
            raise NotRightError(f"the digests are {' and '.join(digests)}")
        rows = np.random.default_rng(self.seed).choice(case.n, min(case.n, _CHECKED), replace=False)
        labels, centers = to_host(found[1].labels_)[rows], to_host(found[1].cluster_centers_)
        check_labels(np, to_host(X[self.xp.asarray(rows)]), labels, centers)
        return {
            "engine": "tsapps",
            "mode": "gpus",
            **{name: getattr(case, name) for name in ("n", "d", "k")},
            "dtype": "float32",
            "parts": self.parts,
            "iter_ms": times[1],
            "single_ms": times[0],
            "exchange_ms": exchange_ms,
            "seed_ms": seeds[1],
            "single_seed_ms": seeds[0],
            "digest": digests[0],
        }

    def drawn(self, case: Case) -> tuple[Any, np.ndarray]:
        """Return a mixture of k clusters on the first GPU, and k of its rows."""
        xp = self.xp
        rng = xp.random.default_rng(self.seed)
        middles = _SPREAD * rng.standard_normal((case.k, case.d), dtype=np.float32)
        X = xp.empty((case.n, case.d), np.float32)
        for start in range(0, case.n, _DRAWN):
            part = X[start : start + _DRAWN]
            part[...] = rng.standard_normal(part.shape, dtype=np.float32)
            part += middles[rng.integers(0, case.k, len(part))]
        return X, to_host(X[:: case.n // case.k][: case.k])

    def _fit(self, X: Any, init: np.ndarray, device: str) -> Any:
        from tsapps import TSKMeans

        return TSKMeans(len(init), init=init, n_init=1, max_iter=_FIT, tol=0, device=device).fit(X)

    def _times(self, X: Any, init: np.ndarray, device: str) -> tuple[float, float, float]:
        """Return the times of an iteration, of k-means++ and of an exchange, in ms."""
        from tsapps.apps.kmeans.init.plusplus import n_trials
        from tsapps.apps.kmeans.open_engine import open_engine

        k = len(init)
        with open_engine(X, device=device) as engine:
            mean, _ = engine.data.moments()
            engine.center(mean, k)
            step, centers = engine.step_for(k), (init - engine.data.host_mean()).astype(np.float32)

            def run(count: int) -> int:
                step.reset()
                return step.iterate(centers, 0, count, -1.0, None).count

            short_ms, fewer = self._median(partial(run, _SHORT))
            long_ms, more = self._median(partial(run, _LONG))
            draws = np.random.RandomState(self.seed).uniform(size=(k - 1, n_trials(k)))
            seed_ms, _ = self._median(partial(engine.draw_plus_plus, 0, draws))
            exchange_ms = self._exchange_ms(step) if device != self.devices[0] else 0.0
        if more == fewer:
            raise NotRightError(f"the run converged after {fewer} iterations; expected more than {_SHORT}")
        return (long_ms - short_ms) / (more - fewer), seed_ms, exchange_ms

    def _exchange_ms(self, step: Any) -> float:
        def exchange() -> None:
            for _ in range(_EXCHANGES):
                step.exchange()

        return self._median(exchange)[0] / _EXCHANGES

    def _median(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the median time of a call in ms, after a first one, and the result of that one."""
        found = call()
        return float(median([self.clock.wall_ms(call)[0] for _ in range(_REPEATS)])), found


def line(one: dict[str, Any]) -> str:
    """Return what is printed of a record."""
    return (
        f"{one['n']:,} × {one['d']}, k = {one['k']}: an iteration {one['single_ms']:.3f} ms on one GPU, "
        f"{one['iter_ms']:.3f} on {one['parts']} ({one['single_ms'] / one['iter_ms']:.2f} ×); exchange "
        f"{1e3 * one['exchange_ms']:.0f} us; k-means++ {one['single_seed_ms']:.1f} and {one['seed_ms']:.1f} ms; "
        f"{one['digest']}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tsapps.bench.scale.gpus", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--gpus", type=int, default=len(gpus()), help="number of GPUs (default: all)")
    options, cases = chosen_cases(parser, CASES, "scale-gpus", arguments)
    if len(gpus()) < max(2, options.gpus):
        reason = why_no_gpu() or f"this machine has {len(gpus())}"
        print(f"no {max(2, options.gpus)} GPUs to time: {reason}", file=sys.stderr)
        return 1
    return measure_cases(OnGpus(options.gpus, options.seed), cases, options, "scale-gpus", KEY, FIELDS, line)


if __name__ == "__main__":
    sys.exit(main())
