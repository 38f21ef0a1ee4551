"""`choose_k`: fits for several numbers of clusters, scores of each, and the number that they speak for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import index
from typing import Any

import numpy as np

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, as_rows
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.frame_columns import columns_named
from tsapps.apps.kmeans.gap_statistic import Box, gaps_of
from tsapps.apps.kmeans.lloyd import Clustering
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.scores.by_blocks import scores_of
from tsapps.apps.kmeans.scores.indices import Labeled, Scores
from tsapps.apps.kmeans.scores.launch import is_supported, request_kernels, scores_on_gpu
from tsapps.apps.kmeans.shared_copy import SharedCopy, fit_each
from tsapps.apps.kmeans.sweep.fit import fit_together
from tsapps.kernels.arrays import to_host
from tsapps.kernels.runtime.machine import Machine, cuda_machine
from tsapps.kernels.system.logs import logger_of, timed

__all__ = [
    "DEFAULT_SAMPLE",
    "KChoice",
    "KScores",
    "blocks_of",
    "box_of",
    "choose_k",
    "chosen",
    "drawn_rows",
    "request_scores",
    "scored",
    "scores_of_rows",
    "with_gaps",
]

_log = logger_of(__name__)
#: Rows of which silhouettes are computed by default.
DEFAULT_SAMPLE = 1000
# Elements of a block of rows in host memory, and on a GPU, where every operation on a block has to be launched.
_ELEMENTS, _ELEMENTS_ON_GPU = 1 << 20, 1 << 25
# Clusterings are scored together whose numbers of clusters add up to at most this.
_MOST_CLUSTERS = 1 << 12


@dataclass(frozen=True)
class KScores:
    """A number of clusters and how good its clustering is; see scores/indices.py.

    Attributes
    ----------
    k : int
    inertia : float
    iterations : int
    converged : bool
    silhouette, silhouette_error : float or None
        The mean silhouette, and half the width of its 95 % interval; None if it is not defined.
    simplified_silhouette, calinski_harabasz, davies_bouldin : float or None
    gap, gap_error : float or None
        The gap statistic and its standard error; None if it was not asked for, or the inertia is 0. It speaks for the
        smallest k whose gap is at least the next number's gap minus the next number's error.
    """

    k: int
    inertia: float
    iterations: int
    converged: bool
    silhouette: float | None
    silhouette_error: float | None
    simplified_silhouette: float | None
    calinski_harabasz: float | None
    davies_bouldin: float | None
    gap: float | None = None
    gap_error: float | None = None


@dataclass(frozen=True)
class KChoice:
    """The result of `choose_k`.

    Attributes
    ----------
    k : int
        The chosen number of clusters.
    reason : str
        Why it was chosen.
    scores : list of KScores
        For every number of clusters, ascending.
    clusterings : mapping of int to Clustering
        By number of clusters, with labels of NumPy. Those that are on a GPU are copied when they are first asked for.
    """

    k: int
    reason: str
    scores: list[KScores]
    clusterings: Mapping[int, Clustering] = field(repr=False)


class _OnHost(Mapping[int, Clustering]):
    """Clusterings whose labels are copied to the host when a clustering is asked for."""

    def __init__(self, found: Mapping[int, Clustering]) -> None:
        self._found = found

    def __getitem__(self, k: int) -> Clustering:
        one = self._found[k]
        one.labels = to_host(one.labels)
        return one

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the clusterings themselves, with labels of NumPy."""
        return dict, (dict(self),)


def choose_k(
    X: Any,
    ks: Sequence[int],
    *,
    init: str = "k-means++",
    n_init: int | str = "auto",
    max_iter: int = 300,
    tol: float = 1e-4,
    random_state: int = 0,
    device: str = "auto",
    metric: str = "euclidean",
    sample: int = DEFAULT_SAMPLE,
    gap: int = 0,
) -> KChoice:
    """Cluster X into each of several numbers of clusters, score the clusterings, and choose a number.

    Parameters
    ----------
    X : array, frame, sparse matrix or `open_matrix` matrix of shape (n, d)
    ks : sequence of int
        Numbers of clusters, from 1 to n. X is copied to the device once for all of them, if it fits there.
    init, n_init, max_iter, tol, device, metric
        As for `TSKMeans`.
    random_state : int
        Seed of every fit: each has the bits of a fit alone.
    sample : int
        Number of rows, drawn at random, of which silhouettes are computed; all if X has no more. The cost is that of
        the distances between this many rows and all others.
    gap : int
        Number of reference data sets for the gap statistic; 0 leaves it out. Each has the size of X in memory, uniform
        in the range of every column, and takes as many fits as `ks` has numbers. Euclidean metric only.

    Returns
    -------
    KChoice

    Raises
    ------
    ValueError
        If `ks` is empty or has a number below 1 or above n, `sample` is below 2, or `gap` is below 0 or given for
        another metric.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.repeat([[0.0, 0], [9, 9], [0, 9]], 20, axis=0) + np.random.default_rng(0).normal(size=(60, 2))
    >>> choose_k(X, range(2, 6), device="cpu").k
    3
    """
    with columns_named(X):
        rows = as_rows(X)
    numbers = sorted({index(k) for k in ks})
    if not numbers or numbers[0] < 1 or numbers[-1] > rows.shape[0]:
        raise ValueError(f"ks must be numbers of clusters from 1 to n={rows.shape[0]}, got {list(ks)[:20]}")
    if sample < 2:
        raise ValueError(f"sample must be at least 2, got {sample}")
    if gap < 0 or (gap > 0 and metric != "euclidean"):
        raise ValueError(f"gap must be 0 or, for the Euclidean metric, a number of data sets, got {gap}")

    def fit(engine: Engine, k: int) -> Clustering:
        state = np.random.RandomState(random_state)
        return lloyd.fit(engine, k, init=init, n_init=n_init, max_iter=max_iter, tol=tol, random_state=state)

    together = partial(fit_together, init=init, n_init=n_init, max_iter=max_iter, tol=tol, seed=random_state)

    def engines_of(data: Any) -> SharedCopy:
        return SharedCopy(lambda: open_engine(data, sample_weight=None, device=device, metric=metric))

    def choice_and_box() -> tuple[KChoice, Box | None]:
        shared = engines_of(rows)
        request_scores(shared, numbers, metric, sample)
        found = fit_each(shared, numbers, fit, together)
        with shared.rows() as held:
            choice = scored(held, found, metric=metric, sample=sample, seed=random_state)
            return choice, box_of(held, rows.dtype) if gap else None

    def fitted(reference: np.ndarray, _: int) -> list[float]:
        return [one.inertia for one in fit_each(engines_of(reference), numbers, fit, together).values()]

    choice, box = choice_and_box()  # which leaves no copy of X beside that of a reference
    return choice if box is None else with_gaps(choice, box, fitted, gap, random_state)


def box_of(rows: Rows, dtype: np.dtype) -> Box:
    """Return the box of rows whose type was `dtype` before they were converted."""
    return Box.of(blocks_of(rows, "euclidean")(), rows.shape, dtype)


def with_gaps(
    choice: KChoice, box: Box, fitted: Callable[[np.ndarray, int], Sequence[float]], count: int, seed: int
) -> KChoice:
    """Return a choice with the gap statistic of every number of clusters; parameters as for `gaps_of`."""
    gaps = gaps_of(box, [one.inertia for one in choice.scores], fitted, count, seed)
    scores = [replace(one, gap=gap, gap_error=error) for one, (gap, error) in zip(choice.scores, gaps, strict=True)]
    return replace(choice, scores=scores)


def scored(rows: Rows, found: Mapping[int, Clustering], *, metric: str, sample: int, seed: int) -> KChoice:
    """Return the choice among clusterings of the same rows; parameters as for `choose_k`."""
    drawn, scores = drawn_rows(rows.shape[0], sample, seed), dict[int, Scores]()
    for numbers in _together(sorted(found)):
        given = [Labeled(to_host(found[k].centers).astype(np.float64), found[k].labels) for k in numbers]
        with timed(_log, "scored k = %s", ", ".join(map(str, numbers))):
            scores |= zip(numbers, scores_of_rows(rows, metric, drawn, given), strict=True)
    k, reason = chosen(scores)
    return KChoice(k, reason, [_record(one, found[one], scores[one]) for one in sorted(found)], _OnHost(found))


def drawn_rows(n: int, sample: int, seed: int) -> np.ndarray:
    """Return different indices of n rows, ascending, drawn at random: `sample` of them, or all if there are no more."""
    # RandomState would permute all n rows.
    return np.sort(np.random.default_rng(seed).choice(n, sample, replace=False)) if sample < n else np.arange(n)


def request_scores(shared: SharedCopy, numbers: Sequence[int], metric: str, sample: int) -> None:
    """Begin to compile the kernels that `scored` will need, so that they compile while fits run; open X for these."""
    shared.engine()
    with shared.rows() as rows:
        there = _on_gpu(rows, metric)
        if there is not None:
            for several in _together(sorted(numbers)):
                request_kernels(*there, several, min(sample, rows.shape[0]))


def _on_gpu(rows: Rows, metric: str) -> tuple[Machine, Any] | None:
    """Return the GPU whose kernels score these rows, and their array there; None if blocks of rows have to do."""
    if metric != "euclidean" or not isinstance(rows, ArrayRows) or rows.device is None:
        return None
    machine = cuda_machine(rows.device)
    return (machine, rows.array) if is_supported(machine, rows.array) else None


def scores_of_rows(rows: Rows, metric: str, sample: np.ndarray, found: Sequence[Labeled]) -> list[Scores]:
    """Return the scores of clusterings of the same rows: by kernels if these can read the rows, else by blocks.

    `sample` has different indices of rows, ascending. Labels on a GPU stay there if the rows are there.
    """
    there = _on_gpu(rows, metric)
    if there is not None:
        machine, array = there
        with machine.current():
            return scores_on_gpu(machine, array, sample, found)
    widest = max(sum(len(one.centers) for one in found), len(sample))
    return scores_of(blocks_of(rows, metric, widest), sample, found)


def _together(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of clusters of which clusterings are scored in the same passes over the rows."""
    part = list[int]()
    for k in numbers:
        if part and sum(part) + k > _MOST_CLUSTERS:
            yield part
            part = []
        part.append(k)
    yield part


def blocks_of(rows: Rows, metric: str, widest: int = 1) -> Callable[[], Iterator[tuple[int, Any]]]:
    """Return a function that iterates over the rows in float64: scaled to norm 1 for the cosine metric.

    `widest` is the largest number of elements that the caller computes for each row.
    """
    elements = _ELEMENTS if rows.device is None else _ELEMENTS_ON_GPU

    def blocks() -> Iterator[tuple[int, Any]]:
        for start, block in rows.blocks(max(1, elements // max(rows.shape[1], widest))):
            wide = block.toarray() if hasattr(block, "toarray") else block
            wide = wide.astype(np.float64)
            if metric == "cosine":
                norms = (wide**2).sum(axis=1, keepdims=True) ** 0.5
                wide = wide / (norms + (norms == 0))
            yield start, wide

    return blocks


def chosen(scores: Mapping[int, Scores]) -> tuple[int, str]:
    """Return the number of clusters with the largest silhouette, and why.

    Of numbers whose silhouettes the sample cannot tell from the largest one, it is the smallest. Silhouettes of the
    same rows are compared, row by row, which tells more than their means and errors.
    """
    known = {k: one for k, one in sorted(scores.items()) if not np.isnan(one.silhouette)}
    if not known:
        (k, *_) = sorted(scores)
        return k, "silhouettes need more than one cluster"
    best = max(known, key=lambda k: known[k].silhouette)
    of_best = known[best].of_sample
    # Half the width of the interval of a mean, in standard deviations of the sample; 0 for a sample of all rows.
    width = known[best].silhouette_error / of_best.std(ddof=1) if of_best.std(ddof=1) > 0 else 0.0
    apart = {k: of_best - one.of_sample for k, one in known.items()}
    k = next(k for k, one in apart.items() if one.mean() <= width * one.std(ddof=1))
    said = _said(known[best])
    if k == best:
        return k, f"its silhouette, {said}, is the largest"
    return k, f"its silhouette, {_said(known[k])}, cannot be told from the largest, {said} for k = {best}"


def _said(scores: Scores) -> str:
    error = f" ± {scores.silhouette_error:.3f}" if scores.silhouette_error > 0 else ""
    return f"{scores.silhouette:.3f}{error}"


def _record(k: int, found: Clustering, scores: Scores) -> KScores:
    numbers = [
        scores.silhouette,
        scores.silhouette_error,
        scores.simplified_silhouette,
        scores.calinski_harabasz,
        scores.davies_bouldin,
    ]
    known = [float(number) if np.isfinite(number) else None for number in numbers]
    return KScores(k, found.inertia, found.n_iter, found.converged, *known)
