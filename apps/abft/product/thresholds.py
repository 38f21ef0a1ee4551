"""How far a product may be from what it should be: the bounds by which its rows are suspected and its elements judged.

C (m × w) = A (m × k) · B (k × w). With ``S_i = Σ_l |a_il| s_l``, ``s_l = Σ_j |b_lj|``, the checks of a row are::

    d_i = Σ_j v_j c_ij − p_i,      p_i = Σ_l a_il (Σ_j v_j b_lj)      for vectors v of weights in (0, 1],

which would be zero without rounding, and its magnitude q_i = √(Σ_l (a_il s_l)²) (detect.cuh), or ``|y_i|`` in its
place, y_i = Σ_l a_il z_l s_l for some z of random numbers, ``½ ≤ |z| ≤ 1`` (product/cpu.py). None of ``|p_i|``, q_i and
``|y_i|`` is above S_i. A row is *suspected* where::

    |d_i| > row · max(|p_i|, q_i) + row_absolute + rounding · Σ_j |c_ij|

(on a GPU after a first look, by ``Σ_j |c_ij|`` in place of q_i, at most S_i, too; of the statistical bound by 1/√w of
it).

A suspected row is computed again, in float64 or better, from A and B:
its exact elements r_ij, with ``Σ|ab| = Σ_l |a_il b_lj|``. An element is *wrong* where::

    |c_ij − r_ij| > T + rounding · (|r_ij| + T) + rounding_absolute,
                    T = magnitude · Σ|ab| + spread · walk + absolute.

`walk` is how far the roundings of a sum go if their signs are random (product/rounding_model.py), in units of u.

Our own kernels on a GPU whose arithmetic is known (calibrate.py) need no T: there the sum that C's element is of is
computed once more, in the same order and to the bit (emulated_gemm.cuh), and an element is wrong if it is another
number (`predicted`). Where factors are too large or small for that, T is the proven one.

The first is a matter of speed and of what is found, the second of what is true: with the proven bound, no element is
ever called wrong that rounding explains.

At the ends of the number range, with η half the smallest number of what is summed in:

- *Underflow.* A product loses ``u |ab|`` or η, and a sum of what is below the normal numbers loses nothing. So
  `absolute` is at least k η, and a row loses (k w + k + w) η. The tensor cores of a GPU are trusted with less in
  float32 and bfloat16: products, partial sums and factors below the normal numbers may count for zero (`flushes`,
  `lost`).
- *Overflow.* T and Σ|ab| may overflow where elements do not, and 0 · ∞ in T would call right elements wrong. float64 is
  judged without a factor of 2^e, e the exponent of the largest product, of c_ij or of `absolute` (exact_products.py):
  nothing overflows, and what underflows is below 2⁻¹⁰⁰⁰ of the largest. The others are judged in float64, with room.
- *A row* whose checks overflow is suspected. So is one whose checks lost more to underflow than the row may be off by,
  which B's rows of denormals cause where they meet large columns of A (product/cpu.py).
- *Infinity* is right where a sum may overflow on its way (`largest_sum`), or may round to it (`largest`).

Sources: N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), chapter 3, for γ and its proofs;
K.-H. Huang and J. Abraham (1984) for products that carry checksums.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf, log, sqrt

from tsapps.apps.abft.product.rounding_model import ANY_WALK, OF_PRODUCTS, Walk

__all__ = [
    "DTYPES",
    "LEAST_NORMAL",
    "QUANTUM",
    "RAREST",
    "UNIT",
    "Bounds",
    "absolute",
    "confidence",
    "element_error",
    "gamma",
    "of_products",
    "proven",
    "statistical",
    "summed_unit",
]

#: The unit roundoff u of each dtype.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: The dtypes whose products are protected.
DTYPES = tuple(UNIT)
#: The lowest false-alarm rate that is taken; what is measured are some 10⁵ elements, and what is beyond is a model.
RAREST = 1e-12
#: The smallest normal number, and the smallest of all, of what is summed in, by its bytes.
LEAST_NORMAL, QUANTUM = {8: 2.0**-1022, 4: 2.0**-126}, {8: 2.0**-1074, 4: 2.0**-149}
# The largest number of what is summed in; where a sum is rounded to infinity, of dtypes that are not.
_LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38}
_ROUNDED_TO_INFINITY = {"float16": 65520.0, "bfloat16": 2.0**128 * (1 - 2.0**-9)}
# Sums whose Σ|ab| is below this part of the largest number do not overflow on their way, and neither do those of the
# parts that tensor cores take of float32, which are larger by 2⁻¹⁰.
_ROOM = {"float64": 2.0**-40, "float32": 2.0**-8}
# What rounding to 16 bits loses at most where there are few bits left.
_HALF_SUBNORMAL = {"float16": 2.0**-25, "bfloat16": 2.0**-134}
# What float32 loses in three tf32 products; what the tensor cores truncate of halves, beside what is counted as γ(k).
_PARTS, _TRUNCATED = 2.0**-21, 2.0**-18
# ρ of three products of tf32: by it sums of few products and of many have one scale, as measured on an H200
# (docs/notes/abft.md).
_OF_PARTS = 25.0
# Magnitudes that are probed by random numbers are some 1.3 times those that are meant, in the middle.
_PROBED = 1.3


def gamma(q: float, u: float) -> float:
    """Return γ_q = q·u / (1 − q·u), what q roundings in a row lose at most; infinite where q·u ≥ 1."""
    return q * u / (1 - q * u) if q * u < 1 else inf


def _summed(dtype: str) -> str:
    """Return what a product is summed in."""
    return "float64" if dtype == "float64" else "float32"


def summed_unit(dtype: str) -> float:
    """Return the unit roundoff of what a product is summed in."""
    return UNIT[_summed(dtype)]


def element_error(k: int, dtype: str) -> float:
    """Return e with ``|sum − Σ ab| ≤ e · Σ|ab|``, for the sum of k products before it is rounded to its dtype.

    It is that of `tsapps.matmul`, on the CPU and on GPUs; sums of halves on tensor cores truncate, which is counted.
    Products that underflow are not (`Bounds.absolute`), nor on a GPU factors that are so small that parts of them are
    (below 2⁻¹⁰⁰ in float32: `Bounds.lost`).
    """
    u = summed_unit(dtype)
    if dtype == "float64":
        return gamma(k + 4, u)
    if dtype == "float32":
        return gamma(k + 4, u) + _PARTS
    return gamma(2 * k + 8, u) + _TRUNCATED


def of_products(dtype: str) -> float:
    """Return ρ of a GPU: what a product adds to walk², in squares of its last place."""
    return _OF_PARTS if dtype == "float32" else OF_PRODUCTS


def confidence(p: float) -> float:
    """Return c = √(2 ln(2 / p)): what is sub-Gaussian of variance 1 exceeds c in magnitude with probability p at most.

    Raises
    ------
    ValueError
        If p is no probability between `RAREST` and 1.
    """
    if not RAREST <= p < 1:
        raise ValueError(
            f"p is {p}; expected a false-alarm rate from {RAREST:g} to 1, such as 1e-9: what a calibration measures "
            "tells of none that is lower; threshold='proven' has no false alarms"
        )
    return sqrt(2 * log(2 / p))


@dataclass(frozen=True)
class Bounds:
    """The numbers of the two inequalities above.

    Attributes
    ----------
    row, row_absolute : float
        By which rows are suspected.
    magnitude, spread, absolute : float
        By which elements are judged.
    walk : Walk
        What `spread` is relative to.
    rounding, rounding_absolute : float
        What rounding to C's dtype may lose; 0 where C's dtype is what is summed in.
    predicted : bool
        Whether elements are judged by what they are known to come to, where they are, and by these numbers elsewhere.
    by_spread : bool
        Whether rows are probed by s_l = √(Σ_j b_lj² + (Σ_j b_lj)²) in place of ``Σ_j |b_lj|``.
    lost : float
        By what elements are judged on a GPU for factors that are lost in part, as they are small (`exclude` of
        product/locate.cuh).
    largest_sum, largest : float
        Σ|ab| beyond which a sum may overflow on its way, and ``|r_ij| + T`` beyond which it may be rounded to
        infinity. What is not finite there is not judged.
    """

    row: float
    row_absolute: float
    magnitude: float
    spread: float
    absolute: float
    lost: float
    walk: Walk
    rounding: float
    rounding_absolute: float
    predicted: bool
    by_spread: bool
    largest_sum: float
    largest: float


def _bounds(
    k: int,
    dtype: str,
    *,
    row: float,
    row_absolute: float,
    flushes: bool,
    by_spread: bool = False,
    predicted: bool = False,
    walk: Walk = ANY_WALK,
    **of_element: float,
) -> Bounds:
    summed = _summed(dtype)
    is_half = dtype in _HALF_SUBNORMAL
    given = {"magnitude": 0.0, "spread": 0.0, "absolute": 0.0, "lost": element_error(k, dtype)} | of_element
    # What products lose that fall below the normal numbers, and what the exact element itself is off by.
    given["absolute"] += k * _lost_of_product(dtype, flushes=flushes)
    given["magnitude"] += gamma(k + 4, UNIT["float64"]) if summed == "float32" else 0.0
    return Bounds(
        row=row,
        row_absolute=row_absolute,
        rounding=UNIT[dtype] if is_half else 0.0,
        rounding_absolute=_HALF_SUBNORMAL.get(dtype, 0.0),
        predicted=predicted,
        walk=walk,
        by_spread=by_spread,
        largest_sum=_LARGEST[summed] * (1 - _ROOM[summed]) / (1 + element_error(k, dtype)),
        largest=_ROUNDED_TO_INFINITY.get(dtype) or _LARGEST[summed] * (1 - 2.0**-50),
        **given,
    )


def _lost_of_product(dtype: str, *, flushes: bool) -> float:
    """Return what a product loses below the normal numbers, at most: of what is summed in."""
    size = 8 if dtype == "float64" else 4
    # float32 is multiplied in three parts on tensor cores, and partial sums may be lost, too.
    return 4 * LEAST_NORMAL[size] if flushes and dtype in ("float32", "bfloat16") else QUANTUM[size]


def _lost_of_row(k: int, w: int, dtype: str) -> float:
    """Return what d_i loses below the normal numbers: products of each of its elements, of Σ_j v_j c_ij and of p_i.

    Where they are lost whole, some more rows are suspected.
    """
    return (k * w + k + w) * _lost_of_product(dtype, flushes=False)


def _check(k: int, w: int, dtype: str) -> None:
    if dtype not in UNIT:
        raise ValueError(f"dtype is {dtype}; expected one of {', '.join(DTYPES)}")
    if k < 0 or w < 0:
        raise ValueError(f"the product is of k = {k} and w = {w}; expected no negative sizes")


def _row_error(w: int, dtype: str, of_sum: float) -> float:
    """Return what d_i is off by, relative to the magnitude by which it is judged, where a sum is off by `of_sum`."""
    u = summed_unit(dtype)
    # The sums of C's row and of p, what adds up the row, and how the weights of A's row are kept and made.
    return 1.01 * (2 * of_sum + gamma(w + 8, u) + u + gamma(w + 4, UNIT["float64"]))


@lru_cache(maxsize=4096)
def proven(k: int, w: int, dtype: str, *, flushes: bool = False) -> Bounds:
    """Return the bounds that rounding never exceeds: nothing is called wrong that it explains.

    An element that is wrong by more than 4.3 (`row` · S_i + `row_absolute`) is in a row that is suspected for certain,
    as d_i, by weights of 0.48 or more, is then off by more than what is in brackets beside its own rounding; in
    practice by a small part of that, as q_i is √(Σ_l (a_il s_l)²). `row_absolute` is what is lost below the normal
    numbers of what is summed in: that of k w + k + w products.

    Parameters
    ----------
    k, w : int
        The product is (m × k) · (k × w).
    dtype : {"float64", "float32", "float16", "bfloat16"}
    flushes : bool
        Whether float32 that is below the normal numbers may be lost whole, as nobody says of the tensor cores that it
        is not. On a CPU, and in float64 anywhere, half the smallest number is lost (gradual underflow).

    Raises
    ------
    ValueError
        If the dtype is none of these, or a size is negative.
    """
    _check(k, w, dtype)
    error = element_error(k, dtype)
    lost_of_row = _lost_of_row(k, w, dtype)
    row = _row_error(w, dtype, error)
    return _bounds(k, dtype, row=row, row_absolute=lost_of_row, flushes=flushes, magnitude=error)


def statistical(
    k: int,
    w: int,
    dtype: str,
    error: float,
    p: float,
    *,
    walk: Walk = ANY_WALK,
    predicted: bool = False,
    flushes: bool = False,
) -> Bounds:
    """Return the bounds that the rounding of an element exceeds with probability p at most, if it is as calibrated.

    The rounding of a sum is taken for sub-Gaussian of scale e · walk, with an e that is measured (calibrate.py): for
    additions one after another, each off by anything up to half a last place, e is u/√3. Roundings that are not random
    are not covered, such as those of products that are all alike, nor sums of products that do not follow each other,
    where these are larger; by `proven` they are.

    Parameters
    ----------
    k, w, dtype, flushes
        As for `proven`.
    error : float
        e, for sums of k products.
    p : float
        The false-alarm rate of an element.
    walk : Walk
        What e is relative to.
    predicted : bool
        Whether elements are known to the bit, by a kernel of our own, and only rows are suspected by e.

    Raises
    ------
    ValueError
        If the dtype, a size, `error` or p is none that can be.
    """
    _check(k, w, dtype)
    if not 0 < error < 1:
        raise ValueError(f"the calibrated error is {error}; expected one between 0 and 1")
    u, c = summed_unit(dtype), confidence(p)
    # Relative to √(r² + Σ(ab)²), which is what the probes are like. Of a row, w roundings add up as a random walk
    # beside those of the sums; and how the column is kept.
    of_row = _PROBED * (error * sqrt(walk.of_random(k)) + u * sqrt(w + 8)) + u
    magnitude, spread = (element_error(k, dtype), 0.0) if predicted else (0.0, c * error)
    return _bounds(
        k,
        dtype,
        row=c * of_row,
        row_absolute=_lost_of_row(k, w, dtype),
        flushes=flushes,
        by_spread=True,
        predicted=predicted,
        walk=walk,
        magnitude=magnitude,
        spread=spread,
    )


def absolute(k: int, w: int, dtype: str, threshold: float, *, flushes: bool = False) -> Bounds:
    """Return the bounds by which an element is wrong that is off by more than a number.

    A row is suspected from half of it on, so that an element which is wrong by more is found for certain where the
    rounding of d_i is at most half of it. Raises as `proven`, and ValueError for a threshold that is negative or none.
    """
    _check(k, w, dtype)
    if not 0 <= threshold < inf:
        raise ValueError(f"threshold is {threshold}; expected a number, at least 0")
    return _bounds(k, dtype, row=0.0, row_absolute=threshold / 2, flushes=flushes, absolute=threshold, lost=0.0)
