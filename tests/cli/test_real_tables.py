"""Tables that packages ship, from file to report by one command; labels are those of pandas and scikit-learn."""

from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.preprocessing import StandardScaler

SHIPPED = Path(str(files("sklearn.datasets.data")))


def with_names(load):
    """Return a data set of scikit-learn as a frame, with the names of its classes as a column of text."""
    data = load(as_frame=True)
    return data.data.assign(kind=data.target_names[data.target])


def sample_data(name):
    matplotlib = pytest.importorskip("matplotlib")
    return Path(matplotlib.get_data_path()) / "sample_data" / name


def iris():
    with_names(datasets.load_iris).to_csv("iris.csv", index=False)
    return "iris.csv", pd.read_csv("iris.csv")


def wine():
    with_names(datasets.load_wine).to_parquet("wine.parquet")
    return "wine.parquet", pd.read_parquet("wine.parquet")


def breast_cancer():
    with_names(datasets.load_breast_cancer).to_csv("cancer.csv.gz", sep=";", decimal=",")
    return "cancer.csv.gz", pd.read_csv("cancer.csv.gz", sep=";", decimal=",", index_col=0)


def shipped(name, separator):
    return SHIPPED / name, pd.read_csv(SHIPPED / name, sep=separator, header=None)


def exercise():
    return SHIPPED / "linnerud_exercise.csv", pd.read_csv(SHIPPED / "linnerud_exercise.csv", sep=" ")


def physiology():
    return SHIPPED / "linnerud_physiological.csv", pd.read_csv(SHIPPED / "linnerud_physiological.csv", sep=" ")


def stocks():
    return sample_data("Stocks.csv"), pd.read_csv(sample_data("Stocks.csv"), comment="#")


def microsoft():
    return sample_data("msft.csv"), pd.read_csv(sample_data("msft.csv"))


def penguins():
    random = np.random.default_rng(3)
    kind = random.integers(3, size=344)
    bill = 39 + 5 * kind + random.normal(0, 2, 344)
    frame = pd.DataFrame({"species": np.take(["Adélie", "Chinstrap", "Gentoo"], kind), "bill, mm": bill.round(1)})
    frame["seen"] = pd.Timestamp("2024-01-31") + pd.to_timedelta(random.integers(400, size=344), unit="D")
    frame["mass_g"] = (3700 + 600 * kind + random.normal(0, 250, 344)).round()
    frame["tagged"] = random.random(344) < 0.5
    frame.loc[::50, "mass_g"] = np.nan
    frame.to_csv("penguins.tsv", sep="\t", index=False)
    return "penguins.tsv", pd.read_csv("penguins.tsv", sep="\t")


TABLES = {
    "iris": (iris, []),
    "wine": (wine, []),
    "breast cancer": (breast_cancer, ["--decimal", ","]),
    "diabetes": (lambda: shipped("diabetes_data_raw.csv.gz", " "), []),
    "progression": (lambda: shipped("diabetes_target.csv.gz", " "), []),
    "digits": (lambda: shipped("digits.csv.gz", ","), []),
    "exercise": (exercise, []),
    "physiology": (physiology, []),
    "stocks": (stocks, ["--missing", "drop"]),
    "Microsoft": (microsoft, []),
    "penguins": (penguins, ["--missing", "mean"]),
}


class Sources(HTMLParser):
    """Collects what a page would load."""

    def __init__(self):
        super().__init__()
        self.found, self.charts = [], 0

    def handle_starttag(self, tag, attrs):
        self.charts += tag == "svg"
        self.found += [value for name, value in attrs if name in ("src", "href", "srcset")]


@pytest.mark.parametrize("name", TABLES)
def test_from_a_table_to_a_report(succeed, directory, name):
    write, arguments = TABLES[name]
    file, frame = write()
    succeed("kmeans", file, "-k", 3, "--scale", "standard", "-o", "m", "--report", "page.html", *arguments)
    X = frame.select_dtypes("number")
    kept = np.ones(len(X), bool)
    if "drop" in arguments:
        kept = X.notna().all(axis=1).to_numpy()
    X = StandardScaler().fit_transform(X[kept].fillna(X.mean()))
    expected = np.full(len(frame), -1)
    expected[kept] = KMeans(3, n_init=1, random_state=0).fit(X).labels_
    np.testing.assert_array_equal(np.load("m/labels.npy"), expected)
    page = Sources()
    page.feed((directory / "page.html").read_text())
    assert page.charts >= 4
    assert all(source.startswith(("data:", "#")) for source in page.found)
