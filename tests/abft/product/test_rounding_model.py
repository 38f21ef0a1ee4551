"""Deviations of the rounding-error model: by hand, and against exact rational arithmetic."""

from fractions import Fraction
from itertools import accumulate

import ml_dtypes
import numpy as np
import pytest

from tsapps.apps.abft.product.rounding_model import RoundingModel, rounding_deviations

DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def operands(m, k, w, dtype, seed=0, powers=(0, 1)):
    """Normally distributed numbers times powers of two."""
    rng = np.random.default_rng(seed)
    A, B = (rng.standard_normal(shape) * 2.0 ** rng.integers(*powers, shape) for shape in ((m, k), (k, w)))
    return A.astype(DTYPES[dtype]), B.astype(DTYPES[dtype])


def power(x):
    """The greatest power of two no larger than |x|."""
    return 2.0 ** (np.frexp(float(x))[1] - 1) if x else 0.0


class Sums:
    """Squares of additions that lose bits, and the place of which a sum is a multiple afterwards."""

    def __init__(self, *, exact):
        self.exact, self.square = exact, 0.0

    def add(self, largest, place, share=1):
        last = power(largest) / 2**23
        if not self.exact or place < last:
            self.square += power(largest) ** 2 / share
        return max(place, last)


def deviation_of(row, column, model):
    """Return the deviation of one element by rational arithmetic."""
    return max(deviation_by(row, column, model, q) for q in model.accumulators)


def deviation_by(row, column, model, q):
    products = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(row, column, strict=True)]
    # In lowest terms, each denominator is a power of two.
    places = [Fraction(one.numerator & -one.numerator, one.denominator) if one else None for one in products]
    finest = min((place for place in places if place), default=None)
    if row.itemsize == 2 and (finest is None or sum(map(abs, products)) < 2**24 * finest):
        return 0.0
    sums, k = Sums(exact=row.itemsize == 2), len(products)
    runs = (32, 512, k) if model.run is None else (model.run,)
    ends = {}
    for accumulator in range(q):
        turn = range(accumulator, k, q)
        until = [Fraction(0), *accumulate(products[i] for i in turn)]
        for run in runs:
            begin, place, lowest, highest = 0, float("inf"), until[0], until[0]
            for n, i in enumerate(turn):
                if n and i // run > turn[n - 1] // run:
                    begin, place, lowest, highest = n, float("inf"), until[n], until[n]
                lowest, highest = min(lowest, until[n]), max(highest, until[n])
                if products[i]:
                    # The largest partial sum over all starts within the run.
                    largest = max(until[n + 1] - lowest, highest - until[n + 1])
                    place = sums.add(largest, min(place, places[i]), len(runs))
                if run == runs[-1]:
                    ends[i // run, accumulator] = until[n + 1] - until[begin], place
    # The accumulators are added at the end of the longest run, and their sum to the total.
    total, total_place = Fraction(0), float("inf")
    for number in range(-(-k // runs[-1])):
        run_sum, place = Fraction(0), float("inf")
        for accumulator in range(q):
            one, other = ends.get((number, accumulator), (Fraction(0), float("inf")))
            run_sum, place = run_sum + one, min(place, other)
            place = sums.add(run_sum, place) if accumulator else place
        total, total_place = total + run_sum, min(total_place, place)
        total_place = sums.add(total, total_place) if number else total_place
    return (sums.square + sum(model.products * power(one) ** 2 for one in products)) ** 0.5


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
def test_invalid_models(given):
    with pytest.raises(ValueError, match="expected products of at least 0, and integer accumulators"):
        RoundingModel(**given)


def test_a_deviation_by_hand():
    A = np.array([[3.0, 0.0, 1.0, -5.0], [0.0, 0.0, 0.0, 0.0]])
    B = np.array([[1.0], [7.0], [1.0], [1.0]])
    # Partial sums 3, 4 and −1, or −5 if the sum starts after 4; products 3, 1 and −5.
    np.testing.assert_allclose(rounding_deviations(A, B), [[(4 + 16 + 16 + 2 * (4 + 1 + 16)) ** 0.5], [0]])
    np.testing.assert_allclose(
        rounding_deviations(A, B, RoundingModel(25.0)), [[(4 + 16 + 16 + 25 * (4 + 1 + 16)) ** 0.5], [0]]
    )
    assert (rounding_deviations(A.astype("f2"), B.astype("f2")) == 0).all()
    # 2²⁴ + 1 does not fit in float32; 2²⁴ − 1 does.
    for last, off in ((2.0**-12, True), (2.0**-10, False)):
        A = np.array([[2.0**13, last]], np.float16)
        found = rounding_deviations(A, np.array([[1.0], [1.0]], np.float16))
        assert (found > 0).all() == off


@pytest.mark.parametrize(
    ("model", "square"),
    [
        (RoundingModel(0.0, (1,), 9), 4 + 16 + 16 + 16),  # 3, 4, 5, 7
        (RoundingModel(0.0, (1,), 2), 4 + 16 + 1 + 4 + 16),  # 3, 4; 1, 3; 4 + 3
        (RoundingModel(0.0, (2,), 4), 4 + 1 + 16 + 4 + 16),  # 3, 4 and 1, 3; 4 + 3
        (RoundingModel(0.0, (2,), 2), 4 + 1 + 16 + 1 + 4 + 4 + 16),  # 3 and 1, 3 + 1; 1 and 2, 1 + 2; 4 + 3
        (RoundingModel(0.0, (1, 2), 2), 46),  # the larger of 41 and 46
        (RoundingModel(0.0, (2, 1), 4), 52),
    ],
)
def test_runs_and_accumulators_by_hand(model, square):
    assert rounding_deviations(np.array([[3.0, 1.0, 1.0, 2.0]]), np.ones((4, 1)), model) == pytest.approx(square**0.5)


@pytest.mark.each_choice
@pytest.mark.parametrize(
    "model",
    [
        RoundingModel(),
        RoundingModel(25.0),
        RoundingModel(2.0, (2,)),
        RoundingModel(0.0, (1,), 2000),
        RoundingModel(2.0, (1,), 100),
        RoundingModel(0.0, (1, 2), 64),
        RoundingModel(2.0, (4,), 50),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_deviations_against_fractions(dtype, model):
    for seed, (m, k, w) in enumerate([(3, 1, 2), (2, 40, 3), (2, 600, 2)]):
        A, B = operands(m, k, w, dtype, seed, (-8, 3))
        A[:, ::3] = 0
        expected = [[deviation_of(row, column, model) for column in B.T] for row in A]
        np.testing.assert_allclose(rounding_deviations(A, B, model), expected, rtol=1e-12)


@pytest.mark.parametrize(("dtype", "k"), [("float16", 3), ("bfloat16", 20)])
def test_sums_without_deviation_are_exact_in_any_order(dtype, k):
    rng = np.random.default_rng(4)
    A, B = operands(400, k, 8, dtype, 4)
    certain = rounding_deviations(A, B) == 0
    assert 0.1 < certain.mean() < 0.9
    exact = A.astype("f8") @ B.astype("f8")
    inexact = np.zeros_like(certain)
    for _ in range(10):
        total = np.zeros(certain.shape, np.float32)
        for i in rng.permutation(k):
            total += A[:, i, np.newaxis].astype("f4") * B[i].astype("f4")
        assert (total[certain] == exact[certain]).all()
        inexact |= total != exact
    assert inexact[~certain].mean() > 0.2


@pytest.mark.parametrize("k", [1, 2, 40])
@pytest.mark.parametrize("model", [RoundingModel(), RoundingModel(0.0, (4,), 1), RoundingModel(2.0, (4,), 256)])
@pytest.mark.parametrize("scale", [2.0**-530, 2.0**-482, 2.0**-260, 2.0**260, 2.0**500])
def test_deviations_whose_squares_overflow_or_underflow(scale, model, k):
    A, B = operands(5, k, 3, "float64")
    found, expected = rounding_deviations(A * scale, B, model), rounding_deviations(A, B, model) * scale
    # There the deviation is an upper bound.
    assert (found >= expected).all()
    assert np.isfinite(found).all()
