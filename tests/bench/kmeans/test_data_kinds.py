"""The data of bench/kmeans/data_kinds.py: each kind has the property that it promises."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_sample_image

from tsapps.bench.kmeans import data_kinds
from tsapps.bench.kmeans.data_kinds import KINDS, OUTLIERS, draw


@pytest.mark.parametrize("d", [2, 8, 130])
@pytest.mark.parametrize("kind", KINDS)
def test_data_of_every_kind(kind, d):
    X, initial = draw(kind, 3000, d, 20, 1, np)
    assert X.shape == (3000, d)
    assert X.dtype == initial.dtype == np.float32
    assert np.isfinite(X).all()
    assert len(np.unique(X, axis=0)) >= 20
    assert initial.shape == (20, d)
    assert {row.tobytes() for row in initial} <= {row.tobytes() for row in X}
    again = draw(kind, 3000, d, 20, 1, np)
    np.testing.assert_array_equal(X, again[0])
    np.testing.assert_array_equal(initial, again[1])
    assert not np.shares_memory(X, initial)


@pytest.mark.parametrize("kind", ["mixture", "outliers", "descriptors", "duplicates"])
def test_initial_centers_are_the_first_rows_if_rows_are_random(kind):
    X, initial = draw(kind, 3000, 8, 20, 1, np)
    np.testing.assert_array_equal(initial, X[:20])


@pytest.mark.parametrize("kind", KINDS)
def test_seeds(kind):
    X, Y = (draw(kind, 500, 8, 20, seed, np)[0] for seed in (1, 2))
    assert (X == Y).all() == (kind in ("digits", "breast-cancer", "china"))


@pytest.mark.parametrize("kind", OUTLIERS)
def test_outliers_are_few_and_far(kind):
    share, factor = OUTLIERS[kind]
    norms = np.linalg.norm(draw(kind, 400_000, 8, 20, 2, np)[0], axis=1)
    expected = 400_000 * share
    # A mixture has norms from 1 to 7, nearly all.
    assert expected / 3 - 2 <= np.count_nonzero(norms > 2 * factor) <= 1.5 * expected + 4
    assert np.median(norms) < 5
    assert np.count_nonzero(norms > 10) <= 1.5 * expected + 4


def test_zipf_populations():
    clusters = data_kinds._zipf_clusters(np.random.default_rng(3), 100_000, 50, np)
    counts = np.bincount(clusters, minlength=50)
    assert counts[0] / counts[9] == pytest.approx(10**1.1, rel=0.15)


def test_logarithms_are_normal():
    logs = np.log(draw("lognormal", 50_000, 4, 20, 1, np)[0])
    centered = (logs - logs.mean(axis=0)) / logs.std(axis=0)
    assert abs((centered**3).mean(axis=0)).max() < 0.5


def test_descriptors():
    X, _ = draw("descriptors", 5000, 128, 20, 1, np)
    np.testing.assert_array_equal(X, X.astype(np.uint8))
    norms = np.linalg.norm(X, axis=1)
    assert norms.max() <= 510
    assert 0.2 < (norms > 500).mean() < 0.8  # at the limit
    assert 0.3 < (X == 0).mean() < 0.7


def test_sorted_rows_are_of_one_cluster_after_another(monkeypatch):
    monkeypatch.setattr(data_kinds, "_BLOCK", 1000)
    X, initial = draw("sorted", 4000, 64, 40, 1, np)
    means = X.reshape(40, 100, 64).mean(axis=1)
    own = np.linalg.norm(X - np.repeat(means, 100, axis=0), axis=1)
    other = np.linalg.norm(X - np.repeat(np.roll(means, 1, axis=0), 100, axis=0), axis=1)
    assert (own < other).mean() > 0.95
    places = [int((X == row).all(axis=1).argmax()) for row in initial]
    assert len(set(places)) == 40
    assert max(places) > 3000  # not only the first clusters


def test_duplicates():
    X, _ = draw("duplicates", 5000, 8, 20, 1, np)
    assert len(np.unique(X, axis=0)) == 80
    assert len(draw("duplicates", 30, 8, 20, 1, np)[0]) == 30


@pytest.mark.parametrize(("kind", "exponent"), [("scales", 3), ("wide-scales", 6)])
def test_scales_of_features(kind, exponent):
    spreads = draw(kind, 5000, 13, 20, 1, np)[0].std(axis=0)
    assert spreads[0] == pytest.approx(10.0**-exponent, rel=0.4)
    assert spreads[-1] == pytest.approx(10.0**exponent, rel=0.4)


def test_constant_features():
    spreads = np.ptp(draw("constant-features", 5000, 9, 20, 1, np)[0], axis=0)
    assert (spreads == 0).tolist() == 4 * [False, True] + [False]


@pytest.mark.parametrize(("kind", "load"), [("digits", load_digits), ("breast-cancer", load_breast_cancer)])
def test_tables(kind, load, monkeypatch):
    monkeypatch.setattr(data_kinds, "_FILE_BLOCK", 700)
    table = load().data.astype(np.float32)
    n, d = table.shape
    np.testing.assert_array_equal(draw(kind, n, d, 10, 1, np)[0], table)
    repeated, _ = draw(kind, 2 * n + 5, 2 * d + 3, 10, 1, np)
    np.testing.assert_array_equal(repeated[:, :d], np.concatenate([table, table, table[:5]]))
    np.testing.assert_array_equal(repeated[: n - 1, d : 2 * d], table[1:])
    np.testing.assert_array_equal(repeated[n : 2 * n - 4, -3:], table[4:, :3])
    few, _ = draw(kind, n, 3, 10, 1, np)
    assert few.var(axis=0).min() >= np.sort(table.var(axis=0))[-3]


def test_pixels(monkeypatch):
    monkeypatch.setattr(data_kinds, "_FILE_BLOCK", 100_000)
    pixels = load_sample_image("china.jpg").reshape(-1, 3)
    repeated, _ = draw("china", len(pixels) + 2, 3, 64, 1, np)
    np.testing.assert_array_equal(repeated, np.concatenate([pixels, pixels[:2]]))
    windows, _ = draw("china", 50, 8, 10, 1, np)
    np.testing.assert_array_equal(windows[7], pixels.reshape(-1)[21:29])
    last, _ = draw("china", len(pixels), 8, 10, 1, np)
    np.testing.assert_array_equal(last[-1], [*pixels[-1], *pixels[0], *pixels[1, :2]])
