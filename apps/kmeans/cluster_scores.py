"""Scores by which numbers of clusters are compared: of several clusterings of the same rows, in two passes over these.

    silhouette               of a sample of rows, each exactly: its mean distances from all rows of its own cluster (a)
                             and of the nearest other (b) give (b − a) / max(a, b)
    simplified silhouette    of all rows, with distances from centers in place of mean distances
    Calinski–Harabasz        (between / (k − 1)) / (within / (n − k)), sums of squares about centers and the mean
    Davies–Bouldin           mean over clusters of the largest (s_i + s_j) / ‖c_i − c_j‖, where s_i is the mean distance
                             of the rows of cluster i from its center

As in scikit-learn, the silhouette of a row that is alone in its cluster is 0. Centers are those of the clustering: for
converged fits the means that scikit-learn computes from labels. Everything is computed in float64.

References
----------
Rousseeuw, "Silhouettes", J. Comput. Appl. Math. 20 (1987). Caliński and Harabasz, Commun. Statist. 3 (1974). Davies and
Bouldin, IEEE Trans. Pattern Anal. Mach. Intell. 1 (1979). Hruschka et al., "Evolutionary algorithms for clustering
gene-expression data", ICDM (2004), for the simplified silhouette.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.kernels.arrays import to_host

__all__ = ["Labeled", "Scores", "scores_of"]

# Half the width of an interval that has 95 % of a normal distribution, in standard deviations.
_DEVIATIONS = 1.96


@dataclass(frozen=True)
class Labeled:
    """A clustering: centers (k, d) in the units of the rows, and labels (n,), of NumPy."""

    centers: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Scores:
    """Scores of a clustering; all are NaN for a single cluster, and for n clusters of n rows.

    Attributes
    ----------
    silhouette : float
        The mean of the sample.
    silhouette_error : float
        Half the width of a 95 % interval for the mean of all rows; 0 if the sample has all rows.
    simplified_silhouette, calinski_harabasz, davies_bouldin : float
    of_sample : numpy.ndarray of shape (sample,)
        The silhouette of each row of the sample.
    """

    silhouette: float
    silhouette_error: float
    simplified_silhouette: float
    calinski_harabasz: float
    davies_bouldin: float
    of_sample: np.ndarray


def scores_of(
    blocks: Callable[[], Iterator[tuple[int, Any]]], sample: np.ndarray, found: Sequence[Labeled]
) -> list[Scores]:
    """Return the scores of clusterings of the same rows.

    Parameters
    ----------
    blocks : callable
        Returns an iterator over all rows as (index of the first row, float64 block of NumPy or CuPy).
    sample : numpy.ndarray of int
        Different indices of rows, ascending: the sample of which silhouettes are computed.
    found : sequence of Labeled

    Returns
    -------
    list of Scores
    """
    n = len(found[0].labels)
    several = [one for one in found if 1 < len(one.centers) < n]
    if not several:
        return [_nothing(sample)] * len(found)
    about = _about_centers(blocks, sample, several)
    silhouettes = _silhouettes(blocks, about.sample, sample, several)
    scores = {}
    for place, one in enumerate(several):
        of_sample = silhouettes[place]
        error = _DEVIATIONS * of_sample.std(ddof=1) / len(sample) ** 0.5 if len(sample) > 1 else np.inf
        error *= max(0, 1 - len(sample) / n) ** 0.5
        k, within = len(one.centers), about.within[place]
        ratio = (about.total - within) / (k - 1) / (within / (n - k)) if within > 0 else np.inf
        bouldin = _davies_bouldin(one.centers, about.mean_distances(place, one.labels))
        simplified = about.simplified[place] / n
        scores[id(one)] = Scores(float(of_sample.mean()), float(error), simplified, float(ratio), bouldin, of_sample)
    return [scores.get(id(one), _nothing(sample)) for one in found]


def _nothing(sample: np.ndarray) -> Scores:
    nan = float("nan")
    return Scores(nan, nan, nan, nan, nan, np.full(len(sample), nan))


@dataclass
class _AboutCenters:
    """Sums over all rows; lists have one element for each clustering."""

    total: float
    within: list[float]
    simplified: list[float]
    distances: list[np.ndarray]
    sample: np.ndarray

    def mean_distances(self, place: int, labels: np.ndarray) -> np.ndarray:
        """Return the mean distance of each cluster's rows from its center; 0 for an empty cluster."""
        sums = self.distances[place]
        return sums / np.maximum(np.bincount(labels, minlength=len(sums)), 1)


def _module(array: Any) -> Any:
    """Return NumPy or CuPy, whichever an array is of."""
    if isinstance(array, np.ndarray):
        return np
    import cupy

    return cupy


def _squared_distances(xp: Any, rows: Any, points: Any) -> Any:
    """Return ‖x − p‖² for all rows (m, d) and points (k, d), at least 0."""
    products = rows @ points.T
    found = (rows**2).sum(axis=1)[:, None] - 2 * products + (points**2).sum(axis=1)
    return xp.maximum(found, 0, out=found)


def _about_centers(
    blocks: Callable[[], Iterator[tuple[int, Any]]], sample: np.ndarray, found: Sequence[Labeled]
) -> _AboutCenters:
    """Pass over the rows for what concerns centers, and keep the rows of the sample."""
    count, mean, total, kept = 0, None, 0.0, []
    within, simplified = [0.0] * len(found), [0.0] * len(found)
    distances = [np.zeros(len(one.centers)) for one in found]
    for start, block in blocks():
        xp = _module(block)
        of_block = block.mean(axis=0)
        mean = of_block if mean is None else mean
        merged = count + len(block)
        apart = of_block - mean
        total += float(((block - of_block) ** 2).sum() + (apart**2).sum() * (count * len(block) / merged))
        mean, count = mean + apart * (len(block) / merged), merged
        inside = sample[(sample >= start) & (sample < start + len(block))] - start
        kept.append(to_host(block[xp.asarray(inside)]))
        for place, one in enumerate(found):
            labels = xp.asarray(one.labels[start : start + len(block)])
            origin = one.centers.mean(axis=0)  # distances lose fewer digits
            centers = xp.asarray(one.centers - origin)
            rows = block - xp.asarray(origin)
            own = xp.sqrt(((rows - centers[labels]) ** 2).sum(axis=1))
            others = _squared_distances(xp, rows, centers)
            others[xp.arange(len(block)), labels] = np.inf
            nearest = xp.sqrt(others.min(axis=1))
            larger = xp.maximum(own, nearest)
            simplified[place] += float(((nearest - own) / xp.where(larger > 0, larger, 1)).sum())
            within[place] += float((own**2).sum())
            distances[place] += to_host(xp.bincount(labels, weights=own, minlength=len(one.centers)))
    return _AboutCenters(total, within, simplified, distances, np.concatenate(kept))


def _silhouettes(
    blocks: Callable[[], Iterator[tuple[int, Any]]], rows: np.ndarray, sample: np.ndarray, found: Sequence[Labeled]
) -> list[np.ndarray]:
    """Return the silhouettes of the sample, whose rows are given, by a pass over all rows.

    Distances are computed once for all clusterings; a product with indicators of labels adds them by cluster.
    """
    ends = np.cumsum([0, *(len(one.centers) for one in found)])
    sums, origin = np.zeros((len(rows), ends[-1])), rows.mean(axis=0)
    for start, block in blocks():
        xp = _module(block)
        indicators = xp.zeros((len(block), int(ends[-1])))
        for end, one in zip(ends[:-1].tolist(), found, strict=True):
            labels = xp.asarray(one.labels[start : start + len(block)])
            indicators[xp.arange(len(block)), end + labels] = 1
        near = xp.sqrt(_squared_distances(xp, xp.asarray(rows - origin), block - xp.asarray(origin)))
        inside = np.flatnonzero((sample >= start) & (sample < start + len(block)))
        near[xp.asarray(inside), xp.asarray(sample[inside] - start)] = 0  # rounding leaves a distance from itself
        sums += to_host(near @ indicators)
    return [
        _silhouettes_of(sums[:, begin:end], one.labels, sample)
        for begin, end, one in zip(ends[:-1], ends[1:], found, strict=True)
    ]


def _silhouettes_of(sums: np.ndarray, labels: np.ndarray, sample: np.ndarray) -> np.ndarray:
    """Return silhouettes from the sums of distances between rows of the sample and those of each cluster."""
    sizes, own, lanes = np.bincount(labels, minlength=sums.shape[1]), labels[sample], np.arange(len(sample))
    a = sums[lanes, own] / np.maximum(sizes[own] - 1, 1)
    means = np.where(sizes > 0, sums / np.maximum(sizes, 1), np.inf)
    means[lanes, own] = np.inf
    b = means.min(axis=1)
    larger = np.maximum(a, b)
    found = np.divide(b - a, larger, out=np.zeros(len(sample)), where=(larger > 0) & (larger < np.inf))
    return np.where(sizes[own] > 1, found, 0.0)


def _davies_bouldin(centers: np.ndarray, spreads: np.ndarray) -> float:
    """Return the index from centers and the mean distances from them."""
    apart = np.sqrt(_squared_distances(np, centers - centers.mean(axis=0), centers - centers.mean(axis=0)))
    if not spreads.any() or not apart.any():
        return 0.0
    apart[apart == 0] = np.inf
    np.fill_diagonal(apart, np.inf)
    return float(((spreads[:, None] + spreads) / apart).max(axis=1).mean())
