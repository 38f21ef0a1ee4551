"""Typical rows of data whose mean and variance are those of a few outliers (robust statistics of a sample)."""

from typing import Any

import numpy as np

from tsapps.kernels.arrays import to_host

__all__ = ["sampled_rows", "typical_rows"]

# Number of sampled rows, and of their features that are examined first: a median of 128 numbers for each of 4,096
# features takes the host 17 ms.
_SAMPLED, _FEATURES = 128, 64
# Rows are sampled if some |x − origin| exceeds this multiple of the standard deviation.
_PEAK = 8.0
# Outliers dominate if the root mean square of typical rows is less than this fraction of the standard deviation: scaled
# by the latter, such rows would lose bits in float16, whose smallest normal number is 2⁻¹⁴.
_HIDDEN = 2.0**-9


def sampled_rows(n: int) -> range:
    """Return the indices of the rows, of n, that `typical_rows` needs."""
    return range(0, n, max(1, n // _SAMPLED))[:_SAMPLED]


def typical_rows(sampled: Any, mean_variance: float, largest: np.ndarray) -> tuple[np.ndarray, float] | None:
    """Return the median of the rows and the root mean square of a typical row about it, if outliers dominate.

    Parameters
    ----------
    sampled : array of shape (m, d)
        The rows with the indices `sampled_rows`, in host memory or on a GPU.
    mean_variance : float
        Mean variance of the features.
    largest : numpy.ndarray of shape (d,)
        The largest ``|x − origin|`` of each feature, for some origin.

    Returns
    -------
    median : numpy.ndarray of shape (d,), float64
    rms : float
        The median over sampled rows of the root mean square of ``x − median``. The function returns None instead if
        outliers do not dominate the variance, or if at least half of the rows are equal.
    """
    deviation = mean_variance**0.5
    if not deviation * _PEAK < largest.max(initial=0.0):
        return None
    d = sampled.shape[1]
    # The squares of some features, divided by the number of all features, bound the mean square from below.
    for step in dict.fromkeys((max(1, d // _FEATURES), 1)):
        some = to_host(sampled[:, ::step]).astype(np.float64)
        median = np.median(some, axis=0)
        rms = float(np.median(np.sqrt(((some - median) ** 2).sum(axis=1) / d)))
        if not rms < _HIDDEN * deviation:
            return None
    return (median, rms) if rms > 0 else None
