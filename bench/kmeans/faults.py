"""Fault injection into K-means: sums, centers, and the copies of centers that an engine's passes use.

A `Fault` is an injection point (seam) and an in-place change of arrays. A `Trial` selects the fault, the assignment of
a run and the random numbers. `injected` runs one fit with the fault; `outcome_of` compares the result with that of
a fit without it:

    no effect         the same iterations, nothing detected
    healed            other iterations, the same bits of the result, nothing detected
    repaired          detected, and the same bits of the result
    raised            detected, and no result
    other noticed     another result, but detected
    other unnoticed   another result, not detected

A protected fit never ends in one of the last two. Seams are methods of `BlockStep`, so one class serves all of its
subclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, UnitRows
from tsapps.apps.kmeans.engines.block_step import BlockStep
from tsapps.apps.kmeans.engines.engine import Engine, HostEngine
from tsapps.apps.kmeans.engines.host_step import HostStep
from tsapps.apps.kmeans.protect.checks import FaultError
from tsapps.apps.kmeans.results import Assignment, IterationResult, Report
from tsapps.kernels.arrays import to_host

__all__ = ["FAULTS", "KINDS", "OUTCOMES", "WHEN", "Data", "Fault", "Trial", "draw", "injected", "outcome_of", "tried"]

OUTCOMES = ("no effect", "healed", "repaired", "raised", "other noticed", "other unnoticed")
#: Assignment of a run at which a trial injects: the first, any, the last, or after the last.
WHEN = ("first", "any", "last", "after")
#: Data: overlapping clusters; adjacent pairs x, −x, so that blocks sum to zero; equal samples and distant initial
#: centers, so that clusters are empty; rows of norm 1.
KINDS = ("blobs", "pairs", "empty", "cosine")
# Rows per block: small, so that small data has several blocks.
_ROWS = 128


@dataclass(frozen=True)
class Fault:
    """A change of arrays at a seam.

    Attributes
    ----------
    name : str
    seam : str
        "step": after `assign`. "block": after one block of it. "copy": the copy of the centers, before the first block.
        "before": the centers of an assignment. "kept": their saved copy. "next": the next centers. "iterated": the
        result of `iterate`. "result": the centers of a run, before its inertia. "given": the centers of all runs.
    change : callable
        Called with a random generator and the arrays at the seam, which it changes in place.
    """

    name: str
    seam: str
    change: Callable[..., None]


@dataclass(frozen=True)
class Trial:
    """One fault in a fit, at assignment `at` (from 0), with the random numbers of `seed`."""

    fault: Fault
    at: int
    seed: int


@dataclass(frozen=True)
class Data:
    """Samples and the parameters of their clustering."""

    source: Rows
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
    """Swap two rows, the same ones in all arrays."""
    a, b = (int(one) for one in rng.choice(len(arrays[0]), 2, replace=False))
    for array in arrays:
        held = array[a].copy()
        array[a] = array[b]
        array[b] = held


def revert(rng: np.random.Generator, centers: Any, old: Any) -> None:
    """Reset one center to its position in the previous iteration."""
    shifted = np.flatnonzero((centers != old).any(axis=1))
    if len(shifted):
        row = int(rng.choice(shifted))
        centers[row] = old[row]


def _scaled(factor: float) -> Callable[..., None]:
    """Return a fault that scales the sums of one cluster."""

    def change(rng: np.random.Generator, step: Assignment) -> None:
        step.sums[int(rng.integers(len(step.sums)))] *= factor

    return change


def _block(factor: int, *, weights: bool) -> Callable[..., None]:
    """Return a fault that adds a block to the sums `factor` times."""

    def change(_: np.random.Generator, sums: Any, totals: Any) -> None:
        for array in (sums, totals) if weights else (sums,):
            array *= array.dtype.type(factor)

    return change


def _not_counted(_: np.random.Generator, step: Assignment) -> None:
    step.n_reassigned = 0


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault("sums exchanged", "step", lambda rng, step: exchange(rng, step.sums)),
        Fault("clusters exchanged", "step", lambda rng, step: exchange(rng, step.sums, step.weights)),
        Fault("sums doubled", "step", _scaled(2)),
        Fault("sums zeroed", "step", _scaled(0)),
        Fault("sums an ulp off", "step", _scaled(1 + 2.0**-23)),
        Fault("sum flipped", "step", lambda rng, step: flip(rng, step.sums)),
        Fault("weight flipped", "step", lambda rng, step: flip(rng, step.weights)),
        Fault("labels not counted", "step", _not_counted),
        Fault("block twice", "block", _block(2, weights=False)),
        Fault("block lost", "block", _block(0, weights=False)),
        Fault("block and weights twice", "block", _block(2, weights=True)),
        Fault("block and weights lost", "block", _block(0, weights=True)),
        Fault("copy flipped", "copy", flip),
        Fault("copy exchanged", "copy", lambda rng, columns, norms: exchange(rng, columns.T, norms)),
        Fault("center flipped before use", "before", lambda rng, centers, _: flip(rng, centers)),
        Fault("centers exchanged before use", "before", lambda rng, centers, _: exchange(rng, centers)),
        Fault("center of before, before use", "before", revert),
        Fault("next center flipped", "next", lambda rng, centers, _: flip(rng, centers)),
        Fault("next centers exchanged", "next", lambda rng, centers, _: exchange(rng, centers)),
        Fault("next center of before", "next", revert),
        Fault("kept center flipped", "kept", flip),
        Fault("last centers flipped", "iterated", lambda rng, found: flip(rng, found.at)),
        Fault("final center flipped", "iterated", lambda rng, found: flip(rng, found.centers)),
        Fault("center of a result flipped", "result", flip),
        Fault("centers of a result exchanged", "result", exchange),
        Fault("center given out flipped", "given", flip),
        Fault("centers given out exchanged", "given", exchange),
    )
}


class SmallBlocks:
    """Mixin before `Data`: small blocks of rows, processed in order, so that trials are reproducible."""

    #: First row of the block being processed.
    start = 0

    def block_rows(self, n_columns: int) -> int:
        return _ROWS if n_columns else self.n_samples  # type: ignore[attr-defined]

    def each_block(self, work: Callable[[int, Any], Any], n_columns: int) -> Iterator[Any]:
        for start, block in self.blocks(n_columns):  # type: ignore[attr-defined]
            self.start = start
            yield work(start, self.prepared(block))  # type: ignore[attr-defined]


class Seams(BlockStep):
    """A step that injects one fault and records the centers of its assignments."""

    trial: Trial | None = None
    #: Number of assignments so far; number of assignments in the first run.
    made = ended = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.path: list[bytes] = []
        self._old: Any = None
        self._result: Any = None
        self._done = False

    def _inject(self, seam: str, *arrays: Any, made: int | None = None) -> None:
        """Change the arrays once, at the first opportunity that matches the trial."""
        trial = self.trial
        if trial is None or self._done or trial.fault.seam != seam:
            return
        if made is None or made == trial.at:
            self._done = True
            trial.fault.change(np.random.default_rng(trial.seed), *arrays)

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        self._inject("before", centers, centers if self._old is None else self._old, made=self.made)
        if self.protection is not None and hasattr(self.protection, "kept"):
            self._inject("kept", self.protection.kept.centers, made=self.made)
        self.path.append(centers.tobytes())
        self._old = centers.copy()
        step = super().assign(centers, update=update, potential=potential)
        if update:
            self._inject("step", step, made=self.made)
        self.made += 1
        return step

    def assign_block(self, block: Any, weights: Any, columns: Any, norms: Any, **options: Any) -> Any:
        self._inject("copy", columns, norms, made=self.made)
        labels, scores, sums, totals = super().assign_block(block, weights, columns, norms, **options)
        if options["update"] and self.trial is not None:
            number = self.trial.seed % -(-self.data.n_samples // _ROWS)
            if self.data.start == number * _ROWS:
                self._inject("block", sums, totals, made=self.made)
        return labels, scores, sums, totals

    def next_centers(self, step: Assignment, centers: np.ndarray) -> np.ndarray:
        following = super().next_centers(step, centers)
        self._inject("next", following, centers, made=self.made - 1)
        return following

    def iterate(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult:
        found = super().iterate(centers, before, last, tol, report)
        if found.fault is None and found.at is not None:
            self._inject("iterated", found)
        self.ended = self.ended or self.made
        return found

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        self._result = centers
        self._inject("result", centers)
        return super().checked_inertia(centers)

    def inertia(self, centers: np.ndarray) -> float:
        self._result = centers
        return super().inertia(centers)

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        self._inject("given", self._result)
        return super().cluster_sizes(labels, k)


def draw(kind: str, dtype: str, rng: np.random.Generator) -> Data:
    """Draw samples of a kind on which runs from different centers end differently."""
    n, d, k = int(rng.integers(150, 450)), int(rng.integers(2, 9)), int(rng.integers(3, 9))
    X = rng.standard_normal((n, d)) + 2 * rng.standard_normal((k, d))[rng.integers(0, k, n)]
    init = X[:k].copy()
    if kind == "pairs":
        X = np.stack([X, -X], axis=1).reshape(2 * n, d)
    elif kind == "empty":
        X = X[rng.integers(0, 2 * k, n)]
        init[-1] = 1e3
    elif kind == "blobs":
        offset = int(rng.integers(2)) * 50
        X, init = X + offset, init + offset
    X = X.astype(dtype)
    weights = rng.random(len(X)) + 0.1 if rng.integers(3) == 0 else None
    max_iter = 300 if rng.integers(2) else int(rng.integers(2, 12))
    source = UnitRows(ArrayRows(X), X.dtype) if kind == "cosine" else ArrayRows(X)
    return Data(source, k, weights, {"init": init.astype(dtype), "tol": 0.0, "max_iter": max_iter})


def host_engine(source: Rows, dtype: np.dtype, weights: np.ndarray | None) -> Engine:
    """Return a CPU engine whose step has seams."""
    return with_seams(HostEngine(source, dtype, weights), HostData, HostStep, source, dtype, weights)


def with_seams(engine: Engine, data: type, step: type, *arguments: Any) -> Engine:
    """Replace an engine's data by small blocks made from `arguments`, and its step by one with seams; return it."""
    engine.data = type("SmallBlocksData", (SmallBlocks, data), {})(*arguments)
    engine.blocks = type("FaultyStep", (Seams, step), {})(engine.data)
    return engine


def injected(seams: Callable[..., Engine], of: Data, trial: Trial | None, *, protect: bool = True) -> tuple[Any, Any]:
    """Run one fit; return the step, and the clustering or None if the fit raised a `FaultError`.

    `seams` is called as an engine is, and its `blocks` take a `trial`.
    """
    engine: Any = seams(of.source, of.source.dtype, of.weights)
    engine.blocks.trial = trial
    options = {name: one.copy() if isinstance(one, np.ndarray) else one for name, one in of.options.items()}
    with np.errstate(all="ignore"):
        try:
            found = lloyd.fit(engine, of.k, protect=protect, random_state=np.random.RandomState(0), **options)
        except FaultError:
            found = None
    return engine.blocks, found


def outcome_of(clean: tuple[Any, Any], faulty: tuple[Any, Any]) -> str:
    """Compare the results of `injected` without and with the fault; return one of `OUTCOMES`."""
    (step, expected), (tried_step, found) = clean, faulty
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
    return "no effect" if tried_step.path == step.path else "healed"


def _assignment(engine: Any, when: str, rng: np.random.Generator) -> int:
    """Choose an assignment index for `when`, given the run of this engine."""
    last = engine.ended - 1
    if when == "after":
        return int(rng.integers(engine.ended, max(engine.made, engine.ended + 1)))
    return {"first": 0, "any": int(rng.integers(engine.ended)), "last": last}[when]


def tried(
    seams: Callable[..., Engine],
    fault: Fault,
    when: str,
    kind: str,
    dtype: str,
    rng: np.random.Generator,
    *,
    protect: bool = True,
) -> str:
    """Run one trial on new data; return its outcome, one of `OUTCOMES`."""
    of = draw(kind, dtype, rng)
    clean = injected(seams, of, None, protect=protect)
    trial = Trial(fault, _assignment(clean[0], when, rng), int(rng.integers(2**31)))
    return outcome_of(clean, injected(seams, of, trial, protect=protect))
