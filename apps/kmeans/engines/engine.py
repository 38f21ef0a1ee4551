"""What a fit asks of the data: passes over its rows, written once for every array library.

An engine holds X (n samples, d features), the sample weights and one label a sample, and answers each question of
`lloyd.py` and `init/plusplus.py` in one pass over blocks of rows. Distances are ranked by the score

    score(x, c) = ‖c‖² − 2·x·c  =  ‖x − c‖² − ‖x‖²

one matrix product a block, so that at most a block's scores exist at any time and never an n×k matrix. X is centered by
its mean as it is read: that shrinks the cancellation in the score. Sums over samples are carried in float64.

Over `UnitRows` the metric is the cosine: centers have norm 1 too, ‖x − c‖²/2 is 1 − cos(x, c), and nothing is centered.

`blocks.py` has the rows; `cpu.py` and `cublas.py` say how blocks are fed and how a block's rows are summed by label.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import Blocks
from tsapps.apps.kmeans.data.distances import square_norms
from tsapps.apps.kmeans.data.rows import Rows, unit
from tsapps.apps.kmeans.protect.checks import Protection, same_bits
from tsapps.apps.kmeans.results import Assignment, Iterated, Report, square_shift
from tsapps.kernels.arrays import to_host

__all__ = ["Engine"]


class Engine(Blocks):
    """Passes over X on one device; see `Blocks` for the parameters. `dtype` is the type that scores are computed in."""

    #: What checks each iteration, if anything does.
    protection: Protection | None = None
    #: Whether labels are proved; whether sums are kept from one assignment to the next; and units they are rounded to.
    certifies, keeps_sums, sums_units = True, False, np.zeros(1)
    #: Makes the same engine over other rows.
    over: Callable[[Rows], "Engine"]
    #: Brings an array to host memory, where it is valid until the next one is brought.
    brought: Callable[[Any], np.ndarray] = staticmethod(to_host)

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None) -> None:
        super().__init__(source, dtype, sample_weight)
        self.labels = self.xp.empty(self.n_samples, np.int32)
        #: What `moments` were taken about: the first sample.
        self.origin = np.zeros(self.n_features, self.dtype)

    @property
    def temporary_columns(self) -> int:
        """Columns of what `block_moments` and `block_distances` make of a block beside their results."""
        return 2 * self.n_features

    @abstractmethod
    def assign_block(
        self, block: Any, weights: Any | None, minus_2_centers: Any, norms: Any, *, update: bool, potential: bool
    ) -> tuple[Any, Any | None, Any, Any]:
        """Assign a block's rows; see `assign`.

        Returns
        -------
        labels : array of shape (rows,), int32
            The arg-min of the score, the lowest index on a tie.
        scores : array of shape (rows,) or None
            The lowest score of each row, where `potential` asks for it.
        sums, totals : arrays of shape (k, d) and (k,)
            The weighted sum of the rows with each label, and their weight; 0 and 0 without `update`.
        """

    @abstractmethod
    def sum_block(self, block: Any, weights: Any | None, labels: Any, k: int) -> tuple[Any, Any]:
        """Return the weighted sum of a block's rows with each label, and their weight: the bits of `assign_block`."""

    def block_moments(self, block: Any, origin: Any) -> tuple[Any, Any]:
        """Return Σ(x − origin) and Σ(x − origin)² over a block's rows, each of shape (d,), float64."""
        with np.errstate(over="ignore", invalid="ignore"):  # `moments` sees to it
            delta = (block - origin).astype(np.float64, copy=False)
            return delta.sum(axis=0), (delta * delta).sum(axis=0)

    def block_distances(self, block: Any, centers: Any, labels: Any) -> Any:
        """Return ‖x − c‖² of each of a block's rows and the center that its label names, in `dtype`."""
        delta = block - centers[labels]
        delta *= delta
        return delta.sum(axis=1)

    @abstractmethod
    def square_distances(self, points: np.ndarray) -> Any:
        """Return ‖x − p‖² for every point p and sample x, shape (len(points), n), in `dtype`.

        In float64 arithmetic, as scikit-learn has it for float32 data too, and never below zero.
        """

    def draw_plus_plus(self, first: int, draws: np.ndarray) -> np.ndarray | None:  # noqa: ARG002 (what may serve)
        """Draw samples by greedy k-means++ in the engine's own way; None where it has none, and passes are to do.

        Parameters
        ----------
        first : int
            The first sample.
        draws : numpy.ndarray of shape (k − 1, trials)
            For each further sample, where on the running sum of w·D² its candidates lie: in [0, 1), of its total.

        Returns
        -------
        numpy.ndarray of shape (k,) or None
        """
        return None

    def place(self, centers: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Check X, subtract the mean of a fit's X from it, and return the centers about what was subtracted.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            About the mean.
        mean : numpy.ndarray of shape (d,)

        Raises
        ------
        ValueError
            If X has a NaN or an infinity; names the row and column.
        """
        self.refuse_non_finite()
        return self._about(centers, mean)

    def _about(self, centers: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Subtract a mean from X, and return centers about it as those about what was subtracted."""
        self.center(mean)
        subtracted = to_host(self.mean)
        if (subtracted != mean).any():
            centers = centers + (mean.astype(np.float64) - subtracted)
        return centers.astype(self.dtype, copy=False)

    def forget_labels(self) -> None:
        """Set every label to −1, so that the next assignment moves every sample."""
        self.labels.fill(-1)

    def moments(self) -> tuple[np.ndarray, float]:
        """Return the mean of X (d,) and the mean over features of its variance, in one pass, in float64.

        Sums are taken about the first sample, so that far-off-center data does not cancel; about zero, where samples
        are farther from each other than their type holds. What overflows is not finite: see `Frame`.

        Raises
        ------
        ValueError
            If X has a NaN or an infinity; names the row and column.
        """
        self.origin = self.rows(np.array([0]))[0]
        total, square = self._sums_about(self.origin)
        if not np.isfinite(total).all():
            self.refuse_non_finite()
            self.origin = np.zeros_like(self.origin)
            total, square = self._sums_about(self.origin)
        total, square = total / self.n_samples, square / self.n_samples
        with np.errstate(over="ignore", invalid="ignore"):
            return total + self.origin, float(np.mean(square - total * total))

    def rounded_moments(self) -> tuple[np.ndarray, float] | None:
        """Return `moments` as NumPy rounds them in `dtype`, of X not centered, where that takes no copy to the host."""
        return None

    def _sums_about(self, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Σ(x − origin) and Σ(x − origin)² over the samples, each of shape (d,), float64."""
        about = self.xp.asarray(origin)
        parts = self.each_block(lambda _, block: self.block_moments(block, about), self.temporary_columns)
        with np.errstate(over="ignore", invalid="ignore"):
            total, square = reduce(lambda both, part: (both[0] + part[0], both[1] + part[1]), parts)
        return to_host(total), to_host(square)

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Give every sample the label of its nearest center, the lowest index on a tie.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Centered as the rows are.
        update : bool
            Also sum the samples of each cluster, for the next centers.
        potential : bool
            Also sum the scores.
        """
        k = len(centers)
        operands = self._operands(centers)
        # Protected, rows are added up a second time while they are at hand, apart from the first.
        twice = update and self.protection is not None

        def work(start: int, block: Any) -> tuple[Any, ...]:
            weights = self.weights_of(start, block)
            labels, scores, *sums = self.assign_block(block, weights, *operands, update=update, potential=potential)
            again = self.sum_block(block, weights, labels, k) if twice else ()
            held = self.labels[start : start + len(block)]
            n_reassigned = self.relabel(held, labels)
            if scores is not None:
                scores = (scores if weights is None else scores * weights).sum(dtype=np.float64)
            return n_reassigned, scores, *sums, *again

        shapes = ((k, self.n_features), k) if update else (0, 0)
        totals = [self.xp.zeros(shape) for shape in (1 + twice) * shapes]
        n_reassigned, scores = [], []
        for part in self.each_block(work, k):
            n_reassigned.append(part[0])
            scores.append(part[1])
            for total, of_block in zip(totals, part[2:], strict=True):
                total += of_block
        score = float(sum(scores[1:], scores[0])) if potential else float("nan")
        count = int(sum(n_reassigned[1:], n_reassigned[0]))
        step = Assignment(count, to_host(totals[0]), to_host(totals[1]), score)
        if twice:
            step.again = Assignment(count, to_host(totals[2]), to_host(totals[3]), score)
            step.changed = not all(map(same_bits, operands, self._operands(centers)))
        return step

    def _operands(self, centers: np.ndarray) -> tuple[Any, Any]:
        """Return −2·cᵀ (d, k) and ‖c‖² (k,) of centers, on this device, for `assign_block`."""
        minus_2_centers = np.ascontiguousarray(-2 * centers.T, dtype=self.dtype)
        return self.xp.asarray(minus_2_centers), self.xp.asarray(square_norms(centers))

    def relabel(self, held: Any, labels: Any) -> Any:
        """Give samples that have labels `held` (m,) others, and return how many differ: a number of `xp`."""
        n_reassigned = self.xp.count_nonzero(held != labels)
        held[:] = labels
        return n_reassigned

    def iterate(self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None) -> Iterated:
        """Iterate until no label changes, the centers move by `tol` at most in all (squared), or a cluster is empty.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Centered as the rows are.
        before, last : int
            How many iterations there were in this run, and how many there are to be at most.
        tol : float
        report : callable, optional
        """
        protection = self.protection
        for iteration in range(before + 1, last + 1):
            step = self.assign(centers, potential=report is not None)
            fault = None if protection is None else protection.fault_of(self, step, centers, iteration)
            if fault is None:
                if report is not None:
                    report(iteration, step.n_reassigned, step.potential)
                if (step.weights == 0).any():
                    return Iterated(centers, iteration - before, step.n_reassigned == 0, float("nan"), step, centers)
                new_centers = self.next_centers(step, centers)
                shift = square_shift(centers, new_centers)
                if protection is not None:
                    # The first of these iterations may be at centers that are no means.
                    stood = step.n_reassigned == 0 and iteration > before + 1
                    fault = protection.fault_of_next(self, step, new_centers, shift, stood=stood)
            if protection is not None and fault is not None:
                return Iterated(protection.intact(centers), iteration - 1 - before, False, float("nan"), fault=fault)
            at, centers = centers, new_centers
            if step.n_reassigned == 0 or shift <= tol:
                break
        return Iterated(centers, iteration - before, step.n_reassigned == 0, shift, at=at)

    def next_centers(self, step: Assignment, centers: np.ndarray) -> np.ndarray:
        """Return the means of the clusters that `centers` (k, d) gave, of norm 1 where the metric is the cosine."""
        means = step.means()
        if self.spherical:
            # Samples that cancel out have no direction in common: their center stays.
            means = unit(np.where(means.any(axis=1, keepdims=True), means, centers))
        return means.astype(self.dtype)

    def inertia(self, centers: np.ndarray) -> float:
        """Return Σ w·‖x − c‖², or Σ w·(1 − cos), of the samples and their own centers: from differences, in float64."""
        parts = self._each_own_distance(centers, weighted=True)
        total = sum(part.sum(dtype=np.float64) for part in parts)
        return float(total) / (2 if self.spherical else 1)

    def result_inertia(self, centers: np.ndarray) -> float:
        """Return `inertia` where the samples were just assigned to `centers`, or these are the means that followed."""
        return self.inertia(centers)

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return `result_inertia`, and what is wrong with it or with sums that are kept, or None."""
        inertia = self.inertia(centers)
        same = np.array_equal(inertia, self.inertia(centers), equal_nan=True)
        return inertia, None if same else "its inertia was another the second time"

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return how many samples have each of `labels`, shape (k,), int64; of this engine, now or before."""
        return to_host(self.xp.bincount(labels, minlength=k))

    def own_distances(self, centers: np.ndarray) -> np.ndarray:
        """Return ‖x − c‖² for every sample and its own center, in host memory; shape (n,)."""
        distances, end = np.empty(self.n_samples, self.dtype), 0
        for part in self._each_own_distance(centers, weighted=False):
            distances[end : end + len(part)] = to_host(part)
            end += len(part)
        return distances

    def _each_own_distance(self, centers: np.ndarray, *, weighted: bool) -> Iterator[Any]:
        device_centers = self.xp.asarray(centers, dtype=self.dtype)

        def work(start: int, block: Any) -> Any:
            distances = self.block_distances(block, device_centers, self.labels[start : start + len(block)])
            weights = self.weights_of(start, block) if weighted else None
            return distances if weights is None else distances * weights

        return self.each_block(work, self.temporary_columns)

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the (centered) samples, in float64."""

        def work(start: int, block: Any) -> Any:
            weights = self.weights_of(start, block)
            norms = (block * block).sum(axis=1)
            return (norms if weights is None else norms * weights).sum(dtype=np.float64)

        return float(sum(self.each_block(work, self.n_features)))

    def distances(self, points: np.ndarray) -> Any:
        """Return ‖x − p‖, or 1 − cos, for every sample and point, shape (n, len(points)): scikit-learn's transform."""
        squares = self.square_distances(points)
        return (squares / 2 if self.spherical else self.xp.sqrt(squares)).T
