"""Scores by which numbers of clusters are compared: of several clusterings of the same rows, in two passes over these.

    silhouette               of a sample of rows, each exactly: its mean distances from all rows of its own cluster (a)
                             and of the nearest other (b) give (b − a) / max(a, b)
    simplified silhouette    of all rows, with distances from centers in place of mean distances
    Calinski–Harabasz        (between / (k − 1)) / (within / (n − k)), sums of squares about centers and the mean
    Davies–Bouldin           mean over clusters of the largest (s_i + s_j) / ‖c_i − c_j‖, where s_i is the mean distance
                             of the rows of cluster i from its center

As in scikit-learn, the silhouette of a row that is alone in its cluster is 0, and the two indices take the means of
clusters for their centers. Everything is computed in float64.

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
    first = _first_pass(blocks, sample, several)
    sums, spreads = _second_pass(blocks, first, sample, several)
    scores = {}
    for place, one in enumerate(several):
        of_sample = _silhouettes_of(sums[place], one.labels, sample)
        error = _DEVIATIONS * of_sample.std(ddof=1) / len(sample) ** 0.5 if len(sample) > 1 else np.inf
        error *= max(0, 1 - len(sample) / n) ** 0.5
        counts, means = first.counts[place], first.means(place)
        present = counts > 0
        between = float((counts[:, None] * (means - first.mean) ** 2).sum())
        within, k = max(first.total - between, 0.0), int(present.sum())
        ratio = between / (k - 1) / (within / (n - k)) if within > 0 and 1 < k < n else np.inf
        bouldin = _davies_bouldin(means[present], (spreads[place] / np.maximum(counts, 1))[present])
        simplified = first.simplified[place] / n
        scores[id(one)] = Scores(float(of_sample.mean()), float(error), simplified, float(ratio), bouldin, of_sample)
    return [scores.get(id(one), _nothing(sample)) for one in found]


def _nothing(sample: np.ndarray) -> Scores:
    nan = float("nan")
    return Scores(nan, nan, nan, nan, nan, np.full(len(sample), nan))


@dataclass
class _FirstPass:
    """Sums over all rows; lists have one element for each clustering."""

    mean: np.ndarray
    total: float
    simplified: list[float]
    counts: list[np.ndarray]
    sums: list[np.ndarray]
    sample: np.ndarray

    def means(self, place: int) -> np.ndarray:
        """Return the mean of each cluster; that of all rows for an empty one."""
        counts = self.counts[place][:, None]
        return np.where(counts > 0, self.mean + self.sums[place] / np.maximum(counts, 1), self.mean)


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


def _first_pass(
    blocks: Callable[[], Iterator[tuple[int, Any]]], sample: np.ndarray, found: Sequence[Labeled]
) -> _FirstPass:
    """Pass over the rows for means and simplified silhouettes, and keep the rows of the sample."""
    count, total, kept = 0, 0.0, list[np.ndarray]()
    mean: Any = None
    origin: Any = None
    simplified = [0.0] * len(found)
    counts = [np.bincount(one.labels, minlength=len(one.centers)) for one in found]
    sums = [np.zeros(one.centers.shape) for one in found]
    for start, block in blocks():
        xp = _module(block)
        of_block = block.mean(axis=0)
        if mean is None:
            mean, origin = of_block, of_block  # distances from here lose fewer digits
        merged = count + len(block)
        apart = of_block - mean
        total += float(((block - of_block) ** 2).sum() + (apart**2).sum() * (count * len(block) / merged))
        mean, count = mean + apart * (len(block) / merged), merged
        inside = sample[(sample >= start) & (sample < start + len(block))] - start
        kept.append(to_host(block[xp.asarray(inside)]))
        rows = block - origin
        for place, one in enumerate(found):
            labels = xp.asarray(one.labels[start : start + len(block)])
            sums[place] += to_host(_indicators(xp, labels, len(one.centers)).T @ rows)
            simplified[place] += _simplified(xp, rows, xp.asarray(one.centers) - origin, labels)
    center = to_host(mean - origin)
    sums = [one - number[:, None] * center for one, number in zip(sums, counts, strict=True)]
    return _FirstPass(to_host(mean), total, simplified, counts, sums, np.concatenate(kept))


def _indicators(xp: Any, labels: Any, k: int) -> Any:
    """Return an array (rows, k) with 1 at each row's label, and 0 elsewhere."""
    found = xp.zeros((len(labels), k))
    found[xp.arange(len(labels)), labels] = 1
    return found


def _simplified(xp: Any, rows: Any, centers: Any, labels: Any) -> float:
    """Return the sum of the simplified silhouettes of rows."""
    own = xp.sqrt(((rows - centers[labels]) ** 2).sum(axis=1))
    others = _squared_distances(xp, rows, centers)
    others[xp.arange(len(rows)), labels] = np.inf
    nearest = xp.sqrt(others.min(axis=1))
    larger = xp.maximum(own, nearest)
    return float(((nearest - own) / xp.where(larger > 0, larger, 1)).sum())


def _second_pass(
    blocks: Callable[[], Iterator[tuple[int, Any]]], first: _FirstPass, sample: np.ndarray, found: Sequence[Labeled]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return, for each clustering, sums of distances by cluster: of all rows from the sample's, and from the means.

    Distances between rows are computed once for all clusterings; products with indicators of labels add them.
    """
    sums = [np.zeros((len(sample), len(one.centers))) for one in found]
    spreads, means = [np.zeros(len(one.centers)) for one in found], [first.means(i) for i in range(len(found))]
    for start, block in blocks():
        xp = _module(block)
        origin = xp.asarray(first.mean)
        rows = block - origin
        near = _squared_distances(xp, xp.asarray(first.sample) - origin, rows)
        near = xp.sqrt(near, out=near)
        inside = np.flatnonzero((sample >= start) & (sample < start + len(block)))
        near[xp.asarray(inside), xp.asarray(sample[inside] - start)] = 0  # rounding leaves a distance from itself
        for place, one in enumerate(found):
            labels = xp.asarray(one.labels[start : start + len(block)])
            sums[place] += to_host(near @ _indicators(xp, labels, len(one.centers)))
            own = xp.sqrt(((block - xp.asarray(means[place])[labels]) ** 2).sum(axis=1))
            spreads[place] += to_host(xp.bincount(labels, weights=own, minlength=len(one.centers)))
    return sums, spreads


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
