"""`tsapps predict`: labels, output file and errors."""

import json

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from tsapps.errors import ExitCode


@pytest.fixture
def model(succeed, iris):
    succeed("kmeans", "iris.npy", "--k", 4, "--out", "model")
    return "model"


def test_labels_of_the_training_data(succeed, directory, model):
    table = succeed("predict", model, "iris.npy")
    labels = np.load("iris-labels.npy")
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, np.load("model/labels.npy"))
    assert "written   iris-labels.npy" in table
    assert {path.name for path in directory.iterdir()} == {"iris.npy", "iris-labels.npy", "model"}


def test_far_from_the_origin_in_float32(succeed):
    # At a distance of 10⁴ from the origin, the first seven digits of ‖c‖² are equal for all clusters.
    X = (make_blobs(2000, 6, centers=8, cluster_std=0.5, random_state=3)[0] + 1e4).astype(np.float32)
    np.save("far.npy", X)
    succeed("kmeans", "far.npy", "--k", 8, "--out", "model")
    succeed("predict", "model", "far.npy")
    np.testing.assert_array_equal(np.load("far-labels.npy"), np.load("model/labels.npy"))


def test_same_as_scikit_learn_on_other_data(succeed, iris, model):
    Y = np.random.default_rng(0).uniform(iris.min(0), iris.max(0), (500, 4))
    np.save("y.npy", Y)
    summary = json.loads(succeed("predict", model, "y.npy", "--out", "found.npy", "--json"))
    expected = KMeans(4, random_state=0).fit(iris)
    np.testing.assert_array_equal(np.load("found.npy"), expected.predict(Y))
    assert summary["inertia"] == pytest.approx(-expected.score(Y))
    assert summary["cluster_sizes"] == np.bincount(np.load("found.npy"), minlength=4).tolist()
    assert list(summary["seconds"]) == ["start", "read", "prepare", "assign", "write", "total"]


def test_the_label_of_a_row_does_not_depend_on_the_others(succeed, iris, model):
    np.save("few.npy", iris[100:110])
    succeed("predict", model, "few.npy")
    np.testing.assert_array_equal(np.load("few-labels.npy"), np.load("model/labels.npy")[100:110])


def test_computes_in_the_dtype_of_the_model(succeed, directory, blobs):
    succeed("kmeans", "blobs.npy", "--k", 6, "--out", "model")
    np.save("wide.npy", blobs.astype(np.float64))
    summary = json.loads(succeed("predict", "model", "wide.npy", "--json"))
    assert (summary["data_dtype"], summary["dtype"]) == ("float64", "float32")
    np.testing.assert_array_equal(np.load("wide-labels.npy"), np.load("model/labels.npy"))


def test_quiet_prints_nothing(succeed, model):
    assert succeed("predict", model, "iris.npy", "--quiet") == ""


def test_force_replaces_a_file(succeed, refuse, model):
    np.save("iris-labels.npy", [1, 2, 3])
    assert "iris-labels.npy: already exists" in refuse(ExitCode.USAGE, "predict", model, "iris.npy")
    succeed("predict", model, "iris.npy", "--force")
    assert np.load("iris-labels.npy").shape == (150,)


def test_never_replaces_the_data(refuse, model):
    line = refuse(ExitCode.USAGE, "predict", model, "iris.npy", "--out", "iris.npy", "--force")
    assert "iris.npy: is DATA itself" in line


def test_rejects_data_of_another_width(refuse, model):
    np.save("y.npy", np.zeros((10, 3)))
    line = refuse(ExitCode.USAGE, "predict", model, "y.npy")
    assert "y.npy: has 3 columns; expected 4, like the centers in model" in line


def test_rejects_nan(refuse, iris, model):
    iris[7, 1] = np.nan
    np.save("y.npy", iris)
    assert "y.npy: row 7, column 1 is nan" in refuse(ExitCode.FAILURE, "predict", model, "y.npy")


def test_rejects_missing_data(refuse, model):
    assert "no.npy: no such file" in refuse(ExitCode.USAGE, "predict", model, "no.npy")


def test_rejects_a_missing_gpu(refuse, model):
    assert "'cuda:all' was asked for" in refuse(ExitCode.NO_DEVICE, "predict", model, "iris.npy", "--devices", "all")
    assert "'cuda' was asked for" in refuse(ExitCode.NO_DEVICE, "predict", model, "iris.npy", "--device", "cuda")


@pytest.mark.parametrize("place", ["missing", "empty", "iris.npy"])
def test_rejects_a_directory_without_a_model(refuse, directory, iris, place):
    (directory / "empty").mkdir()
    assert f"{place}: is not a result of tsapps kmeans" in refuse(ExitCode.USAGE, "predict", place, "iris.npy")


def test_rejects_a_model_with_inconsistent_files(refuse, model):
    np.save("model/centers.npy", np.zeros((3, 4)))
    line = refuse(ExitCode.FAILURE, "predict", model, "iris.npy")
    assert "model/centers.npy: is 3 × 4 float64, but summary.json next to it says 4 × 4 float64" in line
