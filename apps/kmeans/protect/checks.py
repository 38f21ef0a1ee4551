"""The checks of a protected fit, which find a computation that went wrong, so that it is made again.

After every iteration:

- the clusters' sums are added up a second time, and have the same bits; their weights add up to the weight of all
  samples, and the sums to the sum of all samples;
- some samples, others each time, are compared with every center once more, apart from what gave them their labels;
- the centers are those of a copy of their own (`Kept`), whose next ones come from the second sums.

After every run, its result is computed a second time, from no labels at all, and has to have the same bits; where sums
are kept from one iteration to the next, all labels are, and the sums are compared with the samples (`SumsCheck`). What
this finds for certain, what with which probability, and what not, is in docs/notes/abft.md.

Here is what serves every engine that adds up all samples in every iteration; iterations on a GPU by kernels of our own
are checked where they are, see `protect/launch.py`.

Source: K.-H. Huang and J. A. Abraham, "Algorithm-based fault tolerance for matrix operations", IEEE Trans. Computers 33
(1984), for sums that a computation has to keep.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from tsapps.apps.kmeans.results import Assignment, square_shift
from tsapps.kernels.arrays import to_host

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.engine import Engine

__all__ = ["MOST_AGAIN", "FaultError", "Kept", "Protection", "same_bits", "stride_of"]

#: How often one step is made again before the fault is called persistent.
MOST_AGAIN = 3
# Of the samples, how many are compared with all centers in an iteration, about: a share, and the fewest.
_ONE_IN, _FEWEST = 4096, 128
# Scores in float64 that are made at a time.
_SCORES = 1 << 22


class FaultError(RuntimeError):
    """A step of a protected fit went wrong as often as it was made: the machine cannot be relied on."""


def stride_of(n: int) -> int:
    """Return the distance between samples that are checked in one iteration; in as many iterations, all of n are.

    It is odd, so that they are of all lanes of a warp, and of all rows of a tile.
    """
    return max(1, n // max(_FEWEST, n // _ONE_IN)) | 1


def same_bits(array: Any, other: Any) -> bool:
    """Tell whether two C-contiguous arrays of one dtype, NumPy's or CuPy's, are the same bit for bit."""
    bits = f"u{array.dtype.itemsize}"
    return bool((array.view(bits) == other.view(bits)).all())


class Kept:
    """A copy of centers, and a digest that tells which of the two is right if they differ."""

    def __init__(self, centers: np.ndarray) -> None:
        self._digest = crc32(centers.tobytes())
        self.centers = centers.copy()

    def differs(self, centers: np.ndarray) -> bool:
        """Tell whether centers are no longer those that were copied."""
        return not same_bits(centers, self.centers)

    def intact(self, centers: np.ndarray) -> np.ndarray:
        """Return a copy of the centers as they were.

        Raises
        ------
        FaultError
            If neither these nor the copy are.
        """
        for one in (centers, self.centers):
            if crc32(one.tobytes()) == self._digest:
                return one.copy()
        raise FaultError(
            "K-means: the centers changed, and so did their copy: run on another machine, or test this one"
        )


class Protection:
    """The checks of one fit, and the faults that they found.

    Attributes
    ----------
    faults : int
        Steps and results that were made again.
    kept : Kept
        The centers of the next iteration, or of the result.
    """

    kept: Kept

    def __init__(self) -> None:
        self.faults = 0
        self._checked = 0
        self._times: Counter[str] = Counter()
        # Σ w·(x, 1) over the samples, and Σ |w·(x, 1)|, each of shape (d + 1,).
        self._totals: tuple[np.ndarray, np.ndarray] | None = None

    def begin_run(self) -> None:
        """Begin a run, whose steps have not failed yet."""
        self._times.clear()

    def found(self, fault: str, step: str) -> None:
        """Count a fault of a step, which is to be made again.

        Raises
        ------
        FaultError
            If it has been made again `MOST_AGAIN` times.
        """
        self.faults += 1
        self._times[step] += 1
        if self._times[step] > MOST_AGAIN:
            raise FaultError(
                f"K-means: {step} went wrong {self._times[step]} times, and the last time {fault}: no result of this "
                "machine can be relied on; run on another, or test its memory and processors"
            )

    def keep(self, centers: np.ndarray) -> None:
        """Keep a copy of the centers of the next iteration."""
        self.kept = Kept(centers)

    def intact(self, centers: np.ndarray) -> np.ndarray:
        """Return these centers as they were when they were kept; see `Kept.intact`."""
        centers = self.kept.intact(centers)
        self.keep(centers)
        return centers

    def fault_of(self, engine: Engine, step: Assignment, centers: np.ndarray, iteration: int) -> str | None:
        """Return what is wrong with an assignment at `centers` (k, d), in an iteration of a run, or None."""
        again = step.again
        assert again is not None  # as of every protected fit
        turn, self._checked = self._checked, self._checked + 1
        if step.changed:
            return "the centers changed while samples were assigned to them"
        if self.kept.differs(centers):
            return "the centers changed after they were computed"
        if iteration == 1 and step.n_reassigned != engine.n_samples:
            return "not every sample was counted that had its first label"
        if not (same_bits(step.sums, again.sums) and same_bits(step.weights, again.weights)):
            return "the clusters' sums did not add up to the same twice"
        stride = stride_of(engine.n_samples)
        if not _labels_are_nearest(engine, centers, np.arange(turn % stride, engine.n_samples, stride)):
            return "samples had labels of centers that are not their nearest"
        if self._totals is None:
            self._totals = _totals(engine)
        totals, magnitudes = self._totals
        # The sum of a block's rows is off by γ_m of their magnitudes at most, in any order of the additions.
        most_added = min(engine.n_samples, engine.block_rows(len(centers))) + 4
        bound = most_added * float(np.finfo(engine.dtype).eps) * magnitudes + engine.n_samples / 2 * engine.sums_units
        if engine.sample_weight is None:
            bound[-1] = 0  # whole numbers
        found = np.append(step.sums.sum(axis=0), step.weights.sum())
        # What is no number is wrong too.
        right = np.abs(found - totals) <= bound
        if not right[-1]:
            return "the clusters' weights did not add up to the weight of all samples"
        return None if right.all() else "the clusters' sums did not add up to the sum of all samples"

    def fault_of_next(
        self, engine: Engine, step: Assignment, following: np.ndarray, shift: float, *, stood: bool
    ) -> str | None:
        """Return what is wrong with the centers that follow a right assignment at those that are kept; keep the right.

        Parameters
        ----------
        engine : Engine
        step : Assignment
        following : numpy.ndarray of shape (k, d)
        shift : float
            By how much they moved; see `square_shift`.
        stood : bool
            Whether these are the same clusters that the centers which are kept are the means of.
        """
        assert step.again is not None
        at = self.kept.centers
        again = engine.next_centers(step.again, at)
        if not same_bits(following, again):
            return "the next centers were not the means of the sums"
        if not np.array_equal(shift, square_shift(at, again), equal_nan=True):
            return "the centers moved by another distance the second time"
        if stood and not same_bits(again, at):
            return "labels that changed were not counted"
        self.keep(again)
        return None


def _totals(engine: Engine) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ w·(x, 1) and ``Σ |w·(x, 1)|``, in one pass, in float64."""
    d, weights = engine.n_features, engine.sample_weight
    totals, magnitudes = np.zeros(d + 1), np.zeros(d + 1)

    def work(start: int, block: object) -> tuple[object, object]:
        wide = block.astype(np.float64)  # type: ignore[attr-defined]
        of_block = engine.weights_of(start, wide)
        if of_block is not None:
            wide *= of_block[:, np.newaxis]
        return wide.sum(axis=0), abs(wide).sum(axis=0)

    for total, magnitude in engine.each_block(work, 4 * d):
        totals[:d] += to_host(total)
        magnitudes[:d] += to_host(magnitude)
    totals[d] = magnitudes[d] = engine.n_samples
    if weights is not None:
        totals[d], magnitudes[d] = (float(one.sum(dtype=np.float64)) for one in (weights, abs(weights)))
    return totals, magnitudes


def _labels_are_nearest(engine: Engine, centers: np.ndarray, indices: np.ndarray) -> bool:
    """Tell whether no other center is nearer to these samples than their label's, by more than scores are rounded."""
    k, wide = len(centers), centers.astype(np.float64)
    # Two scores, each off by γ_{d+2}·(‖c‖² + 2·‖x‖·‖c‖) at most; and as much again for those that are made here. What
    # is too small for a number of the dtype is lost besides.
    operations, numbers = 4 * (engine.n_features + 8), np.finfo(engine.dtype)
    each = max(1, _SCORES // max(k, engine.n_features))
    for begin in range(0, len(indices), each):
        some = indices[begin : begin + each]
        labels = to_host(engine.labels[engine.xp.asarray(some)])
        if ((labels < 0) | (labels >= k)).any():
            return False
        rows = engine.rows(some).astype(np.float64)
        # A power of two rounds nothing, and leaves no square that overflows.
        exponent = -int(np.frexp(max(abs(rows).max(), abs(wide).max()))[1])
        rows, scaled = np.ldexp(rows, exponent), np.ldexp(wide, exponent)
        norms = (scaled * scaled).sum(axis=1)
        scores = norms - 2 * rows @ scaled.T
        lost = scores[np.arange(len(some)), labels] - scores.min(axis=1)
        largest = np.sqrt(norms.max())
        bound = float(numbers.eps) * largest * (largest + 2 * np.sqrt((rows * rows).sum(axis=1)))
        if not (lost <= operations * (bound + np.ldexp(float(numbers.tiny), min(2 * exponent, 1023)))).all():
            return False
    return True
