"""Fits of bench/kmeans/bounds.py with NumPy in place of CuPy, and results that it does not record."""

from types import SimpleNamespace

import numpy as np
import pytest

from tsapps.bench.common import record
from tsapps.bench.kmeans import bounds as kmeans_bounds
from tsapps.bench.kmeans.problems import Shape

SHAPE = Shape(3000, 128, 4, "float32")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(kmeans_bounds, "_AT_ONCE", 700)


def test_separated_clusters_are_far_apart():
    X = kmeans_bounds.data_of(SHAPE, "separated", 0, np)
    distances = np.linalg.norm(X[:200, np.newaxis] - X[np.newaxis, :200], axis=2)
    # Two points of a cluster are √(2·128) = 16 apart, points of different clusters some 29.
    near = distances < 21
    assert (near == (near.astype(int) @ near.astype(int) > 1)).all()
    assert 200 < near.sum() < 200 * 200


@pytest.mark.parametrize("kind", ["separated", "uniform", "benchmark"])
def test_every_row_is_drawn(kind):
    X = kmeans_bounds.data_of(SHAPE, kind, 1, np)
    assert X.shape == (3000, 128)
    assert len(np.unique(X[:, 0])) == 3000
    assert (X == kmeans_bounds.data_of(SHAPE, kind, 1, np)).all()


def fitted(labels):
    return SimpleNamespace(labels=np.array(labels), centers=np.zeros((4, 2)), n_iter=4, inertia=1.0)


def test_one_record_with_and_one_without_bounds(monkeypatch):
    times = [0.0, 0.002, 0.003, 0.0035]
    monkeypatch.setattr(
        kmeans_bounds, "fit", lambda X, k, bounds, iterations: (fitted([1]), times, (2, 30) if bounds else None)
    )
    without, bounded = kmeans_bounds.measure(SHAPE, "uniform", 0, np)
    assert (without["engine"], bounded["engine"]) == ("tsapps", "tsapps-bounds")
    assert without["iter_ms"] == pytest.approx(3.5 / 3)
    assert without["late_ms"] == pytest.approx(1.0)
    assert (bounded["cut_short"], bounded["examined"], without["examined"]) == (2, 30, None)
    common = {"what": "kmeans-bounds", "device": "none", "commit": "none", "versions": {}, "date": "2026-11-22"}
    for one in (without, bounded):
        record.check(one | common, kmeans_bounds.FIELDS)


def test_fits_that_differ_are_not_recorded(monkeypatch):
    monkeypatch.setattr(
        kmeans_bounds,
        "fit",
        lambda X, k, bounds, iterations: (fitted([int(bounds)]), [0.0, 1.0], (0, 0) if bounds else None),
    )
    with pytest.raises(ValueError, match="3k-128-4-f32, uniform: the fits"):
        kmeans_bounds.measure(SHAPE, "uniform", 0, np)
