"""Missing values and scales, beside scikit-learn."""

import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler

from tsapps.errors import EmptyMatrixError, MatrixError
from tsapps.matrix import open_matrix
from tsapps.matrix import prepared as preparing
from tsapps.matrix.prepared import Learned, Preparation, learn, prepared

SCALERS = {"standard": StandardScaler, "minmax": MinMaxScaler, "robust": RobustScaler}


@pytest.fixture
def X(rng, monkeypatch):  # noqa: N802
    monkeypatch.setattr(preparing, "_ELEMENTS", 120)  # several blocks
    found = rng.standard_normal((200, 5)) * [1, 100, 1e-3, 1, 1] + [0, 1e4, 0, -5, 0]
    found[:, 4] = 0.1  # constant
    return found


def whole(matrix, rows=7):
    return np.concatenate([block for _, block in matrix.blocks(rows)])


def with_holes(X, rng):
    holes = X.copy()
    holes[rng.random(X.shape) < 0.2] = np.nan
    return holes


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
@pytest.mark.parametrize("scale", SCALERS)
def test_scales_of_scikit_learn(X, scale, dtype):
    X = X.astype(dtype)
    learned, kept = learn(open_matrix(X), Preparation(scale=scale))
    found = whole(prepared(open_matrix(X), learned))
    assert kept is None
    assert found.dtype == (np.float64 if dtype == np.int32 else dtype)
    tolerance = 1e-9 if dtype != np.float32 else 1e-5
    expected = SCALERS[scale]().fit_transform(X.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert (abs(found[:, 4]) < 1e-16).all()


@pytest.mark.parametrize("scale", ["none", *SCALERS])
def test_means_fill_holes(X, rng, scale):
    holes = with_holes(X, rng)
    learned, kept = learn(open_matrix(holes), Preparation("mean", scale))
    expected = SimpleImputer().fit_transform(holes)
    assert kept is None
    np.testing.assert_allclose(learned.fill, np.nanmean(holes, axis=0), rtol=1e-12)
    if scale != "none":
        expected = SCALERS[scale]().fit_transform(expected)
    np.testing.assert_allclose(whole(prepared(open_matrix(holes), learned)), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", ["none", *SCALERS])
def test_rows_with_holes_are_dropped(X, rng, scale):
    holes = with_holes(X, rng)
    matrix = open_matrix(holes)
    learned, kept = learn(matrix, Preparation("drop", scale))
    complete = ~np.isnan(holes).any(axis=1)
    np.testing.assert_array_equal(kept, complete)
    expected = holes[complete] if scale == "none" else SCALERS[scale]().fit_transform(holes[complete])
    found = prepared(matrix, learned, kept)
    assert found.shape == expected.shape
    np.testing.assert_allclose(whole(found), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.read(), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.rows([3, 0, 3]), expected[[3, 0, 3]], rtol=1e-9, atol=1e-9)
    between = np.concatenate([block for _, block in found.blocks_between(2, 9, 3)])
    np.testing.assert_allclose(between, expected[2:9], rtol=1e-9, atol=1e-9)
    assert found.row_name(1) == f"row {np.flatnonzero(complete)[1]}"


@pytest.mark.parametrize("missing", ["drop", "mean"])
@pytest.mark.parametrize("scale", SCALERS)
def test_constant_columns_become_zeros(scale, missing, rng):
    """The mean of many 0.1 is not 0.1, and would make noise of the difference."""
    holes = np.full((20_000, 2), 0.1)
    holes[:, 1] = rng.standard_normal(20_000)
    holes[rng.random(20_000) < 0.5, 0] = np.nan
    matrix = open_matrix(holes)
    learned, kept = learn(matrix, Preparation(missing, scale))
    assert (learned.shift[0], learned.divisor[0]) == (0.1, 1)
    assert (whole(prepared(matrix, learned, kept), 1000)[:, 0] == 0).all()


def test_by_hand():
    X = np.array([[1, 10], [3, np.nan], [5, 30.0]])
    learned, kept = learn(open_matrix(X), Preparation("mean", "minmax"))
    assert (learned, kept) == (Learned([3, 20], [1, 10], [4, 20]), None)
    assert whole(prepared(open_matrix(X), learned)).tolist() == [[0, 0], [0.5, 0.5], [1, 1]]
    learned, kept = learn(open_matrix(X), Preparation("drop", "standard"))
    assert kept.tolist() == [True, False, True]
    assert learned == Learned(None, [3, 20], [2, 10])


def test_nothing_to_do():
    X = np.arange(6.0).reshape(3, 2)
    for missing in ("error", "drop"):
        assert learn(open_matrix(X), Preparation(missing)) == (Learned(), None)
    assert learn(open_matrix(X.astype(np.int64)), Preparation("drop")) == (Learned(), None)
    matrix = open_matrix(X)
    assert prepared(matrix, Learned()) is matrix


def test_what_cannot_be_prepared():
    holes = np.array([[1, np.nan], [2, np.nan]])
    with pytest.raises(EmptyMatrixError, match="every row has a missing value"):
        learn(open_matrix(holes), Preparation("drop"))
    with pytest.raises(MatrixError, match="column 1 has no values: leave it out by --exclude"):
        learn(open_matrix(holes), Preparation("mean"))
    with pytest.raises(MatrixError, match="row 0, column 1 is nan"):
        learn(open_matrix(holes), Preparation(scale="standard"))
    with pytest.raises(MatrixError, match="row 1, column 0 is inf"):
        learn(open_matrix(np.array([[1.0], [np.inf]])), Preparation("mean", "minmax"))
