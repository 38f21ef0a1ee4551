"""Scores by kernels on a GPU: those by blocks of rows in float64, and the same bits on every run."""

import numpy as np
import pytest

from tsapps.apps.kmeans import number_of_clusters
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.number_of_clusters import scores_of_rows
from tsapps.apps.kmeans.scores.by_blocks import scores_of
from tsapps.apps.kmeans.scores.indices import Labeled

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")

NAMES = "simplified_silhouette", "calinski_harabasz", "davies_bouldin"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("n", "d", "ks", "sampled"),
    [
        (100_003, 64, range(2, 21), 1000),
        (50_001, 3, (2, 3, 50), 700),
        (20_000, 13, (2, 300), 129),
        (9_999, 200, (3, 8), 500),
        (3_000, 1030, (2, 5), 3_000),
        (400, 1, (2, 200), 400),
    ],
)
def test_scores(n, d, ks, sampled, dtype):
    rng = np.random.default_rng(n)
    blobs = 4 * rng.standard_normal((6, d))
    X = (blobs[rng.integers(0, 6, n)] + rng.standard_normal((n, d))).astype(dtype)
    sample, there = np.sort(rng.choice(n, sampled, replace=False)), cupy.asarray(X)
    found = []
    for k in ks:
        centers = X[rng.choice(n, k, replace=False)].astype(np.float32) + np.float32(0.25)
        wide = cupy.asarray(centers)
        labels = ((wide**2).sum(axis=1) - 2 * (there.astype(np.float32) @ wide.T)).argmin(axis=1).astype(cupy.int32)
        found.append(Labeled(centers.astype(np.float64), labels))
    results = [scores_of_rows(ArrayRows(there), "euclidean", sample, found) for _ in range(2)]
    wide = X.astype(np.float64)
    blocks = [(start, cupy.asarray(wide[start : start + 5000])) for start in range(0, n, 5000)]
    expected = scores_of(lambda: iter(blocks), sample, found)
    for one, again, other in zip(*results, expected, strict=True):
        np.testing.assert_array_equal(one.of_sample, again.of_sample)
        assert [getattr(one, name) for name in NAMES] == [getattr(again, name) for name in NAMES]
        # Twice 2⁻¹⁷, the roundings of sums of d squares and of 64 tiles, and DISTANCE_ERROR, as in test_launch.py.
        error = 2.1 * (2.0**-17 + 2 * 2.0**-15 + 2.0**-24 * (d + 6))
        np.testing.assert_allclose(one.of_sample, other.of_sample, rtol=0, atol=error)
        for name in NAMES:
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4, abs=error), name


def test_what_kernels_do_not_read_is_read_in_blocks(monkeypatch):
    monkeypatch.setattr(number_of_clusters, "scores_on_gpu", None)
    X = np.array([[0.0], [1], [4], [6]])
    found = [Labeled(np.array([[0.5], [5]]), cupy.array([0, 0, 1, 1], np.int32))]
    for rows in (ArrayRows(cupy.asarray(X)), ArrayRows(X)):
        (one,) = scores_of_rows(rows, "euclidean", np.arange(4), found)
        assert one.of_sample.tolist() == pytest.approx([4 / 5, 3 / 4, 1.5 / 3.5, 3.5 / 5.5])
