"""How far the roundings of a sum go if their signs are random: its walk, by which the statistical threshold is scaled.

For C = A · B, in units of u, with ⌊x⌋₂ the greatest power of two that is no larger than ``|x|``,

    walk² = Σ_l (⌊s_l⌋₂² + ρ ⌊a_il b_lj⌋₂²),    over the products that are not zero.

u⌊s⌋₂ is half a last place of s, what an addition that is rounded to nearest loses at most. s_l is the largest that the
partial sum which ends with product l could be, had it begun with any product since partial sums began anew: where
blocks share a sum, they begin wherever their shares do. Where nothing is known of how sums are added up, ⌊s_l⌋₂² is the
mean of three, of sums that begin anew after 32 products, after 512, and never.

On a CPU runs of products are added up, and then to a total (product/cpu.py): that addition counts, too. And a BLAS may
have several accumulators, which take products in turn: each is then a sum by itself, of every q-th product, and they
are added up at the end of a run. Where it has one q in some places and another in others, walk is the largest of them.

ρ is 2: within a few products, their order may be any. It may be 0 of a BLAS whose order is known and whose products are
not rounded, and is more than 2 where the tensor cores make a product of float32 of three, of parts that are cut off.

Of 16-bit types, whose products are exact in float32, an addition only counts where it has bits to lose: where the
product, or what the sum is a multiple of, has a last place below that of s. And walk is 0 where Σ|ab| is less than 2²⁴
last places of the finest product: there, sums in any order are exact.

Source: that rounding errors of random signs make a martingale, whose tail is bounded by the partial sums: M. Connolly,
N. Higham and T. Mary, "Stochastic rounding and its probabilistic backward error analysis" (2021).
"""

from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np

__all__ = ["ANY_WALK", "HELD", "OF_PRODUCTS", "Walk", "most_walk", "walks"]

#: ρ of products that are rounded.
OF_PRODUCTS = 2.0
# After how many products sums begin anew of which nothing is known, or never.
_ANY_RUNS = (32, 512)
# Elements that are summed up at a time, so that they stay in the cache; the Σ|ab| between which nothing is lost by
# squaring; and how many last places float32 has.
_WALKING, HELD, _PLACES = 1 << 13, (2.0**-480, 2.0**480), 2.0**24


@dataclass(frozen=True)
class Walk:
    """How sums are added up.

    Attributes
    ----------
    products : float
        ρ: what a product adds, in squares of its last place.
    accumulators : tuple of int
        q: how many take products in turn, of each order that there may be; on a GPU 1.
    run : int or None
        After how many products what they have is added to a total, and they begin anew; None is not known, as on a GPU.
    """

    products: float = OF_PRODUCTS
    accumulators: tuple[int, ...] = (1,)
    run: int | None = None

    def __post_init__(self) -> None:
        whole = (*self.accumulators, *(() if self.run is None else (self.run,)))
        counted = self.accumulators and all(isinstance(one, int) and one >= 1 for one in whole)
        if not (counted and 0 <= self.products < inf):
            raise ValueError(f"{self}: expected products of at least 0, and whole accumulators and runs of at least 1")

    def of_random(self, k: int) -> float:
        """Return walk² of k products in no order, in squares of what their sum is in the middle."""
        if self.run is None:
            return k / 6 + self.products / 2
        run = max(1, min(self.run, k))
        return (run / min(self.accumulators) + k / run + self.products) / 2


#: Of sums of which nothing is known.
ANY_WALK = Walk()


def most_walk(walk: Walk, k: int) -> float:
    """Return walk over Σ|ab| of k products at most, whatever they are.

    No sum is larger than Σ|ab|: not an accumulator's after each product, nor where they are added up, and what they
    have to the total, after each product at most.
    """
    additions = max(walk.accumulators) + (walk.run is not None)
    return sqrt((additions + walk.products) * k)


def walks(A: np.ndarray, B: np.ndarray, walk: Walk = ANY_WALK) -> np.ndarray:
    """Return how far roundings of the product of a few rows may walk, in units of u, (rows, w) float64."""
    a, b = A.astype(np.float64), B.astype(np.float64)
    step, exact = max(1, _WALKING // max(1, b.shape[1])), A.itemsize == 2
    with np.errstate(all="ignore"):
        starts = range(0, len(a), step)
        blocks = [
            np.maximum.reduce([_walk(a[first : first + step], b, walk, q, exact=exact) for q in walk.accumulators])
            for first in starts
        ]
    return np.concatenate([np.empty((0, b.shape[1])), *blocks])


def _walk(a: np.ndarray, b: np.ndarray, walk: Walk, q: int, *, exact: bool) -> np.ndarray:
    """Return the walks of a block by q accumulators; `exact`: whether products are, in what they are summed in."""
    shape, k, products = (len(a), b.shape[1]), a.shape[1], walk.products
    runs = (*_ANY_RUNS, k) if walk.run is None else (walk.run,)
    # Of each accumulator partial sums, the lowest and the highest since they began, by the run; and what they are
    # multiples of. Beside them the total of what the last run's accumulators had.
    of_all = np.zeros((q, 3, len(runs), *shape))
    grains_of_all = np.full((q, len(runs), *shape), np.inf)
    total, grain_of_total = np.zeros(shape), np.full(shape, np.inf)
    square, magnitude, finest = np.zeros(shape), np.zeros(shape), np.full(shape, np.inf)
    left, right = _last_place(a), _last_place(b)

    def lost(sums: np.ndarray, grains: np.ndarray) -> np.ndarray:
        """Return what additions of these sums lose, of what has these grains, which become the sums' own."""
        largest = _power(sums)
        if not exact:
            return largest
        last = largest * (2 / _PLACES)
        largest = np.where(grains < last, largest, 0.0)
        np.maximum(grains, last, out=grains)
        return largest

    for step in range(k):
        product = a[:, step, np.newaxis] * b[step]
        sums, lowest, highest = partial = of_all[step % q]
        grains = grains_of_all[step % q]
        for i, run in enumerate(runs):
            if step % run < q:
                partial[:, i], grains[i] = 0, np.inf
        sums += product
        np.minimum(lowest, sums, out=lowest)
        np.maximum(highest, sums, out=highest)
        magnitude += abs(product)
        if exact:
            place = left[:, step, np.newaxis] * right[step]
            np.minimum(grains, place, out=grains)
            np.fmin(finest, place, out=finest)
        largest = lost(np.maximum(sums - lowest, highest - sums), grains)
        of_step = (largest**2).sum(axis=0) / len(runs) + products * _power(product) ** 2
        square += np.where(product != 0, of_step, 0.0)
        # Accumulators are added up at the end of the longest run, and that to the total of those before.
        if (step + 1) % runs[-1] == 0 or step + 1 == k:
            together, grain = of_all[0, 0, -1].copy(), grains_of_all[0, -1].copy()
            for one, other in zip(of_all[1:, 0, -1], grains_of_all[1:, -1], strict=True):
                together += one
                square += lost(together, np.minimum(grain, other, out=grain)) ** 2
            total += together
            np.minimum(grain_of_total, grain, out=grain_of_total)
            if step >= runs[-1]:
                square += lost(total, grain_of_total) ** 2
            of_all[:, :, -1], grains_of_all[:, -1] = 0, np.inf
    # Squares of what is very large or small are lost.
    held = (magnitude > HELD[0]) & (magnitude < HELD[1])
    walked = np.where(held, np.sqrt(square), most_walk(replace(walk, accumulators=(q,)), k) * magnitude)
    return np.where(exact & (magnitude < _PLACES * finest), 0.0, walked)


def _power(x: np.ndarray) -> np.ndarray:
    """Return the greatest power of two that is no larger than ``|x|``; 0 of what is below the normal numbers."""
    return (x.view(np.int64) & 0x7FF0000000000000).view(np.float64)


def _last_place(x: np.ndarray) -> np.ndarray:
    """Return the greatest power of two of which x is a multiple, infinite of 0."""
    bits = np.ascontiguousarray(x).view(np.int64)
    place = np.where(bits & 0xFFFFFFFFFFFFF, abs(x - (bits & (bits - 1)).view(np.float64)), abs(x))
    return np.where(x == 0, np.inf, place)
