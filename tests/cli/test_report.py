"""``tsapps report`` and ``tsapps kmeans --report``."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def table(directory, iris):
    frame = pd.DataFrame(iris, columns=list("wxyz"))
    frame.loc[5, "x"] = np.nan
    frame["name"] = [f"n{number}" for number in range(150)]
    frame.to_csv("x.csv", index=False)
    return frame


def test_a_page_with_the_fit_and_later(succeed, table):
    args = ("--missing", "drop", "--scale", "standard", "--report", "one.html", "-o", "m")
    assert "summary.json; one.html" in succeed("kmeans", "x.csv", "-k", "2:5", *args)
    one = Path("one.html").read_text(encoding="utf-8")
    for text in (
        "clusters of x.csv",
        "left out",
        "drop; 1 rows dropped",
        "Convergence",
        "Numbers of clusters",
        "kmeans x.csv",
    ):
        assert text in one
    assert succeed("report", "m") == "written  m.html\n"
    assert Path("m.html").read_text(encoding="utf-8") == one


def test_data_at_another_place(succeed, refuse, table):
    succeed("kmeans", "x.csv", "-k", 3, "--columns", "w,z", "-o", "m")
    Path("x.csv").rename("moved.csv")
    assert "x.csv: no such file: check the path" in refuse(2, "report", "m")
    succeed("report", "m", "moved.csv", "-o", "page.html")
    table[:9].to_csv("short.csv", index=False)
    assert "short.csv: has 9 rows; expected 150, the data that m was fitted to" in refuse(2, "report", "m", "short.csv")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("m", "-o", "page.txt"), "page.txt: a report is an HTML page: name a file such as report.html"),
        (("m", "-o", "there.html"), "there.html: already exists: choose another name, or replace it with --force"),
        (("nothing",), "nothing: is not a result of tsapps kmeans (it has no summary.json): name its --out"),
    ],
)
def test_refused(succeed, refuse, table, args, message):
    succeed("kmeans", "x.csv", "-k", 3, "--missing", "mean", "-o", "m")
    Path("there.html").write_text("mine")
    assert message in refuse(2, "report", *args)
    assert Path("there.html").read_text() == "mine"


@pytest.mark.parametrize("damage", ["missing", "text", "dtype", "range"])
def test_damaged_labels(succeed, refuse, table, damage):
    succeed("kmeans", "x.csv", "-k", 3, "--missing", "mean", "-o", "m")
    path = Path("m/labels.npy")
    labels = np.load(path)
    path.unlink()
    if damage == "text":
        path.write_text("labels")
    elif damage != "missing":
        np.save(path, labels.astype(np.int64) if damage == "dtype" else labels + np.int32(1))
    assert "m/labels.npy: " in refuse(1, "report", "m")
    assert not Path("m.html").exists()


def test_histories_are_those_of_the_chosen_fit(succeed, table):
    summary = json.loads(succeed("kmeans", "x.csv", "-k", 3, "--missing", "mean", "-o", "m", "--json"))
    assert [one["iteration"] for one in summary["history"]] == list(range(1, summary["iterations"] + 1))
    falling = [one["inertia"] for one in summary["history"]] + [summary["inertia"]]
    assert (np.diff(falling) <= 1e-12 * falling[0]).all()
    succeed("kmeans", "x.csv", "-k", 3, "--missing", "mean", "-o", "quiet", "-q")
    assert json.loads(Path("quiet/summary.json").read_text())["history"] is None
