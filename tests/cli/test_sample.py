"""`tsapps sample`: data sets and errors."""

import importlib.util

import numpy as np
import pytest
from sklearn.datasets import load_iris

from tsapps.errors import ExitCode


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("china", (273_280, 3), "uint8"),
        ("digits", (1797, 64), "float64"),
        ("iris", (150, 4), "float64"),
        ("blobs", (100_000, 16), "float32"),
    ],
)
def test_writes(succeed, name, shape, dtype):
    if name == "china":
        pytest.importorskip("PIL")
    printed = succeed("sample", name, "x.npy")
    X = np.load("x.npy")
    assert (X.shape, str(X.dtype)) == (shape, dtype)
    assert printed.startswith(f"x.npy: {shape[0]:,} × {shape[1]} {dtype}, {X.nbytes:,} bytes: ")


def test_iris_is_iris(succeed):
    succeed("sample", "iris", "x.npy")
    np.testing.assert_array_equal(np.load("x.npy"), load_iris().data)


def test_list_names_them_all(succeed, directory):
    names = [line.split()[0] for line in succeed("sample", "--list").splitlines()]
    assert names == ["china", "digits", "iris", "blobs"]
    assert not list(directory.iterdir())


def test_replaces_only_with_force(succeed, refuse):
    succeed("sample", "iris", "x.npy")
    assert "x.npy: already exists" in refuse(ExitCode.USAGE, "sample", "digits", "x.npy")
    succeed("sample", "digits", "x.npy", "--force")
    assert np.load("x.npy").shape == (1797, 64)


def test_rejects_an_unknown_name(refuse):
    line = refuse(ExitCode.USAGE, "sample", "irises", "x.npy")
    assert "irises: no such data set: expected one of china, digits, iris, blobs" in line


@pytest.mark.parametrize("out", ["x.csv", "x"])
def test_rejects_other_formats(refuse, out):
    assert f"{out}: expected a name that ends in .npy" in refuse(ExitCode.USAGE, "sample", "iris", out)


def test_rejects_a_missing_directory(refuse, directory):
    assert "there is no directory" in refuse(ExitCode.USAGE, "sample", "iris", "no/x.npy")
    (directory / "x.npy").mkdir()
    assert "x.npy: is a directory" in refuse(ExitCode.USAGE, "sample", "iris", "x.npy", "--force")


def test_china_says_how_to_install_pillow(refuse, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: None if name == "PIL" else find(name, *args))
    line = refuse(ExitCode.FAILURE, "sample", "china", "x.npy")
    assert line == "tsapps: china: needs Pillow, which is not installed: pip install pillow\n"
