"""Scores by which numbers of clusters are compared: what they are, and what follows from sums over the rows.

    silhouette               of a sample of rows, each exactly: its mean distances from all rows of its own cluster (a)
                             and of the nearest other (b) give (b − a) / max(a, b)
    simplified silhouette    of all rows, with distances from centers in place of mean distances
    Calinski–Harabasz        (between / (k − 1)) / (within / (n − k)), sums of squares about centers and the mean
    Davies–Bouldin           mean over clusters of the largest (s_i + s_j) / ‖c_i − c_j‖, where s_i is the mean distance
                             of the rows of cluster i from its center

As in scikit-learn, the silhouette of a row that is alone in its cluster is 0, and the two indices take the means of
clusters for their centers.

References
----------
Rousseeuw, "Silhouettes", J. Comput. Appl. Math. 20 (1987). Caliński and Harabasz, Commun. Statist. 3 (1974). Davies and
Bouldin, IEEE Trans. Pattern Anal. Mach. Intell. 1 (1979). Hruschka et al., "Evolutionary algorithms for clustering
gene-expression data", ICDM (2004), for the simplified silhouette.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "ClusterSums",
    "Indices",
    "Labeled",
    "Scores",
    "columns_of_each",
    "indices_of",
    "scores_from",
    "scores_of_each",
]

# Half the width of an interval that has 95 % of a normal distribution, in standard deviations.
_DEVIATIONS = 1.96


@dataclass(frozen=True)
class Labeled:
    """A clustering: centers (k, d) in the units of the rows, of NumPy, and labels (n,), int32 of NumPy or CuPy."""

    centers: np.ndarray
    labels: Any


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


@dataclass(frozen=True)
class ClusterSums:
    """Sums over the n rows of a clustering, in float64.

    Attributes
    ----------
    n : int
    counts : numpy.ndarray of shape (k,)
    apart : numpy.ndarray of shape (k, d)
        The mean of each cluster minus that of all rows; anything for an empty cluster.
    spreads : numpy.ndarray of shape (k,)
        Of each cluster, the sum of its rows' distances from its mean.
    within : float
        The sum of squared distances of all rows from the means of their clusters.
    simplified : float
        The sum of all simplified silhouettes.
    """

    n: int
    counts: np.ndarray
    apart: np.ndarray
    spreads: np.ndarray
    within: float
    simplified: float


def columns_of_each(found: Sequence[Labeled]) -> list[slice]:
    """Return the columns of each clustering, if the clusters of all are side by side."""
    ends = np.cumsum([len(one.centers) for one in found]).tolist()
    return [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]


def scores_of_each(
    found: Sequence[Labeled], sample: np.ndarray, computed: Callable[[Sequence[Labeled]], Iterable[Scores]]
) -> list[Scores]:
    """Return the scores of clusterings, by a function for those of which they are defined."""
    n = len(found[0].labels)
    several = [one for one in found if 1 < len(one.centers) < n]
    scores = iter(computed(several) if several else ())
    nan = float("nan")
    undefined = Scores(nan, nan, nan, nan, nan, np.full(len(sample), nan))
    return [next(scores) if 1 < len(one.centers) < n else undefined for one in found]


class Indices(NamedTuple):
    """The scores of a clustering that need no sample; see `Scores`."""

    simplified_silhouette: float
    calinski_harabasz: float
    davies_bouldin: float


def indices_of(sums: ClusterSums) -> Indices:
    """Return the scores that follow from sums over the rows."""
    present = sums.counts > 0
    counts, apart, spreads = sums.counts, sums.apart, sums.spreads
    if not present.all():
        counts, apart, spreads = counts[present], apart[present], spreads[present]
    products = apart @ apart.T
    between, k = float(counts @ products.diagonal()), len(counts)
    ratio = between / (k - 1) / (sums.within / (sums.n - k)) if sums.within > 0 and 1 < k < sums.n else np.inf
    return Indices(sums.simplified / sums.n, float(ratio), _davies_bouldin(products, spreads / counts))


def scores_from(n: int, indices: Sequence[Indices], silhouettes: np.ndarray) -> list[Scores]:
    """Return the scores of clusterings of n rows; `silhouettes` of a sample has a row for each clustering."""
    sampled = silhouettes.shape[1]
    means = silhouettes.mean(axis=1).tolist()
    deviations = silhouettes.std(axis=1, ddof=1) if sampled > 1 else np.full(len(means), np.inf)
    errors = (_DEVIATIONS * deviations / sampled**0.5 * max(0, 1 - sampled / n) ** 0.5).tolist()
    return [
        Scores(mean, error, *one, of_sample)
        for mean, error, one, of_sample in zip(means, errors, indices, silhouettes, strict=True)
    ]


def _davies_bouldin(products: np.ndarray, spreads: np.ndarray) -> float:
    """Return the index from the products of all pairs of centers, and the mean distances from them."""
    norms = products.diagonal()
    apart = np.sqrt(np.maximum(norms[:, None] + norms - 2 * products, 0))
    np.fill_diagonal(apart, 0)
    if not spreads.any() or not apart.any():
        return 0.0
    apart[apart == 0] = np.inf
    return float(((spreads[:, None] + spreads) / apart).max(axis=1).mean())
