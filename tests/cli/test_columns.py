"""Tables with text, holes and identifiers, from file to labels: options of ``tsapps kmeans`` and ``tsapps predict``."""

import json
from dataclasses import asdict
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler

from tsapps import choose_k
from tsapps.cli.kmeans_request import numbers_of_clusters

ROOT = Path(__file__).parents[2]


@pytest.fixture
def table(directory):
    """Write iris with names, species and two holes as x.csv and x.parquet; return the frame."""
    data = load_iris(as_frame=True)
    frame = data.data.copy()
    frame.columns = ["sl", "sw", "pl", "pw"]
    frame.insert(0, "plant", [f"p{number:03}" for number in range(150)])
    frame["species"] = data.target_names[data.target]
    frame.loc[[3, 70], "sw"] = np.nan
    frame.to_csv("x.csv", index=False)
    frame.to_parquet("x.parquet")
    return frame


def labels_of(X, k=3):
    return KMeans(k, n_init=1, random_state=0).fit(X)


@pytest.mark.parametrize("file", ["x.csv", "x.parquet"])
def test_from_a_table_to_labels_with_identifiers(succeed, table, file):
    args = ("--missing", "drop", "--scale", "standard", "--id", "plant", "--labels", "l.csv", "--distances", "-o", "m")
    summary = json.loads(succeed("kmeans", file, "-k", 3, *args, "--json"))
    complete = table[["sl", "sw", "pl", "pw"]].dropna()
    scaler = StandardScaler()
    X = scaler.fit_transform(complete)
    model = labels_of(X)
    labels = np.full(150, -1)
    labels[complete.index] = model.labels_
    np.testing.assert_array_equal(np.load("m/labels.npy"), labels)
    found = pd.read_csv("l.csv")
    assert found.columns.tolist() == ["plant", "label", "distance"]
    assert found.plant.tolist() == table.plant.tolist()
    np.testing.assert_array_equal(found.label, labels)
    np.testing.assert_allclose(found.distance.dropna(), model.transform(X).min(axis=1), rtol=1e-9)
    assert found.distance.isna().sum() == 2
    centers = pd.read_csv("m/centers.csv", index_col="cluster")
    np.testing.assert_allclose(centers, scaler.inverse_transform(model.cluster_centers_), rtol=1e-9)
    assert centers.columns.tolist() == summary["columns"] == ["sl", "sw", "pl", "pw"]
    assert (summary["n"], summary["left_out"], summary["id"]) == (148, ["species"], "plant")
    assert summary["missing"] == {"how": "drop", "rows_dropped": 2, "means": None}
    np.testing.assert_allclose(summary["scale"]["shift"], scaler.mean_)
    np.testing.assert_allclose(summary["scale"]["divisor"], scaler.scale_)


@pytest.mark.parametrize(("missing", "scale"), [("drop", "robust"), ("mean", "minmax"), ("mean", "none")])
def test_other_data_is_prepared_alike(succeed, table, missing, scale):
    succeed("kmeans", "x.csv", "-k", 3, "--missing", missing, "--scale", scale, "-o", "m")
    succeed("predict", "m", "x.parquet", "--out", "same.npy", "--labels", "same.parquet", "--id", "plant")
    np.testing.assert_array_equal(np.load("same.npy"), np.load("m/labels.npy"))
    found = pd.read_parquet("same.parquet")
    assert found.plant.tolist() == table.plant.tolist()
    np.testing.assert_array_equal(found.label, np.load("same.npy"))
    other = table[["pw", "species", "sw"]].assign(sl=table.sl, extra=1.0, pl=table.pl)  # another order, and one more
    other.to_csv("other.csv", index=False)
    succeed("predict", "m", "other.csv", "--out", "other.npy")
    np.testing.assert_array_equal(np.load("other.npy"), np.load("same.npy"))
    np.save("plain.npy", table[["sl", "sw", "pl", "pw"]].dropna().to_numpy())
    succeed("predict", "m", "plain.npy", "--out", "plain-labels.npy")
    np.testing.assert_array_equal(np.load("plain-labels.npy"), np.load("same.npy")[table.sw.notna()])


def test_one_line_says_what_is_left_out(run, table):
    found = run("kmeans", "x.csv", "-k", 2, "--missing", "mean", "-q")
    assert found.exit_code == 0
    expected = "tsapps: warning: x.csv: left out: plant, species (text); --columns chooses columns\n"
    assert found.stderr == expected
    assert run("kmeans", "x.csv", "-k", 2, "--columns", "pl,pw", "-q", "--force").stderr == ""
    assert run("kmeans", "x.csv", "-k", 2, "--exclude", "plant,species,sw", "-q", "--force").stderr == ""
    assert json.loads(Path("x-kmeans/summary.json").read_text())["columns"] == ["sl", "pl", "pw"]


def test_numbers_with_decimal_commas_are_named(run, succeed, directory):
    (directory / "x.csv").write_text("a;b;c\n1,5;x;2\n2,5;y;3\n")
    result = run("kmeans", "x.csv", "-k", 2)
    assert result.stderr.endswith(
        "left out: a, b (text); --columns chooses columns; --decimal , reads numbers such as 1,5\n"
    )
    succeed("kmeans", "x.csv", "-k", 2, "--decimal", ",", "-o", "m")
    np.testing.assert_array_equal(np.sort(np.load("m/centers.npy"), axis=0), [[1.5, 2], [2.5, 3]])


def test_initial_centers_and_weights_are_those_of_the_data(succeed, table):
    rows = [1, 60, 120]
    table[["pl", "pw"]].iloc[rows].to_csv("init.csv", index=False)
    weights = np.linspace(0, 2, 150)
    np.save("w.npy", weights)
    args = ("--columns", "pl,pw", "--scale", "standard", "--init", "init.csv", "--weights", "w.npy", "-o", "m")
    succeed("kmeans", "x.csv", "-k", 3, *args)
    X = StandardScaler().fit_transform(table[["pl", "pw"]])
    expected = KMeans(3, init=X[rows], n_init=1).fit(X, sample_weight=weights)
    np.testing.assert_array_equal(np.load("m/labels.npy"), expected.labels_)


def test_centers_of_another_fit_are_initial_centers(succeed, table):
    """Columns go by name: centers.csv has the number of the cluster, too, and any order is right."""
    succeed("kmeans", "x.csv", "-k", 3, "--columns", "pl,pw,sl", "--scale", "minmax", "-o", "m")
    for name in ("m/centers.csv", "turned.csv"):
        args = ("--columns", "sl,pl,pw", "--scale", "minmax", "--init", name, "-o", "again", "--force")
        succeed("kmeans", "x.csv", "-k", 3, *args)
        assert json.loads(Path("again/summary.json").read_text())["iterations"] == 1
        np.testing.assert_array_equal(np.load("again/labels.npy"), np.load("m/labels.npy"))
        pd.read_csv("m/centers.csv").iloc[:, ::-1].to_csv("turned.csv", index=False)


@pytest.mark.parametrize("row", ['"tall; thin",1,2', "tall; thin,1,2", '"#1",1,2'])
def test_text_with_other_delimiters(succeed, row):
    Path("x.csv").write_text(f"name,a,b\n{row}\nflat,3,4\n")
    succeed("kmeans", "x.csv", "-k", 2, "-o", "m")
    np.testing.assert_array_equal(np.sort(np.load("m/centers.npy"), axis=0), [[1, 2], [3, 4]])


def test_labels_without_identifiers_have_the_numbers_of_rows(succeed, iris):
    succeed("kmeans", "iris.npy", "-k", 3, "-o", "m", "--labels", "l.csv")
    found = pd.read_csv("l.csv")
    assert found.row.tolist() == list(range(150))
    np.testing.assert_array_equal(found.label, np.load("m/labels.npy"))
    succeed("kmeans", "iris.npy", "-k", 3, "-o", "m2", "--labels", "l.npy")
    np.testing.assert_array_equal(np.load("l.npy"), np.load("m/labels.npy"))


def test_cosine_distances(succeed, iris):
    succeed("kmeans", "iris.npy", "-k", 3, "-o", "m", "--metric", "cosine", "--labels", "l.csv", "--distances")
    found, centers = pd.read_csv("l.csv"), np.load("m/centers.npy")
    unit = iris / np.linalg.norm(iris, axis=1, keepdims=True)
    own = centers[found.label] / np.linalg.norm(centers[found.label], axis=1, keepdims=True)
    np.testing.assert_allclose(found.distance, 1 - (unit * own).sum(axis=1), atol=1e-12)


def test_a_fit_with_columns_continues(succeed, table):
    args = ("--missing", "mean", "--scale", "standard", "--id", "plant", "--labels", "l.csv")
    succeed("kmeans", "x.csv", "-k", 3, *args, "-o", "m")
    succeed("kmeans", "x.csv", "-k", 3, *args, "-o", "m2", "--checkpoint", "c", "--force")
    np.testing.assert_array_equal(np.load("m/labels.npy"), np.load("m2/labels.npy"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--columns", "slx"), "x.csv: has no column slx, which --columns names; did you mean sl?"),
        (("--columns", ""), "--columns: names no column; expected names separated by commas"),
        (("--exclude", "sl,sw,pl,pw"), "x.csv: no column of numbers is left: plant, species (text)"),
        (("--id", "pln"), "x.csv: has no column pln, which --id names"),
        (("--labels", "l.txt"), "--labels l.txt: has the extension '.txt'; expected one of .csv, .parquet, .npy"),
        (("--labels", "l.npy", "--id", "plant"), "--labels l.npy: an array has labels alone"),
        (("--labels", "l.csv", "--id", "label"), "--id label: tables of labels have a column of this name: rename it"),
        (("--labels", "x.csv", "--force"), "--labels x.csv: is a file that this command reads: name another file"),
        (("--labels", "w.csv", "--force", "--weights", "w.csv"), "--labels w.csv: is a file that this command reads"),
        (("--labels", "n/l.csv", "--out", "n"), "--labels n/l.csv: "),
        (("--labels", "o/l.csv", "--out", "o", "--force"), "--labels o/l.csv: lies in --out o: name a file elsewhere"),
        (
            ("--report", "o/r.html", "--out", "o", "--force"),
            "--report o/r.html: lies in --out o: name a file elsewhere",
        ),
        (("--exclude", "a\nb"), "--exclude a"),
        (("--columns", '"a'), '--columns "a: unexpected end of data; expected names separated by commas'),
        (("--distances",), "--distances: are written to a table of labels, which --labels names"),
        (("--decimal", ";"), "--decimal ;: expected a point or a comma"),
    ],
)
def test_wrong_options(run, table, args, message):
    table.assign(w=1.0)[["w"]].to_csv("w.csv", index=False)
    Path("o").mkdir()
    before = Path("x.csv").read_bytes(), Path("w.csv").read_bytes()
    found = run("kmeans", "x.csv", "-k", 2, "--missing", "drop", *args)
    assert (found.exit_code, message in found.stderr.splitlines()[-1]) == (2, True), found.stderr
    assert (Path("x.csv").read_bytes(), Path("w.csv").read_bytes()) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "x.csv: line 5, cell 3 (sw) is empty; expected a number: fill it in, or drop the line (tsapps kmeans"),
        (("--columns", "sl,species"), "x.csv: column species holds text (line 2 is 'setosa'); expected numbers"),
    ],
)
def test_tables_that_cannot_be_clustered(run, directory, table, args, message):
    found = run("kmeans", "x.csv", "-k", 2, *args)
    assert (found.exit_code, found.stderr.splitlines()[-1].startswith(f"tsapps: {message}")) == (1, True)
    assert not (directory / "x-kmeans").exists()


@pytest.mark.parametrize(
    "args",
    [
        ("x.csv", "--missing", "drop", "--scale", "robust", "--id", "plant"),
        ("x.csv", "--missing", "mean", "--columns", "sw,pl", "--metric", "cosine", "--n-init", 2, "--checkpoint", "c"),
        ("parts", "--weights", "w.npy"),
    ],
    ids=str,
)
def test_summaries_match_the_published_schema(succeed, directory, table, args):
    (directory / "parts").mkdir()
    for part in ("a", "b"):
        np.save(f"parts/{part}.npy", table[["sl", "pl"]].to_numpy())
    np.save("w.npy", np.ones(300))
    printed = json.loads(succeed("kmeans", *args, "-k", 3, "-o", "m", "--json"))
    schema = json.loads((ROOT / "docs/reference/kmeans-summary.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(printed, schema)
    assert printed == json.loads(Path("m/summary.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(printed | {"k": 0}, schema)


@pytest.mark.parametrize(
    "damage",
    [
        {"columns": [1, 2, 3, 4]},
        {"columns": "slsw"},
        {"columns": 5},
        {"missing": "x"},
        {"missing": {"how": "foo"}},
        {"missing": {"how": "mean", "means": [1.0]}},
        {"scale": [1]},
        {"scale": {"shift": [0, 0, 0, 0]}},
        {"scale": {"shift": [0, 0, 0, 0], "divisor": [1, 0, 1, 1]}},
    ],
    ids=str,
)
def test_a_damaged_model(refuse, succeed, table, damage):
    succeed("kmeans", "x.csv", "-k", 3, "--missing", "mean", "-o", "m")
    path = Path("m/summary.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    assert "summary.json: is damaged: its columns do not match" in refuse(1, "predict", "m", "x.csv")


def test_a_model_of_columns_by_number(succeed, iris):
    succeed("kmeans", "iris.npy", "-k", 3, "--columns", "3,1", "-o", "m")
    succeed("predict", "m", "iris.npy", "--id", 0, "--labels", "l.csv")
    np.testing.assert_array_equal(np.load("iris-labels.npy"), np.load("m/labels.npy"))
    assert pd.read_csv("l.csv")["0"].tolist() == iris[:, 0].tolist()
    assert json.loads(Path("m/summary.json").read_text())["numbers"] == [3, 1]


def test_identifiers_of_a_file_without_names(succeed, table):
    succeed("kmeans", "x.csv", "-k", 3, "--columns", "sl,pl", "-o", "m")
    table[["sl", "pl", "plant"]].to_csv("bare.csv", index=False, header=False)
    succeed("predict", "m", "bare.csv", "--id", 2, "--labels", "l.csv")
    found = pd.read_csv("l.csv")
    assert found["2"].tolist() == table.plant.tolist()
    np.testing.assert_array_equal(found.label, np.load("m/labels.npy"))


def test_numeric_names_of_a_model_are_no_numbers_of_columns(refuse, succeed, table):
    table[["sl", "pl"]].set_axis(["1", "2"], axis=1).to_csv("years.csv", index=False)
    succeed("kmeans", "years.csv", "-k", 3, "--header", "-o", "m")
    assert "x.csv: has no column 1, which --columns names" in refuse(2, "predict", "m", "x.csv")


def test_rows_without_a_value_in_a_column_of_the_model(succeed, table):
    succeed("kmeans", "x.csv", "-k", 3, "--missing", "mean", "-o", "m")
    table.iloc[:1].assign(sw=np.nan).to_csv("one.csv", index=False)
    printed = json.loads(succeed("predict", "m", "one.csv", "--json"))
    assert (printed["n"], printed["rows_dropped"]) == (1, 0)


def test_a_column_that_is_text_in_one_file_of_several(refuse, succeed, directory):
    (directory / "two").mkdir()
    (directory / "two/a.csv").write_text("x,y,z\n1,2,red\n")
    (directory / "two/b.csv").write_text("y,x,z\n4,3,5\n")
    message = refuse(1, "kmeans", "two", "-k", 2)
    assert "two/b.csv: its columns of numbers are y, x, z, but those of two/a.csv are x, y: " in message
    succeed("kmeans", "two", "-k", 2, "--columns", "x,y", "-o", "m")
    np.testing.assert_array_equal(np.sort(np.load("m/centers.npy"), axis=0), [[1, 2], [3, 4]])


def test_rows_that_are_dropped_are_counted(succeed, table):
    line = "x.csv: 148 × 4 float64, computed in float64, 2 rows dropped\n"
    assert line in succeed("kmeans", "x.csv", "-k", 3, "--missing", "drop", "-o", "m")
    assert line in succeed("predict", "m", "x.csv")


def test_a_table_of_labels_that_fails_leaves_the_model(run, directory, table):
    (directory / "parts").mkdir()
    for number, tag in enumerate([1, 2.5]):
        pd.DataFrame({"tag": pd.Series([tag] * 5), "x": range(5)}).to_parquet(f"parts/{number}.parquet")
    found = run("kmeans", "parts", "-k", 2, "--columns", "x", "--id", "tag", "--labels", "l.parquet", "-o", "m")
    assert found.exit_code == 1
    assert "--id tag: the files have identifiers of several types" in found.stderr
    assert (Path("m/labels.npy").exists(), Path("l.parquet").exists()) == (True, False)


# --- Several numbers of clusters --------------------------------------------------------------------------------------


def test_the_best_of_several_numbers(succeed, table):
    printed = succeed("kmeans", "x.csv", "-k", "2:6", "--missing", "drop", "-o", "m")
    summary = json.loads(Path("m/summary.json").read_text())
    X = table[["sl", "sw", "pl", "pw"]].dropna().to_numpy()
    expected = choose_k(X, range(2, 7), device="cpu")
    assert (summary["k"], summary["sweep"]["reason"]) == (expected.k, expected.reason) == (2, expected.reason)
    assert summary["sweep"]["criterion"] == "silhouette"
    assert [one["k"] for one in summary["sweep"]["scores"]] == [2, 3, 4, 5, 6]
    for one, other in zip(summary["sweep"]["scores"], expected.scores, strict=True):
        known = {name: value for name, value in asdict(other).items() if not name.startswith("gap")}
        assert {name: one[name] for name in known} == pytest.approx(known, rel=1e-9)
        assert (one["gap"], one["gap_error"]) == (None, None)
    succeed("kmeans", "x.csv", "-k", 2, "--missing", "drop", "-o", "alone")
    np.testing.assert_array_equal(np.load("m/labels.npy"), np.load("alone/labels.npy"))
    np.testing.assert_array_equal(np.load("m/centers.npy"), np.load("alone/centers.npy"))
    assert printed.startswith("k  inertia  silhouette  ± (95 %)  simplified  Calinski-Harabasz  Davies-Bouldin\n2  ")
    assert f"clusters    2, of 52 to 96 rows (median 74): {expected.reason}\n" in printed
    schema = json.loads((ROOT / "docs/reference/kmeans-summary.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(summary, schema)


def test_the_gap_statistic(succeed, table):
    printed = succeed(
        *("kmeans", "x.csv", "-k", "1:3", "--gap", 2, "--missing", "drop", "--seed", 4, "-o", "m", "--report", "r.html")
    )
    summary = json.loads(Path("m/summary.json").read_text())
    X = table[["sl", "sw", "pl", "pw"]].dropna().to_numpy()
    expected = choose_k(X, range(1, 4), device="cpu", gap=2, random_state=4)
    assert (summary["k"], summary["sweep"]["references"]) == (expected.k, 2)
    for one, other in zip(summary["sweep"]["scores"], expected.scores, strict=True):
        assert (one["gap"], one["gap_error"]) == pytest.approx((other.gap, other.gap_error), rel=1e-9)
    headline, *rows = printed.splitlines()[:4]
    assert headline.split()[-4:] == ["Davies-Bouldin", "gap", "±", "(s.e.)"]
    assert [row.split()[-2:] for row in rows] == [[f"{o.gap:.4g}", f"{o.gap_error:.4g}"] for o in expected.scores]
    schema = json.loads((ROOT / "docs/reference/kmeans-summary.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(summary, schema)
    assert "± (standard error)" in Path("r.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("args", [("-k", 3), ("-k", "2:3", "--metric", "cosine")])
def test_a_gap_of_what_has_none(refuse, table, args):
    line = refuse(2, "kmeans", "x.csv", "--gap", 2, *args)
    assert "--gap 2: needs several numbers of clusters and --metric euclidean: drop it" in line


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("8", (8,)),
        ("2:5", (2, 3, 4, 5)),
        ("3:3", (3,)),
        ("2:9:3", (2, 5, 8)),
        ("2:20:log", (2, 3, 4, 6, 8, 11, 16, 20)),
        ("1:2:log", (1, 2)),
    ],
)
def test_numbers_of_clusters(text, numbers):
    assert numbers_of_clusters(text) == numbers


@pytest.mark.parametrize(
    "text", ["0", "-1", "x", "2:", ":3", "5:2", "2:9:0", "2:9:log:2", "2:2000", "log", "2:log", "1.5", "9" * 12]
)
def test_wrong_numbers_of_clusters(refuse, table, text):
    assert f"--k {text}: " in refuse(2, "kmeans", "x.csv", "--k", text)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--checkpoint", "c"), "--k: several numbers of clusters cannot be tried with --checkpoint: name one"),
        (("--weights", "x.csv"), "--k: several numbers of clusters cannot be tried with --weights: name one"),
        (("--init", "x.csv"), "--k: several numbers of clusters cannot be tried with --init FILE: name one"),
    ],
)
def test_what_goes_with_one_number_alone(refuse, table, args, message):
    assert message in refuse(2, "kmeans", "x.csv", "-k", "2:3", *args)
