"""Engine for X as parts of a crew: asks all parts the same, and adds up whole numbers and sums of chunks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.frame import ScaledRows
from tsapps.apps.kmeans.data.rows import Rows, UnitRows
from tsapps.apps.kmeans.distributed.burst import Burst, Gang
from tsapps.apps.kmeans.distributed.crew import Crew
from tsapps.apps.kmeans.distributed.partitioned_data import (
    HeldRows,
    PartitionedData,
    PartitionedDraws,
    PartitionedOversampling,
)
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.engines.fixed_point_step import FixedPointStep
from tsapps.apps.kmeans.inertia.host_inertia import sum_terms
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.oversampling import Oversampling
from tsapps.apps.kmeans.init.oversampling_chunks import OversamplingByChunks
from tsapps.apps.kmeans.init.plusplus_host import draw_samples
from tsapps.apps.kmeans.results import Assignment, IterationResult, Report

__all__ = ["PartLabels", "PartitionedEngine", "PartitionedStep", "source_of"]


# A burst has iterations for about so many seconds, but a number between these. After more losses of GPUs than this, a
# fit has no more bursts.
_SECONDS, _LEAST, _MOST, _MOST_LOSSES = 2.0, 16, 1000, 3


class PartLabels:
    """The labels of all samples: those of the centers that the samples were assigned to. The parts hold them."""

    def __init__(self, data: PartitionedData) -> None:
        self._data, self.state = data, data.state

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._data.n_samples

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Return the labels of the samples with these indices."""
        ask = self._data.crew.ask
        return self._data.in_order(indices, lambda parts: ask("labels_of", self.state, indices, parts=parts))

    def copy(self) -> "PartLabels":
        """Return these labels, which never change."""
        return self

    def gathered(self) -> np.ndarray:
        """Return the labels of all samples, (n,), int32."""
        return np.concatenate(self._data.crew.ask("labels", self.state))


class PartitionedStep(FixedPointStep):
    """Lloyd step for k clusters over `PartitionedData`."""

    data: PartitionedData

    def __init__(self, data: PartitionedData, k: int) -> None:
        super().__init__(data)
        self.k = k
        self._sums = np.zeros((k, data.n_features + 1), np.int64)
        # Bursts: the GPUs that take part, whether there are any, how often one was lost, and iterations of the next.
        self._gang: Gang | None = None
        self._has_bursts, self._losses, self._length = True, 0, _LEAST
        self.reset()

    @property
    def labels(self) -> PartLabels:
        """Labels of the samples, which the parts hold."""
        return PartLabels(self.data)

    def reset(self) -> None:
        """Set every label to −1; see `Step.reset`."""
        self.data.tell(k=self.k, centers=None, seeds=(), drawn=())

    def assign(
        self,
        centers: np.ndarray,
        *,
        update: bool = True,  # noqa: ARG002 (the sums are at hand)
        potential: bool = False,  # noqa: ARG002 (it follows from the sums)
    ) -> Assignment:
        """Label every sample with its nearest center; see `Step.assign`."""
        centers = centers.copy()
        answers = self.data.ask("assign", centers)
        self.data.tell(centers=centers)
        self._sums = sum(sums for _, sums in answers)
        n_reassigned = sum(count for count, _ in answers)
        found = Assignment(n_reassigned, *self.sums_and_weights(self._sums), float("nan"))
        found.potential = found.potential_about(centers)
        return found

    def iterate(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult:
        """Iterate in bursts where the parts have GPUs that can; see `Step.iterate`."""
        done = before
        while True:
            found = self._burst(centers, done, last, tol, report)
            if found is None:
                found = super().iterate(centers, done, done + 1 if self._has_bursts else last, tol, report)
            done, centers = done + found.count, found.centers
            converged = found.strict or found.shift <= tol
            if converged or done == last or found.empty is not None or found.fault is not None:
                return replace(found, count=done - before)

    def _burst(
        self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None
    ) -> IterationResult | None:
        """Return the result of a burst, of `last` − `before` iterations at most; None if there was none."""
        if not self._has_bursts or self.protection is not None:
            return None
        crew, state = self.data.crew, self.data.state
        gang = crew.gang(state) if self._gang is None else self._gang
        if gang is None:
            self._has_bursts = False
            return None
        self._gang, end = gang, min(last, before + self._length)
        answers = crew.ask_gang(gang, "burst", state, centers, before, end, tol)
        if answers is None:
            self._gang, self._losses = None, self._losses + 1
            self._has_bursts = self._losses <= _MOST_LOSSES
            return None
        _check_digests([digest for digest, _ in answers])
        burst = Burst(*answers[0][1])
        self._length = max(_LEAST, min(_MOST, round(burst.iterations * _SECONDS / max(burst.seconds, 1e-3))))
        self._sums = burst.sums
        self.data.tell(centers=burst.at)
        if report is not None:
            for outcome in burst.told:
                report(*outcome)
        return burst.result()

    def terms_of_sums(self, centers: np.ndarray) -> np.ndarray:
        """Return terms of the sums of all parts; see `FixedPointStep.terms_of_sums`."""
        return sum_terms(self._sums, self.sums_units, centers)

    def cluster_sizes(self, labels: PartLabels, k: int) -> np.ndarray:  # noqa: ARG002 (k is that of the step)
        """Return the number of samples with each label, (k,), int64; see `Step.cluster_sizes`."""
        sizes: np.ndarray = sum(self.data.crew.ask("cluster_sizes", labels.state))
        return sizes

    def same_clustering(self, labels: PartLabels, others: PartLabels, k: int) -> bool:
        """Return True if samples with equal labels in `labels` also have equal labels in `others`."""
        partner = np.full(k, -1, np.int32)
        for of_part in self.data.crew.ask("partners", labels.state, others.state.centers):
            if of_part is None or ((partner >= 0) & (of_part >= 0) & (partner != of_part)).any():
                return False
            partner = np.maximum(partner, of_part)
        return True


def _check_digests(digests: Sequence[int]) -> None:
    """Raise RuntimeError if the results of the GPUs of a burst differ."""
    if len(set(digests)) > 1:
        raise RuntimeError(f"GPUs computed different centers from the same sums: {digests}; one of them is faulty")


class PartitionedEngine(Engine):
    """X as parts of a crew, and the Lloyd step over them.

    Parameters
    ----------
    source : Rows
        `HeldRows`, or these rescaled by a `ScaledRows` or `UnitRows`.
    dtype : {float32, float64}
        Working type.
    sample_weight : numpy.ndarray of shape (n,), optional
    crew : Crew
        Has the rows and the weights.
    """

    data: PartitionedData
    protects = False

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None, crew: Crew) -> None:
        exponent = source.exponent if isinstance(source, ScaledRows) else 0
        self.data = self.new_data(source, dtype, sample_weight, crew, exponent)
        if not self.data.weights_alike:
            raise ValueError("weights of distributed data must not differ by a factor of more than 65,536")
        self.over = lambda rows: PartitionedEngine(rows, dtype, sample_weight, crew)
        self._step: PartitionedStep | None = None

    def new_data(self, *arguments: Any) -> PartitionedData:
        """Return the data; `arguments` are those of `PartitionedData`."""
        return PartitionedData(*arguments)

    def center(self, mean: np.ndarray, k: int) -> None:  # noqa: ARG002 (k selects the step on a GPU)
        """Center X about `mean` (d,), or about the point that a GPU would subtract; see `Engine.center`."""
        self._step = None
        self.data.center(self.data.subtracted(mean))

    def step_for(self, k: int) -> PartitionedStep:
        """Return the step for k clusters; see `Engine.step_for`."""
        if self._step is None or self._step.k != k:
            self._step = self.new_step(k)
        return self._step

    def new_step(self, k: int) -> PartitionedStep:
        """Return a new step for k clusters with all labels −1."""
        return PartitionedStep(self.data, k)

    def selection(self, k: int) -> tuple[str, str]:  # noqa: ARG002 (the step does not depend on k)
        """Return the name of the step, and why it was selected; see `Engine.selection`."""
        return "partitioned", f"X has {len(self.data.crew.parts)} parts"

    def draw_plus_plus(self, first: int, draws: np.ndarray, chosen: Chosen | None = None) -> np.ndarray:
        """Draw samples by greedy k-means++; see `Engine.draw_plus_plus`."""
        trials = draws.shape[1]
        return draw_samples(PartitionedDraws(self._without_labels(trials), trials), first, draws, chosen)

    def oversampling(self, k: int) -> Oversampling:
        """Return an `Oversampling` of X; see `Engine.oversampling`."""
        return OversamplingByChunks(PartitionedOversampling(self._without_labels(k)))

    def _without_labels(self, together: int) -> PartitionedData:
        """Return the data, whose parts forget labels and draws; for `together`, see `PartState`."""
        self.data.tell(together=together, seeds=(), drawn=(), k=0, centers=None)
        return self.data


def source_of(shape: tuple[int, int], x_dtype: np.dtype, dtype: np.dtype, *, spherical: bool, name: str = "X") -> Rows:
    """Return the source of a `PartitionedEngine` for rows of this shape and type."""
    held: Rows = HeldRows(shape, x_dtype, name)
    return UnitRows(held, dtype) if spherical else held
