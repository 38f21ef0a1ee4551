"""choose_k: scores beside scikit-learn's, and the choice."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_samples, silhouette_score

from tsapps import choose_k, open_matrix
from tsapps.apps.kmeans import number_of_clusters as choosing
from tsapps.apps.kmeans.scores import by_blocks
from tsapps.apps.kmeans.scores.by_blocks import scores_of
from tsapps.apps.kmeans.scores.indices import Labeled, Scores


@pytest.fixture
def blobs(monkeypatch):
    monkeypatch.setattr(choosing, "_ELEMENTS", 700)  # several blocks
    return make_blobs(400, 5, centers=5, cluster_std=1.2, random_state=3)[0]


def scores(X, centers, labels, sample=None):
    found = Labeled(np.asarray(centers, float), np.asarray(labels, np.int32))
    rows = np.arange(len(X)) if sample is None else sample
    (one,) = scores_of(lambda: iter([(0, np.asarray(X, float))]), rows, [found])
    return one


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scores_are_those_of_scikit_learn(blobs, dtype):
    X = blobs.astype(dtype)
    found = choose_k(X, range(2, 10), tol=0, device="cpu")
    tolerance = 1e-9 if dtype == np.float64 else 1e-4
    for one in found.scores:
        labels = found.clusterings[one.k].labels
        assert one.silhouette == pytest.approx(silhouette_score(X, labels), rel=tolerance)
        assert one.silhouette_error == 0
        assert one.calinski_harabasz == pytest.approx(calinski_harabasz_score(X, labels), rel=tolerance)
        assert one.davies_bouldin == pytest.approx(davies_bouldin_score(X, labels), rel=tolerance)
        far = np.sort(np.linalg.norm(X[:, None] - found.clusterings[one.k].centers, axis=2), axis=1)
        assert one.simplified_silhouette == pytest.approx(np.mean(1 - far[:, 0] / far[:, 1]), rel=1e-4)
    assert found.k == 5
    assert found.reason.startswith("its silhouette, 0.")


def test_every_fit_is_the_one_alone(blobs):
    found = choose_k(blobs, [4, 2, 7, 4], device="cpu", random_state=5)
    assert list(found.clusterings) == [one.k for one in found.scores] == [2, 4, 7]
    for k, one in found.clusterings.items():
        alone = KMeans(k, n_init=1, random_state=5).fit(blobs)
        np.testing.assert_array_equal(one.labels, alone.labels_)
        assert one.inertia == pytest.approx(alone.inertia_, rel=1e-12)


def test_a_sample_has_exact_silhouettes_and_a_stated_error(blobs):
    whole = choose_k(blobs, range(2, 8), device="cpu")
    part = choose_k(blobs, range(2, 8), device="cpu", sample=150)
    for one, other in zip(part.scores, whole.scores, strict=True):
        labels = part.clusterings[one.k].labels
        drawn = np.sort(np.random.default_rng(0).choice(400, 150, replace=False))
        exact = silhouette_samples(blobs, labels)[drawn]
        assert one.silhouette == pytest.approx(exact.mean(), rel=1e-9)
        assert one.silhouette_error == pytest.approx(1.96 * exact.std(ddof=1) / 150**0.5 * (1 - 150 / 400) ** 0.5)
        assert abs(one.silhouette - other.silhouette) <= 1.5 * one.silhouette_error
    assert part.k == whole.k


def test_the_stated_error_holds_for_95_of_100_samples(blobs):
    clustering = choose_k(blobs, [3], device="cpu").clusterings[3]
    exact = silhouette_score(blobs, clustering.labels)
    draw = np.random.RandomState(1)
    inside = 0
    for _ in range(200):
        one = scores(blobs, clustering.centers, clustering.labels, np.sort(draw.choice(400, 80, replace=False)))
        inside += abs(one.silhouette - exact) <= one.silhouette_error
    assert inside >= 178  # with probability 0.95 each, fewer are seen once in ten thousand times


def test_numbers_of_clusters_are_scored_together(blobs, monkeypatch):
    """The distances from the sample are computed once for all; by parts where clusters are many."""
    shapes, distances = [], by_blocks._distances

    def counted(xp, rows, points):
        shapes.append((len(rows), len(points)))
        return distances(xp, rows, points)

    monkeypatch.setattr(by_blocks, "_distances", counted)
    together = choose_k(blobs, range(2, 8), device="cpu", sample=60).scores
    assert sum(points for rows, points in shapes if rows == 60) == 400
    monkeypatch.setattr(choosing, "_MOST_CLUSTERS", 7)  # 2 + 3, 4, 5, 6, 7
    shapes.clear()
    apart = choose_k(blobs, range(2, 8), device="cpu", sample=60).scores
    assert sum(points for rows, points in shapes if rows == 60) == 5 * 400
    for one, other in zip(together, apart, strict=True):
        for name in ("silhouette", "silhouette_error", "simplified_silhouette", "calinski_harabasz", "davies_bouldin"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-12)


def test_by_hand():
    """Rows 0, 1 | 4, 6: a = 1, 1, 2, 2 and b = 5, 4, 3.5, 5.5; centers 0.5 and 5."""
    one = scores([[0], [1], [4], [6]], [[0.5], [5]], [0, 0, 1, 1])
    assert one.of_sample.tolist() == pytest.approx([4 / 5, 3 / 4, 1.5 / 3.5, 3.5 / 5.5])
    assert one.simplified_silhouette == pytest.approx(np.mean([4.5 / 5, 3.5 / 4, 2.5 / 3.5, 4.5 / 5.5]))
    assert one.davies_bouldin == pytest.approx((0.5 + 1) / 4.5)
    between = 2 * (0.5 - 2.75) ** 2 + 2 * (5 - 2.75) ** 2
    assert one.calinski_harabasz == pytest.approx(between / (2.5 / 2))


def test_edges():
    alone = scores([[0], [1], [9]], [[0.5], [9]], [0, 0, 1])
    assert alone.of_sample[2] == 0
    assert np.isnan(scores([[0], [1]], [[0], [1]], [0, 1]).silhouette)  # n clusters
    assert np.isnan(scores([[0], [1]], [[0.5]], [0, 0]).silhouette)
    same = scores([[3], [3], [3]], [[3], [3]], [0, 0, 1])
    assert (same.silhouette, same.davies_bouldin, same.simplified_silhouette) == (0, 0, 0)
    rows = [[0], [1], [8], [9]]
    empty = scores(rows, [[0.5], [8.5], [50]], [0, 0, 1, 1])
    assert empty.of_sample.tolist() == scores(rows, [[0.5], [8.5]], [0, 0, 1, 1]).of_sample.tolist()


def test_cosine(blobs):
    found = choose_k(blobs, [2, 3, 4], metric="cosine", tol=0, device="cpu")
    unit = blobs / np.linalg.norm(blobs, axis=1, keepdims=True)
    for one in found.scores:
        assert one.silhouette == pytest.approx(silhouette_score(unit, found.clusterings[one.k].labels), rel=1e-9)


def with_silhouettes(*samples):
    rows = [np.asarray(one, float) for one in samples]
    error = [1.96 * one.std(ddof=1) / len(one) ** 0.5 for one in rows]
    return {k: Scores(one.mean(), e, 0, 0, 0, one) for k, (one, e) in enumerate(zip(rows, error, strict=True), start=2)}


def test_what_the_sample_cannot_tell_apart_goes_to_the_smaller_number(rng):
    base = rng.uniform(0, 1, 400)
    k, reason = choosing.chosen(
        with_silhouettes(base, base + 0.01)
    )  # by every row better, though far within the errors
    assert (k, "is the largest" in reason) == (3, True)
    k, reason = choosing.chosen(with_silhouettes(base, base + rng.normal(0.001, 0.3, 400)))
    assert k == 2
    assert "cannot be told from the largest, " in reason
    assert reason.endswith("for k = 3")


def test_one_cluster_alone(blobs):
    found = choose_k(blobs, [1], device="cpu")
    assert (found.k, found.reason) == (1, "silhouettes need more than one cluster")
    assert found.scores[0].silhouette is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ks": []}, r"ks must be numbers of clusters from 1 to n=400, got \[\]"),
        ({"ks": [0, 2]}, "ks must be numbers"),
        ({"ks": [2, 401]}, "ks must be numbers"),
        ({"ks": [2], "sample": 1}, "sample must be at least 2, got 1"),
        ({"ks": [2], "metric": "manhattan"}, "metric must be one of"),
    ],
)
def test_refused(blobs, options, message):
    with pytest.raises(ValueError, match=message):
        choose_k(blobs, device="cpu", **options)


def test_files_and_sparse_matrices(blobs, tmp_path):
    from scipy.sparse import csr_matrix

    np.save(tmp_path / "x.npy", blobs)
    expected = choose_k(blobs, range(2, 7), device="cpu")
    for X in (open_matrix(tmp_path / "x.npy"), csr_matrix(blobs)):
        found = choose_k(X, range(2, 7), device="cpu")
        assert found.k == expected.k
        for one, other in zip(found.scores, expected.scores, strict=True):
            assert one.silhouette == pytest.approx(other.silhouette, rel=1e-6)


class TestGap:
    def test_is_the_mean_logarithm_of_references_less_that_of_the_data(self, blobs):
        found = choose_k(blobs, [1, 3, 5], device="cpu", gap=4, random_state=2)
        random, logarithms = np.random.default_rng(2), []
        for _ in range(4):
            uniform = random.uniform(blobs.min(axis=0), blobs.max(axis=0), blobs.shape)
            fits = [KMeans(k, n_init=1, random_state=2).fit(uniform) for k in (1, 3, 5)]
            logarithms.append(np.log([one.inertia_ for one in fits]))
        mean, deviation = np.mean(logarithms, axis=0), np.std(logarithms, axis=0)
        for one, expected, error in zip(found.scores, mean, deviation * (5 / 4) ** 0.5, strict=True):
            assert one.gap == pytest.approx(expected - np.log(one.inertia), rel=1e-9)
            assert one.gap_error == pytest.approx(error, rel=1e-6, abs=1e-12)

    @pytest.mark.parametrize("clusters", [1, 4])
    def test_speaks_for_the_number_of_clusters(self, clusters):
        """The rule of Tibshirani et al., which can tell a single cluster, too."""
        centers = 12 * np.array([[0, 0], [0, 1], [1, 0], [1, 1]])[:clusters]
        X = make_blobs(300, centers=centers, random_state=1)[0]
        scores = choose_k(X, range(1, 7), device="cpu", gap=8, n_init=5).scores
        assert next(one.k for one, after in pairwise(scores) if one.gap >= after.gap - after.gap_error) == clusters

    def test_is_left_out(self, blobs):
        assert all(one.gap is None for one in choose_k(blobs, [2, 3], device="cpu").scores)
        found = choose_k(np.repeat([[0.0, 1], [2, 5]], 3, axis=0), [1, 2], device="cpu", gap=2)
        assert [one.gap is None for one in found.scores] == [False, True]  # the inertia of two clusters is 0

    @pytest.mark.parametrize("given", [{"gap": -1}, {"gap": 2, "metric": "cosine"}])
    def test_wrong(self, blobs, given):
        with pytest.raises(ValueError, match=f"a number of data sets, got {given['gap']}"):
            choose_k(blobs, [2], device="cpu", **given)
