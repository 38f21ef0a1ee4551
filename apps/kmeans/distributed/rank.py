"""`fit_rank`: K-means over rows that several processes hold, by any launcher: MPI, torchrun, Ray, or threads.

Every process, a *rank*, has some rows of X and a `Communicator`. All ranks run the same loop, ask their own part, and
gather the answers of all, so that they decide alike. Answers are whole numbers, or sums of chunks that are added in
order: every rank has the bits that one process finds for all rows.

    rank 0   rows of chunks 0, 1, 2a   ─┐                          chunks 0, 1, 2   ─┐
    rank 1   rows of chunks 2b, 3, 4    ├─ parts are whole chunks: chunks 3, 4       ├─ the same loop, k × (d + 1)
    rank 2   rows of chunks 5, 6       ─┘                          chunks 5, 6      ─┘  whole numbers an iteration

A chunk that begins on one rank and ends on others goes to the first: at most one chunk a rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import as_numbers
from tsapps.apps.kmeans.distributed.crew import Crew, chunk_of_parts, specs_of
from tsapps.apps.kmeans.distributed.part import Part, PartState
from tsapps.apps.kmeans.distributed.partitioned_engine import PartitionedEngine, source_of
from tsapps.apps.kmeans.estimator import TSKMeans
from tsapps.apps.kmeans.initial_centers import Init
from tsapps.apps.kmeans.open_engine import check_metric, check_sample_weight, compute_dtype
from tsapps.apps.kmeans.validation import check_parameters
from tsapps.kernels.arrays import to_host

__all__ = ["Communicator", "RankClustering", "fit_rank"]

T = TypeVar("T")


class Communicator(Protocol):
    """Exchange between the processes of a fit.

    Attributes
    ----------
    rank : int
        Number of this process, from 0.
    size : int
        Number of processes.
    """

    rank: int
    size: int

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order; every rank calls it equally often.

        A value is a number, a string, None, a NumPy array, or a list or tuple of these.
        """


@dataclass(frozen=True)
class RankClustering:
    """The clustering of the rows of all ranks.

    Attributes
    ----------
    labels : numpy.ndarray of shape (n,), int32
        Those of this rank's rows.
    cluster_centers : numpy.ndarray of shape (k, d)
    inertia : float
    n_iter : int
        These are the same on every rank.
    """

    labels: np.ndarray
    cluster_centers: np.ndarray
    inertia: float
    n_iter: int


def fit_rank(
    rows: Any,
    communicator: Communicator,
    n_clusters: int,
    *,
    sample_weight: Any = None,
    init: Init = "k-means++",
    n_init: int | str = "auto",
    max_iter: int = 300,
    tol: float = 1e-4,
    random_state: int = 0,
    metric: str = "euclidean",
    device: str = "cpu",
) -> RankClustering:
    """Cluster rows that several processes hold; each calls this function with its own.

    Parameters
    ----------
    rows : array of shape (n, d)
        This rank's rows of X, which consists of the rows of rank 0, rank 1, and so on. Numbers of rows may differ, and
        be zero.
    communicator : Communicator
    n_clusters : int
    sample_weight : array of shape (n,), optional
        Weights of this rank's rows; on all ranks or on none.
    init : {"k-means++", "k-means||", "random"} or array of shape (k, d)
    n_init, max_iter, tol
        As for `TSKMeans`.
    random_state : int
        The same on all ranks, as all other parameters.
    metric : {"euclidean", "cosine"}
    device : {"cpu", "cuda", "cuda:i"}
        What computes in this process; processes may differ. The rows are copied to a GPU, or streamed if they do not
        fit. If all processes have a GPU of their own and NCCL, iterations do not use the communicator.

    Returns
    -------
    RankClustering
        With the bits of ``TSKMeans(..., device="cpu", engine="fused")`` for X larger than 8 MiB, on every rank.

    Raises
    ------
    ValueError
        On all ranks, if a parameter or X is not valid on one of them, or if one has no such GPU.
    """
    parameters = {"init": init, "n_init": n_init, "max_iter": max_iter, "tol": tol, "metric": metric}
    check_parameters(TSKMeans(n_clusters, **parameters))
    check_metric(metric)
    if callable(init):
        raise ValueError("a callable init needs the whole of X; use a name such as 'k-means++', or an array of centers")
    array, weights = _on_all(communicator, lambda: _checked(rows, sample_weight))
    facts = communicator.all_gather((*array.shape, array.dtype.name, weights is not None))
    if len({fact[1:] for fact in facts}) != 1:
        raise ValueError(f"ranks differ in (features, dtype, has weights): {[fact[1:] for fact in facts]}")
    sizes, d = [fact[0] for fact in facts], array.shape[1]
    n, dtype = sum(sizes), compute_dtype(array.dtype, on_gpu=True)
    if n == 0 or d == 0:
        raise ValueError(f"X has {n} rows of {d} features; expected at least n_clusters rows, and a feature")
    every_weight = None
    if weights is not None:
        checked = check_sample_weight(np.concatenate(communicator.all_gather(weights)), n)
        every_weight = to_host(checked).astype(dtype)
    cut = _Cut(sizes, chunk_of_parts(n, d, dtype))
    own = cut.rows_of_fit(array, communicator)
    crew = _RankCrew(own, every_weight, dtype, cut.parts, communicator, spherical=metric == "cosine", device=device)
    source = source_of((n, d), array.dtype, dtype, spherical=metric == "cosine")
    found = lloyd.fit(
        PartitionedEngine(source, dtype, every_weight, crew),
        n_clusters,
        init=init,
        n_init=n_init,
        max_iter=max_iter,
        tol=tol,
        random_state=np.random.RandomState(random_state),
    )
    labels = cut.labels_as_given(crew.own_labels(found.labels.state), communicator)
    return RankClustering(labels, found.centers, found.inertia, found.n_iter)


def _checked(rows: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rows and the weights of one rank as arrays in host memory."""
    array = to_host(as_numbers(rows, "rows"))
    if array.ndim != 2:
        raise ValueError(f"rows have shape {array.shape}; expected a matrix of shape (n_samples, n_features)")
    if sample_weight is None:
        return array, None
    weights = to_host(as_numbers(sample_weight, "sample_weight"))
    if weights.shape != (len(array),):
        raise ValueError(f"sample_weight has shape {weights.shape}; expected one number per row, ({len(array)},)")
    return array, weights


def _answers(communicator: Communicator, call: Callable[[], Any]) -> list[Any]:
    """Return the results of the calls of all ranks; an error on one is raised on all, so that none waits for it."""
    found, error = None, None
    try:
        found = call()
    except (ValueError, TypeError, MemoryError, OSError, RuntimeError) as raised:  # CUDA's errors are of the last type
        error = f"{type(raised).__name__}: {raised}"
    answers = communicator.all_gather((found, error))
    for rank, (_, message) in enumerate(answers):
        if message is not None:
            raise ValueError(f"rank {rank}: {message}")
    return [answer for answer, _ in answers]


def _on_all(communicator: Communicator, call: Callable[[], T]) -> T:
    """Return the result of the call of this rank, which is not sent; errors as for `_answers`."""
    found: list[T] = []
    _answers(communicator, lambda: found.append(call()))
    return found[0]


class _Cut:
    """Which rows of X a rank is given, and which whole chunks it has in a fit.

    Parameters
    ----------
    sizes : sequence of int
        Number of rows that each rank is given.
    chunk : int
        Number of rows per chunk.
    """

    def __init__(self, sizes: Sequence[int], chunk: int) -> None:
        self._ends = np.cumsum(sizes)
        self._starts = self._ends - sizes
        n = int(self._ends[-1])
        # A rank has the chunks that begin in its rows.
        first, last = (np.minimum(-(-ends // chunk) * chunk, n) for ends in (self._starts, self._ends))
        #: The rows of each rank in the fit; empty for some.
        self.parts = [range(start, end) for start, end in zip(first.tolist(), last.tolist(), strict=True)]

    def rows_of_fit(self, rows: np.ndarray, communicator: Communicator) -> np.ndarray:
        """Return the rows of this rank in the fit, from those that ranks are given."""
        rank = communicator.rank
        head = max(0, min(self.parts[rank].start, int(self._ends[rank])) - int(self._starts[rank]))
        heads = communicator.all_gather(rows[:head])
        own = [rows[head:]]
        missing = len(self.parts[rank]) - (len(rows) - head)
        for of_other in heads[rank + 1 :]:
            if missing <= 0:
                break
            own.append(of_other[:missing])
            missing -= len(own[-1])
        return np.ascontiguousarray(np.concatenate(own)[: len(self.parts[rank])])

    def labels_as_given(self, labels: np.ndarray, communicator: Communicator) -> np.ndarray:
        """Return the labels of the rows that this rank is given, from those of its rows in the fit."""
        rank = communicator.rank
        start, end = int(self._starts[rank]), int(self._ends[rank])
        own_end = max(0, end - self.parts[rank].start)
        found = np.empty(end - start, np.int32)
        tails = communicator.all_gather(labels[own_end:])
        for other, of_other in enumerate(tails):
            first = max(int(self._ends[other]), self.parts[other].start)  # of the tail
            low, high = max(first, start), min(first + len(of_other), end)
            if low < high:
                found[low - start : high - start] = of_other[low - first : high - first]
        kept = labels[:own_end]
        found[self.parts[rank].start - start :][: len(kept)] = kept
        return found


class _RankCrew(Crew):
    """The parts of all ranks, each asked by its own process; see `Crew`."""

    def __init__(
        self,
        rows: np.ndarray,
        weights: np.ndarray | None,
        dtype: np.dtype,
        parts: Sequence[range],
        communicator: Communicator,
        *,
        spherical: bool,
        device: str,
    ) -> None:
        self._communicator, self.device = communicator, device
        self._ranks = [rank for rank, part in enumerate(parts) if len(part)]
        self.parts: Sequence[range] = [parts[rank] for rank in self._ranks]
        own = None
        if communicator.rank in self._ranks:
            number = self._ranks.index(communicator.rank)
            part, spec = self.parts[number], specs_of(self.parts, dtype, spherical=spherical, devices=[device])[number]
            own = rows, None if weights is None else weights[part.start : part.stop], spec
        self._part = _on_all(communicator, lambda: None if own is None else Part(*own))

    def ask(self, question: str, state: PartState, *arguments: Any, parts: Sequence[int] | None = None) -> list[Any]:
        """Ask the own part, and gather the answers of all; an error on one rank is raised on all."""
        ranks = self._ranks if parts is None else [self._ranks[i] for i in parts]
        part, asked = self._part, self._communicator.rank in ranks
        answers = _answers(
            self._communicator, lambda: part.ask(question, state, *arguments) if asked and part is not None else None
        )
        return [answers[rank] for rank in ranks]

    def own_labels(self, state: PartState) -> np.ndarray:
        """Return the labels of the own part, (n,), int32; they are those of a state."""
        return np.zeros(0, np.int32) if self._part is None else self._part.ask("labels", state)
