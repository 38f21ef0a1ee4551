"""Error bounds of a product: limits of row residuals, and of the error of an element.

The product is C (m × w) = A (m × k) · B (k × w). The residual of row i of C is::

    d_i = Σ_j v_j c_ij − p_i,      p_i = Σ_l a_il (Σ_j v_j b_lj)      for weights v_j in (0, 1].

The residual of a correct row is zero up to rounding. It is compared with a multiple of the row's magnitude
q_i = √(Σ_l (a_il s_l)²), where ``s_l = Σ_j |b_lj|``. The CPU uses ``|y_i|`` instead of q_i: y_i = Σ_l a_il z_l s_l with
random z, ``½ ≤ |z| ≤ 1`` (product/cpu.py). ``|p_i|``, q_i and ``|y_i|`` are at most ``S_i = Σ_l |a_il| s_l``. Row i is
*flagged* if::

    |d_i| > row · max(|p_i|, q_i) + row_absolute + rounding · Σ_j |c_ij|

The first test on a GPU replaces q_i by ``Σ_j |c_ij|`` (detect.cuh), which is at most S_i up to rounding. With the
statistical bound, it replaces q_i by ``Σ_j |c_ij| / √w``.

The elements r_ij of a flagged row are recomputed in float64 or better, with ``Σ|ab| = Σ_l |a_il b_lj|``. An element is
*wrong* if::

    |c_ij − r_ij| > T + rounding · (|r_ij| + T) + rounding_absolute,
                    T = magnitude · Σ|ab| + spread · deviation + absolute.

The coefficients `row`, `magnitude`, `spread` and so on are those of `ErrorBounds`. `deviation` is the deviation of the
probabilistic rounding-error model, in units of the unit roundoff u (product/rounding_model.py).

T is not needed for products by our own kernels on a GPU whose arithmetic is known (calibrate.py). There the sum of an
element is emulated bit for bit, in the same order (emulated_gemm.cuh), and the element is wrong if its bits differ from
the emulated bits (`bit_exact`). If a factor is too large or too small for the emulation, T is the proven bound.

The test of rows determines speed and which errors are detected. The test of elements determines correctness: with the
proven bound, no element is reported as wrong if rounding explains its error.

At the ends of the number range, with η half the smallest number of the accumulation type:

- *Underflow.* The error of a product is at most ``u |ab|`` or η; sums below the normal numbers are exact. So `absolute`
  is at least k η, and the residual of a row is off by at most (k w + k + w) η. The tensor cores of a GPU may also flush
  float32 and bfloat16 products, partial sums and factors below the normal numbers to zero (`flushes`, `lost`).
- *Overflow.* T and Σ|ab| may overflow where elements do not, and 0 · ∞ in T would report correct elements. So float64
  values are divided by 2^e, with e the exponent of the largest product, of c_ij or of `absolute` (exact_products.py).
  Nothing overflows, and underflow is below 2⁻¹⁰⁰⁰ of the largest. The other dtypes are tested in float64.
- *A row* is flagged if its checks overflow. It is also flagged if its checks may have lost more to underflow than the
  bound allows. Rows of B with denormals cause such losses if they are multiplied by large elements of A
  (product/cpu.py).
- *Infinity* is correct if a partial sum may overflow (`largest_sum`), or if the element may round to infinity
  (`largest`).

Sources: N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), chapter 3, for γ and its proofs;
K.-H. Huang and J. Abraham (1984) for checksums of products.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import inf, log, sqrt

from tsapps.apps.abft.product.rounding_model import PRODUCT_VARIANCE, UNKNOWN_ORDER, RoundingModel

__all__ = [
    "DTYPES",
    "LEAST_NORMAL",
    "QUANTUM",
    "RAREST",
    "UNIT",
    "ErrorBounds",
    "absolute",
    "confidence",
    "element_error",
    "gamma",
    "product_variance",
    "proven",
    "statistical",
    "summed_unit",
]

#: The unit roundoff u of each dtype.
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: The dtypes of protected products.
DTYPES = tuple(UNIT)
#: The lowest false positive rate supported. A calibration measures some 10⁵ elements; far lower rates are extrapolated.
RAREST = 1e-12
#: The smallest normal and the smallest positive number of an accumulation type, by the size of the type in bytes.
LEAST_NORMAL, QUANTUM = {8: 2.0**-1022, 4: 2.0**-126}, {8: 2.0**-1074, 4: 2.0**-149}
# The largest number of each accumulation type; the smallest float32 sum that rounds to infinity in each 16-bit type.
_LARGEST = {"float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38}
_ROUNDED_TO_INFINITY = {"float16": 65520.0, "bfloat16": 2.0**128 * (1 - 2.0**-9)}
# Partial sums cannot overflow if Σ|ab| is at most (1 − _ROOM) times the largest number. For float32, this margin covers
# sums over the tf32 parts of the factors, which may be larger than Σ|ab| by a factor of 1 + 2⁻¹⁰.
_ROOM = {"float64": 2.0**-40, "float32": 2.0**-8}
# Maximum error of rounding to a denormal of the 16-bit types.
_HALF_SUBNORMAL = {"float16": 2.0**-25, "bfloat16": 2.0**-134}
# Relative error of a float32 product as three tf32 products; relative truncation error of tensor cores for 16-bit
# types. Both are added to γ.
_PARTS, _TRUNCATED = 2.0**-21, 2.0**-18
# ρ of a float32 product as three tf32 products. With this value, the error scales measured on an H200 are the same at
# all depths (docs/notes/abft.md).
_OF_PARTS = 25.0
# Typical ratio of a row's magnitude as estimated by random probes to the actual magnitude of the row.
_PROBED = 1.3


def gamma(q: float, u: float) -> float:
    """Return γ_q = q·u / (1 − q·u), the relative error bound of q successive roundings; infinite if q·u ≥ 1."""
    return q * u / (1 - q * u) if q * u < 1 else inf


def _summed(dtype: str) -> str:
    """Return the accumulation type of products of a dtype."""
    return "float64" if dtype == "float64" else "float32"


def summed_unit(dtype: str) -> float:
    """Return the unit roundoff u of the accumulation type of products of a dtype."""
    return UNIT[_summed(dtype)]


def element_error(k: int, dtype: str) -> float:
    """Return e with ``|sum − Σ ab| ≤ e · Σ|ab|`` for a computed sum of k products, before it is rounded to `dtype`.

    Valid for `tsapps.matmul` on the CPU and on GPUs, including truncation by tensor cores for 16-bit types. The bound
    does not cover underflow of products (`ErrorBounds.absolute`). On a GPU, it does not cover float32 factors below
    2⁻¹⁰⁰ (`ErrorBounds.lost`).
    """
    u = summed_unit(dtype)
    if dtype == "float64":
        return gamma(k + 4, u)
    if dtype == "float32":
        return gamma(k + 4, u) + _PARTS
    return gamma(2 * k + 8, u) + _TRUNCATED


def product_variance(dtype: str) -> float:
    """Return ρ of products on a GPU (product/rounding_model.py)."""
    return _OF_PARTS if dtype == "float32" else PRODUCT_VARIANCE


def confidence(p: float) -> float:
    """Return c = √(2 ln(2 / p)): a sub-Gaussian variable of variance 1 exceeds c in magnitude with probability ≤ p.

    Raises
    ------
    ValueError
        If p is not between `RAREST` and 1.
    """
    if not RAREST <= p < 1:
        raise ValueError(
            f"p is {p}; expected a false positive rate from {RAREST:g} to 1, such as 1e-9: a calibration supports no "
            "lower one. threshold='proven' has no false positives"
        )
    return sqrt(2 * log(2 / p))


@dataclass(frozen=True)
class ErrorBounds:
    """Coefficients of the two inequalities at the head of this module, which defines the symbols.

    Attributes
    ----------
    row, row_absolute : float
        Relative and absolute bound of a row's residual.
    magnitude, spread, absolute : float
        Coefficients of T, the bound of an element's error.
    model : RoundingModel
        The rounding-error model that defines the deviation, the factor of `spread` in T.
    rounding, rounding_absolute : float
        Relative and absolute error of rounding an element to C's dtype; 0 if C's dtype is the accumulation type.
    bit_exact : bool
        Whether elements are compared with their bit-exact emulation. If so, T applies only to elements that the
        emulation does not support.
    by_spread : bool
        Whether s_l in the magnitude of a row is √(Σ_j b_lj² + (Σ_j b_lj)²) instead of ``Σ_j |b_lj|``.
    lost : float
        On a GPU, the relative error bound of products with a factor so small that tensor cores lose parts of the factor
        (`exclude` of product/locate.cuh).
    largest_sum, largest : float
        A non-finite element is not tested if Σ|ab| is at least `largest_sum`, because a partial sum may overflow. Nor
        is it tested if ``|r_ij| + T`` is at least `largest`, because the element may round to infinity.
    """

    row: float
    row_absolute: float
    magnitude: float
    spread: float
    absolute: float
    lost: float
    model: RoundingModel
    rounding: float
    rounding_absolute: float
    bit_exact: bool
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
    bit_exact: bool = False,
    model: RoundingModel = UNKNOWN_ORDER,
    **of_element: float,
) -> ErrorBounds:
    summed = _summed(dtype)
    is_half = dtype in _HALF_SUBNORMAL
    given = {"magnitude": 0.0, "spread": 0.0, "absolute": 0.0, "lost": element_error(k, dtype)} | of_element
    # The bounds also cover the underflow of products, and the rounding error of the recomputed element.
    given["absolute"] += k * _lost_of_product(dtype, flushes=flushes)
    given["magnitude"] += gamma(k + 4, UNIT["float64"]) if summed == "float32" else 0.0
    return ErrorBounds(
        row=row,
        row_absolute=row_absolute,
        rounding=UNIT[dtype] if is_half else 0.0,
        rounding_absolute=_HALF_SUBNORMAL.get(dtype, 0.0),
        bit_exact=bit_exact,
        model=model,
        by_spread=by_spread,
        largest_sum=_LARGEST[summed] * (1 - _ROOM[summed]) / (1 + element_error(k, dtype)),
        largest=_ROUNDED_TO_INFINITY.get(dtype) or _LARGEST[summed] * (1 - 2.0**-50),
        **given,
    )


def _lost_of_product(dtype: str, *, flushes: bool) -> float:
    """Return the maximum absolute error of a product below the normal numbers of the accumulation type."""
    size = 8 if dtype == "float64" else 4
    # Four flushed numbers: tensor cores multiply float32 as three products, and may also flush the partial sum.
    return 4 * LEAST_NORMAL[size] if flushes and dtype in ("float32", "bfloat16") else QUANTUM[size]


def _lost_of_row(k: int, w: int, dtype: str) -> float:
    """Return the maximum error of d_i from underflow of the products in c_ij, in Σ_j v_j c_ij and in p_i.

    The value assumes gradual underflow. If products are flushed to zero instead, some correct rows are flagged as well.
    """
    return (k * w + k + w) * _lost_of_product(dtype, flushes=False)


def _check(k: int, w: int, dtype: str) -> None:
    if dtype not in UNIT:
        raise ValueError(f"dtype is {dtype}; expected one of {', '.join(DTYPES)}")
    if k < 0 or w < 0:
        raise ValueError(f"the product has k = {k} and w = {w}; expected sizes of at least 0")


def _row_error(w: int, dtype: str, of_sum: float) -> float:
    """Return the bound of the rounding error of d_i relative to S_i; both are defined at the head of this file.

    `of_sum` is the relative error of the elements of C.
    """
    u = summed_unit(dtype)
    # The terms are, in this order, the errors of the elements of C and of p_i, of the sum over j in d_i, and of
    # Σ_j v_j b_lj: rounding to the accumulation type, and computation in float64.
    return 1.01 * (2 * of_sum + gamma(w + 8, u) + u + gamma(w + 4, UNIT["float64"]))


@lru_cache(maxsize=4096)
def proven(k: int, w: int, dtype: str, *, flushes: bool = False) -> ErrorBounds:
    """Return the proven bounds: rounding never exceeds them, so there are no false positives.

    Let E = `row` · S_i + `row_absolute`. Row i is certainly flagged if one of its elements has an error above 4.3 E.
    Weights are 0.48 or more, so this error changes d_i by more than 2 E, of which rounding hides at most E. In practice
    a much smaller error suffices, because q_i is usually far below S_i. `row_absolute` covers the underflow of
    k w + k + w products.

    Parameters
    ----------
    k, w : int
        The product is (m × k) · (k × w).
    dtype : {"float64", "float32", "float16", "bfloat16"}
    flushes : bool
        Whether float32 numbers below the normal numbers may be flushed to zero. It must be True for a GPU, because the
        behavior of tensor cores is undocumented. A CPU underflows gradually, and so does float64 on every device.

    Raises
    ------
    ValueError
        If the dtype is not supported, or a size is negative.
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
    model: RoundingModel = UNKNOWN_ORDER,
    bit_exact: bool = False,
    flushes: bool = False,
) -> ErrorBounds:
    """Return the statistical bounds: in the calibrated model, rounding of an element exceeds them with probability ≤ p.

    The rounding error of a sum is modelled as sub-Gaussian with scale e · deviation, and e is measured (calibrate.py).
    Sequential additions whose errors are uniform up to half a unit in the last place have e = u/√3. The model does not
    cover rounding errors that are not random, such as those of equal products. Nor does it cover partial sums over
    products that are not adjacent, if these sums exceed those over adjacent products. `proven` covers both cases.

    Parameters
    ----------
    k, w, dtype, flushes
        As for `proven`.
    error : float
        e, for sums of k products.
    p : float
        The false positive rate of an element.
    model : RoundingModel
        The model of the deviation.
    bit_exact : bool
        Whether elements are emulated bit for bit, as for our own kernels. If so, e only bounds the residuals of rows.

    Raises
    ------
    ValueError
        If the dtype, a size, `error` or p is out of range.
    """
    _check(k, w, dtype)
    if not 0 < error < 1:
        raise ValueError(f"the calibrated error is {error}; expected one between 0 and 1")
    u, c = summed_unit(dtype), confidence(p)
    # The scale of d_i relative to q_i, with the s_l of `by_spread`; random probes estimate q_i on a CPU. It covers the
    # rounding errors of the elements, of w additions over the row (which grow as √w), and of the stored Σ_j v_j b_lj.
    of_row = _PROBED * (error * sqrt(model.random_variance(k)) + u * sqrt(w + 8)) + u
    magnitude, spread = (element_error(k, dtype), 0.0) if bit_exact else (0.0, c * error)
    return _bounds(
        k,
        dtype,
        row=c * of_row,
        row_absolute=_lost_of_row(k, w, dtype),
        flushes=flushes,
        by_spread=True,
        bit_exact=bit_exact,
        model=model,
        magnitude=magnitude,
        spread=spread,
    )


def absolute(k: int, w: int, dtype: str, threshold: float, *, flushes: bool = False) -> ErrorBounds:
    """Return the bounds of an absolute threshold on an element's error.

    A row is flagged if its residual d_i exceeds half the threshold. Suppose that the rounding error of d_i is at most
    half the threshold. Then an element is certainly found if its error exceeds the threshold on a CPU, where one
    checksum has weights of 1, or 2.1 times the threshold on a GPU, where weights are 0.48 or more. Raises the errors of
    `proven`, and ValueError for a threshold that is negative or not finite.
    """
    _check(k, w, dtype)
    if not 0 <= threshold < inf:
        raise ValueError(f"threshold is {threshold}; expected a number, at least 0")
    return _bounds(k, dtype, row=0.0, row_absolute=threshold / 2, flushes=flushes, absolute=threshold, lost=0.0)
