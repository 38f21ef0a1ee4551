"""ABFT checks of a protected fit, for Lloyd steps that sum all samples in every iteration (NumPy and cuBLAS).

After every iteration:

- The cluster sums are computed twice, and the two results must have the same bits. The cluster weights must add up to
  the weight of all samples, and the cluster sums to the sum of all samples.
- A subset of the samples, different in each iteration, is compared with every center, independently of the assignment.
- The centers must equal a separate copy (`Kept`). The new centers are computed from each of the two results for the
  cluster sums, and must have the same bits.

After every run, its labels and centers are recomputed from labels that are reset, and must have the same bits. If a
step has running sums, its sums are not recomputed: a Freivalds check compares them with the samples (`SumsCheck`).
docs/notes/abft.md states which faults the checks find, and with which probability.

For iterations by kernels of this package, `protect/launch.py` launches other checks.

Source: K.-H. Huang and J. A. Abraham, "Algorithm-based fault tolerance for matrix operations", IEEE Trans. Computers 33
(1984), for sums that a computation preserves.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from zlib import crc32

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.results import Assignment, square_shift
from tsapps.apps.kmeans.update.means import next_centers
from tsapps.kernels.arrays import to_host
from tsapps.kernels.system.logs import logger_of

__all__ = ["MOST_AGAIN", "FaultError", "Kept", "Protection", "same_bits", "stride_of"]

_log = logger_of(__name__)
#: Maximum number of times that an iteration or a result is recomputed in a run before the fit fails.
MOST_AGAIN = 3
# Each check compares about one sample in `_ONE_IN`, but at least `_FEWEST` samples, with all centers.
_ONE_IN, _FEWEST = 4096, 128
# Maximum number of float64 scores that are computed at a time.
_SCORES = 1 << 22


class FaultError(RuntimeError):
    """An iteration or a result of a protected fit failed its checks after every recomputation: faulty hardware."""


def stride_of(n: int) -> int:
    """Return the stride s: one iteration checks every s-th sample, so that s iterations check all n samples.

    The stride is odd, so that the samples checked in one iteration cover every lane of a warp and every row of a tile.
    """
    return max(1, n // max(_FEWEST, n // _ONE_IN)) | 1


def same_bits(array: Any, other: Any) -> bool:
    """Return True if two C-contiguous arrays of the same dtype and array library are equal bit for bit."""
    bits = f"u{array.dtype.itemsize}"
    return bool((array.view(bits) == other.view(bits)).all())


class Kept:
    """A copy of centers (k, d) and their CRC-32, which shows whether the centers or the copy are correct."""

    def __init__(self, centers: np.ndarray) -> None:
        self._digest = crc32(centers.tobytes())
        self.centers = centers.copy()

    def differs(self, centers: np.ndarray) -> bool:
        """Return True if `centers` differ from the copy in any bit."""
        return not same_bits(centers, self.centers)

    def intact(self, centers: np.ndarray) -> np.ndarray:
        """Return a copy of the original centers: of `centers` if they have the right CRC-32, else of the stored copy.

        Raises
        ------
        FaultError
            If neither has the right CRC-32.
        """
        for one in (centers, self.centers):
            if crc32(one.tobytes()) == self._digest:
                return one.copy()
        raise FaultError(
            "K-means: the centers changed, and so did their copy. Do not trust results of this machine: use another "
            "one, or test its memory and processors"
        )


class Protection:
    """The checks of one fit, and the number of faults that they found.

    Attributes
    ----------
    faults : int
        Number of iterations and results that failed a check and were recomputed.
    kept : Kept
        Copy of the centers of the next iteration, or of the result.
    """

    kept: Kept

    def __init__(self) -> None:
        self.faults = 0
        self._checked = 0
        self._times: Counter[str] = Counter()
        # Σ w·(x, 1) and Σ |w·(x, 1)| over the samples, each of shape (d + 1,); computed at the first check.
        self._totals: tuple[np.ndarray, np.ndarray] | None = None

    def begin_run(self) -> None:
        """Reset the numbers of failures by iteration and result, for a new run."""
        self._times.clear()

    def found(self, fault: str, step: str) -> None:
        """Count a fault in an iteration or a result. The caller then recomputes that iteration or result.

        Parameters
        ----------
        fault : str
            Description of the fault.
        step : str
            Name of the faulty iteration or result in messages, such as "iteration 3".

        Raises
        ------
        FaultError
            If `step` has already been recomputed `MOST_AGAIN` times in this run.
        """
        self.faults += 1
        self._times[step] += 1
        _log.warning("a fault in %s: %s", step, fault)
        if self._times[step] > MOST_AGAIN:
            raise FaultError(
                f"K-means: {step} went wrong {self._times[step]} times, the last time because {fault}. Do not trust "
                "results of this machine: use another one, or test its memory and processors"
            )

    def keep(self, centers: np.ndarray) -> None:
        """Store a copy of the centers (k, d) of the next iteration."""
        self.kept = Kept(centers)

    def intact(self, centers: np.ndarray) -> np.ndarray:
        """Return the centers that `keep` stored, and store a new copy of them; see `Kept.intact`."""
        centers = self.kept.intact(centers)
        self.keep(centers)
        return centers

    def fault_of(
        self, data: Data, labels: Any, found: Assignment, centers: np.ndarray, iteration: int, units: np.ndarray
    ) -> str | None:
        """Check an assignment; return a description of the first fault, or None.

        Parameters
        ----------
        data : Data
        labels : array of shape (n,), int32
            The assigned labels.
        found : Assignment
            Includes the cluster sums that were computed a second time, `found.again`.
        centers : numpy.ndarray of shape (k, d)
            The centers that samples were assigned to.
        iteration : int
            Number of the iteration in the run, from 1.
        units : numpy.ndarray of shape (d + 1,) or (1,)
            Fixed-point units of the sums; see `Step.sums_units`.
        """
        again = found.again
        assert again is not None  # protected fits sum twice
        turn, self._checked = self._checked, self._checked + 1
        if found.changed:
            return "the centers changed during the assignment"
        if self.kept.differs(centers):
            return "the centers changed after they were computed"
        if iteration == 1 and found.n_reassigned != data.n_samples:
            return "the first assignment did not count every sample as reassigned"
        if not (same_bits(found.sums, again.sums) and same_bits(found.weights, again.weights)):
            return "the cluster sums differed when they were computed twice"
        stride = stride_of(data.n_samples)
        indices = np.arange(turn % stride, data.n_samples, stride)
        if not _labels_are_nearest(data, labels, centers, indices):
            return "some samples had a label whose center was not the nearest"
        if self._totals is None:
            self._totals = data.totals()
        totals, magnitudes = self._totals
        # The error of a sum of m terms, in any order, is at most γ_m = m·ε / (1 − m·ε) times the sum of magnitudes (ε:
        # rounding unit of the dtype).
        most_added = min(data.n_samples, data.block_rows(len(centers))) + 4
        bound = most_added * float(np.finfo(data.dtype).eps) * magnitudes + data.n_samples / 2 * units
        if data.sample_weight is None:
            bound[-1] = 0  # counts are exact
        of_clusters = np.append(found.sums.sum(axis=0), found.weights.sum())
        # A NaN makes the comparison false, which is a fault.
        right = np.abs(of_clusters - totals) <= bound
        if not right[-1]:
            return "the cluster weights did not add up to the weight of all samples"
        return None if right.all() else "the cluster sums did not add up to the sum of all samples"

    def fault_of_next(
        self, data: Data, found: Assignment, following: np.ndarray, shift: float, *, unchanged: bool
    ) -> str | None:
        """Check the new centers after a checked assignment; return a description of the first fault, or None.

        Stores a copy of correct new centers.

        Parameters
        ----------
        data : Data
        found : Assignment
            The assignment to the stored centers.
        following : numpy.ndarray of shape (k, d)
            The new centers.
        shift : float
            The center shift; see `square_shift`.
        unchanged : bool
            Whether no label changed since the stored centers were computed, so that the new centers must equal them.
        """
        assert found.again is not None
        at = self.kept.centers
        again = next_centers(data, found.again, at)
        if not same_bits(following, again):
            return "the new centers were not the means of the cluster sums"
        if not np.array_equal(shift, square_shift(at, again), equal_nan=True):
            return "the center shift differed when it was computed twice"
        if unchanged and not same_bits(again, at):
            return "reassigned samples were not counted"
        self.keep(again)
        return None


def _labels_are_nearest(data: Data, labels: Any, centers: np.ndarray, indices: np.ndarray) -> bool:
    """Return True if each sample in `indices` has the label of its nearest center, within rounding errors of scores."""
    k, wide = len(centers), centers.astype(np.float64)
    # The error of a score ‖c‖² − 2·x·c is at most γ_{d+2}·(‖c‖² + 2·‖x‖·‖c‖), with γ_m ≈ m·ε (ε: rounding unit). Four
    # errors add up: of two scores of the assignment, and of two scores computed here. Underflow adds a multiple of the
    # smallest normal number of the dtype.
    operations, numbers = 4 * (data.n_features + 8), np.finfo(data.dtype)
    each = max(1, _SCORES // max(k, data.n_features))
    for begin in range(0, len(indices), each):
        some = indices[begin : begin + each]
        own = to_host(labels[data.xp.asarray(some)])
        if ((own < 0) | (own >= k)).any():
            return False
        rows = data.rows(some).astype(np.float64)
        # Scaling by a power of two is exact, and prevents overflow of squares.
        exponent = -int(np.frexp(max(abs(rows).max(), abs(wide).max()))[1])
        rows, scaled = np.ldexp(rows, exponent), np.ldexp(wide, exponent)
        norms = (scaled * scaled).sum(axis=1)
        scores = norms - 2 * rows @ scaled.T
        lost = scores[np.arange(len(some)), own] - scores.min(axis=1)
        largest = np.sqrt(norms.max())
        bound = float(numbers.eps) * largest * (largest + 2 * np.sqrt((rows * rows).sum(axis=1)))
        if not (lost <= operations * (bound + np.ldexp(float(numbers.tiny), min(2 * exponent, 1023)))).all():
            return False
    return True
