"""Error bounds of products against rational arithmetic, for sums in the worst order."""

from fractions import Fraction
from itertools import pairwise
from math import inf, log, nan, sqrt

import numpy as np
import pytest

from tsapps.apps.abft.product import thresholds
from tsapps.apps.abft.product.thresholds import DTYPES, absolute, confidence, element_error, gamma, proven, statistical


def test_gamma_by_hand():
    assert gamma(1, 2.0**-2) == 1 / 3
    assert gamma(3, 2.0**-2) == 3
    assert gamma(4, 2.0**-2) == gamma(5, 2.0**-2) == inf


def test_unit_roundoff_is_half_of_eps():
    import ml_dtypes

    for name, u in thresholds.UNIT.items():
        assert float(ml_dtypes.finfo(name).eps) == 2 * u


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_worst_sum_is_within_the_bound(dtype):
    kind, k = np.dtype(dtype).type, 3000
    # Each term is just more than half of the last place of the partial sum, so every addition rounds up.
    values = np.array([kind(1)] + [kind(np.finfo(kind).eps * 0.5000001)] * k)
    total = kind(0)
    for value in values:
        total = kind(total + value)
    exact = sum(map(Fraction, values.tolist()))
    off = abs(Fraction(float(total)) - exact)
    magnitude = sum(abs(Fraction(value)) for value in values.tolist())
    assert off > magnitude * Fraction(k) * Fraction(float(np.finfo(kind).eps)) / 5  # a bad sum
    assert off <= Fraction(element_error(k, dtype)) * magnitude


@pytest.mark.parametrize("dtype", DTYPES)
def test_bounds_grow_with_the_product(dtype):
    errors = [proven(k, 16, dtype) for k in (1, 10, 100, 1000, 10_000)]
    assert all(a.magnitude < b.magnitude and a.row < b.row for a, b in pairwise(errors))
    # The bound of a row covers at least the rounding of an element and of the checksum.
    assert all(one.row > 2 * one.magnitude * 0.99 for one in errors if one.magnitude > 1e-15)
    assert proven(1000, 64, dtype).row >= proven(1000, 2, dtype).row


def test_rounding_to_16_bits():
    for dtype in DTYPES:
        is_half = dtype in ("float16", "bfloat16")
        assert proven(10, 2, dtype).rounding == (thresholds.UNIT[dtype] if is_half else 0)
    # float16 rounds to infinity from 65520 on.
    assert proven(10, 2, "float16").largest == 65520


def test_confidence():
    assert confidence(2 / np.e**2) == pytest.approx(2)
    assert confidence(1e-9) == sqrt(2 * log(2e9))
    # The bound holds for the normal distribution.
    from scipy.stats import norm

    for p in (0.3, 1e-3, 1e-9, 1e-12):
        assert 2 * norm.sf(confidence(p)) <= p


@pytest.mark.parametrize("p", [0, 1, -0.1, 1.5, nan, 9e-13])
def test_invalid_probabilities(p):
    with pytest.raises(ValueError, match="expected a false positive rate from 1e-12 to 1"):
        statistical(10, 2, "float32", 1e-7, p)


@pytest.mark.parametrize("error", [0, -1e-7, 1, nan, inf])
def test_invalid_errors(error):
    with pytest.raises(ValueError, match="expected one between 0 and 1"):
        statistical(10, 2, "float32", error, 1e-6)


@pytest.mark.parametrize("threshold", [-1e-9, nan, inf])
def test_invalid_thresholds(threshold):
    with pytest.raises(ValueError, match="expected a number, at least 0"):
        absolute(10, 2, "float32", threshold)


def test_invalid_dtypes_and_sizes():
    with pytest.raises(ValueError, match="dtype is int32; expected one of float64"):
        proven(10, 2, "int32")
    with pytest.raises(ValueError, match="k = -1 and w = 2"):
        absolute(-1, 2, "float32", 1.0)
