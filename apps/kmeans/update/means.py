"""The next centers, from the sums of an assignment, in host memory."""

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.rows import unit
from tsapps.apps.kmeans.results import Assignment

__all__ = ["next_centers"]


def next_centers(data: Data, found: Assignment, centers: np.ndarray) -> np.ndarray:
    """Return the means of the clusters that `centers` (k, d) gave, of norm 1 where the metric is the cosine."""
    means = found.means()
    if data.spherical:
        # Samples that cancel out have no direction in common: their center stays.
        means = unit(np.where(means.any(axis=1, keepdims=True), means, centers))
    return means.astype(data.dtype)
