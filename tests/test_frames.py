"""Data frames with every numeric type, with missing values, and lazy frames, at every entry point."""

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans

from tsapps import TSKMeans, abft, gram, kmeans_batched, matmul, open_matrix

X = np.float64(np.random.default_rng(40).integers(0, 100, (60, 4)))


def polars():
    return pytest.importorskip("polars")


# Frames that pandas and polars convert to Python objects or refuse to convert; numbers of any type.
NUMERIC_FRAMES = {
    "Int64": lambda array: pd.DataFrame(array.astype(int)).astype("Int64"),
    "nullable mixed": lambda array: pd.DataFrame(array, columns=list("wxyz")).astype({"w": "Float64", "x": "Int16"}),
    "Float32": lambda array: pd.DataFrame(array).astype("Float32"),
    "int64[pyarrow]": lambda array: pd.DataFrame(array.astype(int)).astype("int64[pyarrow]"),
    "arrow mixed": lambda array: pd.DataFrame(array).astype({0: "int16[pyarrow]", 1: "float32[pyarrow]", 2: "Int8"}),
    "with bools": lambda array: pd.DataFrame({"a": array[:, 0], "b": array[:, 1] > 8, "c": array[:, 2] > 8}),
    "with booleans": lambda array: pd.DataFrame({"a": array[:, 0], "b": pd.array(array[:, 1] > 8, "boolean")}),
    "bool": lambda array: pd.DataFrame(array > 8),
    "boolean": lambda array: pd.DataFrame(array > 8).astype("boolean"),
    "bool[pyarrow]": lambda array: pd.DataFrame(array > 8).astype("bool[pyarrow]"),
    "polars bool": lambda array: polars().DataFrame(array > 8),
    "polars with bools": lambda array: polars().DataFrame({"a": array[:, 0], "b": array[:, 1] > 8}),
}
MISSING = {
    "Int64": lambda: pd.DataFrame({"a": pd.array([1, None, 3], "Int64"), "b": [1.0, 2, 3]}),
    "Float64": lambda: pd.DataFrame({"a": pd.array([1, None, 3], "Float64")}),
    "boolean": lambda: pd.DataFrame({"a": pd.array([True, None, False], "boolean"), "b": [1, 2, 3]}),
    "int64[pyarrow]": lambda: pd.DataFrame({"a": [1, None, 3]}).astype("int64[pyarrow]"),
    "bool[pyarrow]": lambda: pd.DataFrame({"a": [True, None, False]}).astype("bool[pyarrow]"),
    "polars": lambda: polars().DataFrame({"a": [1, None, 3], "b": [1.0, 2, 3]}),
    "polars bool": lambda: polars().DataFrame({"a": [True, None, False]}),
    "NaN": lambda: pd.DataFrame({"a": [1, np.nan, 3]}),
}


def columns_of(frame):
    """Return every column as float64."""
    columns = [frame[name].to_list() for name in frame.columns]
    return np.array([[float(value) for value in column] for column in columns]).T


@pytest.mark.parametrize("kind", NUMERIC_FRAMES)
@pytest.mark.parametrize("part", [slice(None), slice(1)], ids=["frame", "one row"])
def test_frames_of_every_numeric_type(kind, part):
    frame = NUMERIC_FRAMES[kind](X)[part]
    expected = columns_of(frame)
    matrix = open_matrix(frame)
    assert matrix.dtype.kind in "iuf"
    np.testing.assert_array_equal(matrix.read(), expected)
    assert abft.verify(frame, abft.encode(frame)).clean
    for options in ({}, {"protect": True}):
        kmeans = TSKMeans(1, n_init=1, random_state=0, device="cpu", **options).fit(frame)
        np.testing.assert_allclose(kmeans.cluster_centers_[0], expected.mean(axis=0), rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(kmeans.predict(frame), 0)


@pytest.mark.parametrize(
    "kind", ["Int64", "Float32", "int64[pyarrow]", "bool", "boolean", "bool[pyarrow]", "polars bool"]
)
def test_frames_of_one_column(kind):
    """scikit-learn converts these to an array that it cannot write to."""
    frame = NUMERIC_FRAMES[kind](X[:, :1])
    kmeans = TSKMeans(2, n_init=1, random_state=0, device="cpu").fit(frame)
    plain = KMeans(2, n_init=1, random_state=0).fit(columns_of(frame))
    np.testing.assert_array_equal(kmeans.labels_, plain.labels_)
    np.testing.assert_array_equal(kmeans.predict(frame), plain.labels_)
    assert kmeans.transform(frame).shape == (60, 2)
    assert kmeans.score(frame) == pytest.approx(-plain.inertia_, rel=1e-6, abs=1e-9)
    first = NUMERIC_FRAMES[kind](X[:1])
    TSKMeans(1, init=first, n_init=1, device="cpu").fit(X)


@pytest.mark.parametrize("kind", MISSING)
def test_missing_values_are_nan(kind):
    with pytest.raises(ValueError, match=r"row 1, column 0 is nan \(counted from 0\)"):
        open_matrix(MISSING[kind]()).read()
    for options in ({}, {"protect": True}):
        with pytest.raises(ValueError, match=r"(?i)nan"):
            TSKMeans(1, device="cpu", **options).fit(MISSING[kind]())


@pytest.mark.parametrize(
    "function",
    [
        open_matrix,
        abft.encode,
        lambda frame: abft.verify(frame, abft.encode(X)),
        lambda frame: abft.correct(frame, abft.encode(X)),
        lambda frame: abft.matmul(frame, X.T),
        lambda frame: matmul(frame, X.T),
        gram,
        lambda frame: kmeans_batched(frame, 2, device="cpu"),
        lambda frame: TSKMeans(2, device="cpu").fit(frame),
        lambda frame: TSKMeans(2, device="cpu", protect=True).fit(frame),
        lambda frame: TSKMeans(2, device="cpu").fit(X, sample_weight=frame),
        lambda frame: TSKMeans(2, device="cpu", init=frame, n_init=1).fit(X),
        lambda frame: TSKMeans(2, device="cpu").fit(X).predict(frame),
        lambda frame: TSKMeans(2, device="cpu").fit(X).transform(frame),
        lambda frame: TSKMeans(2, device="cpu").fit(X).score(frame),
    ],
)
def test_lazy_frames_are_rejected(function):
    lazy = polars().DataFrame(X).lazy()
    with pytest.raises(TypeError, match=r"a polars LazyFrame, which has no rows yet; .*call collect\(\)"):
        function(lazy)


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("method", ["fit", "predict", "transform", "score"])
def test_columns_without_numbers_are_named(library, method):
    frame = pd.DataFrame({"x": [1.0, 2, 3], "species": ["a", "b", "c"], "when": pd.date_range("2020", periods=3)})
    frame["kind"], frame["n"], frame["on"] = pd.Categorical(["u", "v", "u"]), [1, 2, 3], [True, False, True]
    if library == "polars":
        frame = polars().from_pandas(frame)
    kmeans = TSKMeans(2, n_init=1, device="cpu").fit(X[:, :1])
    message = r"columns without numbers: species \(.*\), when \(.*\), kind \(.*\); expected numbers: leave them out"
    with pytest.raises(ValueError, match=message):
        getattr(kmeans, method)(frame)
    with pytest.raises(ValueError, match=r"columns without numbers: species \(.*\), when \(.*\), kind \(.*\): keep"):
        open_matrix(frame)


def test_texts_that_scikit_learn_converts():
    frame = pd.DataFrame({"x": [1.0, 2, 9], "y": ["1", "2", "9"]})
    assert TSKMeans(2, n_init=1, device="cpu").fit(frame).labels_.tolist() in ([0, 0, 1], [1, 1, 0])
