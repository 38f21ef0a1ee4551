"""New centers on the host: the means of the clusters, from the sums of an assignment."""

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.rows import unit
from tsapps.apps.kmeans.results import Assignment

__all__ = ["next_centers"]


def next_centers(data: Data, found: Assignment, centers: np.ndarray) -> np.ndarray:
    """Compute the new centers after an assignment.

    Parameters
    ----------
    data : Data
    found : Assignment
        The assignment of the samples to `centers`, with the cluster sums.
    centers : numpy.ndarray of shape (k, d)

    Returns
    -------
    numpy.ndarray of shape (k, d)
        The cluster means in the working dtype; for the cosine metric, scaled to norm 1. An empty cluster gets the mean
        of the heaviest cluster.
    """
    means = found.means()
    if data.spherical:
        # A mean of zero has no direction: the old center remains.
        means = unit(np.where(means.any(axis=1, keepdims=True), means, centers))
    return means.astype(data.dtype)
