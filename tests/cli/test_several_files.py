"""``tsapps kmeans`` and ``predict`` of several files as one matrix."""

import json
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tsapps.cli.labels_by_file import label_names
from tsapps.cli.options import stem
from tsapps.errors import ExitCode, UsageError


@pytest.fixture
def points(directory, rng):
    """Write points/a.npy, points/b.npy and whole.npy, which has the rows of both; return the rows."""
    X = rng.standard_normal((300, 4)).astype(np.float32)
    (directory / "points").mkdir()
    np.save("points/a.npy", X[:100])
    np.save("points/b.npy", X[100:])
    np.save("whole.npy", X)
    return X


def content(*path):
    return Path(*path).read_bytes()


@pytest.mark.parametrize("data", ["points", "points/", "points/*.npy", "./points/?.npy"])
def test_the_result_of_one_file(succeed, points, data):
    text = succeed("kmeans", data, "--k", "3", "--device", "cpu")
    assert f"{data}: 2 files, 300 × 4 float32, computed in float32" in " ".join(text.split())
    succeed("kmeans", "whole.npy", "--k", "3", "--device", "cpu", "--quiet")
    for name in ("labels.npy", "centers.npy"):
        assert content("points-kmeans", name) == content("whole-kmeans", name)
    summary = json.loads(content("points-kmeans", "summary.json"))
    assert summary["files"] == [
        {"file": os.path.abspath("points/a.npy"), "rows": 100},
        {"file": os.path.abspath("points/b.npy"), "rows": 200},
    ]
    assert json.loads(content("whole-kmeans", "summary.json"))["files"] is None


def test_predict(succeed, points):
    succeed("kmeans", "whole.npy", "--k", "3", "--device", "cpu", "--quiet")
    text = succeed("predict", "whole-kmeans", "points", "--device", "cpu")
    assert "points: 2 files, 300 × 4 float32" in " ".join(text.split())
    np.testing.assert_array_equal(np.load("points-labels.npy"), np.load("whole-kmeans/labels.npy"))
    found = json.loads(succeed("predict", "whole-kmeans", "points/a*", "--device", "cpu", "--json"))
    assert found["files"] is None
    assert len(np.load("a-labels.npy")) == 100


def test_labels_of_each_file(succeed, points):
    succeed("kmeans", "points", "--k", "3", "--device", "cpu", "--quiet")
    expected = np.split(np.load("points-kmeans/labels.npy"), [100])
    text = succeed("predict", "points-kmeans", "points", "--by-file", "--device", "cpu")
    assert "points-labels/: 2 files" in text
    assert sorted(os.listdir("points-labels")) == ["a-labels.npy", "b-labels.npy"]
    for name, labels in zip("ab", expected, strict=True):
        np.testing.assert_array_equal(np.load(f"points-labels/{name}-labels.npy"), labels)
    found = json.loads(
        succeed("predict", "points-kmeans", "points/b.npy", "--by-file", "--out", "b", "--device", "cpu", "--json")
    )
    assert found["output"] == os.path.abspath("b")
    np.testing.assert_array_equal(np.load("b/b-labels.npy"), expected[1])


def test_labels_of_each_file_replace_earlier_ones(succeed, refuse, points):
    succeed("kmeans", "points", "--k", "3", "--device", "cpu", "--quiet")
    labels = "predict", "points-kmeans", "points", "--by-file", "--device", "cpu"
    succeed(*labels)
    os.rename("points/b.npy", "points/c.npy")
    assert "points-labels: already exists" in refuse(ExitCode.USAGE, *labels)
    succeed(*labels, "--force")
    assert sorted(os.listdir("points-labels")) == ["a-labels.npy", "c-labels.npy"]
    Path("points-labels/notes.txt").touch()
    assert "holds 'notes.txt', which is not a file of labels" in refuse(ExitCode.USAGE, *labels, "--force")
    assert "points: has files of DATA" in refuse(ExitCode.USAGE, *labels, "--force", "--out", "points")
    assert "is the current directory" in refuse(ExitCode.USAGE, *labels, "--force", "--out", ".")
    assert "whole.npy: exists and is not a directory" in refuse(ExitCode.USAGE, *labels, "--out", "whole.npy")
    assert sorted(os.listdir("points-labels")) == ["a-labels.npy", "c-labels.npy", "notes.txt"]


def test_names_of_labels():
    assert label_names(["some/x.npy"]) == ["x-labels.npy"]
    assert label_names(["s/a/x.npy", "s/b/x.npy", "s/y.npy"]) == [
        "a-x-labels.npy",
        "b-x-labels.npy",
        "y-labels.npy",
    ]
    with pytest.raises(UsageError, match=r"the labels of s/a/b\.npy and s/a-b\.npy would both be a-b-labels\.npy"):
        label_names(["s/a/b.npy", "s/a-b.npy"])


def test_predict_never_writes_to_one_of_the_files(succeed, refuse, points):
    succeed("kmeans", "whole.npy", "--k", "3", "--device", "cpu", "--quiet")
    line = refuse(ExitCode.USAGE, "predict", "whole-kmeans", "points", "--out", "points/b.npy", "--force")
    assert "points/b.npy: is DATA itself" in line


def test_permissions_of_all_files(succeed, points):
    os.chmod("points/b.npy", 0o600)
    succeed("kmeans", "points", "--k", "3", "--device", "cpu", "--quiet")
    assert os.stat("points-kmeans/labels.npy").st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("absent*.npy", "absent*.npy: no such file, and none matches this pattern"),
        ("empty", "empty: is a directory without a matrix"),
        ("mixed", "mixed: has files of several formats (.csv, .npy)"),
        ("*/[ac].npy", "c.npy: has 2 columns of float64, but points/a.npy has 4 of float32"),
    ],
)
def test_refusals(refuse, run, points, data, what):
    for directory in ("empty", "mixed"):
        Path(directory).mkdir()
    Path("mixed/x.csv").write_text("1,2\n")
    np.save("mixed/x.npy", points)
    np.save("points/c.npy", np.ones((3, 2)))
    code = ExitCode.FAILURE if "columns" in what else ExitCode.USAGE
    assert what in refuse(code, "kmeans", data, "--k", "2", "--device", "cpu")


@pytest.mark.parametrize("option", ["--init", "--weights"])
def test_other_inputs_are_one_file(refuse, points, option):
    line = refuse(ExitCode.USAGE, "kmeans", "whole.npy", "--k", "2", option, "points", "--device", "cpu")
    assert "points: is a directory: name a file in it" in line


@pytest.mark.parametrize(
    "command",
    [
        ["kmeans", "points", "--k", "3"],
        ["predict", "whole-kmeans", "points"],
        ["predict", "whole-kmeans", "points", "--by-file"],
    ],
)
def test_a_file_that_appears_meanwhile_costs_no_result(succeed, points, monkeypatch, command):
    succeed("kmeans", "whole.npy", "--k", "3", "--device", "cpu", "--quiet")
    for module in map(import_module, ("tsapps.cli.kmeans", "tsapps.cli.predict")):

        def write(*args, original=module._write, **options):
            Path("points/notes.txt").write_text("1 2 3")
            return original(*args, **options)

        monkeypatch.setattr(module, "_write", write)
    succeed(*command, "--device", "cpu", "--quiet")


def test_predict_writes_no_file_of_its_own_input(succeed, refuse, points):
    succeed("kmeans", "whole.npy", "--k", "3", "--device", "cpu", "--quiet")
    line = refuse(ExitCode.USAGE, "predict", "whole-kmeans", "points", "--out", "points/labels.npy")
    assert "points/labels.npy: would be a file of DATA, points" in line


@pytest.mark.parametrize("command", [["abft-encode"], ["abft-verify"], ["abft-correct", "--in-place"]])
def test_checksums_are_of_one_file(refuse, points, command):
    assert "points: is a directory: name a file in it" in refuse(ExitCode.USAGE, *command, "points")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("some/x.npy", "x"),
        ("some", "some"),
        ("some/", "some"),
        ("some/*.npy", "some"),
        ("some/part-*.npy", "part"),
        ("some/part_[0-9].npy", "part"),
        ("some/**/*.npy", "some"),
        ("some/*/x.npy", "some"),
        ("so*/*.npy", "so"),
        ("*.npy", "here"),
        ("*/x.npy", "here"),
        (".", "here"),
        ("/", "matrix"),
        ("/*.npy", "matrix"),
        ("some/*.npz:train", "some-train"),
        ("some/*.npz:train/images", "some-train-images"),
    ],
)
def test_names_of_results(directory, monkeypatch, path, name):
    (directory / "here" / "some").mkdir(parents=True)
    monkeypatch.chdir(directory / "here")
    assert stem(path) == name
