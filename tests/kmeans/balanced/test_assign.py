"""Assignments to clusters of limited sizes: by hand, against enumeration and linear programs, and their bounds."""

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from kmeans.balanced.problems import (
    assert_within,
    costs_of,
    lowest_by_enumeration,
    lowest_by_linear_program,
    rounding,
)

from tsapps.apps.kmeans.balanced import contested
from tsapps.apps.kmeans.balanced.assign import assign
from tsapps.apps.kmeans.balanced.assignment import BalancedAssignment
from tsapps.apps.kmeans.balanced.costs import Costs
from tsapps.apps.kmeans.balanced.limits import Limits, limits_of
from tsapps.apps.kmeans.balanced.prices import falling_prices
from tsapps.apps.kmeans.balanced.settle import settle
from tsapps.apps.kmeans.data.host_data import HostData


def assigned(X, centers, limits, prices=None):
    return assign(costs_of(X, centers), limits, np.zeros(len(centers)) if prices is None else prices)


def total(X, centers, labels):
    return oracle.square_distances(X, centers)[np.arange(len(X)), labels].sum()


@pytest.fixture
def no_linear_program(monkeypatch):
    monkeypatch.setattr(contested, "MOST_PAIRS", 0)


def test_by_hand():
    """0, 1, 2 are near 0, and 9 is at 9. In pairs, 2 leaves: 49 instead of 4, where 1 would cost 63 more."""
    found = assigned([[0], [1], [2], [9]], [[0], [9]], Limits(1, 2))
    np.testing.assert_array_equal(found.labels, [0, 0, 1, 1])
    assert found.labels.dtype == np.int32
    assert found.cost == found.bound == pytest.approx(0 + 1 + 49 + 0, abs=1e-12)


def test_a_cluster_is_filled_by_hand():
    """Center 100 has no sample. The nearest to it by its distance from its own center is 11: 89² − 1 is the least."""
    found = assigned([[0], [1], [10], [11]], [[0], [10], [100]], Limits(1, 2))
    np.testing.assert_array_equal(found.labels, [0, 0, 1, 2])
    assert found.cost == found.bound == pytest.approx(0 + 1 + 0 + 89**2, abs=1e-9)


def test_a_chain_by_hand():
    """Cluster 0 has three of 0, 1, 2. Rather than one going to 20, 2 goes to 9 and 13 from there to 20."""
    X, centers = [[0], [1], [2], [9], [13], [20]], [[0], [9], [20]]
    found = assigned(X, centers, Limits(0, 2))
    np.testing.assert_array_equal(found.labels, [0, 0, 1, 1, 2, 2])
    assert found.cost == pytest.approx(0 + 1 + 49 + 0 + 49 + 0, abs=1e-9)


@pytest.mark.parametrize("limits", [Limits(0, 6), Limits(1, 6), Limits(2, 5)])
def test_limits_that_do_not_bind_change_nothing(limits):
    X, centers = [[0], [1], [2], [3], [9], [10]], [[1], [10]]
    found = assigned(X, centers, limits)
    np.testing.assert_array_equal(found.labels, [0, 0, 0, 0, 1, 1])
    assert found.cost == found.bound == pytest.approx(7, abs=1e-12)


def test_one_cluster_and_one_sample():
    assert assigned([[3.0]], [[1.0]], Limits(1, 1)).cost == pytest.approx(4)
    assert assigned([[3.0], [2.0]], [[1.0]], Limits(1, 5)).labels.tolist() == [0, 0]


def test_equal_samples_go_by_index():
    """All costs are equal: nothing is to be gained, and sizes alone say what happens."""
    found = assigned(np.ones((7, 2)), np.zeros((3, 2)), Limits(2, 3))
    assert_within(Limits(2, 3), found.labels, 3)
    assert found.cost == found.bound
    again = assigned(np.ones((7, 2)), np.zeros((3, 2)), Limits(2, 3))
    np.testing.assert_array_equal(found.labels, again.labels)


def of_small_problems(most_samples, whole):
    """Return a strategy of samples, centers, and limits; of whole numbers, which have ties, or others."""

    @st.composite
    def draw(draw):
        k = draw(st.integers(1, 3))
        n = draw(st.integers(k, most_samples))
        random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        d = draw(st.integers(1, 3))
        sample = (lambda size: random.integers(0, 4, size).astype(float)) if whole else random.standard_normal
        X = sample((n, d)) * draw(st.sampled_from([1.0, 1e-30, 1e30]))
        centers = X[random.integers(0, n, k)] + (0 if whole else 0.1 * abs(X).max()) * random.standard_normal((k, d))
        limits = limits_of(n, k, draw(st.integers(0, n // k)), draw(st.integers(-(-n // k), n)))
        return X, centers, limits

    return draw()


@property_test(60, 2000, of_small_problems(7, whole=True) | of_small_problems(7, whole=False))
def test_optimal_by_enumeration(problem):
    X, centers, limits = problem
    found = assigned(X, centers, limits)
    assert_within(limits, found.labels, len(centers))
    lowest, error = lowest_by_enumeration(X, centers, limits), rounding(X, centers)
    assert total(X, centers, found.labels) <= lowest + error
    assert abs(found.bound - lowest) <= error


@property_test(30, 1000, of_small_problems(40, whole=True) | of_small_problems(40, whole=False))
def test_without_the_linear_program_costs_are_within_the_gap(problem):
    X, centers, limits = problem
    costs = costs_of(X, centers)
    zeros = np.zeros(len(centers))
    lowest, error = lowest_by_linear_program(X, centers, limits), rounding(X, centers)
    for prices, near in falling_prices(costs, limits, zeros, costs.nearest(zeros)):
        labels = settle(costs, limits, prices, near)
        assert_within(limits, labels, len(centers))
        assert near.total - limits.paid(prices) - error <= lowest <= costs.total(labels) + error


@property_test(100, 3000, of_small_problems(12, whole=True), st.lists(st.floats(-9, 9), min_size=3, max_size=3))
def test_any_prices_give_a_bound_and_settle_to_exact_sizes(problem, prices):
    X, centers, limits = problem
    costs, prices = costs_of(X, centers), np.array(prices[: len(centers)]) * abs(X).max()
    near = costs.nearest(prices)
    labels = settle(costs, limits, prices, near)
    assert_within(limits, labels, len(centers))
    assert near.total - limits.paid(prices) <= costs.total(labels) + rounding(X, centers) + 1e-14 * abs(prices).sum()


DISTRIBUTIONS = {
    "normal": lambda random, n: random.standard_normal((n, 4)),
    "uniform": lambda random, n: random.random((n, 2)),
    "heavy tails": lambda random, n: random.standard_cauchy((n, 2)),
    "whole numbers": lambda random, n: random.integers(0, 6, (n, 2)).astype(float),
    "equal samples": lambda random, n: np.repeat(random.standard_normal((5, 3)), n // 5, axis=0),
    "half of them equal": lambda random, n: np.repeat(random.standard_normal((n, 3)), [n // 2] + [1] * (n - 1), axis=0)[
        :n
    ],
    "far from zero": lambda random, n: random.random((n, 2)) + 1e4,
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize(("n", "k", "least", "first"), [(300, 4, 0, 512), (200, 12, 10, 512), (300, 15, 0, 2)])
def test_optimal_by_a_linear_program(name, n, k, least, first, rng, monkeypatch):
    """Also if the first program has two samples, which proves nothing."""
    monkeypatch.setattr(contested, "_FIRST", first)
    X = DISTRIBUTIONS[name](rng, n)
    centers, limits = X[rng.integers(0, n, k)], limits_of(n, k, least, None)
    found = assigned(X, centers, limits)
    assert_within(limits, found.labels, k)
    lowest = lowest_by_linear_program(X, centers, limits)
    # HiGHS, which is the reference, has a tolerance of 1e-7 of the largest cost.
    assert total(X, centers, found.labels) == pytest.approx(lowest, rel=1e-6)
    assert found.bound == found.cost


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_gap_is_proved_for_many_samples(name, rng):
    """A fifth of a million pairs: only the contested samples come to HiGHS."""
    n, k = 20000, 10
    X = DISTRIBUTIONS[name](rng, n)
    limits = limits_of(n, k, 0, None)
    found = assigned(X, X[rng.integers(0, n, k)], limits)
    assert_within(limits, found.labels, k)
    assert found.bound == found.cost


def test_prices_that_are_above_zero_though_no_cluster_is_full():
    """The bound is below the cost by the price of the place that is free; nothing else is contested."""
    costs, limits = costs_of([[0], [1], [10]], [[0], [10]]), Limits(0, 3)
    near = costs.nearest(np.array([0.1, 0.0]))
    found = contested.improve(costs, limits, near, BalancedAssignment(near.labels, 1.0, 0.9, np.array([0.1, 0.0])))
    assert found.bound == found.cost == 1.0


def test_prices_where_most_samples_are_between_two_equal_centers(rng):
    """Their gaps are 0 or a rounding error, which says nothing of the others."""
    X = np.concatenate([np.zeros((6000, 2)) + 0.1, rng.standard_normal((4000, 2)) + 3])
    centers = np.concatenate([np.full((2, 2), 0.1 / 3), X[-6:]])
    found = assigned(X, centers, limits_of(10000, 8, 0, 2000))
    assert found.bound == found.cost


def test_a_gap_that_stays_open_is_told(no_linear_program, rng):
    X = rng.random((500, 2))
    limits, centers = limits_of(500, 7, 0, None), X[:7]
    found = assigned(X, centers, limits)
    assert_within(limits, found.labels, 7)
    lowest = lowest_by_linear_program(X, centers, limits)
    assert found.bound < found.cost
    assert found.bound <= lowest * (1 + 1e-6)
    assert lowest <= found.cost * (1 + 1e-6)
    assert found.cost - found.bound < 0.1 * found.cost


def test_good_prices_give_the_same_labels(rng):
    X = rng.standard_normal((2000, 3))
    limits, centers = limits_of(2000, 6, 0, None), X[:6]
    found = assigned(X, centers, limits)
    again = assigned(X, centers + 1e-9, limits, found.prices)
    np.testing.assert_array_equal(found.labels, again.labels)
    other = assigned(X, centers, limits, rng.standard_normal(6))
    np.testing.assert_array_equal(found.labels, other.labels)


def test_costs_that_do_not_fit_are_computed_again(monkeypatch, rng):
    X = rng.standard_normal((3000, 5))
    limits, centers = limits_of(3000, 8, 0, None), X[:8]
    kept = assigned(X, centers, limits)
    monkeypatch.setattr(HostData, "fits", lambda data, size: size < 3000 * 8 * 8)
    assert costs_of(X, centers)._kept is None
    again = assigned(X, centers, limits)
    np.testing.assert_array_equal(kept.labels, again.labels)
    assert kept.cost == again.cost


def test_costs_are_square_distances(rng):
    X, centers = rng.standard_normal((700, 5)), rng.standard_normal((600, 5))
    costs: Costs = costs_of(X, centers)
    blocks = list(costs.each(lambda start, block: (start, block)))
    assert len(blocks) > 1
    assert [start for start, _ in blocks] == list(np.cumsum([0, *(block.shape[1] for _, block in blocks[:-1])]))
    found = np.concatenate([block for _, block in blocks], axis=1)
    np.testing.assert_allclose(found.T, oracle.square_distances(X, centers), rtol=0, atol=rounding(X, centers) / 700)
    near = costs.nearest(np.zeros(600))
    ordered = np.sort(found, axis=0)
    np.testing.assert_array_equal(near.labels, found.argmin(axis=0))
    np.testing.assert_allclose(near.gaps, ordered[1] - ordered[0], rtol=1e-12)
    assert near.typical_gap == pytest.approx(np.median(near.gaps))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((10, 3, 0, 3), "max_cluster_size=3 leaves room for 9 samples, but n_samples=10, n_clusters=3; .* at least 4"),
        ((10, 3, 4, None), "min_cluster_size=4 needs 12 samples, but n_samples=10, n_clusters=3; expected at most 3"),
        ((2, 3, 0, None), "n_samples=2, n_clusters=3; expected at least as many samples as clusters"),
    ],
)
def test_limits_that_cannot_be_kept(given, message):
    with pytest.raises(ValueError, match=message):
        limits_of(*given)


def test_limits():
    assert limits_of(10, 3, 1, None) == Limits(1, 4)
    assert limits_of(9, 3, 3, None) == limits_of(9, 3, 3, 3) == Limits(3, 3)
    assert Limits(1, 4).hold(np.array([1, 4]))
    assert not Limits(1, 4).hold(np.array([0, 4]))
    assert not Limits(1, 4).hold(np.array([1, 5]))
    assert Limits(1, 4).paid(np.array([2.0, -3.0, 0.0])) == 4 * 2 - 1 * 3
