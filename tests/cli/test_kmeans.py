"""`tsapps kmeans`: results, output files and errors."""

import json
import os

import numpy as np
import pytest
from sklearn.cluster import KMeans

from tsapps import TSKMeans
from tsapps.apps.kmeans.engines.host_step import HostStep
from tsapps.errors import ExitCode
from tsapps.matrix import EXTENSIONS


def load(place):
    summary = json.loads((place / "summary.json").read_text())
    return np.load(place / "labels.npy"), np.load(place / "centers.npy"), summary


def assert_same_as_scikit_learn(place, X, **parameters):
    labels, centers, summary = load(place)
    expected = KMeans(**parameters).fit(X)
    np.testing.assert_array_equal(labels, expected.labels_)
    np.testing.assert_allclose(centers, expected.cluster_centers_, rtol=1e-10, atol=1e-10)
    assert summary["iterations"] == expected.n_iter_
    assert summary["inertia"] == pytest.approx(expected.inertia_, rel=1e-10)


def test_four_points_by_hand(succeed, directory):
    np.save("x.npy", [[0.0, 0], [0, 2], [10, 0], [10, 2]])
    succeed("kmeans", "x.npy", "--k", 2)
    labels, centers, summary = load(directory / "x-kmeans")
    assert labels.dtype == np.int32
    assert labels[0] == labels[1] != labels[2] == labels[3]
    np.testing.assert_array_equal(centers[labels], [[0, 1], [0, 1], [10, 1], [10, 1]])
    assert summary["inertia"] == 4
    assert summary["cluster_sizes"] == [2, 2]
    assert summary["converged"] is True


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("init", ["k-means++", "random"])
def test_same_as_scikit_learn(succeed, directory, iris, init, seed):
    succeed("kmeans", "iris.npy", "--k", 5, "--init", init, "--seed", seed)
    assert_same_as_scikit_learn(directory / "iris-kmeans", iris, n_clusters=5, init=init, random_state=seed)


def test_init_by_kmeans_parallel(succeed, directory, iris):
    succeed("kmeans", "iris.npy", "--k", 5, "--init", "k-means||", "--seed", 3)
    expected = TSKMeans(5, init="k-means||", random_state=3, device="cpu").fit(iris)
    labels, _, summary = load(directory / "iris-kmeans")
    np.testing.assert_array_equal(labels, expected.labels_)
    assert summary["init"] == "k-means||"


@pytest.mark.parametrize("file", ["blobs.csv", "blobs.npy", "blobs.fbin"])
def test_same_as_scikit_learn_from_any_format(succeed, directory, blobs, file):
    succeed("kmeans", file, "--k", 9, "--dtype", "float64", "--n-init", 3, "--tol", 0, "--out", "found")
    X = blobs.astype(np.float64)
    assert_same_as_scikit_learn(directory / "found", X, n_clusters=9, n_init=3, tol=0, random_state=0)


@pytest.mark.parametrize(("option", "values"), [("precision", ("exact", "tf32")), ("algorithm", ("lloyd", "elkan"))])
def test_gpu_options_change_nothing_on_the_cpu(succeed, directory, iris, option, values):
    for value in values:
        succeed("kmeans", "iris.npy", "--k", 3, f"--{option}", value, "--device", "cpu", "--out", value)
    (labels, _, said), (others, _, also_said) = (load(directory / value) for value in values)
    np.testing.assert_array_equal(labels, others)
    assert (said[option], also_said[option]) == values


def test_protect(succeed, directory, iris):
    for name, options in (("plain", []), ("protected", ["--protect"])):
        succeed("kmeans", "iris.npy", "--k", 3, "--out", name, *options)
    (labels, centers, said), (others, same, also_said) = (load(directory / name) for name in ("plain", "protected"))
    np.testing.assert_array_equal(labels, others)
    np.testing.assert_array_equal(centers, same)
    assert (said["protect"], said["faults"]) == (False, 0)
    assert (also_said["protect"], also_said["faults"]) == (True, 0)


def test_a_faulty_machine_is_detected(run, directory, iris, monkeypatch):
    assign = HostStep.assign

    def wrong(self, *arguments, **options):
        step = assign(self, *arguments, **options)
        step.weights += 1
        return step

    monkeypatch.setattr(HostStep, "assign", wrong)
    result = run("kmeans", "iris.npy", "--k", 3, "--protect")
    assert result.exit_code == ExitCode.CORRUPTION
    assert "iteration 1 went wrong 4 times" in result.stderr
    assert "the cluster sums differed when they were computed twice" in result.stderr
    assert not (directory / "iris-kmeans").exists()


def test_cosine(succeed, directory, iris):
    succeed("kmeans", "iris.npy", "--k", 3, "--metric", "cosine", "--seed", 4)
    labels, centers, summary = load(directory / "iris-kmeans")
    expected = TSKMeans(3, metric="cosine", random_state=4, device="cpu").fit(iris)
    np.testing.assert_array_equal(labels, expected.labels_)
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1)
    assert summary["metric"] == "cosine"
    assert summary["inertia"] == pytest.approx(expected.inertia_)
    # predict uses the same metric.
    found = json.loads(succeed("predict", "iris-kmeans", "iris.npy", "--json"))
    np.testing.assert_array_equal(np.load("iris-labels.npy"), labels)
    assert found["inertia"] == pytest.approx(expected.inertia_)


def test_cosine_rejects_zero_rows(refuse, iris):
    np.save("zero.npy", np.concatenate([iris, np.zeros((1, 4))]))
    line = refuse(ExitCode.FAILURE, "kmeans", "zero.npy", "--k", 3, "--metric", "cosine")
    assert "zero.npy: row 150 is zero" in line


def test_max_iter(succeed, directory, iris):
    assert "not converged: raise --max-iter" in succeed("kmeans", "iris.npy", "--k", 8, "--max-iter", 2)
    assert load(directory / "iris-kmeans")[2]["converged"] is False
    assert_same_as_scikit_learn(directory / "iris-kmeans", iris, n_clusters=8, max_iter=2, random_state=0)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1), (1, -1)])
def test_weights(succeed, directory, iris, shape):
    weights = np.arange(len(iris)) % 4
    np.save("w.npy", weights.reshape(shape))
    succeed("kmeans", "iris.npy", "--k", 3, "--weights", "w.npy")
    labels, _, summary = load(directory / "iris-kmeans")
    expected = KMeans(3, random_state=0).fit(iris, sample_weight=weights)
    np.testing.assert_array_equal(labels, expected.labels_)
    assert summary["inertia"] == pytest.approx(expected.inertia_)
    assert summary["weights"] == str(directory / "w.npy")


def test_initial_centers_from_a_file(succeed, directory, iris):
    np.save("first.npy", iris[[3, 70, 140]])
    succeed("kmeans", "iris.npy", "--k", 3, "--init", "first.npy")
    assert_same_as_scikit_learn(directory / "iris-kmeans", iris, n_clusters=3, init=iris[[3, 70, 140]], n_init=1)
    assert load(directory / "iris-kmeans")[2]["init"] == str(directory / "first.npy")


@pytest.mark.parametrize(
    ("options", "dtype"), [([], "float32"), (["--dtype", "float64"], "float64"), (["--dtype", "float32"], "float32")]
)
def test_dtype_follows_the_data_or_the_option(succeed, directory, blobs, options, dtype):
    succeed("kmeans", "blobs.npy", "--k", 6, *options)
    _, centers, summary = load(directory / "blobs-kmeans")
    assert summary["data_dtype"] == "float32"
    assert summary["dtype"] == str(centers.dtype) == dtype


def test_summary(succeed, directory, iris):
    succeed("kmeans", "iris.npy", "--k", 3, "--seed", 5, "--device", "cpu")
    labels, _, summary = load(directory / "iris-kmeans")
    assert {path.name for path in directory.iterdir()} == {"iris.npy", "iris-kmeans"}
    assert {path.name for path in (directory / "iris-kmeans").iterdir()} == {
        "labels.npy",
        "centers.npy",
        "summary.json",
    }
    expected = {"n": 150, "d": 4, "k": 3, "seed": 5, "tol": 1e-4, "max_iter": 300, "n_init": "auto", "weights": None}
    assert expected.items() <= summary.items()
    assert summary["input"] == str(directory / "iris.npy")
    assert summary["command"] == "tsapps kmeans iris.npy --k 3 --seed 5 --device cpu"
    assert summary["device"] == "cpu"
    assert (summary["step"], summary["step_reason"]) == ("host", "small data follows scikit-learn's rounding")
    assert summary["cluster_sizes"] == np.bincount(labels).tolist()
    assert set(summary["seconds"]) == {"start", "read", "prepare", "seed", "iterate", "write", "total"}
    assert {"tsapps", "python", "numpy", "scikit-learn"} <= set(summary["versions"])


def test_stdout_is_json_only(succeed, directory, iris):
    printed = succeed("kmeans", "iris.npy", "--k", 3, "--json")
    assert json.loads(printed) == load(directory / "iris-kmeans")[2]


def test_quiet_prints_nothing(run, iris):
    result = run("kmeans", "iris.npy", "--k", 3, "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_quiet_changes_no_bit(succeed, directory, blobs):
    succeed("kmeans", "blobs.npy", "--k", 20, "--out", "a")
    succeed("kmeans", "blobs.npy", "--k", 20, "--out", "b", "--quiet")
    for file in ("labels.npy", "centers.npy"):
        assert (directory / "a" / file).read_bytes() == (directory / "b" / file).read_bytes()


def test_table_gives_the_reason_for_the_cpu(succeed, iris):
    table = succeed("kmeans", "iris.npy", "--k", 3)
    assert "iris.npy: 150 × 4 float64, computed in float64" in table
    assert "cpu: CuPy is not installed (pip install 'cupy-cuda13x[ctk]')" in table
    assert not any(line.endswith(" ") for line in table.splitlines())


def test_warning_is_one_line(run):
    np.save("x.npy", np.ones((10, 2)))
    result = run("kmeans", "x.npy", "--k", 3)
    assert result.exit_code == 0
    assert result.stderr.startswith(
        "tsapps: warning: Number of distinct clusters (1) found smaller than n_clusters (3)"
    )
    assert result.stderr.count("\n") == 1


def test_array_of_an_archive(succeed, directory, iris):
    np.savez("both.npz", train=iris, first=iris[[3, 70, 140]])
    succeed("kmeans", "both.npz:train", "--k", 3, "--init", "both.npz:first")
    assert load(directory / "both-train-kmeans")[2]["n"] == 150


def test_help_names_every_format(succeed):
    words = succeed("kmeans", "--help").replace(";", " ").split()
    assert set(EXTENSIONS) <= set(words)


@pytest.mark.parametrize(("tol", "iterations"), [(1, 1), (0.999, 2)])
def test_tolerance(succeed, directory, tol, iterations):
    """The center moves from 0 to 2 in the first iteration: by 4 in square, which is the variance of the column."""
    np.save("x.npy", [[0.0], [4.0]])
    np.save("first.npy", [[0.0]])
    succeed("kmeans", "x.npy", "--k", 1, "--init", "first.npy", "--tol", tol)
    assert load(directory / "x-kmeans")[2]["iterations"] == iterations


def test_help_promises_what_holds(succeed):
    words = " ".join(succeed("kmeans", "--help").split())
    assert "sum of squared center shifts is at most this times the mean variance" in words
    assert "In float32, rounding can also change the initial centers." in words


def test_force_replaces_an_earlier_result(succeed, directory, iris):
    succeed("kmeans", "iris.npy", "--k", 3)
    succeed("kmeans", "iris.npy", "--k", 4, "--force")
    assert load(directory / "iris-kmeans")[2]["k"] == 4
    assert {path.name for path in directory.iterdir()} == {"iris.npy", "iris-kmeans"}


def test_initial_centers_from_the_result_being_replaced(succeed, directory, iris):
    succeed("kmeans", "iris.npy", "--k", 3, "--max-iter", 1)
    succeed("kmeans", "iris.npy", "--k", 3, "--init", "iris-kmeans/centers.npy", "--force")
    assert load(directory / "iris-kmeans")[2]["converged"] is True


def test_force_fills_an_empty_directory_and_follows_a_link(succeed, directory, iris):
    (directory / "real").mkdir()
    (directory / "link").symlink_to("real")
    succeed("kmeans", "iris.npy", "--k", 3, "--out", "link", "--force")
    assert (directory / "link").is_symlink()
    assert load(directory / "real")[2]["k"] == 3


# Every case has iris.npy (150 × 4) in the current directory.
def nothing():
    pass


def save(file, array):
    return lambda: np.save(file, array)


def with_value(value):
    def write():
        X = np.load("iris.npy")
        X[17, 2] = value
        np.save("bad.npy", X)

    return write


def truncated():
    with open("iris.npy", "rb") as file, open("bad.npy", "wb") as copy:
        copy.write(file.read()[:-9])


def foreign_directory():
    os.mkdir("mine")
    with open("mine/thesis.tex", "w") as file:
        file.write("years of work")


def foreign_summary():
    os.mkdir("mine")
    with open("mine/summary.json", "w") as file:
        file.write('{"kind": "something else"}')


def plain_file():
    with open("mine", "w") as file:
        file.write("text")


def weights_with(value):
    weights = np.ones(150)
    weights[40] = value
    return save("w.npy", weights)


USAGE, FAILURE, NO_DEVICE = 2, 1, 4
BAD = {
    "missing file": (nothing, "no.npy --k 3", USAGE, ["no.npy: no such file"]),
    "truncated": (truncated, "bad.npy --k 3", FAILURE, ["bad.npy", "truncated"]),
    "NaN": (with_value(np.nan), "bad.npy --k 3", FAILURE, ["bad.npy", "row 17, column 2 is nan"]),
    "infinity": (with_value(-np.inf), "bad.npy --k 3", FAILURE, ["bad.npy", "row 17, column 2 is -inf"]),
    "overflow of the type": (
        with_value(1e300),
        "bad.npy --k 3 --dtype float32",
        FAILURE,
        ["bad.npy", "row 17, column 2 is inf"],
    ),
    "1-D": (save("bad.npy", np.arange(5.0)), "bad.npy --k 3", FAILURE, ["bad.npy", "1-dimensional"]),
    "text": (save("bad.npy", np.array([["a"]])), "bad.npy --k 1", FAILURE, ["bad.npy", "expected"]),
    "float128": (
        save("bad.npy", np.ones((3, 2), np.longdouble)),
        "bad.npy --k 1",
        FAILURE,
        ["bad.npy has dtype float", "expected float64 or narrower"],
    ),
    "k > n": (nothing, "iris.npy --k 151", USAGE, ["--k 151", "iris.npy has 150 rows"]),
    "n-init": (nothing, "iris.npy --k 3 --n-init 0", USAGE, ["--n-init 0: expected auto or a number"]),
    "tol": (nothing, "iris.npy --k 3 --tol inf", USAGE, ["--tol inf: expected a finite number"]),
    "unknown device": (nothing, "iris.npy --k 3 --device tpu", USAGE, ["--device", "'auto', 'cpu', 'cuda'", "'tpu'"]),
    "no GPU": (nothing, "iris.npy --k 3 --device cuda", NO_DEVICE, ["'cuda' was asked for", "pip install"]),
    "no GPUs": (nothing, "iris.npy --k 3 --devices all", NO_DEVICE, ["'cuda:all' was asked for", "pip install"]),
    "no such GPUs": (nothing, "iris.npy --k 3 --devices 0,3", NO_DEVICE, ["'cuda:0,3' was asked for"]),
    "one GPU twice": (nothing, "iris.npy --k 3 --devices 1,1", USAGE, ["--device must name different GPUs"]),
    "no device": (nothing, "iris.npy --k 3 --devices 1;2", USAGE, ["--device must be 'auto', 'cpu'", "'cuda:all'"]),
    "no such GPU": (nothing, "iris.npy --k 3 --device cuda:3", NO_DEVICE, ["'cuda:3' was asked for"]),
    "unknown init": (
        nothing,
        "iris.npy --k 3 --init kmeans",
        USAGE,
        ["--init kmeans: expected k-means++, k-means||, random or a file"],
    ),
    "init of another shape": (
        save("c.npy", np.zeros((3, 5))),
        "iris.npy --k 3 --init c.npy",
        USAGE,
        ["--init c.npy: is 3 × 5; expected k × d, 3 × 4"],
    ),
    "init with NaN": (
        save("c.npy", np.full((3, 4), np.nan)),
        "iris.npy --k 3 --init c.npy",
        FAILURE,
        ["c.npy: row 0, column 0 is nan"],
    ),
    "missing weights": (nothing, "iris.npy --k 3 --weights w.npy", USAGE, ["w.npy: no such file"]),
    "weights too few": (
        save("w.npy", np.ones(149)),
        "iris.npy --k 3 --weights w.npy",
        USAGE,
        ["--weights w.npy: is 149 × 1; expected one number for each of the 150 rows"],
    ),
    "negative weight": (
        weights_with(-2.0),
        "iris.npy --k 3 --weights w.npy",
        FAILURE,
        ["w.npy: the weight of row 40 is -2.0; expected numbers ≥ 0"],
    ),
    "NaN weight": (weights_with(np.nan), "iris.npy --k 3 --weights w.npy", FAILURE, ["w.npy: row 40", "nan"]),
    "no weight": (save("w.npy", np.zeros(150)), "iris.npy --k 3 --weights w.npy", FAILURE, ["every weight is 0"]),
    "existing directory": (
        lambda: os.mkdir("mine"),
        "iris.npy --k 3 --out mine",
        USAGE,
        ["mine: already exists", "--force"],
    ),
    "existing file": (plain_file, "iris.npy --k 3 --out mine --force", USAGE, ["mine: exists and is not a directory"]),
    "foreign directory": (
        foreign_directory,
        "iris.npy --k 3 --out mine --force",
        USAGE,
        ["mine: holds 'thesis.tex', which does not belong to a kmeans result"],
    ),
    "foreign summary": (foreign_summary, "iris.npy --k 3 --out mine --force", USAGE, ["mine: is not a kmeans result"]),
    "current directory": (
        lambda: (os.mkdir("empty"), os.chdir("empty")),
        "../iris.npy --k 3 --out . --force",
        USAGE,
        [".: is the current directory"],
    ),
    "no parent": (nothing, "iris.npy --k 3 --out no/where", USAGE, ["no/where: there is no directory", "mkdir -p"]),
}


@pytest.mark.parametrize(("prepare", "arguments", "code", "says"), BAD.values(), ids=BAD.keys())
def test_rejects(refuse, iris, prepare, arguments, code, says):
    prepare()
    line = refuse(code, "kmeans", *arguments.split())
    for part in says:
        assert part in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--k 0", "--k"),
        ("--k many", "--k"),
        ("", "--k"),
        ("--k 3 --tol -1", "--tol"),
        ("--k 3 --dtype int8", "float32"),
        ("--k 3 --seed -1", "--seed"),
        ("--k 3 --max-iter 0", "--max-iter"),
        ("--k 3 --bogus", "--bogus"),
    ],
)
def test_wrong_options_are_usage_errors(run, directory, iris, arguments, says):
    result = run("kmeans", "iris.npy", *arguments.split())
    assert result.exit_code == USAGE
    assert result.stdout == ""
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert [path.name for path in directory.iterdir()] == ["iris.npy"]


def test_usage_errors_come_before_reading_the_data(refuse, monkeypatch):
    np.save("nan.npy", np.full((10, 2), np.nan))
    assert "--k 11" in refuse(USAGE, "kmeans", "nan.npy", "--k", 11)
    np.save("w.npy", np.ones(9))
    assert "w.npy" in refuse(USAGE, "kmeans", "nan.npy", "--k", 2, "--weights", "w.npy")


def test_rejects_an_overflowing_inertia(refuse):
    np.save("x.npy", np.array([[0.0], [1e200], [-1e200]]))
    assert "x.npy: the inertia overflows float64" in refuse(FAILURE, "kmeans", "x.npy", "--k", 1)
