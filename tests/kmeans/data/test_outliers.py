"""The frame of data whose mean and variance are those of a few outliers."""

import numpy as np
import pytest
from kmeans.host_steps import KINDS, data_on_host

from tsapps.apps.kmeans.data.outliers import sampled_rows, typical_rows


def sampled(X):
    return X[np.array(sampled_rows(len(X)))]


def moments_of(X):
    X = X.astype(np.float64)
    return X.var(axis=0).mean(), abs(X - X[0]).max(axis=0)


def with_outliers(rng, n=4000, d=6, count=3, factor=1e8, middle=5.0):
    X = rng.standard_normal((n, d)) + middle
    rows = 1 + rng.choice(n - 1, count, replace=False)
    X[rows] *= factor
    return X.astype(np.float32), rows


def test_by_hand():
    X = np.repeat([[3.0, 1], [5, 1]], 64, axis=0).astype(np.float32)
    X[5] = 1e9
    median, rms = typical_rows(sampled(X), *moments_of(X))
    assert median.tolist() == [5, 1]  # 63 rows of 3, 64 of 5 and the outlier
    assert rms == pytest.approx(2**-0.5)  # half-way between those of the rows of 5 and of 3


def test_outliers_that_dominate(rng):
    X, _ = with_outliers(rng)
    median, rms = typical_rows(sampled(X), *moments_of(X))
    assert abs(median - 5).max() < 0.5
    assert rms == pytest.approx(1, rel=0.2)
    assert abs(X.astype(np.float64).mean(axis=0)).max() > 1e3


@pytest.mark.parametrize("kind", ["none", "mild", "most rows equal", "not finite"])
def test_others_keep_the_mean(kind, rng):
    X, rows = with_outliers(rng, factor=1 if kind == "none" else 1e3 if kind == "mild" else 1e8)
    if kind == "most rows equal":
        X[np.setdiff1d(np.arange(len(X)), rows)[:3000]] = 2
    variance, largest = moments_of(X)
    assert typical_rows(sampled(X), np.inf if kind == "not finite" else variance, largest) is None


@pytest.mark.parametrize("large", [None, 0, 1, 128])
@pytest.mark.parametrize("factor", [1e2, 3.2e3, 1e8])
def test_many_features(large, factor, rng):
    """Those that are examined first decide nothing that all of them would not; feature `large` is not like the rest."""
    X, _ = with_outliers(rng, d=190, factor=factor)
    if large is not None:
        X[:, large] *= 100
    variance, largest = moments_of(X)
    some = X[::31][:128].astype(np.float64)
    median = np.median(some, axis=0)
    rms, of_half = (np.median(np.sqrt(((some - median)[:, ::step] ** 2).mean(axis=1))) for step in (1, 2))
    if factor == 3.2e3 and large in (0, 128):  # the mean of the features examined first is misleading
        assert rms < 2.0**-9 * variance**0.5 < of_half
    found = typical_rows(sampled(X), variance, largest)
    if rms < 2.0**-9 * variance**0.5:
        assert found[0].tolist() == median.tolist()
        assert found[1] == pytest.approx(rms)
    else:
        assert found is None


def test_typical_rows_keep_their_bits(rng):
    X, rows = with_outliers(rng, n=400, count=1)
    data = data_on_host(X, KINDS[0])
    mean = data.moments()[0]
    point = data.subtracted(mean)
    assert abs(point - 5).max() < 0.5
    data.center(mean, on_read=True)
    copy = data.half_copy(0, certifies=True)
    assert np.isinf(copy.norms[rows]).all()
    others = np.setdiff1d(np.arange(len(X)), rows)
    exact = np.linalg.norm((X[others].astype(np.float64) - data.shift) * float(copy.scale), axis=1)
    # A norm also bounds the rounding error, which is at most 2⁻¹¹ where ρ is 2⁻¹². Of a row that lost bits, it would be
    # larger.
    assert (copy.norms[others] >= 0.999 * exact).all()
    assert (copy.norms[others] <= 2.01 * exact).all()
