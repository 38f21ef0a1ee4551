"""Faults of K-means, injected into the passes of an engine: sums, centers, and the copies that a pass makes of them.

A fault is a seam, where it is injected, and a change of arrays in place. `Trial` says which fault, at which assignment
of a run, and by which random numbers; `injected` fits once with it, and `outcome_of` says what became of it:

    no effect   the same iterations, and nothing found
    healed      other iterations, the same bits of the result, nothing found
    repaired    found, and the same bits of the result
    raised      found, and no result
    other       another result, found or not: a protected fit gives none of these

Seams are methods of `Engine`, so that one class serves the engines that share `Engine.assign`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.assignment import Assignment, Iterated, Report
from tsapps.apps.kmeans.engine import Engine
from tsapps.apps.kmeans.protection import FaultError
from tsapps.apps.kmeans.rows import ArrayRows
from tsapps.kernels.arrays import to_host

__all__ = ["FAULTS", "OUTCOMES", "WHEN", "Data", "Fault", "Trial", "campaign", "data", "injected", "outcome_of"]

OUTCOMES = ("no effect", "healed", "repaired", "raised", "other noticed", "other unnoticed")
#: Where a trial's assignment lies in a run: its first iteration, one in the middle, its last, and what follows.
WHEN = ("first", "middle", "last", "after")
# Rows of a block, so that few rows are several blocks.
_ROWS = 128


@dataclass(frozen=True)
class Fault:
    """A change at a seam.

    Attributes
    ----------
    name : str
    seam : {"step", "block", "copy", "before", "next", "iterated", "end", "given"}
        After `assign`; after one block of it; its copy of the centers, before the first block; the centers before it;
        the centers that follow; what `iterate` returns; the result's centers before their inertia is computed, and
        when the labels are counted, after the last run.
    change : callable
        Called with the random numbers and the arrays at the seam, which it changes in place.
    """

    name: str
    seam: str
    change: Callable[..., None]


@dataclass(frozen=True)
class Trial:
    """One fault of a fit: at the assignment number `at`, from 0, by the random numbers of `seed`."""

    fault: Fault
    at: int
    seed: int


@dataclass(frozen=True)
class Data:
    """Samples, and how they are clustered."""

    X: np.ndarray
    k: int
    weights: np.ndarray | None
    options: dict[str, Any]


def flip(rng: np.random.Generator, *arrays: Any) -> None:
    """Flip a random bit of a random element of one of the arrays."""
    array = arrays[rng.integers(len(arrays))]
    *rows, column = (int(rng.integers(size)) for size in array.shape)
    element = array[(*rows, slice(column, column + 1))]
    bits = to_host(element).copy().view(f"u{array.dtype.itemsize}")
    bits ^= bits.dtype.type(1) << bits.dtype.type(rng.integers(8 * array.dtype.itemsize))
    element[...] = element.dtype.type(bits.view(array.dtype)[0])


def exchange(rng: np.random.Generator, *arrays: Any) -> None:
    """Exchange two rows, the same ones of all arrays."""
    a, b = (int(one) for one in rng.choice(len(arrays[0]), 2, replace=False))
    for array in arrays:
        held = array[a].copy()
        array[a] = array[b]
        array[b] = held


def _one(rng: np.random.Generator, sums: Any, factor: float) -> None:
    sums[int(rng.integers(len(sums)))] *= factor


def _old(rng: np.random.Generator, centers: Any, old: Any) -> None:
    row = int(rng.integers(len(centers)))
    centers[row] = old[row]


def _of_centers(seam: str) -> tuple[Fault, ...]:
    """Return what can happen to centers at a seam, whose arrays are these and those of the assignment before."""
    return (
        Fault(f"center flipped, {seam}", seam, lambda rng, centers, _: flip(rng, centers)),
        Fault(f"centers exchanged, {seam}", seam, lambda rng, centers, _: exchange(rng, centers)),
        Fault(f"old center, {seam}", seam, _old),
    )


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("sums exchanged", "step", lambda rng, step: exchange(rng, step.sums)),
        Fault("clusters exchanged", "step", lambda rng, step: exchange(rng, step.sums, step.weights)),
        Fault("sums doubled", "step", lambda rng, step: _one(rng, step.sums, 2)),
        Fault("sums zeroed", "step", lambda rng, step: _one(rng, step.sums, 0)),
        Fault("sums an ulp off", "step", lambda rng, step: _one(rng, step.sums, 1 + 2.0**-23)),
        Fault("sum flipped", "step", lambda rng, step: flip(rng, step.sums)),
        Fault("weight flipped", "step", lambda rng, step: flip(rng, step.weights)),
        Fault("block twice", "block", lambda rng, sums, weights: _scale(2, sums)),
        Fault("block lost", "block", lambda rng, sums, weights: _scale(0, sums)),
        Fault("block and weights twice", "block", lambda rng, sums, weights: _scale(2, sums, weights)),
        Fault("block and weights lost", "block", lambda rng, sums, weights: _scale(0, sums, weights)),
        Fault("copy flipped", "copy", lambda rng, columns, norms: flip(rng, columns, norms)),
        Fault("copy exchanged", "copy", lambda rng, columns, norms: exchange(rng, columns.T, norms)),
        *(fault for seam in ("before", "next", "end", "given") for fault in _of_centers(seam)),
        Fault("old centers kept", "iterated", lambda rng, found, old: flip(rng, found.at)),
        Fault("next centers kept", "iterated", lambda rng, found, old: flip(rng, found.centers)),
    )
}


def _scale(factor: int, *arrays: Any) -> None:
    for array in arrays:
        array *= array.dtype.type(factor)


class Seams(Engine):
    """An engine that injects one fault, and records which centers its assignments were given."""

    trial: Trial | None = None
    #: Assignments begun, and where the iterations of the first run ended.
    made = ended = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.path: list[bytes] = []
        self._old: Any = None
        self._result: Any = None
        self._done = False

    def _inject(self, seam: str, *arrays: Any, at: int | None = None) -> None:
        """Change the arrays, if the trial says so: once, at the first turn of a seam at or after its assignment."""
        trial = self.trial
        if trial is None or self._done or trial.fault.seam != seam:
            return
        if seam in ("end", "given", "iterated") or (self.made if at is None else at) == trial.at:
            self._done = True
            with np.errstate(all="ignore"):
                trial.fault.change(np.random.default_rng(trial.seed), *arrays)

    def block_rows(self, n_columns: int) -> int:
        return _ROWS

    def each_block(self, work: Callable[[int, Any], Any], n_columns: int) -> Iterator[Any]:
        for self._block, (start, block) in enumerate(self.blocks(n_columns)):  # in order, for trials to be repeatable
            yield work(start, self.prepared(block))

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        self._inject("before", centers, centers if self._old is None else self._old)
        self.path.append(centers.tobytes())
        self._old = centers.copy()
        step = super().assign(centers, update=update, potential=potential)
        if update:
            self._inject("step", step)
        self.made += 1
        return step

    def assign_block(self, block: Any, weights: Any, columns: Any, norms: Any, **options: Any) -> Any:
        self._inject("copy", columns, norms)
        labels, scores, sums, totals = super().assign_block(block, weights, columns, norms, **options)
        if (
            options["update"]
            and self.trial is not None
            and self._block == self.trial.seed % -(-self.n_samples // _ROWS)
        ):
            self._inject("block", sums, totals)
        return labels, scores, sums, totals

    def next_centers(self, step: Assignment, centers: np.ndarray) -> np.ndarray:
        following = super().next_centers(step, centers)
        self._inject("next", following, centers, at=self.made - 1)
        return following

    def iterate(self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None) -> Iterated:
        found = super().iterate(centers, before, last, tol, report)
        if found.fault is None and found.at is not None:
            self._inject("iterated", found, self._old)
        self.ended = self.ended or self.made
        return found

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        self._result = centers
        self._inject("end", centers, self._old)
        return super().checked_inertia(centers)

    def result_inertia(self, centers: np.ndarray) -> float:
        self._result = centers
        return super().result_inertia(centers)

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        self._inject("given", self._result, self._old)
        return super().cluster_sizes(labels, k)


def data(rng: np.random.Generator, dtype: str) -> Data:
    """Draw samples of clusters that overlap, so that runs from other centers end elsewhere."""
    n, d, k = int(rng.integers(300, 900)), int(rng.integers(2, 9)), int(rng.integers(3, 9))
    X = rng.standard_normal((n, d)) + 2 * rng.standard_normal((k, d))[rng.integers(0, k, n)] + rng.integers(0, 2) * 50
    X = X.astype(dtype)
    weights = rng.random(n) + 0.1 if rng.integers(3) == 0 else None
    max_iter = 300 if rng.integers(2) else int(rng.integers(2, 12))
    return Data(X, k, weights, {"init": X[:k], "tol": 0.0, "max_iter": max_iter})


def injected(
    kind: type[Engine], of: Data, trial: Trial | None, *arguments: Any, protect: bool = True
) -> tuple[Any, Any]:
    """Fit once; return the engine and the clustering, or None where the fit raised a `FaultError`."""
    engine = type("Faulty", (Seams, kind), {})(ArrayRows(of.X), of.X.dtype, of.weights, *arguments)
    engine.trial = trial
    options = of.options | {"init": of.options["init"].copy()}
    with np.errstate(all="ignore"):
        try:
            found = lloyd.fit(engine, of.k, protect=protect, random_state=np.random.RandomState(0), **options)
        except FaultError:
            found = None
    return engine, found


def outcome_of(clean: tuple[Any, Any], tried: tuple[Any, Any]) -> str:
    """Return what became of a trial, one of `OUTCOMES`."""
    (engine, expected), (faulty, found) = clean, tried
    if found is None:
        return "raised"
    same = (
        bool((to_host(found.labels) == to_host(expected.labels)).all())
        and found.centers.tobytes() == expected.centers.tobytes()
        and found.inertia == expected.inertia
        and bool((found.cluster_sizes == expected.cluster_sizes).all())
    )
    if not same:
        return "other noticed" if found.faults else "other unnoticed"
    if found.faults:
        return "repaired"
    return "no effect" if faulty.path == engine.path else "healed"


def when_of(engine: Seams, when: str, rng: np.random.Generator) -> int:
    """Return an assignment of a run like this engine's."""
    last = engine.ended - 1
    if when == "after":
        return int(rng.integers(last + 1, engine.made)) if engine.made > last + 1 else last
    return {"first": 0, "middle": int(rng.integers(last + 1)), "last": last}[when]


def campaign(
    kind: type[Engine], seed: int, *arguments: Any, faults: Iterator[Fault] | None = None, trials: int = 1
) -> dict[tuple[str, str], Counter[str]]:
    """Try faults at every time, each on other data; return how often each outcome was, by fault and time."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    rng = np.random.default_rng(seed)
    for fault, when, _ in itertools.product(list(faults or FAULTS.values()), WHEN, range(trials)):
        of = data(rng, "float32" if rng.integers(2) else "float64")
        clean = injected(kind, of, None, *arguments)
        trial = Trial(fault, when_of(clean[0], when, rng), int(rng.integers(2**31)))
        tried = injected(kind, of, trial, *arguments)
        counts.setdefault((fault.name, when), Counter())[outcome_of(clean, tried)] += 1
    return counts
