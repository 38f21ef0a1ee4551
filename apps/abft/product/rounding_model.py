"""Probabilistic rounding-error model: the deviation of a sum's rounding error, which scales the statistical threshold.

Let u be the unit roundoff of the accumulation type, and ⌊x⌋₂ the greatest power of two no larger than ``|x|``, the unit
in the first place of x. For the element Σ_l a_il b_lj of C = A · B, in units of u,

    deviation² = Σ_l (⌊s_l⌋₂² + ρ ⌊a_il b_lj⌋₂²),    over the products that are not zero.

u⌊s⌋₂ is half a unit in the last place of s, the largest error of an addition rounded to nearest. s_l is a partial sum
whose last product is product l. Its first product may be any earlier one, because several blocks may each sum a part of
the products. So s_l is the largest in magnitude of the partial sums that end with product l and begin after the last
restart of the sum. If the summation order is unknown, ⌊s_l⌋₂² is the mean of three values: for sums that restart after
32 products, after 512 products, and never.

On a CPU, products are summed in runs, and the sum of each run is added to a total (product/cpu.py). The model counts
the additions to the total too. A BLAS may distribute the products over q accumulators in turn: accumulator i sums every
q-th product, and the accumulators are added at the end of a run. If q differs between elements, the deviation is the
maximum over the values of q.

ρ is 2 by default, because a few adjacent products may be added in any order. It may be 0 for a BLAS with a known order
whose products are not rounded. It exceeds 2 where tensor cores multiply float32 as three products of truncated parts.

Products of 16-bit types are exact in float32. For these types, an addition counts only if it can lose bits: the last
significant place of the product, or the unit of which the partial sum is a multiple, is below the last place of s. The
deviation is 0 if Σ|ab| is less than 2²⁴ times the smallest of the products' last significant places: such sums are
exact in any order.

Source: M. Connolly, N. Higham and T. Mary, "Stochastic rounding and its probabilistic backward error analysis" (2021):
rounding errors of random signs form a martingale, whose tail is bounded by the partial sums.
"""

from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

__all__ = ["PRODUCT_VARIANCE", "SQUARABLE", "UNKNOWN_ORDER", "RoundingModel", "max_deviation", "rounding_deviations"]

#: Default value of ρ; the head of this file defines ρ.
PRODUCT_VARIANCE = 2.0
#: Lower and upper limit of Σ|ab|. Between these limits, the squares in deviation² neither overflow nor underflow.
SQUARABLE = (2.0**-480, 2.0**480)
# Numbers of products after which a sum restarts. The model of an unknown summation order is the mean of these sums and
# of a sum that never restarts.
_UNKNOWN_RUNS = (32, 512)
# Number of elements of C per block, few enough to fit in the cache; 2^(number of bits of float32's significand).
_BLOCK_ELEMENTS, _PLACES = 1 << 13, 2.0**24


@dataclass(frozen=True)
class RoundingModel:
    """The rounding-error model of a product: its summation order, and ρ. The head of this file defines the symbols.

    Attributes
    ----------
    products : float
        ρ: the variance of the rounding error of a product ab, divided by (u ⌊ab⌋₂)².
    accumulators : tuple of int
        The possible values of q, the number of accumulators over which products are distributed in turn; 1 on a GPU.
    run : int or None
        Number of products after which the accumulators are added to a total and restart; None if unknown, as on a GPU.
    """

    products: float = PRODUCT_VARIANCE
    accumulators: tuple[int, ...] = (1,)
    run: int | None = None

    def __post_init__(self) -> None:
        whole = (*self.accumulators, *(() if self.run is None else (self.run,)))
        counted = self.accumulators and all(isinstance(one, int) and one >= 1 for one in whole)
        if not (counted and 0 <= self.products < inf):
            raise ValueError(
                f"{self}: expected products of at least 0, and integer accumulators and runs of at least 1"
            )

    def random_variance(self, k: int) -> float:
        """Return the expected deviation² of k random products, relative to the mean square of their sum."""
        if self.run is None:
            return k / 6 + self.products / 2
        run = max(1, min(self.run, k))
        return (run / min(self.accumulators) + k / run + self.products) / 2


#: The model of a product whose summation order is unknown.
UNKNOWN_ORDER = RoundingModel()


def max_deviation(model: RoundingModel, k: int) -> float:
    """Return the upper bound of deviation / Σ|ab| for k products.

    No partial sum is larger than Σ|ab|. Per product, the model counts at most one addition per accumulator, and one
    addition to the total.
    """
    additions = max(model.accumulators) + (model.run is not None)
    return sqrt((additions + model.products) * k)


def rounding_deviations(A: np.ndarray, B: np.ndarray, model: RoundingModel = UNKNOWN_ORDER) -> np.ndarray:
    """Return the deviation of each element's rounding error in A · B: (rows, w) float64, in units of u."""
    a, b = A.astype(np.float64), B.astype(np.float64)
    step, exact = max(1, _BLOCK_ELEMENTS // max(1, b.shape[1])), A.itemsize == 2
    with np.errstate(all="ignore"):
        starts = range(0, len(a), step)
        blocks = [
            np.maximum.reduce(
                [_deviations(a[first : first + step], b, model, q, exact=exact) for q in model.accumulators]
            )
            for first in starts
        ]
    return np.concatenate([np.empty((0, b.shape[1])), *blocks])


def _deviations(a: np.ndarray, b: np.ndarray, model: RoundingModel, q: int, *, exact: bool) -> np.ndarray:
    """Return the deviations of a block of rows for q accumulators.

    `exact` is True if products are exact in the accumulation type.
    """
    shape, k, products = (len(a), b.shape[1]), a.shape[1], model.products
    runs = (*_UNKNOWN_RUNS, k) if model.run is None else (model.run,)
    # `accumulators` has, for each accumulator and run length, the partial sum, and the minimum and maximum of partial
    # sums since the restart. `all_places` has the power of two of which the partial sum is a multiple. `total` is the
    # sum of the completed runs.
    accumulators = np.zeros((q, 3, len(runs), *shape))
    all_places = np.full((q, len(runs), *shape), np.inf)
    total, total_place = np.zeros(shape), np.full(shape, np.inf)
    square, magnitude, finest = np.zeros(shape), np.zeros(shape), np.full(shape, np.inf)
    left, right = _last_place(a), _last_place(b)

    def lost(sums: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return ⌊sums⌋₂ where the addition can lose bits, 0 elsewhere; raise `places` to the last place of `sums`."""
        largest = _first_place(sums)
        if not exact:
            return largest
        last = largest * (2 / _PLACES)
        largest = np.where(places < last, largest, 0.0)
        np.maximum(places, last, out=places)
        return largest

    for step in range(k):
        product = a[:, step, np.newaxis] * b[step]
        sums, lowest, highest = partial = accumulators[step % q]
        places = all_places[step % q]
        for i, run in enumerate(runs):
            if step % run < q:
                partial[:, i], places[i] = 0, np.inf
        sums += product
        np.minimum(lowest, sums, out=lowest)
        np.maximum(highest, sums, out=highest)
        magnitude += abs(product)
        if exact:
            place = left[:, step, np.newaxis] * right[step]
            np.minimum(places, place, out=places)
            np.fmin(finest, place, out=finest)
        largest = lost(np.maximum(sums - lowest, highest - sums), places)
        of_step = (largest**2).sum(axis=0) / len(runs) + products * _first_place(product) ** 2
        square += np.where(product != 0, of_step, 0.0)
        # At the end of the longest run, the accumulators are added together, and their sum is added to the total.
        if (step + 1) % runs[-1] == 0 or step + 1 == k:
            run_sum, run_place = accumulators[0, 0, -1].copy(), all_places[0, -1].copy()
            for one, other in zip(accumulators[1:, 0, -1], all_places[1:, -1], strict=True):
                run_sum += one
                square += lost(run_sum, np.minimum(run_place, other, out=run_place)) ** 2
            total += run_sum
            np.minimum(total_place, run_place, out=total_place)
            if step >= runs[-1]:
                square += lost(total, total_place) ** 2
            accumulators[:, :, -1], all_places[:, -1] = 0, np.inf
    # Outside the range `SQUARABLE` of Σ|ab|, squares overflow or underflow, so the upper bound replaces the deviation.
    squarable = (magnitude > SQUARABLE[0]) & (magnitude < SQUARABLE[1])
    most = max_deviation(replace(model, accumulators=(q,)), k) * magnitude
    return np.where(exact & (magnitude < _PLACES * finest), 0.0, np.where(squarable, np.sqrt(square), most))


def _first_place(x: np.ndarray) -> np.ndarray:
    """Return the greatest power of two no larger than ``|x|``; 0 for denormals."""
    return (x.view(np.int64) & 0x7FF0000000000000).view(np.float64)


def _last_place(x: np.ndarray) -> np.ndarray:
    """Return the greatest power of two of which x is a multiple; infinite for 0."""
    bits = np.ascontiguousarray(x).view(np.int64)
    place = np.where(bits & 0xFFFFFFFFFFFFF, abs(x - (bits & (bits - 1)).view(np.float64)), abs(x))
    return np.where(x == 0, np.inf, place)
