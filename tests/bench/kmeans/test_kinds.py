"""The benchmark of kinds of data: options, records, and which labels count as wrong."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from tsapps.bench.common import record
from tsapps.bench.common.timing import CpuClock, GpuClock
from tsapps.bench.kmeans import kinds
from tsapps.bench.kmeans.peers import PEERS, Tsapps
from tsapps.bench.kmeans.problems import Shape
from tsapps.kernels.devices import gpus


def test_wrong_labels_by_hand():
    X, centers = np.array([[0.0, 0], [1, 0], [4, 0], [5, 0]], np.float32), np.array([[0.0, 0], [5, 0]], np.float32)
    assert kinds.wrong_share(X, np.array([0, 0, 1, 1]), centers, 0, np) == 0
    assert kinds.wrong_share(X, np.array([1, 1, 0, 0]), centers, 0, np) == 1
    middle = np.array([[2.5, 7.0]], np.float32)  # as near to both
    assert kinds.wrong_share(middle, np.array([1]), centers, 0, np) == 0


def test_a_distant_center_hides_no_wrong_label():
    rng = np.random.default_rng(0)
    X, centers = rng.standard_normal((1000, 8), np.float32), rng.standard_normal((5, 8), np.float32)
    right = np.linalg.norm(X[:, np.newaxis] - centers, axis=2).argmin(axis=1)
    centers[4] = 1e9
    right[right == 4] = np.linalg.norm(X[right == 4][:, np.newaxis] - centers[:4], axis=2).argmin(axis=1)
    assert kinds.wrong_share(X, right, centers, 0, np) == 0
    assert kinds.wrong_share(X, (right + 1) % 4, centers, 0, np) == 1


def test_shapes():
    assert kinds.SHAPES[0] == Shape(2_000_000, 384, 1024, "float32")
    assert (len(kinds.SHAPES), len(kinds.MORE_SHAPES)) == (4, 10)
    assert len({*kinds.SHAPES, *kinds.MORE_SHAPES}) == 14
    assert kinds.shape_named("273280,3,64") == Shape(273_280, 3, 64, "float32")


@pytest.mark.parametrize("text", ["", "1M,2", "1M,2,3,4", "1M,2,x", "5,2,6", "5,0,1", "1M-2-3"])
def test_invalid_shapes_are_rejected(text):
    with pytest.raises(ValueError, match="expected n,d,k, such as 1M,64,300"):
        kinds.shape_named(text)


def test_options():
    options = kinds._parse([])
    assert (options.engine, options.data, options.shapes) == (["tsapps"], list(kinds.KINDS), list(kinds.SHAPES))
    options = kinds._parse(["--engine", "cublas", "--engine", "tsapps", "--engine", "cublas", "--data", "china"])
    assert (options.engine, options.data) == (["tsapps", "cublas"], ["china"])
    assert kinds._parse(["--more-shapes"]).shapes == list(kinds.MORE_SHAPES)
    both = kinds._parse(["--shape", "1k,2,3", "--shape", "1M,2,300", "--more-shapes"]).shapes
    assert both == [Shape(1000, 2, 3, "float32"), *kinds.MORE_SHAPES]


@pytest.mark.parametrize(
    "arguments", [["--shape", "1M,2"], ["--engine", "scikit-learn"], ["--data", "none"], ["--seconds-budget", "x"]]
)
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit, match="2"):
        kinds.main(arguments)


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert kinds.main([]) == 1
    assert "no GPU to time" in capsys.readouterr().err


class OnCpu(Tsapps):
    device = "cpu"


class Failing(OnCpu):
    name = "torch"

    def fit(self, iterations):
        raise MemoryError("too large")


@pytest.fixture
def run(monkeypatch, numpy_for_cupy, tmp_path):
    """Return a function that runs the benchmark on the CPU and returns its exit code, and the file of records."""
    for name, value in (("gpus", lambda: (SimpleNamespace(name="NVIDIA H200"),)), ("GpuClock", CpuClock)):
        monkeypatch.setattr(kinds, name, value)
    monkeypatch.setattr(kinds, "peak_bytes", lambda call, allocator: call() and 1 << 20)
    monkeypatch.setattr(kinds.Problem, "device", "cpu")
    monkeypatch.setitem(PEERS, "tsapps", OnCpu)
    monkeypatch.setitem(PEERS, "torch", Failing)
    out = tmp_path / "kmeans-data.json"
    return partial(_run, out), out


def _run(out, *arguments):
    shape = ("--shape", "300,5,4", "--shape", "200,3,2")
    return kinds.main([*shape, *arguments, "--out", str(out), "--seconds-budget", "0.001"])


@pytest.mark.parametrize(("ms", "times"), [(1, 31), (16, 31), (17, 29), (100, 5), (200, 3), (3000, 3), (6000, 1)])
def test_short_fits_are_repeated_more_often(ms, times):
    class Constant:
        def wall_ms(self, call):
            return ms, call()

    called = []
    found = kinds._repeated(lambda: called.append(ms), Constant(), 10)
    assert len(called) == len(found) == times
    assert {time for time, _ in found} == {ms}


def test_a_run(run, capsys):
    run, out = run
    assert run("--data", "mixture", "--data", "digits", "--commit", "c") == 0
    records = record.load(out)
    assert [(one["n"], one["d"], one["k"], one["data"]) for one in records] == [
        (300, 5, 4, "mixture"),
        (300, 5, 4, "digits"),
        (200, 3, 2, "mixture"),
        (200, 3, 2, "digits"),
    ]
    for one in records:
        record.check(one, kinds.FIELDS)
        assert (one["what"], one["engine"], one["device"]) == ("kmeans-data", "tsapps", "NVIDIA H200")
        assert (one["dtype"], one["commit"]) == ("float32", "c")
        assert 1 <= one["repeats"] <= 31
        assert (one["wrong"], one["ambiguous"], one["extra_bytes"]) == (0, None, 1 << 20)
        assert one["seeded_fit_ms"] > 0
        assert {"python", "numpy", "tsapps"} <= one["versions"].keys()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert said[0].startswith("300-5-4 mixture tsapps: ")
    assert said[0].endswith(" ms, wrong 0, 1 MiB more than X")


def test_a_failure_is_not_recorded(run, capsys):
    run, out = run
    assert run("--data", "mixture", "--engine", "torch", "--engine", "tsapps", "--commit", "c") == 1
    assert [one["engine"] for one in record.load(out)] == ["tsapps", "tsapps"]
    assert "200-3-2 mixture torch NOT RECORDED: MemoryError: too large" in capsys.readouterr().out


def test_a_run_is_continued(run, capsys):
    run, out = run
    assert run("--data", "mixture", "--commit", "c", "--minutes", "0") == 0
    assert not out.exists()
    assert "0 minutes are over; continue with --missing" in capsys.readouterr().out
    assert run("--data", "mixture", "--commit", "c") == 0
    first = record.load(out)
    assert run("--data", "mixture", "--data", "sorted", "--missing", "--commit", "c") == 0
    assert record.load(out)[:2] == first
    assert [one["data"] for one in record.load(out)] == ["mixture", "mixture", "sorted", "sorted"]
    assert run("--data", "mixture", "--missing", "--commit", "other") == 0
    assert [one["commit"] for one in record.load(out)] == ["other", "other", "c", "c"]


def test_what_is_printed_of_ambiguous_rows():
    one = {"n": 9, "d": 2, "k": 3, "data": "zipf", "engine": "tsapps", "fit_ms": 1.234, "wrong": 0.5}
    one |= {"extra_bytes": 3 << 20, "ambiguous": [[0.25, 0.0], [0.05, 0.01]]}
    assert kinds._line(one) == (
        "9-2-3 zipf tsapps: 1.23 ms, wrong 0.5, 3 MiB more than X, ambiguous 15.00%, compared with all 0.50%"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tsapps", "cublas", "flash-kmeans"])
def test_what_is_measured_on_a_gpu(name):
    import cupy

    if not PEERS[name].installed():
        pytest.skip(f"{name} is not installed")
    problem = kinds.Problem("mixture", Shape(200_000, 96, 300, "float32"), 1, cupy)
    found = kinds.measured(PEERS[name], problem, GpuClock(), 1)
    common = {"what": "kmeans-data", "engine": name, "device": "d", "versions": {}, "commit": "c", "date": "2026-12-01"}
    sizes = {"n": 200_000, "d": 96, "k": 300, "dtype": "float32", "data": "mixture", "seed": 1}
    record.check({**common, **sizes, **found}, kinds.FIELDS)
    assert found["extra_bytes"] > 4 * 200_000  # at least the labels
    if name == "tsapps":
        assert found["wrong"] == 0
