"""`choose_k`: fits for several numbers of clusters, scores of each, and the number that they speak for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

import numpy as np

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.cluster_scores import Labeled, Scores, scores_of
from tsapps.apps.kmeans.data.rows import Rows, as_rows
from tsapps.apps.kmeans.frame_columns import columns_named
from tsapps.apps.kmeans.lloyd import Clustering
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.kernels.arrays import to_host

__all__ = ["DEFAULT_SAMPLE", "KChoice", "KScores", "blocks_of", "choose_k", "chosen", "scored"]

#: Rows of which silhouettes are computed by default.
DEFAULT_SAMPLE = 1000
# Elements of a block of rows.
_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class KScores:
    """A number of clusters and how good its clustering is; see cluster_scores.py.

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
    clusterings : dict of int to Clustering
        By number of clusters, with labels of NumPy.
    """

    k: int
    reason: str
    scores: list[KScores]
    clusterings: dict[int, Clustering] = field(repr=False)


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
        Numbers of clusters, from 1 to n.
    init, n_init, max_iter, tol, device, metric
        As for `TSKMeans`.
    random_state : int
        Seed of every fit: each is the same as alone.
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

    References
    ----------
    Tibshirani, Walther and Hastie, "Estimating the number of clusters in a data set via the gap statistic", J. R.
    Statist. Soc. B 63 (2001).

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

    def fitted(data: Any, k: int) -> Clustering:
        engine = open_engine(data, sample_weight=None, device=device, metric=metric)
        state = np.random.RandomState(random_state)
        return lloyd.fit(engine, k, init=init, n_init=n_init, max_iter=max_iter, tol=tol, random_state=state)

    found = {k: fitted(X, k) for k in numbers}
    for one in found.values():
        one.labels = to_host(one.labels)
    choice = scored(rows, found, metric=metric, sample=sample, seed=random_state)
    return replace(choice, scores=_with_gaps(choice.scores, rows, fitted, gap, random_state)) if gap else choice


def _with_gaps(
    scores: Sequence[KScores], rows: Rows, fitted: Callable[[Any, int], Clustering], n_references: int, seed: int
) -> list[KScores]:
    """Return the scores with the gap E*[log W*] − log W of each k, and its error; W is the inertia."""
    low, high = _ranges(rows)
    random, logarithms = np.random.default_rng(seed), np.empty((n_references, len(scores)))
    for reference in logarithms:
        uniform = random.uniform(low, high, rows.shape).astype(np.result_type(rows.dtype, np.float32))
        with np.errstate(divide="ignore"):
            reference[:] = np.log([fitted(uniform, one.k).inertia for one in scores])
    errors = logarithms.std(axis=0) * (1 + 1 / n_references) ** 0.5
    return [
        replace(one, gap=float(mean - np.log(one.inertia)), gap_error=float(error))
        if one.inertia > 0 and np.isfinite(mean)
        else one
        for one, mean, error in zip(scores, logarithms.mean(axis=0), errors, strict=True)
    ]


def _ranges(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the smallest and the largest element of every column."""
    low, high = np.full(rows.shape[1], np.inf), np.full(rows.shape[1], -np.inf)
    for _, block in blocks_of(rows, "euclidean")():
        np.minimum(low, to_host(block.min(axis=0)), out=low)
        np.maximum(high, to_host(block.max(axis=0)), out=high)
    return low, high


def scored(rows: Rows, found: Mapping[int, Clustering], *, metric: str, sample: int, seed: int) -> KChoice:
    """Return the choice among clusterings of the same rows; parameters as for `choose_k`."""
    n = rows.shape[0]
    drawn = np.random.RandomState(seed).choice(n, sample, replace=False) if sample < n else np.arange(n)
    given = [Labeled(np.asarray(one.centers, np.float64), one.labels) for one in found.values()]
    widest = max(len(drawn), *(len(one.centers) for one in given))
    scores = dict(zip(found, scores_of(blocks_of(rows, metric, widest), np.sort(drawn), given), strict=True))
    k, reason = chosen(scores)
    return KChoice(k, reason, [_record(one, found[one], scores[one]) for one in sorted(found)], dict(found))


def blocks_of(rows: Rows, metric: str, widest: int = 1) -> Callable[[], Iterator[tuple[int, Any]]]:
    """Return a function that iterates over the rows in float64: scaled to norm 1 for the cosine metric.

    `widest` is the largest number of elements that the caller computes for each row.
    """

    def blocks() -> Iterator[tuple[int, Any]]:
        for start, block in rows.blocks(max(1, _ELEMENTS // max(rows.shape[1], widest))):
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
