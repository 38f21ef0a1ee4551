"""The gap statistic: inertias of X beside those of reference data sets, which are uniform in the ranges of the columns.

References
----------
Tibshirani, Walther and Hastie, "Estimating the number of clusters in a data set via the gap statistic", J. R. Statist.
Soc. B 63 (2001).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.kernels.arrays import to_host

__all__ = ["Box", "gaps_of"]


@dataclass(frozen=True)
class Box:
    """The ranges of the columns of X, and its number of rows and type.

    Attributes
    ----------
    low, high : numpy.ndarray of shape (d,)
        The smallest and the largest element of every column.
    n : int
    dtype : numpy.dtype
    """

    low: np.ndarray
    high: np.ndarray
    n: int
    dtype: np.dtype

    @classmethod
    def of(cls, blocks: Iterable[tuple[int, Any]], shape: tuple[int, int], dtype: np.dtype) -> "Box":
        """Return the box of X, of this shape and type, from (first row, block) of all its rows."""
        n, d = shape
        low, high = np.full(d, np.inf), np.full(d, -np.inf)
        for _, block in blocks:
            np.minimum(low, to_host(block.min(axis=0)), out=low)
            np.maximum(high, to_host(block.max(axis=0)), out=high)
        return cls(low, high, n, dtype)

    def uniform(self, random: np.random.Generator) -> np.ndarray:
        """Draw a reference data set, (n, d), in a floating-point type."""
        drawn = random.uniform(self.low, self.high, (self.n, len(self.low)))
        return drawn.astype(np.result_type(self.dtype, np.float32))


def gaps_of(
    box: Box, inertias: Sequence[float], fitted: Callable[[np.ndarray, int], Sequence[float]], count: int, seed: int
) -> list[tuple[float | None, float | None]]:
    """Return the gap E*[log W*] − log W and its standard error for each of several clusterings; W is the inertia.

    Parameters
    ----------
    box : Box
    inertias : sequence of float
        Of the clusterings of X.
    fitted : callable
        Takes a reference data set and its number, from 1, and returns the inertias of as many clusterings of it.
    count, seed : int
        Number of reference data sets, and the seed from which they are drawn.

    Returns
    -------
    list of (float, float)
        (None, None) for a clustering whose gap is not finite: its inertia, or one of a reference, is 0.
    """
    random, logarithms = np.random.default_rng(seed), np.empty((count, len(inertias)))
    with np.errstate(divide="ignore", invalid="ignore"):
        for number, reference in enumerate(logarithms, start=1):
            reference[:] = np.log(fitted(box.uniform(random), number))
        gaps = logarithms.mean(axis=0) - np.log(inertias)
        errors = logarithms.std(axis=0) * (1 + 1 / count) ** 0.5
    pairs = zip(gaps.tolist(), errors.tolist(), strict=True)
    return [(gap, error) if np.isfinite(gap) else (None, None) for gap, error in pairs]
