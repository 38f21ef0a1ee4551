"""What a fit asks of the data: passes over its rows, written once for every array library.

An engine holds X (n samples, d features), the sample weights and one label a sample, and answers each question of
`lloyd.py` and `seeding.py` in one pass over blocks of rows. Distances are ranked by the score

    score(x, c) = ‖c‖² − 2·x·c  =  ‖x − c‖² − ‖x‖²

one matrix product a block, so that at most a block's scores exist at any time and never an n×k matrix. X is centred by
its mean as it is read: that shrinks the cancellation in the score. Sums over samples are carried in float64.

Over `UnitRows` the metric is the cosine: centres have norm 1 too, ‖x − c‖²/2 is 1 − cos(x, c), and nothing is centred.

`cpu.py` and `cuda.py` say how blocks are fed and how a block's rows are summed by label.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, Self, TypeVar

import numpy as np
from sklearn.utils.extmath import row_norms

from tsapps.apps.kmeans.assignment import Assignment, Iterated, Report
from tsapps.apps.kmeans.protection import Protection
from tsapps.apps.kmeans.rows import ArrayRows, Rows, UnitRows, unit
from tsapps.kernels.arrays import to_host

__all__ = ["Engine"]

T = TypeVar("T")


class Engine(ABC):
    """Passes over X on one device.

    Parameters
    ----------
    source : Rows
        X, of shape (n, d), of any real dtype.
    dtype : numpy.dtype
        float32 or float64: the type that scores are computed in.
    sample_weight : numpy.ndarray of shape (n,), optional
        None means that every sample weighs 1.
    """

    #: The array library, `numpy` or `cupy`.
    xp: Any
    #: Where the engine runs, "cpu" or "cuda:i".
    device: str
    #: What checks each iteration, if anything does.
    protection: Protection | None = None
    #: Whether labels are proved; whether sums are kept from one assignment to the next; and units they are rounded to.
    proves, keeps_sums, sums_units = True, False, np.zeros(1)
    #: Brings an array to host memory, where it is valid until the next one is brought.
    brought: Callable[[Any], np.ndarray] = staticmethod(to_host)

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None) -> None:
        self.source = source
        #: Whether rows and centres have norm 1, and distances are 1 − cos.
        self.spherical = isinstance(source, UnitRows)
        self.n_samples, self.n_features = source.shape
        self.dtype = np.dtype(dtype)
        self.mean = self.xp.zeros(self.n_features, self.dtype)
        self.sample_weight = None if sample_weight is None else self.xp.asarray(sample_weight, dtype=self.dtype)
        self.labels = self.xp.empty(self.n_samples, np.int32)
        #: What `moments` were taken about: the first sample.
        self.origin = np.zeros(self.n_features, self.dtype)
        #: X on this device in `dtype`, less the mean; None where it is read from its source in every pass.
        self.held: Any = self._borrow()
        self._borrowed: Any = self.held
        if self.held is None and self.copies():
            self._hold()

    def copies(self) -> bool:
        """Tell whether to hold a copy of X where it cannot be borrowed."""
        return self.fits(self.n_samples * self.n_features * self.dtype.itemsize)

    def _hold(self) -> None:
        """Hold a copy of X, not centred."""
        held = self.xp.empty(self.source.shape, self.dtype)
        for start, block in self.source_blocks(self.block_rows(self.n_features)):
            held[start : start + len(block)] = block
        self.held = held

    def _borrow(self) -> Any | None:
        """Return the source's own array where it can be read as it is."""
        if not isinstance(self.source, ArrayRows):
            return None
        array = self.source.array
        usable = isinstance(array, self.xp.ndarray) and array.dtype == self.dtype and array.flags.c_contiguous
        return array if usable else None

    def __enter__(self) -> Self:
        """Make the engine's device the current one."""
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 (on the CPU there is nothing to do)
        """Give the device before back."""

    @abstractmethod
    def fits(self, size: int) -> bool:
        """Tell whether `size` more bytes for X leave the device room to work."""

    @property
    def temporary_columns(self) -> int:
        """Columns of what `block_moments` and `block_distances` make of a block beside their results."""
        return 2 * self.n_features

    @abstractmethod
    def block_rows(self, n_columns: int) -> int:
        """Return the rows of a block whose widest temporary has `n_columns` columns."""

    def source_blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block) of the source on this device, in the source's own dtype, not centred."""
        return self.source.blocks(rows)

    def blocks(self, n_columns: int) -> Iterator[tuple[int, Any]]:
        """Yield (first row, block), to be passed through `prepared` before use."""
        rows = self.block_rows(n_columns)
        if self.held is None:
            yield from self.source_blocks(rows)
            return
        for start in range(0, self.n_samples, rows):
            yield start, self.held[start : start + rows]

    def prepared(self, block: Any) -> Any:
        """Return a block of `blocks` in `dtype`, row-major and centred."""
        return block if self.held is not None else block.astype(self.dtype, order="C") - self.mean

    def centre(self, mean: np.ndarray) -> None:
        """Subtract `mean` (d,) from every row read from here on. Never writes to an array of the caller's."""
        self.mean = self.xp.asarray(mean, dtype=self.dtype)
        if self.held is None or not mean.astype(self.dtype).any():
            return
        if self.held is not self._borrowed:
            self.held -= self.mean
        elif self.fits(self.held.nbytes):
            self.held = self.held - self.mean
        else:
            self.held = None

    @abstractmethod
    def each_block(self, work: Callable[[int, Any], T], n_columns: int) -> Iterator[T]:
        """Yield ``work(first row, block)`` for every block of centred rows in `dtype`, in row order.

        `n_columns` is the width of the widest temporary that `work` makes for a block.
        """

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

    def block_moments(self, block: Any, origin: Any) -> tuple[Any, Any]:
        """Return Σ(x − origin) and Σ(x − origin)² over a block's rows, each of shape (d,), float64."""
        with np.errstate(over="ignore"):  # `moments` sees to it
            delta = (block - origin).astype(np.float64, copy=False)
        return delta.sum(axis=0), (delta * delta).sum(axis=0)

    def block_distances(self, block: Any, centers: Any, labels: Any) -> Any:
        """Return ‖x − c‖² of each of a block's rows and the centre that its label names, in `dtype`."""
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

    def weights_of(self, start: int, block: Any) -> Any | None:
        """Return the weights of the samples of a block; None where all weigh 1."""
        return None if self.sample_weight is None else self.sample_weight[start : start + len(block)]

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return these samples, centred, in host memory; shape (len(indices), d)."""
        rows = to_host(self.source.rows(np.asarray(indices)))
        return rows.astype(self.dtype) - to_host(self.mean)

    def placed(self, centers: np.ndarray) -> np.ndarray:
        """Check X, and return centres of X as it is as those that passes over it, not centred yet, are to be given.

        Raises
        ------
        ValueError
            If X has a NaN or an infinity; names the row and column.
        """
        self.refuse_non_finite()
        return centers

    def forget_labels(self) -> None:
        """Set every label to −1, so that the next assignment moves every sample."""
        self.labels.fill(-1)

    def moments(self) -> tuple[np.ndarray, float]:
        """Return the mean of X (d,) and the mean over features of its variance, in one pass, in float64.

        Sums are taken about the first sample, so that far-off-centre data does not cancel; about zero, where samples
        are farther from each other than their type holds.

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
        return total + self.origin, float(np.mean(square - total * total))

    def rounded_moments(self) -> tuple[np.ndarray, float] | None:
        """Return `moments` as NumPy rounds them in `dtype`, of X not centred, where that takes no copy to the host."""
        return None

    def _sums_about(self, origin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return Σ(x − origin) and Σ(x − origin)² over the samples, each of shape (d,), float64."""
        about = self.xp.asarray(origin)
        parts = self.each_block(lambda _, block: self.block_moments(block, about), self.temporary_columns)
        total, square = reduce(lambda both, part: (both[0] + part[0], both[1] + part[1]), parts)
        return to_host(total), to_host(square)

    def refuse_non_finite(self) -> None:
        """Raise ValueError if X has a NaN or an infinity, naming the first."""

        def work(start: int, block: Any) -> None:
            finite = self.xp.isfinite(block)
            if not bool(finite.all()):
                row, column = np.argwhere(~to_host(finite))[0]
                place = f"{self.source.name}: row {start + row}, column {column} is {to_host(block)[row, column]}"
                raise ValueError(f"{place}: K-means needs finite numbers; remove or replace such rows first")

        for _ in self.each_block(work, self.n_features):
            pass

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Give every sample the label of its nearest centre, the lowest index on a tie.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Centred as the rows are.
        update : bool
            Also sum the samples of each cluster, for the next centres.
        potential : bool
            Also sum the scores.
        """
        xp, k = self.xp, len(centers)
        minus_2_centers = xp.asarray(np.ascontiguousarray(-2 * centers.T, dtype=self.dtype))
        norms = xp.asarray(row_norms(centers, squared=True))
        shape = (k, self.n_features) if update else (0, 0)

        def work(start: int, block: Any) -> tuple[Any, Any, Any, Any]:
            weights = self.weights_of(start, block)
            labels, scores, sums, totals = self.assign_block(
                block, weights, minus_2_centers, norms, update=update, potential=potential
            )
            held = self.labels[start : start + len(block)]
            moved = self.relabel(held, labels)
            if scores is not None:
                scores = (scores if weights is None else scores * weights).sum(dtype=np.float64)
            return moved, sums, totals, scores

        sums, totals = xp.zeros(shape), xp.zeros(shape[0])
        moved, scores = [], []
        for part in self.each_block(work, k):
            moved.append(part[0])
            sums += part[1]
            totals += part[2]
            scores.append(part[3])
        score = float(sum(scores[1:], scores[0])) if potential else float("nan")
        return Assignment(int(sum(moved[1:], moved[0])), to_host(sums), to_host(totals), score)

    def relabel(self, held: Any, labels: Any) -> Any:
        """Give samples that have labels `held` (m,) others, and return how many differ: a number of `xp`."""
        moved = self.xp.count_nonzero(held != labels)
        held[:] = labels
        return moved

    def iterate(self, centers: np.ndarray, before: int, last: int, tol: float, report: Report | None) -> Iterated:
        """Iterate until no label changes, the centres move by `tol` at most in all (squared), or a cluster is empty.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Centred as the rows are.
        before, last : int
            How many iterations there were in this run, and how many there are to be at most.
        tol : float
        report : callable, optional
        """
        for iteration in range(before + 1, last + 1):
            step = self.assign(centers, potential=report is not None)
            fault = self.protection.fault_of(self, step, centers) if self.protection is not None else None
            if fault is not None:
                return Iterated(centers, iteration - 1 - before, False, float("nan"), fault=fault)
            if report is not None:
                report(iteration, step.moved, step.potential)
            if (step.weights == 0).any():
                return Iterated(centers, iteration - before, step.moved == 0, float("nan"), step, centers)
            new_centers = self.next_centers(step, centers)
            shift = float(((new_centers - centers) ** 2).sum())
            at, centers = centers, new_centers
            if step.moved == 0 or shift <= tol:
                break
        return Iterated(centers, iteration - before, step.moved == 0, shift, at=at)

    def next_centers(self, step: Assignment, centers: np.ndarray) -> np.ndarray:
        """Return the means of the clusters that `centers` (k, d) gave, of norm 1 where the metric is the cosine."""
        means = step.means()
        if self.spherical:
            # Samples that cancel out have no direction in common: their centre stays.
            means = unit(np.where(means.any(axis=1, keepdims=True), means, centers))
        return means.astype(self.dtype)

    def inertia(self, centers: np.ndarray) -> float:
        """Return Σ w·‖x − c‖², or Σ w·(1 − cos), of the samples and their own centres: from differences, in float64."""
        parts = self._each_own_distance(centers, weighted=True)
        total = sum(part.sum(dtype=np.float64) for part in parts)
        return float(total) / (2 if self.spherical else 1)

    def result_inertia(self, centers: np.ndarray) -> float:
        """Return `inertia` where the samples were just assigned to `centers`, or these are the means that followed."""
        return self.inertia(centers)

    def checked_inertia(self, centers: np.ndarray) -> tuple[float, str | None]:
        """Return `inertia`, and what is wrong with sums that are kept, or None."""
        return self.inertia(centers), None

    def cluster_sizes(self, labels: Any, k: int) -> np.ndarray:
        """Return how many samples have each of `labels`, shape (k,), int64; of this engine, now or before."""
        return to_host(self.xp.bincount(labels, minlength=k))

    def own_distances(self, centers: np.ndarray) -> np.ndarray:
        """Return ‖x − c‖² for every sample and its own centre, in host memory; shape (n,)."""
        return np.concatenate([to_host(part) for part in self._each_own_distance(centers, weighted=False)])

    def _each_own_distance(self, centers: np.ndarray, *, weighted: bool) -> Iterator[Any]:
        device_centers = self.xp.asarray(centers, dtype=self.dtype)

        def work(start: int, block: Any) -> Any:
            distances = self.block_distances(block, device_centers, self.labels[start : start + len(block)])
            weights = self.weights_of(start, block) if weighted else None
            return distances if weights is None else distances * weights

        return self.each_block(work, self.temporary_columns)

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the (centred) samples, in float64."""

        def work(start: int, block: Any) -> Any:
            weights = self.weights_of(start, block)
            norms = (block * block).sum(axis=1)
            return (norms if weights is None else norms * weights).sum(dtype=np.float64)

        return float(sum(self.each_block(work, self.n_features)))

    def centred(self) -> Any:
        """Return the whole of X, centred, as an array of `xp`; shape (n, d)."""
        return self.xp.concatenate(list(self.each_block(lambda _, block: block.copy(), self.n_features)))

    def distances(self, points: np.ndarray) -> Any:
        """Return ‖x − p‖, or 1 − cos, for every sample and point, shape (n, len(points)): scikit-learn's transform."""
        squares = self.square_distances(points)
        return (squares / 2 if self.spherical else self.xp.sqrt(squares)).T
