"""Inertia from fixed-point cluster sums, without a pass over X, where they are exact enough (pure)."""

from collections.abc import Sequence

import numpy as np

from tsapps.apps.kmeans.data.fixed_point_data import FixedPointData
from tsapps.apps.kmeans.data.kernel_order import block_sum

__all__ = ["INERTIA_ERROR", "inertia_from_terms", "inertia_of_sums", "inertias_of_sums", "may_use_sums"]

#: Maximum relative error of an inertia from cluster sums: about the error of float32 differences.
INERTIA_ERROR = 2.0**-20
# Sums are used if X has at least `_ROWS_OVER_SUMS` times as many bytes as they. `_SQUARES_ERROR` is the relative error
# of a float64 sum of squares.
_ROWS_OVER_SUMS, _SQUARES_ERROR = 8, 2.0**-40


def may_use_sums(data: FixedPointData, k: int) -> bool:
    """Return True if cluster sums may be exact enough for the inertia, and a pass over X would take longer."""
    if data.dtype != np.float32 or data.sample_weight is not None:
        return False
    sums_bytes = k * (data.n_features + 1) * np.dtype(np.int64).itemsize
    return data.n_total * data.n_features * data.itemsize >= _ROWS_OVER_SUMS * sums_bytes


def inertia_of_sums(data: FixedPointData, terms: np.ndarray) -> float | None:
    """Return the inertia of X from terms of its cluster sums, (k, 4); None if it would not be exact enough."""
    return inertias_of_sums(data, [terms])[0]


def inertias_of_sums(data: FixedPointData, terms: Sequence[np.ndarray]) -> list[float | None]:
    """Return the inertia of X in several clusterings, as `inertia_of_sums` returns that of each."""
    together = np.zeros((len(terms), max(map(len, terms)), 4))  # further centers, all zero, add nothing
    for one, given in zip(together, terms, strict=True):
        one[: len(given)] = given
    squares = data.n_total * data.n_features * data.spread()[1] ** 2
    # `squares` was computed as the sum of squares about `data.origin` minus a correction. The error of `squares` is
    # relative to the sum about the origin, which can be larger.
    about_origin = squares + data.n_total * float(np.square(data.cached_moments[0] - data.origin).sum())
    return [
        inertia / (2 if data.spherical else 1)
        if error + _SQUARES_ERROR * about_origin <= INERTIA_ERROR * inertia
        else None
        for inertia, error in zip(*(part.tolist() for part in inertia_from_terms(squares, together)), strict=True)
    ]


def inertia_from_terms(squares: float, terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the inertia of float32 rows x from terms of their cluster sums (inertia/sum_terms.cuh), in float64.

    Parameters
    ----------
    squares : float
        Σ‖x‖² over the rows.
    terms : numpy.ndarray of shape (…, k, 4)
        For the center c of each cluster of m rows with the sum s: m, c·s, ‖c‖² and ``Σ |c_i|·u_i``. u_i is the value of
        the last fixed-point bit of column i of the sums.

    Returns
    -------
    inertia : numpy.ndarray of shape (…)
        Σ‖x − c‖² = Σ‖x‖² − 2·Σ c·s + Σ m·‖c‖².
    error : numpy.ndarray of shape (…)
        Bound of the error of `inertia` from rounding the elements of x. The error of rounding to float32 is at most
        half an ulp of ``2·|c·x| ≤ ‖c‖² + ‖x‖²``. The error of rounding to fixed point is at most half a unit per
        element.
    """
    counts, dots, norms, roundings = np.moveaxis(terms, -1, 0)
    of_centers, of_dots, of_roundings = block_sum(np.stack((counts * norms, dots, counts * roundings)))
    inertia = squares - 2 * of_dots + of_centers
    return inertia, float(np.finfo(np.float32).eps) / 2 * (squares + of_centers) + of_roundings
