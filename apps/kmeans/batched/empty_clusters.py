"""Relocation of the empty clusters of a problem of a batch, on the host."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tsapps.apps.kmeans.batched.plan import STATUS
from tsapps.apps.kmeans.empty_clusters import relocate_empty_clusters
from tsapps.apps.kmeans.results import Assignment
from tsapps.kernels.arrays import to_host

__all__ = ["relocate"]


def relocate(batch: Any, problem: int) -> int:
    """Relocate the empty clusters of a problem of a `BatchedLloyd`, as `lloyd.fit` does; return its new status."""
    values = to_host(batch.arrays["sums"][problem]).astype(np.float64)
    n_reassigned = int(to_host(batch.arrays["n_reassigned"])[problem])
    units = to_host(batch.arrays["sum_units"][problem])
    step = Assignment(n_reassigned, values[:, :-1] * units, values[:, -1], float("nan"))
    before = to_host(batch.centers[problem])
    one: Any = _Problem(batch, problem)
    relocate_empty_clusters(one, one.labels, step, before)
    centers = step.means().astype(np.float32)
    shift = float(((centers.astype(np.float64) - before) ** 2).sum())
    batch.centers[problem] = batch.xp.asarray(centers)
    if n_reassigned == 0 and shift == 0:
        return STATUS["strict"]
    # Relocation moved centers. The status "ended", unlike "strict", causes a final assignment.
    last = n_reassigned == 0 or int(to_host(batch.arrays["iterations"])[problem]) >= batch.max_iter
    return STATUS["ended" if last or shift <= float(to_host(batch.arrays["tolerances"])[problem]) else "place"]


class _Problem:
    """One problem of a batch, with the members of `Data` that `relocate_empty_clusters` needs."""

    as_kernels, dtype = True, np.dtype(np.float32)

    def __init__(self, of: Any, problem: int) -> None:
        self.xp, self.sample_weight = of.xp, None
        self.labels = of.labels[problem]
        self._X, self._mean = of.X[problem], of.arrays["means"][problem]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return the samples with these indices, centered, in host memory; see `Data.rows`."""
        return to_host(self._X[self.xp.asarray(indices)].astype(np.float32) - self._mean)

    def own_distances(self, centers: np.ndarray, labels: Any) -> np.ndarray:
        """Return ‖x − c‖² of every sample and its center, (n,), in host memory; see `Data.own_distances`."""
        return to_host(next(self.each_own_distance(centers, labels)))

    def each_own_distance(self, centers: np.ndarray, labels: Any) -> Iterator[Any]:
        """Yield the distances of `own_distances` where the samples are; see `Data.each_own_distance`."""
        delta = self._X.astype(np.float32) - self._mean - self.xp.asarray(centers)[labels]
        yield (delta * delta).sum(axis=1)
