"""Error bounds of the products of a linear layer, which a library computed: limits of rows, and of elements.

The product is C (m × w) = A (m × k) · B (k × w), plus a bias per column. The residual of row i is::

    d_i = Σ_j v_j c_ij − Σ_l a_il x_l − Σ_j v_j bias_j,     x_l = Σ_j v_j b_lj,    weights v_j in (½, 1]

A row is flagged if ``|d_i|`` exceeds its limit::

    output · s_i + sum · √(2 s_i² + q_i²) + absolute

with the sizes ``s_i = √(Σ_j (v_j c_ij)²)`` and ``q_i = √(Σ_l (a_il y_l)²)``, where ``y_l = √(Σ_j (v_j b_lj)²)``. The
first term is for rounding elements of C to 16 bits: errors of an element are at most half a unit in its last place, and
their signs are random. The second term is for errors of the sums, which also have random signs. They grow with the
partial sums: those of products with random signs are about as large as q_i says, and those of products with equal signs
grow to c_ij. Neither term has to hold always. A flagged row costs time, but an element is only reported, and replaced,
if it differs from its exact value by more than rounding can explain (`ErrorBounds` of product/thresholds.py).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt

from tsapps.apps.abft.product import thresholds
from tsapps.apps.abft.product.rounding_model import UNKNOWN_ORDER
from tsapps.apps.abft.product.thresholds import UNIT, ErrorBounds, confidence, summed_unit

__all__ = ["Arithmetic", "LinearBounds", "bounds_of", "guaranteed"]

# The probability with which rounding of random data exceeds a row's limit.
_EXCEEDED = 1e-9
# Relative error of a float32 factor that a library rounds or truncates to another type, by the type's name.
_OF_FACTOR = {"float32": 0.0, "tf32": 2.0**-10, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Arithmetic:
    """How a library computes a product.

    Attributes
    ----------
    dtype : str
        The type of the factors and of C.
    factors : {"float32", "tf32", "bfloat16"}
        The type to which float32 factors may be rounded.
    reduced : bool
        Whether partial sums may be rounded to the 16-bit dtype before they are added.
    """

    dtype: str
    factors: str = "float32"
    reduced: bool = False


@dataclass(frozen=True)
class LinearBounds:
    """The bounds of a product; symbols are those at the head of this module.

    Attributes
    ----------
    output, sum, absolute : float
        Coefficients of a row's limit.
    element : ErrorBounds
        The bounds of an element, which rounding never exceeds.
    """

    output: float
    sum: float
    absolute: float
    element: ErrorBounds


@lru_cache(maxsize=4096)
def bounds_of(k: int, w: int, arithmetic: Arithmetic) -> LinearBounds:
    """Return the bounds of a product with sums of k products, and w columns.

    Raises
    ------
    ValueError
        If the dtype is not supported.
    """
    dtype, c = arithmetic.dtype, confidence(_EXCEEDED)
    element = thresholds.proven(k + 1, w, dtype, flushes=True)  # the bias is one more product
    factor = _OF_FACTOR[arithmetic.factors] if dtype == "float32" else 0.0
    lost = UNIT[dtype] if arithmetic.reduced and element.rounding else 0.0
    # Both are relative to Σ|ab|. Factor 2: partial sums, rounded to 16 bits, may be added in two stages.
    element = replace(element, magnitude=element.magnitude + 2 * factor + factor**2 + 2 * lost)
    # Uniform errors up to h have the deviation h / √3, and are sub-Gaussian with it.
    output = c * element.rounding / sqrt(3)
    of_sums = 1.3 * summed_unit(dtype) * sqrt(UNKNOWN_ORDER.random_variance(k))
    # Checksums of 16-bit types are float32. If all summands are equal, Σ|v c| is √w s_i, and errors grow with it.
    of_checks = (8 + sqrt(max(k, w))) * UNIT["float32" if element.rounding else "float64"]
    return LinearBounds(
        output=output,
        sum=c * (of_sums + of_checks + sqrt(2) * factor + lost),
        absolute=element.row_absolute + w * element.rounding_absolute,
        element=element,
    )


def guaranteed(limit: float) -> float:
    """Return the error above which an element is certainly detected, if no other element of its row is wrong.

    `limit` is the limit of the row. The weight of a column is above ½, the limit also depends on the wrong element
    itself, by less than 3 %, and rounding may hide as much as the limit allows.
    """
    return 4.2 * limit
