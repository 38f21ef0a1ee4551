"""Fixed-point cluster sums in NumPy, against fractions and integers of Python."""

from fractions import Fraction

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps.apps.kmeans.update import host_sums
from tsapps.apps.kmeans.update.fixed_point import NARROW, WIDE, Integers, integers
from tsapps.apps.kmeans.update.host_sums import sums_of_reassigned


def whole(rows, weights, scales):
    """Return round(w · x · scale) of every element and weight, halves to even; w · x is rounded to the type of x."""
    one = np.ones(len(rows), rows.dtype) if weights is None else weights
    values = np.column_stack([rows * one[:, np.newaxis], one])
    fractions = [[Fraction(float(value)) * Fraction(float(scale)) for value, scale in zip(row, scales, strict=True)]
                 for row in values]  # fmt: skip
    return np.array([[round(fraction) for fraction in row] for row in fractions], object)


def expected(rows, weights, reassigned, old, new, integers, k):
    """Return what `sums_of_reassigned` does, in Python's integers."""
    numbers, sums = whole(rows, weights, integers.scales), np.zeros((k, rows.shape[1] + 1), object)
    for at, row in enumerate(reassigned):
        sums[new[at]] += numbers[row]
        if old is not None:
            sums[old[at]] -= numbers[row]
    return sums


def format_of(rows, weights, digits):
    """Return the format that a fit has for these rows."""
    middle = 1.0 if digits == NARROW else 0.0
    most = None if weights is None else float(weights.max())
    found = integers(len(rows), rows.dtype, abs(rows).max(axis=0).astype(np.float64), middle, most)
    assert found.digits == digits
    return found


def drawn(n, d, dtype, rng, weighted=False):
    rows = (10.0 ** rng.integers(-2, 3, d) * rng.uniform(-1, 1, (n, d))).astype(dtype)
    weights = (rng.random(n) * (np.arange(n) % 4 > 0)).astype(dtype) if weighted else None
    return rows, weights


@pytest.mark.parametrize("digits", [NARROW, WIDE])
def test_by_hand(digits):
    rows = np.array([[0.5, 1.5], [2.5, -1], [-0.5, 7], [1, 1]], np.float32)
    of = Integers(digits, np.array([1.0, 2, 4]))
    # Halves go to even numbers: (0, 3), (2, −2), (0, 14), (1, 2). A row without a weight counts as 4.
    sums = sums_of_reassigned(rows, None, np.array([0, 1, 2]), None, np.array([1, 0, 1]), of, 3)
    assert sums.dtype == np.int64
    assert sums.tolist() == [[2, -2, 4], [0, 17, 8], [0, 0, 0]]
    # Row 2 goes from 1 to 2, and row 1 from 0 to 1.
    sums = sums_of_reassigned(rows, None, np.array([1, 2]), np.array([0, 1]), np.array([1, 2]), of, 3)
    assert sums.tolist() == [[-2, 2, -4], [2, -16, 0], [0, 14, 4]]
    assert not sums_of_reassigned(rows, None, np.array([], int), None, np.array([], int), of, 3).any()


def test_weights_by_hand():
    # The product with a weight is rounded to float32 before it is scaled: 1 + 2⁻²³, times ½ + 2⁻²⁴, loses 2⁻⁴⁷.
    rows, weights = np.array([[1 + 2.0**-23], [3]], np.float32), np.array([0.5 + 2.0**-24, 0.25], np.float32)
    of = Integers(WIDE, np.array([2.0**46, 4]))
    sums = sums_of_reassigned(rows, weights, np.array([0, 1]), None, np.array([0, 0]), of, 1)
    assert sums.tolist() == [[2**45 + 2**23 + 3 * 2**44, 2 + 1]]
    rows = rows.astype(np.float64)
    sums = sums_of_reassigned(rows, weights.astype(np.float64), np.array([0]), None, np.array([0]), of, 1)
    assert sums.tolist() == [[2**45 + 2**23, 2]]  # of a half more, which goes to the even number
    rows[0] += 2.0**-22
    sums = sums_of_reassigned(rows, weights.astype(np.float64), np.array([0]), None, np.array([0]), of, 1)
    assert sums.tolist() == [[2**45 + 2**24 + 2, 2]]  # of one and a half more


# Numbers of the most bits that an element uses, all odd: float64 sums of 46 bits are exact for 128 rows only.
# The third number has as large a part of any number of low bits.
@pytest.mark.parametrize(("digits", "most"), [(NARROW, 2**30 - 1), (WIDE, 2**46 - 1), (WIDE, 0x2A5555555555)])
@pytest.mark.parametrize("n", [500, 5000])
def test_sums_of_the_largest_numbers_are_exact(n, digits, most, rng):
    signs = np.where(np.arange(n) % 7 == 0, -1.0, 1.0)
    rows = (most * signs)[:, np.newaxis] - 2 * rng.integers(0, 1000, (n, 3))
    of, labels = Integers(digits, np.ones(4)), (np.arange(n) % 5 == 0).astype(np.int32)
    sums = sums_of_reassigned(rows, None, np.arange(n), None, labels, of, 2)
    for cluster in range(2):
        column = [sum(int(value) for value in rows[labels == cluster, feature]) for feature in range(3)]
        assert sums[cluster].tolist() == [*column, int((labels == cluster).sum())]
    assert digits == NARROW or abs(sums).max() > 2**53
    # All leave cluster 1 − l for l: the differences are twice as large.
    moved = sums_of_reassigned(rows, None, np.arange(n), 1 - labels, labels, of, 2)
    np.testing.assert_array_equal(moved, sums - sums[::-1])


@pytest.mark.each_choice
@pytest.mark.parametrize(
    ("dtype", "digits", "weighted"),
    [
        (np.float32, NARROW, False),
        (np.float32, WIDE, False),
        (np.float32, WIDE, True),
        (np.float64, WIDE, False),
        (np.float64, WIDE, True),
    ],
)
@pytest.mark.parametrize("elements", [1, 100, 1 << 18])
@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 1), (60, 1, 3), (50, 3, 2), (40, 17, 30)])
def test_sums_are_those_of_integers(n, d, k, elements, dtype, digits, weighted, rng, monkeypatch):
    monkeypatch.setattr(host_sums, "_ELEMENTS", elements)  # rows of a piece
    rows, weights = drawn(n, d, dtype, rng, weighted)
    of, given = format_of(rows, weights, digits), (rows.copy(), None if weights is None else weights.copy())
    reassigned = np.sort(rng.choice(n, -(-n // 2), replace=False))
    old, new = (rng.integers(0, k, len(reassigned)).astype(np.int32) for _ in range(2))
    for before in (None, old):
        sums = sums_of_reassigned(rows, weights, reassigned, before, new, of, k)
        np.testing.assert_array_equal(sums, expected(rows, weights, reassigned, before, new, of, k))
    np.testing.assert_array_equal(rows, given[0])
    np.testing.assert_array_equal(weights, given[1])


@property_test(
    40,
    600,
    n=st.integers(1, 60),
    d=st.integers(1, 9),
    k=st.integers(1, 9),
    kind=st.sampled_from([(np.float32, NARROW, False), (np.float32, WIDE, True), (np.float64, WIDE, True)]),
    elements=st.sampled_from([1, 30, 1 << 18]),
    seed=st.integers(0, 2**16),
)
def test_running_sums_are_those_of_the_labels(n, d, k, kind, elements, seed):
    """After a first assignment and some more, in pieces of rows; the last makes every label what it was."""
    rng, (dtype, digits, weighted) = np.random.default_rng(seed), kind
    rows, weights = drawn(n, d, dtype, rng, weighted)
    if weighted and not weights.any():
        weights[0] = 1
    of, every = format_of(rows, weights, digits), np.arange(n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sums, "_ELEMENTS", elements)
        first = labels = rng.integers(0, k, n).astype(np.int32)
        running = sums_of_reassigned(rows, weights, every, None, labels, of, k)
        begin = running.copy()
        np.testing.assert_array_equal(running, expected(rows, weights, every, None, labels, of, k))
        for share in (0.1, 0.9, 0.0, None):
            following = np.where(rng.random(n) < share, rng.integers(0, k, n), labels) if share is not None else first
            reassigned = np.flatnonzero(following != labels)
            new = following[reassigned].astype(np.int32)
            running += sums_of_reassigned(rows, weights, reassigned, labels[reassigned], new, of, k)
            labels = following.astype(np.int32)
            np.testing.assert_array_equal(running, sums_of_reassigned(rows, weights, every, None, labels, of, k))
    np.testing.assert_array_equal(running, begin)


def test_old_labels_of_no_cluster_are_not_subtracted():
    # −1 stands for no label; others of no cluster are memory errors.
    rows, new = np.array([[1.0], [2], [4], [8]], np.float32), np.array([0, 1, 0, 1], np.int32)
    old = np.array([-1, 2, 1 << 20, 0], np.int32)
    found = sums_of_reassigned(rows, None, np.arange(4), old, new, Integers(NARROW, np.ones(2)), 2)
    assert found.tolist() == [[1 + 4 - 8, 1], [2 + 8, 2]]
