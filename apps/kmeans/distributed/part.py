"""`Part`: consecutive rows of X in one process, and the passes of a fit over them.

A fit over several parts asks all of them the same, and adds up what they answer (partitioned_engine.py). Sums are whole
numbers, or belong to chunks of rows that are added in order, so the result has the same bits however X is cut.

Every question comes with the `PartState`: all that earlier questions have told the part. A part that is in another
state, because it was made again after its process was lost, brings itself to this state first. So each answer is a
function of the rows, the state and the question, and may be asked for any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from tsapps.apps.kmeans.data.frame import ScaledRows
from tsapps.apps.kmeans.data.rows import Rows, UnitRows
from tsapps.apps.kmeans.data.shard import Shard, Statistics
from tsapps.apps.kmeans.distributed.burst import Burst, Gang, Member, run_burst
from tsapps.apps.kmeans.distributed.part_engines import PartStep, engine_of_part
from tsapps.apps.kmeans.distributed.row_range import ArrayRange
from tsapps.apps.kmeans.init.oversampling_chunks import ChunkedOversampling
from tsapps.apps.kmeans.init.plusplus_host import ChunkedDraws
from tsapps.kernels.arrays import to_host
from tsapps.kernels.runtime.all_reduce import Identity, new_identity

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.device_step import DeviceStep

__all__ = ["Part", "PartSpec", "PartState"]

Told = TypeVar("Told", ChunkedDraws, ChunkedOversampling)
Points = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class PartSpec:
    """Which rows of X a part has, and how they are processed.

    Attributes
    ----------
    first : int
        Index of the first row; a multiple of `crew.chunk_of_parts`.
    n_total : int
        Number of rows of X.
    dtype : str
        Working type.
    spherical : bool
        Whether rows are scaled to norm 1.
    name : str
        Name of X in messages.
    device : {"cpu", "cuda", "cuda:i"}
        The device of the process that computes.
    """

    first: int
    n_total: int
    dtype: str
    spherical: bool
    name: str
    device: str = "cpu"


@dataclass(frozen=True)
class PartState:
    """What a part has been told by earlier questions.

    Attributes
    ----------
    exponent : int
        Rows are multiplied by 2^−exponent; see `Frame`.
    statistics : Statistics or None
        Statistics of all rows of X; None before they are known.
    point : numpy.ndarray of shape (d,) or None
        The point that is subtracted from rows; None before it is known.
    k : int
        Number of clusters; 0 before it is known.
    together : int
        Number of points that rows are compared with at a time: candidates of a step of k-means++, or drawn samples of
        k-means‖; 0 before it is known.
    seeds : tuple of numpy.ndarray of shape (d,)
        Points that k-means++ has chosen, not centered.
    drawn : tuple of numpy.ndarray of shape (m, d)
        Samples that k-means‖ has drawn, in each round.
    centers : numpy.ndarray of shape (k, d) or None
        The centers that samples were last assigned to; None if they have no labels.
    """

    exponent: int = 0
    statistics: Statistics | None = None
    point: np.ndarray | None = None
    k: int = 0
    together: int = 0
    seeds: tuple[np.ndarray, ...] = ()
    drawn: tuple[np.ndarray, ...] = ()
    centers: np.ndarray | None = None


class Part:
    """Rows of X in one process, and the answers to the questions of a fit; arrays of answers are in host memory.

    Parameters
    ----------
    rows : numpy.ndarray or Rows of shape (n, d)
    weights : numpy.ndarray of shape (n,), optional
    spec : PartSpec
    """

    def __init__(self, rows: np.ndarray | Rows, weights: np.ndarray | None, spec: PartSpec) -> None:
        self._rows, self._weights, self._spec = rows, weights, spec
        self._fit: tuple[int, bool] | None = None  # number of clusters, and whether k-means++ draws
        self._entered = ExitStack()  # `PartEngine.fitting`
        self._asked, self._is_state_known = Lock(), True
        self._step: PartStep | None = None
        self._draw: ChunkedDraws | None = None
        self._oversampling: ChunkedOversampling | None = None
        self._open(0)

    def _open(self, exponent: int) -> None:
        """Begin again, with rows that are multiplied by 2^−exponent and not centered."""
        spec, rows = self._spec, self._rows
        if isinstance(rows, np.ndarray):
            rows = ArrayRange(rows, spec.name, spec.first)
        dtype = np.dtype(spec.dtype)
        if exponent:
            rows = ScaledRows(rows, exponent, dtype)
        elif spec.spherical:
            rows = UnitRows(rows, dtype)
        shard = Shard(spec.first, spec.n_total)
        self._entered.close()
        self._engine = engine_of_part(rows, dtype, self._weights, shard, spec.device)
        self._enter()
        self._state, self._step, self._draw, self._oversampling = PartState(exponent), None, None, None

    def _enter(self) -> None:
        if self._fit is not None:
            k, draws = self._fit
            self._entered.enter_context(self._engine.fitting(k, draws=draws))

    @contextmanager
    def fitting(self, k: int, *, draws: bool) -> Iterator[None]:
        """Let a GPU read rows in host memory where they are, while a fit runs; see `Engine.fitting`."""
        self._fit = k, draws
        try:
            with self._entered:
                self._enter()
                yield
        finally:
            self._fit = None

    def ask(self, question: str, state: PartState, *arguments: Any) -> Any:
        """Bring the part to a state, and return the answer of the method `question`."""
        with self._asked:
            known, self._is_state_known = self._is_state_known, False  # it stays so after an error
            if not known:
                self._open(state.exponent)
            with self._engine.data:
                self._bring_to(state)
                answer = getattr(self, question)(*arguments)
            self._is_state_known = True
            return answer

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how another process makes this part: from its rows, in the first state."""
        return Part, (self._rows, self._weights, self._spec)

    def __sizeof__(self) -> int:
        """Return the size in bytes in host memory of the rows, and of a centered copy."""
        n, d = self._rows.shape
        return n * d * (self._rows.dtype.itemsize + np.dtype(self._spec.dtype).itemsize)

    def _bring_to(self, state: PartState) -> None:
        own = self._state
        if own.exponent != state.exponent or (own.point is not None and not _same(own.point, state.point)):
            self._open(state.exponent)
            own = self._state
        if own.point is None and state.point is not None:
            assert state.statistics is not None  # the point follows from them
            self._engine.center(state.statistics, state.point)
            self._step = self._draw = self._oversampling = None
        if own.together != state.together:
            self._draw = self._oversampling = None
        engine, together = self._engine, state.together
        self._draw = _told(partial(engine.new_draw, together), self._draw, own.seeds, state.seeds)
        oversampling = partial(engine.new_oversampling, together)
        self._oversampling = _told(oversampling, self._oversampling, own.drawn, state.drawn)
        self._bring_labels_to(state)
        self._state = state

    def _bring_labels_to(self, state: PartState) -> None:
        if state.k == 0:
            self._step = None
            return
        own = self._state.centers
        if self._step is None or self._step.k != state.k:
            self._step, own = self._engine.new_step(state.k), None
        if not _same(own, state.centers):
            self._step.reset()
            if state.centers is not None:
                self._step.assign_own(state.centers)

    @property
    def _labeled(self) -> PartStep:
        assert self._step is not None  # k is known
        return self._step

    def _own(self, indices: np.ndarray) -> np.ndarray:
        """Return a mask of the rows with these indices of X that the part has."""
        own: np.ndarray = (indices >= self._spec.first) & (indices < self._spec.first + self._rows.shape[0])
        return own

    # Questions about X

    def first_row(self) -> np.ndarray:
        """Return the first row, (d,), in the working type."""
        return self._engine.data.first_row()

    def partial_moments(self, origin: np.ndarray) -> np.ndarray:
        """Return the moments of each chunk; see `FixedPointData.partial_moments`."""
        return to_host(self.own_moments(origin))

    def own_moments(self, origin: np.ndarray) -> Any:
        """Return the moments of each chunk, on the device of the part."""
        return self._engine.data.partial_moments(origin)

    def non_finite(self) -> str | None:
        """Return the message of the first element that is not a finite number, or None."""
        try:
            self._engine.data.refuse_non_finite()
        except ValueError as error:
            return str(error)
        return None

    def extents(self, first: np.ndarray) -> tuple[float, float]:
        """Return the extents of the rows; see `Data.extents`."""
        return self._engine.data.extents(first)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Return those of the rows with these indices of X that the part has, centered."""
        return self._engine.data.rows(indices[self._own(indices)] - self._spec.first)

    def rows_as_read(self, indices: np.ndarray) -> np.ndarray:
        """Return those of the rows with these indices of X that the part has, in the working type, not centered."""
        found = self._engine.data.rows_as_read(indices[self._own(indices)] - self._spec.first)
        return to_host(found).astype(self._spec.dtype)

    def square_norm(self) -> float:
        """Return Σ w·‖x‖² over the rows."""
        return self._engine.data.square_norm()

    def totals(self) -> np.ndarray:
        """Return Σ w·(x, 1) and ``Σ |w·(x, 1)|`` over the rows, (2, d + 1); see `Data.totals`."""
        return np.stack(self._engine.data.totals())

    def sums(self) -> np.ndarray:
        """Return Σ w·D² over each chunk, of k-means++ or of k-means‖; see `ChunkedDraws.sums`."""
        found = self._draw or self._oversampling
        assert found is not None  # there are points
        return found.sums()

    # Questions of k-means++

    def potentials(self, points: np.ndarray) -> np.ndarray:
        """Return the potential of each point and chunk; see `ChunkedDraws.potentials`."""
        assert self._draw is not None
        return self._draw.potentials(points)

    def found(self, chunks: np.ndarray, passed: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find samples in those of these chunks of X that the part has; see `ChunkedDraws.find`."""
        assert self._draw is not None  # there are points
        own, first, chunk = self._own(chunks * self._draw.order.chunk), self._spec.first, self._draw.order.chunk
        indices, points = self._draw.find(chunks[own] - first // chunk, passed[own], targets[own])
        return indices + first, points

    # Questions of k-means‖

    def drawn_at(self, chunks: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return indices in X of samples in those of these chunks that the part has; see `ChunkedOversamplings`."""
        assert self._oversampling is not None  # there are points
        chunk = self._oversampling.chunk
        own = self._own(chunks * chunk)
        return self._oversampling.found(chunks[own] - self._spec.first // chunk, targets[own]) + self._spec.first

    def weights_of_drawn(self) -> np.ndarray:
        """Return the total weight of the rows nearest to each drawn sample; see `ChunkedOversamplings.weights`."""
        assert self._oversampling is not None  # samples have been drawn
        return self._oversampling.weights()

    # Questions of an iteration

    def assign(self, centers: np.ndarray) -> tuple[int, np.ndarray]:
        """Label every row with its nearest center.

        Returns
        -------
        n_reassigned : int
        sums : numpy.ndarray of shape (k, d + 1), int64
            Fixed-point sums of the rows of each cluster.
        """
        answer = self._labeled.assign_own(centers)
        self._state = replace(self._state, centers=centers)
        return answer

    # Questions of a burst

    def member(self) -> Member | None:
        """Return where a burst of the step for k clusters would run; None if it has no bursts."""
        return self._engine.member(self._labeled)

    def new_identity(self) -> Identity:
        """Return a new `Identity` of a group of GPUs."""
        return new_identity()

    def burst(self, centers: np.ndarray, before: int, last: int, tol: float, gang: Gang) -> tuple[int, Burst | None]:
        """Iterate together with the other parts; see `run_burst`.

        Returns
        -------
        digest : int
            That of the result.
        burst : Burst or None
            The result, from the first part alone.
        """
        found = run_burst(cast("DeviceStep", self._labeled), self._spec.first, centers, before, last, tol, gang)
        self._state = replace(self._state, centers=found.at)
        return found.digest(), found if self._spec.first == 0 else None

    # Questions of a protected iteration, and of results

    def own_sums(self) -> np.ndarray:
        """Return the sums that `assign` returned last, as they are now."""
        return self._labeled.own_sums()

    def partial_inertia(self, centers: np.ndarray) -> np.ndarray:
        """Return Σ w·‖x − c‖² of each chunk, for the current labels; see `HostData.partial_inertia`."""
        return to_host(self._engine.data.partial_inertia(centers, self._labeled.labels))

    def own_distances(self, centers: np.ndarray) -> np.ndarray:
        """Return ‖x − c‖² of each row and the center of its label."""
        return self._engine.data.own_distances(centers, self._labeled.labels)

    def distances(self, points: np.ndarray) -> np.ndarray:
        """Return the distance of each row to each point; see `Data.distances`."""
        return to_host(self._engine.data.distances(points))

    def labels(self) -> np.ndarray:
        """Return a copy of the labels of all rows, int32."""
        return np.array(to_host(self._labeled.labels))

    def labels_of(self, indices: np.ndarray) -> np.ndarray:
        """Return the labels of those of the rows with these indices of X that the part has."""
        own = indices[self._own(indices)] - self._spec.first
        return to_host(self._labeled.labels[self._engine.data.xp.asarray(own)])

    def cluster_sizes(self) -> np.ndarray:
        """Return the number of rows with each label, (k,), int64."""
        return self._engine.data.count_labels(self._labeled.labels, self._labeled.k)

    def partners(self, others: np.ndarray) -> np.ndarray | None:
        """Return for each label that of the rows with it if they are assigned to other centers, (k,), int32.

        −1 stands for a label without rows. None if rows with one label would have several.
        """
        labels = self.labels()
        self._labeled.assign_own(others)
        other_labels = to_host(self._labeled.labels)
        self._state = replace(self._state, centers=others)
        partner = np.full(self._labeled.k, -1, np.int32)
        partner[labels] = other_labels
        return partner if np.array_equal(partner[labels], other_labels) else None


def _told(make: Callable[[], Told], made: Told | None, own: Points, points: Points) -> Told | None:
    """Return an object that has been told `points`: `made`, which has been told `own`, or a new one."""
    if not points:
        return None
    if made is None or len(own) > len(points) or not all(map(_same, own, points)):
        made, own = make(), ()
    for some in points[len(own) :]:
        made.add(some)
    return made


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """Return True if two arrays have the same bits, or if both are None."""
    if one is None or other is None:
        return one is other
    return one is other or (one.dtype == other.dtype and one.tobytes() == other.tobytes())
