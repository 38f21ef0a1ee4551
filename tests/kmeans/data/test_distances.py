"""Square distances: by hand, and against scikit-learn's to the last bit."""

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from sklearn.metrics import euclidean_distances
from sklearn.utils.extmath import row_norms

from tsapps.apps.kmeans.data import distances
from tsapps.apps.kmeans.data.distances import _piece_rows, square_distances, square_norms
from tsapps.apps.kmeans.data.rows import ArrayRows


def test_square_distances_by_hand():
    points, rows = np.array([[0.0, 0], [3, 4]]), np.array([[3.0, 4], [6, 8], [0, 1]])
    for dtype in (np.float32, np.float64):
        found = square_distances(points.astype(dtype), rows.astype(dtype))
        assert found.tolist() == [[25, 100, 1], [0, 25, 18]]
        assert found.dtype == dtype
    assert square_norms(rows).tolist() == [25, 100, 1]


def test_rows_of_a_piece_by_hand():
    # b² + 2·900·b = 10·2¹⁷, b = √(900² + 1,310,720) − 900; and b² + 2·10·b = (21,000·10 + 20,000·1,000) / 10.
    assert _piece_rows(3, 5000, 900) == 556
    assert _piece_rows(20_000, 1000, 10) == 1411
    assert _piece_rows(1, 1, 10**7) == 1


@property_test(
    60,
    2000,
    dtype=st.sampled_from([np.float32, np.float64]),
    m=st.integers(1, 70),
    n=st.integers(1, 3000),
    d=st.integers(1, 40),
    exponent=st.integers(-18, 18),
    seed=st.integers(0, 2**32 - 1),
)
def test_square_distances_have_the_bits_of_scikit_learn(dtype, m, n, d, exponent, seed):
    rng = np.random.default_rng(seed)
    points, rows = (
        ((rng.random() + rng.standard_normal((count, d))) * 10.0**exponent).astype(dtype) for count in (m, n)
    )
    rows[: m // 2] = points[: len(rows[: m // 2])]  # their distances are what rounding makes of zero
    expected = euclidean_distances(points, rows, squared=True)
    found = square_distances(points, rows)
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()
    assert square_norms(rows).tobytes() == row_norms(rows, squared=True).tobytes()


@pytest.mark.parametrize(("m", "n", "d"), [(3, 5000, 900), (2500, 2500, 3), (1, 300, 9000)])
def test_square_distances_of_several_pieces(rng, m, n, d):
    points, rows = (rng.standard_normal((count, d), np.float32) for count in (m, n))
    assert _piece_rows(m, n, d) < n
    assert square_distances(points, rows).tobytes() == euclidean_distances(points, rows, squared=True).tobytes()


@pytest.mark.parametrize("cosine", [False, True])
def test_distances_of_labels_by_hand(cosine, monkeypatch):
    monkeypatch.setattr(distances, "_ELEMENTS", 4)  # blocks of two rows
    rows = ArrayRows(np.array([[3, 4], [0, 2], [1, 0], [0, 0]], np.float32))
    centers = np.array([[0.0, 2], [3, 0]])
    found = distances.distances_of_labels(rows, centers, np.array([1, 0, 1, 0], np.int32), cosine=cosine)
    assert found.dtype == np.float64
    assert found == pytest.approx([0.4, 0, 0, 1] if cosine else [4, 0, 2, 2])
