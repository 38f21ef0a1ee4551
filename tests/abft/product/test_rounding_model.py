"""How far roundings walk: by hand, and against sums in whole numbers."""

from fractions import Fraction
from itertools import accumulate

import ml_dtypes
import numpy as np
import pytest

from tsapps.apps.abft.product.rounding_model import Walk, walks

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def operands(m, k, w, dtype, seed=0, powers=(0, 1)):
    """Normal numbers times powers of two."""
    rng = np.random.default_rng(seed)
    A, B = (rng.standard_normal(shape) * 2.0 ** rng.integers(*powers, shape) for shape in ((m, k), (k, w)))
    return A.astype(DTYPES[dtype]), B.astype(DTYPES[dtype])


def power(x):
    """The greatest power of two that is no larger than |x|."""
    return 2.0 ** (np.frexp(float(x))[1] - 1) if x else 0.0


class Sums:
    """What additions lose, and what sums are multiples of after them; of halves, whose products are exact."""

    def __init__(self, *, exact):
        self.exact, self.square = exact, 0.0

    def add(self, largest, grain, share=1):
        last = power(largest) / 2**23
        if not self.exact or grain < last:
            self.square += power(largest) ** 2 / share
        return max(grain, last)


def walk_of(row, column, kind):
    """Return the walk of one element, by whole numbers."""
    return max(walk_by(row, column, kind, q) for q in kind.accumulators)


def walk_by(row, column, kind, q):
    products = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(row, column, strict=True)]
    # In lowest terms a denominator is a power of two.
    places = [Fraction(one.numerator & -one.numerator, one.denominator) if one else None for one in products]
    finest = min((place for place in places if place), default=None)
    if row.itemsize == 2 and (finest is None or sum(map(abs, products)) < 2**24 * finest):
        return 0.0
    sums, k = Sums(exact=row.itemsize == 2), len(products)
    runs = (32, 512, k) if kind.run is None else (kind.run,)
    ends = {}
    for mine in range(q):
        turn = range(mine, k, q)
        until = [Fraction(0), *accumulate(products[i] for i in turn)]
        for run in runs:
            begin, grain, lowest, highest = 0, float("inf"), until[0], until[0]
            for n, i in enumerate(turn):
                if n and i // run > turn[n - 1] // run:
                    begin, grain, lowest, highest = n, float("inf"), until[n], until[n]
                lowest, highest = min(lowest, until[n]), max(highest, until[n])
                if products[i]:
                    # Wherever since the run's beginning it is that a partial sum begins.
                    largest = max(until[n + 1] - lowest, highest - until[n + 1])
                    grain = sums.add(largest, min(grain, places[i]), len(runs))
                if run == runs[-1]:
                    ends[i // run, mine] = until[n + 1] - until[begin], grain
    # At the end of the longest run accumulators are added up, and then what they have to the total.
    total, grain_of_total = Fraction(0), float("inf")
    for number in range(-(-k // runs[-1])):
        together, grain = Fraction(0), float("inf")
        for mine in range(q):
            one, other = ends.get((number, mine), (Fraction(0), float("inf")))
            together, grain = together + one, min(grain, other)
            grain = sums.add(together, grain) if mine else grain
        total, grain_of_total = total + together, min(grain_of_total, grain)
        grain_of_total = sums.add(total, grain_of_total) if number else grain_of_total
    return (sums.square + sum(kind.products * power(one) ** 2 for one in products)) ** 0.5


@pytest.mark.parametrize(
    "given",
    [
        {"products": -1.0},
        {"products": np.nan},
        {"accumulators": ()},
        {"accumulators": (1, 0)},
        {"run": 0},
        {"run": 2.5},
    ],
)
def test_walks_that_are_none(given):
    with pytest.raises(ValueError, match="expected products of at least 0, and whole accumulators"):
        Walk(**given)


def test_a_walk_by_hand():
    A = np.array([[3.0, 0.0, 1.0, -5.0], [0.0, 0.0, 0.0, 0.0]])
    B = np.array([[1.0], [7.0], [1.0], [1.0]])
    # Partial sums 3, 4 and −1, or −5 from behind what made 4; products 3, 1 and −5.
    np.testing.assert_allclose(walks(A, B), [[(4 + 16 + 16 + 2 * (4 + 1 + 16)) ** 0.5], [0]])
    np.testing.assert_allclose(walks(A, B, Walk(25.0)), [[(4 + 16 + 16 + 25 * (4 + 1 + 16)) ** 0.5], [0]])
    assert (walks(A.astype("f2"), B.astype("f2")) == 0).all()
    # 2²⁴ + 1 has a bit more than float32 holds; 2²⁴ − 1 has not.
    for last, off in ((2.0**-12, True), (2.0**-10, False)):
        A = np.array([[2.0**13, last]], np.float16)
        found = walks(A, np.array([[1.0], [1.0]], np.float16))
        assert (found > 0).all() == off


@pytest.mark.parametrize(
    ("kind", "square"),
    [
        (Walk(0.0, (1,), 9), 4 + 16 + 16 + 16),  # 3, 4, 5, 7
        (Walk(0.0, (1,), 2), 4 + 16 + 1 + 4 + 16),  # 3, 4; 1, 3; 4 + 3
        (Walk(0.0, (2,), 4), 4 + 1 + 16 + 4 + 16),  # 3, 4 and 1, 3; 4 + 3
        (Walk(0.0, (2,), 2), 4 + 1 + 16 + 1 + 4 + 4 + 16),  # 3 and 1, 3 + 1; 1 and 2, 1 + 2; 4 + 3
        (Walk(0.0, (1, 2), 2), 46),  # the larger of 41 and 46
        (Walk(0.0, (2, 1), 4), 52),
    ],
)
def test_runs_and_accumulators_by_hand(kind, square):
    assert walks(np.array([[3.0, 1.0, 1.0, 2.0]]), np.ones((4, 1)), kind) == pytest.approx(square**0.5)


@pytest.mark.each_choice
@pytest.mark.parametrize(
    "kind",
    [
        Walk(),
        Walk(25.0),
        Walk(2.0, (2,)),
        Walk(0.0, (1,), 2000),
        Walk(2.0, (1,), 100),
        Walk(0.0, (1, 2), 64),
        Walk(2.0, (4,), 50),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_walks_against_fractions(dtype, kind):
    for seed, (m, k, w) in enumerate([(3, 1, 2), (2, 40, 3), (2, 600, 2)]):
        A, B = operands(m, k, w, dtype, seed, (-8, 3))
        A[:, ::3] = 0
        expected = [[walk_of(row, column, kind) for column in B.T] for row in A]
        np.testing.assert_allclose(walks(A, B, kind), expected, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "k"), [("float16", 3), ("bfloat16", 20)])
def test_sums_that_do_not_walk_are_exact_in_any_order(dtype, k):
    rng = np.random.default_rng(4)
    A, B = operands(400, k, 8, dtype, 4)
    still = walks(A, B) == 0
    assert 0.1 < still.mean() < 0.9
    exactly = A.astype("f8") @ B.astype("f8")
    moved = np.zeros_like(still)
    for _ in range(10):
        total = np.zeros(still.shape, np.float32)
        for i in rng.permutation(k):
            total += A[:, i, np.newaxis].astype("f4") * B[i].astype("f4")
        assert (total[still] == exactly[still]).all()
        moved |= total != exactly
    assert moved[~still].mean() > 0.2


@pytest.mark.parametrize("k", [1, 2, 40])
@pytest.mark.parametrize("kind", [Walk(), Walk(0.0, (4,), 1), Walk(2.0, (4,), 256)])
@pytest.mark.parametrize("scale", [2.0**-530, 2.0**-482, 2.0**-260, 2.0**260, 2.0**500])
def test_walks_of_what_has_no_squares(scale, kind, k):
    A, B = operands(5, k, 3, "float64")
    found, held = walks(A * scale, B, kind), walks(A, B, kind) * scale
    # Without squares it is an upper bound.
    assert (found >= held).all()
    assert np.isfinite(found).all()
