"""Prices of clusters: the dual problem of assignments to clusters of limited sizes.

For any prices p, an assignment within the limits costs at least

    D(p) = Σ_i min_j (c_ij + p_j) − max Σ_j p_j · size_j,    the maximum over all sizes within the limits,

and the maximum of D is the lowest cost. A cluster with too many samples gets a positive price, one with too few a
negative one. D has k variables and is concave, but not smooth. So each minimum is replaced by −t · log Σ exp(−·/t),
whose derivatives are shares of samples in clusters, and the temperature t is lowered.

References
----------
Byrd, Lu, Nocedal and Zhu, "A limited memory algorithm for bound constrained optimization", SIAM J. Sci. Comput. 16
(1995), for the optimizer. Cuturi and Peyré, "A smoothed dual approach for variational Wasserstein problems", SIAM J.
Imaging Sci. 9 (2016), for the smoothed dual.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.optimize import minimize

from tsapps.apps.kmeans.balanced.costs import Costs, NearestClusters
from tsapps.apps.kmeans.balanced.limits import Limits
from tsapps.kernels.arrays import to_host
from tsapps.kernels.blas.threads import one_blas_thread

__all__ = ["falling_prices"]

# Factor between successive temperatures.
_COOLING = 4.0
# When the optimizer stops: at the last temperature if no cluster has more than half a sample too many or too few; at
# the others at a part of the mean size of a cluster.
_LAST, _OTHERS = 0.5, 1e-3
_STEPS = 200


def falling_prices(
    costs: Costs, limits: Limits, prices: np.ndarray, near: NearestClusters
) -> Iterator[tuple[np.ndarray, NearestClusters]]:
    """Yield ever better prices, (k,), and the nearest clusters for them; the first ones usually suffice.

    Parameters
    ----------
    costs : Costs
    limits : Limits
    prices : numpy.ndarray of shape (k,)
        Zeros, or good prices for similar costs. The former begin at the temperature of a typical gap.
    near : NearestClusters
        For these prices.

    Notes
    -----
    Prices are yielded at 1/√n of a typical gap. Their error is about the square of that, so that a few samples are left
    in wrong clusters, whatever n is. Gaps change with prices: by orders of magnitude, if centers are outliers. So the
    temperature falls further if the gaps have fallen; they never stop to, if most samples fit two clusters equally.
    """
    n, cold = costs.data.n_samples, not prices.any()
    least = near.typical_gap / n**0.5
    temperature = near.typical_gap if cold else least
    if temperature * n <= costs.rounding:
        yield prices, near
    while temperature * n > costs.rounding:
        last = temperature <= 2 * least
        prices = _ascended(costs, limits, prices, temperature, _LAST / n if last else max(_LAST / n, _OTHERS / costs.k))
        near = costs.nearest(prices)
        if last:
            yield prices, near
        if last or cold:
            least, cold = near.typical_gap / n**0.5, False
        if last and temperature <= 2 * least:
            break
        temperature = max(temperature / _COOLING, min(least, temperature / 2))


def _ascended(costs: Costs, limits: Limits, prices: np.ndarray, temperature: float, excess: float) -> np.ndarray:
    """Return the prices that maximize the smoothed D, up to an `excess` of sizes as a part of n, by L-BFGS-B."""
    n, k = costs.data.n_samples, costs.k

    def descent(split: np.ndarray) -> tuple[float, np.ndarray]:
        """Return −D/(n · t) and its gradient for prices (split[:k] − split[k:]) · t, of which both parts are ≥ 0."""
        value, sizes = _smoothed(costs, temperature * (split[:k] - split[k:]), temperature)
        paid = limits.upper * split[:k].sum() - limits.lower * split[k:].sum()
        gradient = np.concatenate([limits.upper - sizes, sizes - limits.lower])
        return (paid - value / temperature) / n, gradient / n

    start = np.concatenate([np.maximum(prices, 0), np.maximum(-prices, 0)]) / temperature
    options = {"maxiter": _STEPS, "ftol": 0.0, "gtol": excess, "maxcor": 20}
    bounds = [(0, None)] * (2 * k)
    with one_blas_thread():  # products of 2 · k numbers, for which threads take longer
        found = minimize(descent, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    ascended: np.ndarray = temperature * (found.x[:k] - found.x[k:])
    return ascended


def _smoothed(costs: Costs, prices: np.ndarray, temperature: float) -> tuple[float, np.ndarray]:
    """Return the sum of the smoothed minima, and its derivatives: the shares of each cluster in all samples, (k,)."""
    xp, paid = costs.xp, costs.xp.asarray(prices)[:, np.newaxis]

    def work(_: int, block: Any) -> Any:
        sums = block + paid
        lowest = sums.min(axis=0)
        sums -= lowest
        sums *= -1 / temperature
        with np.errstate(over="ignore"):
            # Seven digits suffice for prices that are nearly the best; bounds are computed in float64.
            shares = sums.astype(np.float32)
        xp.exp(shares, out=shares)
        totals = shares.sum(axis=0)
        shares /= totals
        value = lowest.sum() - temperature * xp.log(totals).sum(dtype=np.float64)
        return xp.append(shares.sum(axis=1, dtype=np.float64), value)

    found = to_host(sum(costs.each(work)))
    return float(found[-1]), found[:-1]
