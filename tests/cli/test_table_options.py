"""Options --header and --index of every command that reads text tables, and their inference from other inputs."""

import json

import numpy as np
import pandas as pd
import pytest

from tsapps import abft

X = np.array([[0, 1, 5], [40, 2, 7], [41, 3, 9], [1, 9, 3]])
NAMES = (
    "tsapps: x.csv: line 1: it may be names of columns or numbers: give --header for names, --no-header for numbers "
)
INDEX = "tsapps: x.csv: line 1: the first column counts the rows 0, 1, 2, …: it may be an index or a feature: skip it "


def write(text, path="x.csv"):
    with open(path, "w") as file:
        file.write(text)


def shape_of(*args):
    found = json.loads(args[0]("abft-encode", "x.csv", "--out", "x.abft", "--force", "--json", *args[1:]))
    return found["n"], found["d"]


@pytest.fixture
def whole():
    """Write a table of integers with the column names of pandas."""
    frame = pd.DataFrame(X)
    write(frame.to_csv(index=False))
    return frame


def test_names_of_pandas(refuse, succeed, whole):
    assert refuse(2, "abft-encode", "x.csv").startswith(NAMES)
    assert shape_of(succeed, "--header") == (4, 3)
    assert shape_of(succeed, "--no-header") == (5, 3)


def test_an_index_of_pandas(refuse, succeed, run):
    write(pd.DataFrame(X).to_csv())
    result = run("abft-encode", "x.csv", "--json")
    assert result.exit_code == 0
    assert (json.loads(result.stdout)["n"], json.loads(result.stdout)["d"]) == (4, 3)
    assert result.stderr == (
        "tsapps: warning: x.csv: the first column is skipped as an index: it has no name and counts the "
        "rows 0, 1, 2, …; keep it with --no-index (index=False)\n"
    )
    assert shape_of(succeed, "--no-index", "--header") == (4, 4)
    write(pd.DataFrame(X).to_csv(header=False))
    assert refuse(2, "abft-encode", "x.csv", "--force").startswith(INDEX)
    assert shape_of(succeed, "--index") == (4, 3)
    assert shape_of(succeed, "--no-index") == (4, 4)


@pytest.mark.parametrize(
    "command",
    [
        ["kmeans", "x.csv", "-k", "2"],
        ["predict", "model", "x.csv"],
        ["abft-encode", "x.csv"],
        ["abft-inject", "x.csv", "--out", "y.npy"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_has_the_options(refuse, succeed, whole, command):
    write(whole.to_csv(index=False), "m.csv")
    succeed("kmeans", "m.csv", "-k", "2", "--header", "--out", "model", "-q")
    assert refuse(2, *command).startswith(NAMES)
    succeed(*command, "--header", "--no-index")


def test_the_sidecar_stores_how_the_table_was_read(refuse, succeed, run, whole):
    succeed("abft-encode", "x.csv", "--header")
    succeed("abft-verify", "x.csv")
    succeed("abft-verify", "x.csv", "--header", "--no-index")
    assert run("abft-verify", "x.csv", "--no-header").exit_code == 1
    succeed("abft-correct", "x.csv", "--out", "y.npy")
    np.testing.assert_array_equal(np.load("y.npy"), X)
    succeed("abft-correct", "x.csv", "--header", "--out", "z.npy")
    write(pd.DataFrame(X).to_csv(header=False))
    succeed("abft-encode", "x.csv", "--index", "--force")
    succeed("abft-verify", "x.csv")
    assert abft.verify(X.astype(float), abft.read_sidecar("x.csv.abft")).clean


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("index", [False, True])
def test_shape_resolves_weights_and_initial_centers(succeed, header, index):
    np.save("x.npy", X)
    weights = [0, 3, 1, 2]
    pd.DataFrame(weights).to_csv("w.csv", header=header, index=False)
    pd.DataFrame(X[:2]).to_csv("first.csv", header=header, index=index)
    options = ["-k", "2", "--weights", "w.csv", "--init", "first.csv", "-q", "--force"]
    succeed("kmeans", "x.npy", *options)
    # By hand: one cluster has (0, 1, 5) with weight 0; the other (40, 2, 7) with weight 3 and (41, 3, 9) with weight 1.
    np.testing.assert_allclose(np.load("x-kmeans/centers.npy"), [[1, 9, 3], [40.25, 2.25, 7.5]])


def test_a_wrong_number_of_weights_is_rejected(refuse):
    np.save("x.npy", X)
    write("0\n1\n2\n1\n5\n6\n7\n", "w.csv")
    assert "w.csv" in refuse(2, "kmeans", "x.npy", "-k", "2", "--weights", "w.csv")


@pytest.mark.parametrize("option", ["--header", "--no-header", "--index", "--no-index"])
def test_other_formats_reject_the_options(refuse, iris, option):
    line = refuse(2, "kmeans", "iris.npy", "-k", "2", option)
    assert "iris.npy: is not a text table; --header and --index apply to .csv, .tsv, .txt: omit them" in line


@pytest.mark.parametrize("command", ["kmeans", "predict", "abft-encode", "abft-verify", "abft-correct", "abft-inject"])
def test_help_lists_the_options(succeed, command):
    text = succeed(command, "--help")
    assert "--header" in text
    assert "--no-index" in text
