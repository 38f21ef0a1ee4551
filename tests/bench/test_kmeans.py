"""The checks and timings of `bench/kmeans.py`, on the CPU and on tiny shapes."""

import numpy as np
import pytest

from bench import kmeans, record
from bench.ceilings import Ceilings
from bench.kmeans_data import Shape
from bench.kmeans_measure import NotRightError, Problem, Timing, check_step, compare_on_cpu, time_peer
from bench.kmeans_peers import PEERS, Peer, ScikitLearn, Torch, Tsapps
from bench.timing import CpuClock
from tsapps.kernels.backend import gpus


class OnCpu(Tsapps):
    device = "cpu"


@pytest.fixture(params=["float32", "float64"])
def problem(request):
    return Problem.draw(Shape(2000, 5, 4, request.param), 0, np)


@pytest.mark.parametrize("adapter", [OnCpu, ScikitLearn, Torch], ids=lambda a: a.name)
def test_adapters_make_right_steps_and_fits(adapter, problem):
    if not adapter.installed():
        pytest.skip(f"{adapter.name} is not installed")
    peer = adapter(problem.X, problem.centers)
    checked = check_step(peer, problem, np)
    assert checked["labels_equal_f64"] > 0.999
    assert checked["rows_compared"] == 2000
    assert checked["centers_error"] < 1e-5
    assert peer.fit(1) == 1
    assert 2 <= peer.fit(5) <= 5
    # A fit leaves the first centres as they were.
    np.testing.assert_array_equal(problem.centers, problem.X[:4])
    assert check_step(peer, problem, np) == checked


def test_every_adapter_is_listed_under_its_name():
    ours, theirs = {"tsapps", "tsapps-tf32", "cublas"}, {"scikit-learn", "torch", "cuvs", "flash-kmeans", "flashlib"}
    assert set(PEERS) == ours | theirs
    assert all(name == peer.name for name, peer in PEERS.items())


class Given(Peer):
    """Returns what it is given, and sleeps in a fit."""

    name, module = "given", "none_such"
    labels = new_centers = None
    most = 20

    def step(self):
        return self.labels, self.new_centers

    def fit(self, iterations):
        return min(iterations, self.most)


@pytest.fixture
def given_peer(problem):
    peer = Given(problem.X, problem.centers)
    right = OnCpu(problem.X, problem.centers).step()
    peer.labels, peer.new_centers = right[0].copy(), right[1]
    return peer


def test_right_answers_pass(given_peer, problem):
    assert check_step(given_peer, problem, np)["labels_equal_f64"] > 0.999


def test_wrong_labels_do_not(given_peer, problem):
    given_peer.labels[:100] = (given_peer.labels[:100] + 1) % 4
    with pytest.raises(NotRightError, match=r"95\.\d+% of the labels"):
        check_step(given_peer, problem, np)


def test_labels_that_were_never_written_do_not(given_peer, problem):
    given_peer.labels[-1] = -1
    with pytest.raises(NotRightError, match="labels run from -1"):
        check_step(given_peer, problem, np)


@pytest.mark.parametrize("change", [1.01, np.nan])
def test_wrong_centers_do_not(given_peer, problem, change):
    given_peer.new_centers[0] *= change
    with pytest.raises(NotRightError, match="a new centre is off"):
        check_step(given_peer, problem, np)


class SetClock(CpuClock):
    """Says that an iteration takes 3 ms, and a fit 10 ms more."""

    def step_ms(self, call):
        super().step_ms(call)
        return 3.0

    def wall_ms(self, call):
        _, iterations = super().wall_ms(call)
        return 10.0 + 3 * (iterations if isinstance(iterations, int) else 1), iterations


def test_time_of_steps(given_peer):
    given_peer.steps = True
    assert time_peer(given_peer, SetClock(), 5, 10) == Timing(3.0, "step", 5, 70.0, 20)
    # 20 iterations take 60 ms.
    assert time_peer(given_peer, SetClock(), 5, 0.05) == Timing(3.0, "step", 5)


def test_time_of_what_settles(given_peer):
    given_peer.steps = given_peer.settles = True
    given_peer.iterate = lambda iterations: iterations - 5  # converged
    assert time_peer(given_peer, SetClock(), 5, 10) == Timing(0.2, "mean of 20", 5, 70.0, 20)


def test_time_of_a_slope(given_peer):
    assert time_peer(given_peer, SetClock(), 5, 10) == Timing(3.0, "slope", 5, 70.0, 20)
    given_peer.most = 7
    assert time_peer(given_peer, SetClock(), 5, 10) == Timing(3.0, "slope", 5, 31.0, 7)
    # Time for 1 + 0.1 s / 13 ms = 8 iterations: no fit to report.
    given_peer.most = 20
    timing = time_peer(given_peer, SetClock(), 5, 0.1)
    assert (timing.iter_ms, timing.fit_ms, timing.n_iter) == (3.0, None, None)


def test_no_slope_without_iterations_or_time(given_peer):
    given_peer.most = 1
    with pytest.raises(NotRightError, match="no slope"):
        time_peer(given_peer, SetClock(), 5, 10)
    with pytest.raises(TimeoutError, match="too slow"):
        time_peer(given_peer, SetClock(), 5, 0.01)


def test_a_gpu_record_has_every_field(problem):
    ceilings = Ceilings(4640, {"tf32": 409, "float64": 62.8})
    measured = kmeans._measured("cublas", problem.shape, Timing(2.0, "step", 9, 50.0, 20), ceilings)
    checked = {"labels_equal_f64": 1.0, "rows_compared": 2000}
    common = {"device": "d", "commit": "c", "seed": 1, "date": "2026-11-21", "versions": {}}
    one = {**measured, **checked, **common}
    record.check(one, kmeans.FIELDS)
    assert one["read_gbs"] == pytest.approx((2000 * 5 * problem.X.itemsize + 8000) / 2e6)
    assert "iteration 2.000 ms" in kmeans._line(one)
    assert "no time for a fit" in kmeans._line({**one, "fit_ms": None})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_comparison_on_the_cpu(dtype):
    for one, engine in zip(compare_on_cpu(Shape(2000, 5, 4, dtype), 0, 2), ("tsapps-cpu", "scikit-learn"), strict=True):
        assert one["engine"] == engine
        assert one["labels_equal_f64"] > 0.999
        assert 0 < one["iter_ms"] <= one["fit_ms"]


def test_command_line_on_the_cpu(tmp_path, capsys):
    out = tmp_path / "kmeans.json"
    arguments = [
        "--device",
        "cpu",
        "--shapes",
        "2k-5-4-f32,1k-3-2-f64",
        "--repeats",
        "1",
        "--out",
        str(out),
        "--commit",
        "c",
    ]
    assert kmeans.main(arguments) == 0
    assert kmeans.main(arguments) == 0
    records = record.load(out)
    assert [(one["engine"], one["n"]) for one in records] == [
        ("tsapps-cpu", 2000),
        ("scikit-learn", 2000),
        ("tsapps-cpu", 1000),
        ("scikit-learn", 1000),
    ]
    for one in records:
        record.check(one, kmeans.FIELDS)
        assert one["commit"] == "c"
    assert "tsapps / scikit-learn: " in capsys.readouterr().out


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert kmeans.main([]) == 1
    assert "no GPU to time" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--shapes", "10M"], ["--engine", "none"], ["--repeats", "0"]])
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit, match="2"):
        kmeans.main(arguments)
