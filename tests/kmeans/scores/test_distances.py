"""Distances of a sample from all rows by kernels on the CPU, pair by pair: each row is a cluster of its own."""

import numpy as np
import oracle
import pytest
from host_cuda.machine import HostMachine, placed

from tsapps.apps.kmeans.scores import launch
from tsapps.apps.kmeans.scores import plan as scores_plan
from tsapps.apps.kmeans.scores.indices import Labeled

# Of two bfloat16 numbers, of a square root, and of rows about an origin (split_rows.cuh).
ROUNDING = 2.0**-17 + 2.0**-23 + scores_plan.DISTANCE_ERROR / 16


@pytest.fixture
def products(monkeypatch):
    """Distances from products for few features, too, of which direct differences take fewer instructions."""
    monkeypatch.setattr(scores_plan, "_DIRECT", 0)
    monkeypatch.setattr(launch, "sums_plan", scores_plan.sums_plan.__wrapped__)


def distances(X, sample, origin=0.0):
    """Return the plan and ‖x − s‖ for rows s of a sample and all rows x."""
    n, d = X.shape
    found = [Labeled(np.full((n, d), origin), np.arange(n, dtype=np.int32))]
    launches = launch._Launches(HostMachine(), placed(X), np.asarray(sample), found)
    plan = launches._plans.distances
    partial = launches._sums_by_cluster(plan, launches._sample, len(sample))
    groups, of_columns, ranges = plan.grid
    # Fragments of partial_sums.cuh: warp, tile of columns, half of the points, lower bit of the column, lane / 4, % 4.
    fragments = partial.reshape(ranges, of_columns, groups, 8, plan.tiles, 2, 2, 8, 4).sum(axis=0)
    points = fragments.transpose(1, 2, 4, 6, 0, 3, 7, 5).reshape(128 * groups, -1)
    return plan, points[: len(sample), :n]


def exact(X, sample):
    wide = X.astype(np.float64)
    return np.sqrt(((wide[sample][:, np.newaxis] - wide) ** 2).sum(axis=2))


def blobs(n, d, rng, *, k, spread):
    """Return rows of clusters whose centers are 10 in every feature, or −10."""
    return (10 * rng.choice([-1, 1], (k, d))[np.arange(n) % k] + spread * rng.standard_normal((n, d))).astype("f4")


def outliers(n, d, rng):
    """Return rows with single elements up to 10¹⁵, which are beyond float16, and others that are below it."""
    X = rng.standard_normal((n, d))
    X[np.arange(0, n, 5), rng.integers(0, d, len(X[::5]))] *= 10.0 ** rng.integers(1, 15, len(X[::5]))
    return (X * 10.0 ** rng.integers(-8, 3, (n, 1))).astype("f4")


KINDS = {
    "normal": lambda n, d, rng: rng.standard_normal((n, d)).astype("f4"),
    "blobs": lambda n, d, rng: blobs(n, d, rng, k=5, spread=1),
    "tight": lambda n, d, rng: blobs(n, d, rng, k=3, spread=1e-4),
    "many tight": lambda n, d, rng: blobs(n, d, rng, k=40, spread=1e-4),
    "far": lambda n, d, rng: (1000 + rng.standard_normal((n, d))).astype("f4"),
    "outliers": outliers,
    "tiny": lambda n, d, rng: (1e-17 * rng.standard_normal((n, d))).astype("f4"),
    "one feature": lambda n, d, rng: (np.eye(1, d) * rng.standard_normal((n, 1)) + np.eye(1, d, d - 1)).astype("f4"),
    "float16": lambda n, d, rng: rng.standard_normal((n, d)).astype("f2"),
    "equal": lambda n, d, rng: np.repeat(rng.standard_normal((5, d)), n // 5 + 1, axis=0)[:n].astype("f4"),
}


@pytest.mark.each_choice
@pytest.mark.parametrize("d", [1, 3, 13, 32, 33, 64, 65, 130])
@pytest.mark.parametrize("kind", KINDS)
def test_distances_are_as_accurate_as_promised(kind, d, products, rng):
    X = KINDS[kind](203, d, rng)
    sample = np.sort(rng.choice(203, 50, replace=False))
    plan, found = distances(X, sample)
    assert plan.steps == (0 if d > 64 else 4 if d > 32 else 2)
    expected = exact(X, sample)
    error = ROUNDING + max(scores_plan.DISTANCE_ERROR, float(oracle.gamma(d + 4, np.float32)))
    np.testing.assert_allclose(found, expected, rtol=error, atol=1.1e-19)  # below which squares vanish in float32
    assert (found[np.arange(50), sample] == 0).all()
    assert (found[expected == 0] == 0).all()


def test_by_hand(products):
    """Rows 0, 3, 4 and 3 + 2⁻²⁰ about an origin of 1: of the last from the second, products would have no digit."""
    X = np.array([[0, 0], [3, 4], [0, 4], [3 + 2**-20, 4]], np.float32)
    plan, found = distances(X, range(4), 1.0)
    assert plan.kernel == "distances_by_cluster"
    expected = [[0, 5, 4, 5], [5, 0, 3, 2**-20], [4, 3, 0, 3], [5, 2**-20, 3, 0]]
    np.testing.assert_allclose(found, expected, rtol=2.0**-15, atol=0)
    assert (found.diagonal() == 0).all()


@pytest.mark.parametrize("kind", ["normal", "far"])
def test_what_is_computed_directly(kind, products, rng, monkeypatch):
    """Far from the origin every pair is; among normal rows, none but a row and itself."""
    X, sample = KINDS[kind](160, 48, rng), np.arange(0, 144, 3)
    _, found = distances(X, sample)
    monkeypatch.setattr(launch, "DISTANCE_ERROR", 1e-30)
    _, direct = distances(X, sample)
    np.testing.assert_allclose(direct, exact(X, sample), rtol=ROUNDING + float(oracle.gamma(52, np.float32)))
    monkeypatch.setattr(launch, "DISTANCE_ERROR", 1e30)
    with np.errstate(all="ignore"):
        _, never_direct = distances(X, sample)
    others, apart = direct > 0, (never_direct != direct)
    error = abs(never_direct - direct)[others] / direct[others]
    if kind == "far":
        np.testing.assert_array_equal(found, direct)
        assert not error.max() < 2.0**-12
    else:
        assert (found == never_direct)[others & apart].all()
        assert apart[others].mean() > 0.005
        assert error.max() < scores_plan.DISTANCE_ERROR


@pytest.mark.parametrize("kind", ["many tight", "tight"])
def test_pairs_one_by_one_and_all_together(kind, products, rng, monkeypatch):
    """Of 40 tight clusters, few pairs of a warp are computed directly; of three, many are."""
    X, sample = KINDS[kind](200, 24, rng), np.arange(0, 200, 3)
    _, found = distances(X, sample)
    near = exact(X, sample) < 1
    with monkeypatch.context() as patch:
        patch.setattr(launch, "DISTANCE_ERROR", 1e-30)
        _, direct = distances(X, sample)
    np.testing.assert_allclose(found[near], direct[near], rtol=2.0**-16 + 2.0**-20, atol=0)
    assert (found != direct)[~near].any()
