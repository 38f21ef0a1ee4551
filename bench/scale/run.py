"""Benchmark of K-means for data that one GPU, or several, do not hold.

    python -m tsapps.bench.scale                     # all cases
    python -m tsapps.bench.scale file-16M-256-64 --gpus 2

Fits of float32 data, from given rows and for a fixed number of iterations, while X is in host memory, in a file or in
several files that the page cache holds. Where X, or its half-precision copy in cases named "windows", would fit the
GPUs, other memory takes the place; then a fit whose GPU holds X gives the digest that all others must have, and the
time of its iterations. The labels of some rows are compared with float64.

first_call_ms  the first fit of one iteration, in which the system may have to prepare the pages of X for pinning
first_ms       a fit of one iteration; `fit_ms` one of all
iter_ms        what one more iteration takes; `held_iter_ms` the same where one GPU holds X
pass_gbs       the rate at which the moments of X are computed
link_gbs       that of plain copies from pinned memory to all GPUs at once
"""

import argparse
import hashlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.outcome import NotRightError, check_memory
from tsapps.bench.common.timing import Clock, GpuClock, median
from tsapps.bench.kmeans.run import free_memory
from tsapps.bench.paper.run import check_labels
from tsapps.bench.scale.command import chosen_cases, measure_cases
from tsapps.kernels.arrays import to_host
from tsapps.kernels.devices import available_cores, gpus, why_no_gpu
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["CASES", "FIELDS", "KEY", "Case", "OnGpus", "digest_of", "main"]

#: Fields of a record in addition to `record.COMMON`, and the fields that identify it.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("mode", "source", "dtype", "digest"), (str,)),
    **dict.fromkeys(("n", "d", "k", "parts", "iterations", "seed"), (int,)),
    **dict.fromkeys(("first_call_ms", "first_ms", "fit_ms", "iter_ms", "link_gbs", "pass_gbs"), (float,)),
    "copied": (bool,),
    "held_iter_ms": (float, type(None)),
}
KEY = ("what", "device", "engine", "mode", "source", "copied", "n", "d", "k", "dtype", "parts")
# Iterations of a fit, fits of which the medians are recorded, and rows whose labels are compared.
_ITERATIONS, _REPEATS, _CHECKED = 20, 3, 20_000
# Rows of X that are drawn at a time, bytes of a copy over the link, and how many copies are timed.
_ROWS_AT_ONCE, _COPIED, _COPIES = 1 << 16, 1 << 30, 5
# Memory that a fit in windows needs: in all, and per sample.
_WINDOWS, _EACH = 3 << 30, 16
# Number of files of a matrix in several.
_FILES = 4


@dataclass(frozen=True)
class Case:
    """A fit of n samples of d features to k clusters, where X is in `source`: "memory", "file" or "files".

    The GPUs have memory for the half-precision copy of X only if `copied`.
    """

    source: str
    n: int
    d: int
    k: int
    copied: bool = True

    @property
    def name(self) -> str:
        """The name on the command line."""
        sizes = f"{self.source}-{self.n // 1_000_000}M-{self.d}-{self.k}"
        return sizes if self.copied else f"{sizes}-windows"

    @property
    def size(self) -> int:
        """Bytes of X."""
        return 4 * self.n * self.d


#: The cases of the benchmark.
CASES = (
    Case("memory", 16_000_000, 256, 64),
    Case("file", 16_000_000, 256, 64),
    Case("memory", 8_000_000, 256, 256),
    Case("memory", 16_000_000, 256, 64, copied=False),
    Case("memory", 8_000_000, 256, 256, copied=False),
    Case("files", 16_000_000, 256, 64, copied=False),
    Case("memory", 100_000_000, 256, 64),
)


class OnGpus:
    """Measures cases on the first `parts` GPUs.

    Parameters
    ----------
    seed : int
        Seed of the data.
    parts : int
    """

    #: Modules whose versions belong to a record.
    modules = ("cupy",)

    def __init__(self, seed: int, parts: int = 1) -> None:
        import cupy

        self.xp, self.seed, self.parts, self.device = cupy, seed, parts, record.gpu_name()
        self.name = "cuda" if parts == 1 else f"cuda:{','.join(map(str, range(parts)))}"
        self.clock: Clock = GpuClock()
        self.link_gbs = self._link_gbs()

    def measured(self, case: Case) -> dict[str, Any]:
        """Return the fields of a case's record.

        Raises
        ------
        NotRightError
            If a label is wrong, or the digest is not that of a fit that holds X.
        LeftOutError
            If the host has too little memory.
        """
        check_memory(case.size + (4 << 30), available_host_memory())
        X = drawn(case, self.seed)
        init = X[:: max(1, case.n // case.k)][: case.k].copy()
        free_memory(self.xp)
        free = self.xp.cuda.runtime.memGetInfo()[0]
        held, held_iter_ms = None, None
        if 2 * case.size < free:
            on_gpu = self.xp.asarray(X)
            *_, held_iter_ms, fitted = self._times(on_gpu, init, "cuda")
            held = digest_of(fitted)
            del on_gpu
        left = int(0.9 * case.size / self.parts) if case.copied else _WINDOWS + _EACH * case.n
        with placed(X, case.source) as source, self._taken(free - left):
            first_call_ms, _ = self.clock.wall_ms(partial(self._fit, source, init, 1, self.name))
            first_ms, fit_ms, iter_ms, found = self._times(source, init, self.name)
            pass_gbs = self._pass_gbs(source, case)
        digest = digest_of(found)
        if held not in (None, digest):
            raise NotRightError(f"the digest is {digest}, where the GPU holds X it is {held}")
        rows = np.random.default_rng(self.seed).choice(case.n, min(case.n, _CHECKED), replace=False)
        check_labels(np, X[rows], found.labels_[rows], found.cluster_centers_)
        return {
            "engine": "tsapps",
            "mode": "stream",
            "source": case.source,
            **{name: getattr(case, name) for name in ("n", "d", "k", "copied")},
            "dtype": "float32",
            "parts": self.parts,
            "iterations": found.n_iter_,
            "first_call_ms": first_call_ms,
            "first_ms": first_ms,
            "fit_ms": fit_ms,
            "iter_ms": iter_ms,
            "held_iter_ms": held_iter_ms,
            "link_gbs": self.link_gbs,
            "pass_gbs": pass_gbs,
            "digest": digest,
        }

    def _fit(self, X: Any, init: np.ndarray, iterations: int, device: str) -> Any:
        from tsapps import TSKMeans

        k = len(init)
        return TSKMeans(k, init=init, n_init=1, max_iter=iterations, tol=0, device=device).fit(X)

    def _times(self, X: Any, init: np.ndarray, device: str) -> tuple[float, float, float, Any]:
        """Return the times of a fit of one iteration, of one of all, and of one more one, in ms; and a fit of all."""
        one, every = (partial(self._fit, X, init, iterations, device) for iterations in (1, _ITERATIONS))
        first = float(median([self.clock.wall_ms(one)[0] for _ in range(_REPEATS)]))
        fits = [self.clock.wall_ms(every) for _ in range(_REPEATS)]
        whole = float(median([ms for ms, _ in fits]))
        found = fits[0][1]
        return first, whole, (whole - first) / max(1, found.n_iter_ - 1), found

    @contextmanager
    def _taken(self, size: int) -> Iterator[None]:
        """Take `size` bytes of the memory of each GPU, if that is more than none."""
        taken = []
        for index in range(self.parts):
            with self.xp.cuda.Device(index):
                free_memory(self.xp)
                taken.append(self.xp.cuda.Memory(size) if size > 0 else None)
        try:
            yield
        finally:
            taken.clear()

    def _link_gbs(self) -> float:
        """Return the rate of plain copies from pinned memory to all GPUs at once."""
        from cupyx import empty_pinned

        sources = [empty_pinned(_COPIED, np.uint8) for _ in range(self.parts)]
        for source in sources:
            source.fill(1)

        def copy(index: int) -> None:
            with self.xp.cuda.Device(index):
                to[index].set(sources[index])

        to = []
        for index in range(self.parts):
            with self.xp.cuda.Device(index):
                to.append(self.xp.empty(_COPIED, np.uint8))
        with ThreadPoolExecutor(self.parts) as threads:
            times = [self.clock.wall_ms(lambda: list(threads.map(copy, range(self.parts))))[0] for _ in range(_COPIES)]
        return float(self.parts * _COPIED / 1e6 / median(times))

    def _pass_gbs(self, X: Any, case: Case) -> float:
        """Return the rate at which kernels read X where it is, while they compute its moments."""
        from tsapps.apps.kmeans.open_engine import open_engine

        with open_engine(X, device=self.name) as engine, engine.fitting(case.k, draws=False):
            times = [self.clock.wall_ms(engine.data.moments)[0] for _ in range(_REPEATS)]
            return float(case.size / 1e6 / median(times))


def drawn(case: Case, seed: int) -> np.ndarray:
    """Return a mixture of k clusters in host memory, drawn by all cores."""
    X = np.empty((case.n, case.d), np.float32)
    middles = np.random.default_rng(seed).standard_normal((case.k, case.d), np.float32)

    def draw(start: int) -> None:
        rng, part = np.random.default_rng((seed, start)), X[start : start + _ROWS_AT_ONCE]
        rng.standard_normal(out=part, dtype=np.float32)
        part += middles[rng.integers(0, case.k, len(part))]

    with ThreadPoolExecutor(available_cores()) as threads:
        list(threads.map(draw, range(0, case.n, _ROWS_AT_ONCE)))
    return X


@contextmanager
def placed(X: np.ndarray, source: str) -> Iterator[Any]:
    """Yield X itself, or a matrix of a temporary file, or of several, with X."""
    if source == "memory":
        yield X
        return
    from tsapps import open_matrix

    with TemporaryDirectory() as folder:
        for number, rows in enumerate(np.array_split(X, _FILES if source == "files" else 1)):
            np.save(Path(folder) / f"X{number}.npy", rows)
        yield open_matrix(Path(folder) if source == "files" else Path(folder) / "X0.npy")


def digest_of(found: Any) -> str:
    """Return a digest of labels, centers, inertia and number of iterations."""
    parts = to_host(found.labels_), to_host(found.cluster_centers_), np.float64(found.inertia_), np.int64(found.n_iter_)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()[:16]


def line(one: dict[str, Any]) -> str:
    """Return what is printed of a record."""
    held = "" if one["held_iter_ms"] is None else f" (held {one['held_iter_ms']:.1f})"
    place = one["source"] if one["copied"] else f"{one['source']}, in windows"
    return (
        f"{place}, {one['parts']} GPUs: {one['n']:,} × {one['d']}, k = {one['k']}: first iteration after "
        f"{one['first_ms']:.0f} ms ({one['first_call_ms']:.0f} at the first call), then {one['iter_ms']:.1f} ms "
        f"each{held}; {one['fit_ms']:.0f} ms in all; a pass reads {one['pass_gbs']:.1f} GB/s, the link copies "
        f"{one['link_gbs']:.1f}; {one['digest']}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tsapps.bench.scale", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs (default: 1)")
    options, cases = chosen_cases(parser, CASES, "scale", arguments)
    if len(gpus()) < options.gpus:
        print(f"no {options.gpus} GPUs to time: {why_no_gpu() or f'this machine has {len(gpus())}'}", file=sys.stderr)
        return 1
    return measure_cases(OnGpus(options.seed, options.gpus), cases, options, "scale", KEY, FIELDS, line)
