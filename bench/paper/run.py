"""Benchmark of the TSM2 paper's experiments, with the paper's figures beside those of this GPU.

    python -m tsapps.bench.paper                     # all experiments
    python -m tsapps.bench.paper kmeans checksums

versions   TSM2 V0 to V3 as published, each compared with the version before, on squares times 2, 4, 8 and 16 columns
bandwidth  V3 and `tsapps.matmul`, compared with the fastest algorithm of cuBLAS and cublasLt, on the same products
kmeans     wall time of a fit of at most 100 iterations from given rows, uniform float64 data of 4096 features and 16
           clusters: `TSKMeans`, compared with its own engine on cuBLAS
checksums  all sums of a matrix for two weights, by rows and by columns, compared with cuBLAS and cublasLt

All matrices are column-major but those of the last two, and hold uniform random numbers from [0, 1), as in the paper.
Every result is first compared with float64; a wrong one is neither timed nor recorded. Times are medians: products and
checksums by CUDA events with cold L2.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.outcome import WRONG, LeftOutError, NotRightError, check_memory, missing
from tsapps.bench.common.timing import GpuClock, median, median_ms, repeats_within
from tsapps.bench.paper.experiments import EXPERIMENTS, PAPER, Case, cases, range_text
from tsapps.kernels.arrays import to_host
from tsapps.kernels.blas.cublaslt import LibraryError
from tsapps.kernels.devices import Choice, gpus, why_no_gpu
from tsapps.kernels.ladder.launch import PAPER_KERNELS, tsm2_paper

__all__ = ["FIELDS", "KEY", "OnGpu", "common_fields", "main", "opened", "recorded"]

#: Fields of a record in addition to `record.COMMON`, and the fields that identify it. `gbs` counts A, B and C once.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("run", "baseline", "dtype", "paper_device"), (str,)),
    **dict.fromkeys(("m", "k", "n", "seed"), (int,)),
    **dict.fromkeys(("ms", "baseline_ms", "speedup"), (float,)),
    **dict.fromkeys(("gbs", "baseline_gbs", "peak_gbs"), (float, type(None))),
    "paper_speedup": (list,),
    "paper_points": (list, type(None)),
}
KEY = ("what", "device", "run", "engine", "baseline", "m", "k", "n", "dtype")
_ITERATIONS = 100
# Time of the repetitions of a fit in seconds, and their maximum number.
_SECONDS, _MOST_FITS = 1.0, 15


class OnGpu:
    """Measures cases on the current GPU.

    Parameters
    ----------
    seed : int
        Seed of the data.
    """

    def __init__(self, seed: int) -> None:
        import cupy

        from tsapps.bench.abft.speed import Speed

        self.xp, self.seed = cupy, seed
        self.checksums = Speed(seed)
        self.clock: GpuClock = self.checksums.clock
        self.device = record.gpu_name()

    @property
    def peak_gbs(self) -> float:
        """Bandwidth of a plain read stream."""
        return self.checksums.streams.points[0][1]

    def measured(self, case: Case) -> Iterator[dict[str, Any]]:
        """Yield the fields of the records of a case.

        Raises
        ------
        NotRightError
            If a result is wrong.
        LeftOutError
            If the case does not fit in memory.
        """
        self.checksums.free_matrix()
        check_memory(case.needed_bytes, self.xp.cuda.runtime.memGetInfo()[0])
        times, n_bytes = getattr(self, f"_{case.experiment}")(case)
        for (experiment, engine, baseline), paper in PAPER.items():
            if experiment == case.experiment:
                ms, baseline_ms = times[engine], times[baseline]
                yield {
                    "run": experiment,
                    "engine": engine,
                    "baseline": baseline,
                    **{name: getattr(case, name) for name in ("m", "k", "n", "dtype")},
                    "ms": ms,
                    "baseline_ms": baseline_ms,
                    "speedup": baseline_ms / ms,
                    "gbs": n_bytes and n_bytes / ms / 1e6,
                    "baseline_gbs": n_bytes and n_bytes / baseline_ms / 1e6,
                    "peak_gbs": n_bytes and self.peak_gbs,
                    "paper_device": paper.device,
                    "paper_speedup": list(paper.speedup),
                    "paper_points": paper.points and list(paper.points),
                }

    def _versions(self, case: Case) -> tuple[dict[str, float], int]:
        return self._products(case, PAPER_KERNELS)

    def _bandwidth(self, case: Case) -> tuple[dict[str, float], int]:
        return self._products(case, ("tsm2_v3", "tsapps", "cublas"))

    def _products(self, case: Case, engines: Sequence[str]) -> tuple[dict[str, float], int]:
        """Return the times of a product in ms, and the bytes of its matrices."""
        from tsapps.bench.gemm import libraries
        from tsapps.bench.gemm.grid import Cell, exact, largest_error, spoil
        from tsapps.kernels.matmul import matmul

        cell = Cell("tsm2r", case.dtype, "col", case.m, case.k, case.n)
        rng = self.xp.random.default_rng(self.seed)
        A, B = (rng.random(shape[::-1], dtype=case.dtype).T for shape in cell.shapes[:2])
        C = self.xp.empty(cell.shapes[2], case.dtype, order="F")
        reference, times = exact(cell, A, B), {}
        timed = partial(median_ms, self.clock)
        for engine in engines:
            if engine == "cublas":
                check: Callable[[], float] = lambda: largest_error(cell, C, reference)  # noqa: E731
                ways = {"time_ms": timed, "quick_ms": self.clock.call_ms, "check": check}
                times[engine] = libraries.best(A, B, C, dtype=case.dtype, **ways)[1]
                continue
            call = partial(matmul, A, B, out=C) if engine == "tsapps" else partial(tsm2_paper, engine, A, B, out=C)
            spoil(C)
            call()
            largest_error(cell, C, reference)
            times[engine] = timed(call)
        return times, cell.read + cell.written

    def _kmeans(self, case: Case) -> tuple[dict[str, float], None]:
        from tsapps import TSKMeans

        X = self.xp.random.default_rng(self.seed).random((case.m, case.k), dtype=case.dtype)
        options: dict[str, Any] = {"init": to_host(X[: case.n]), "n_init": 1, "max_iter": _ITERATIONS, "tol": 0}
        fits, times, found = {"tsapps": "auto", "cublas": "cublas"}, {}, {}
        for name, engine in fits.items():
            fit = partial(TSKMeans(case.n, engine=engine, **options).fit, X)
            found[name] = fit()  # compiles the kernels
            check_labels(self.xp, X, found[name].labels_, found[name].cluster_centers_)
            first, _ = self.clock.wall_ms(fit)
            again = repeats_within(_SECONDS, first, _MOST_FITS) - 1
            times[name] = float(median([first, *(self.clock.wall_ms(fit)[0] for _ in range(again))]))
        ours, theirs = found.values()
        if ours.n_iter_ != theirs.n_iter_ or not np.allclose(ours.cluster_centers_, theirs.cluster_centers_, rtol=1e-9):
            raise NotRightError(f"centers differ after {ours.n_iter_} and {theirs.n_iter_} iterations")
        return times, None

    def _checksums(self, case: Case) -> tuple[dict[str, float], int]:
        from tsapps.bench.abft.tasks import Task

        (found,) = self.checksums.measure(Task("encode", case.dtype, case.m, case.k, None, ("float",)))
        n_bytes = case.m * case.k * np.dtype(case.dtype).itemsize
        return {"tsapps": found["ms"], "cublas": found["library_ms"]}, n_bytes


def check_labels(xp: Any, X: Any, labels: Any, centers: Any) -> None:
    """Raise `NotRightError` unless every label is that of the nearest center, as far as float64 sums can tell.

    Of ‖c‖²/2 − x·c, computed in float64, each of two sums of d products may be off by γ(d + 2) times the sum of their
    magnitudes.
    """
    x, c = xp.asarray(X, dtype=np.float64), xp.asarray(centers, dtype=np.float64)
    scores = (c * c).sum(axis=1) / 2 - x @ c.T
    unit = (x.shape[1] + 2) * 2.0**-53
    bound = 2 * unit / (1 - unit) * ((c * c).sum(axis=1).max() / 2 + (abs(x) @ abs(c).T).max(axis=1))
    excess = xp.take_along_axis(scores, xp.asarray(labels)[:, None].astype(np.int64), axis=1)[:, 0] - scores.min(axis=1)
    if not bool((excess <= bound).all()):
        raise NotRightError(f"{int((excess > bound).sum())} of {len(x)} labels are not those of the nearest center")


def opened(choice: Choice, seed: int) -> OnGpu:
    """Return what measures cases on a GPU."""
    import cupy

    cupy.cuda.Device(choice.index).use()
    return OnGpu(seed)


def common_fields(on: OnGpu, commit: str | None) -> dict[str, Any]:
    """Return the fields that the records of a run share."""
    modules = {"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy"}
    versions = record.module_versions(modules) | record.cuda_versions()
    return {**record.of_run("paper", on.device, versions, commit), "seed": on.seed}


def recorded(on: OnGpu, case: Case, path: Path, common: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
    """Add the records of a case to a file and yield them, or a line that says why there is none."""
    try:
        for found in on.measured(case):
            one = {**common, **found}
            record.store(path, one, KEY, FIELDS)
            yield one
    except (LeftOutError, LibraryError, MemoryError, ValueError) as error:
        yield missing(case.name, error)


def line(one: dict[str, Any]) -> str:
    """Return what is printed of a record."""
    paper = range_text(one["paper_speedup"])
    size = Case(*(one[name] for name in ("run", "m", "k", "n", "dtype"))).size
    return (
        f"{one['run']} {size:<28} {one['engine']:<8} {one['ms']:>9.3f} ms, {one['baseline']:<8} "
        f"{one['baseline_ms']:>9.3f} ms: {one['speedup']:.2f} (paper, {one['paper_device']}: {paper})"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tsapps.bench.paper", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"{', '.join(EXPERIMENTS)}; default: all")
    parser.add_argument("--largest", type=float, default=inf, help="leave out matrices with more than so many rows")
    record.add_options(parser, "paper")
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of the data (default: random)")
    options = parser.parse_args(arguments)
    for unknown in set(options.experiments) - set(EXPERIMENTS):
        parser.error(f"experiment {unknown!r}: expected {', '.join(EXPERIMENTS)}")
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    on, failed = OnGpu(options.seed), 0
    path, common = options.out or record.results_path(on.device, "paper"), common_fields(on, options.commit)
    for case in (case for one in options.experiments or EXPERIMENTS for case in cases(one)):
        if case.m > options.largest:
            continue
        for one in recorded(on, case, path, common):
            failed += isinstance(one, str) and WRONG in one
            print(one if isinstance(one, str) else line(one), flush=True)
    return 1 if failed else 0
