"""Checks and timings of `python -m tsapps.bench.kmeans`, on the CPU and on tiny shapes."""

import numpy as np
import pytest

from tsapps.bench.common import record
from tsapps.bench.common.outcome import LeftOutError
from tsapps.bench.common.roofline import Ceilings
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.kmeans import run as kmeans
from tsapps.bench.kmeans.measure import (
    NotRightError,
    Problem,
    Timing,
    _rows_to_compare,
    check_step,
    compare_on_cpu,
    time_peer,
)
from tsapps.bench.kmeans.peers import PEERS, Peer, ScikitLearn, Torch, Tsapps
from tsapps.bench.kmeans.problems import Shape
from tsapps.kernels.devices import gpus


class OnCpu(Tsapps):
    device = "cpu"


@pytest.fixture(params=["float32", "float64"])
def problem(request):
    return Problem.draw(Shape(2000, 5, 4, request.param), 0, np)


@pytest.mark.parametrize("adapter", [OnCpu, ScikitLearn, Torch], ids=lambda a: a.name)
def test_steps_and_fits_of_adapters(adapter, problem):
    if not adapter.installed():
        pytest.skip(f"{adapter.name} is not installed")
    peer = adapter(problem.X, problem.centers)
    checked = check_step(peer, problem, np)
    assert checked["labels_equal_f64"] > 0.999
    assert checked["rows_compared"] == 2000
    assert checked["centers_error"] < 1e-5
    assert peer.fit(1) == 1
    assert 2 <= peer.fit(5) <= 5
    # A fit leaves the initial centers unchanged.
    np.testing.assert_array_equal(problem.centers, problem.X[:4])
    assert check_step(peer, problem, np) == checked


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("1M-64-64-f32", 1_000_000),
        ("10M-128-1000-f32", 1_000_000),
        ("10M-128-16384-f32", 2**17),
        ("10M-256-65536-f32", 2**16),
    ],
)
def test_fewer_rows_are_compared_for_large_k(name, rows):
    assert _rows_to_compare(Shape.parse(name)) == rows


def test_every_adapter_is_listed_under_its_name():
    ours = {"tsapps", "tsapps-all-rows", "tsapps-tf32", "tsapps-protected", "tsapps-sm80", "tsapps-sm90", "cublas"}
    theirs = {"scikit-learn", "torch", "cuvs", "flash-kmeans", "flashlib"}
    assert set(PEERS) == ours | theirs
    assert all(name == peer.name for name, peer in PEERS.items())


@pytest.mark.parametrize(("name", "given"), [("tsapps", "80"), ("tsapps-sm80", ""), ("tsapps-sm90", "80")])
def test_engines_are_timed_with_the_max_arch_of_their_name(name, given, monkeypatch):
    monkeypatch.setenv("TSAPPS_MAX_ARCH", given)
    with pytest.raises(ValueError, match=rf"{name} needs TSAPPS_MAX_ARCH=.*, got"):
        PEERS[name](np.zeros((4, 2)), np.zeros((2, 2)))


class Given(Peer):
    """A peer that returns given results, and sleeps in a fit."""

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


def test_correct_results_pass(given_peer, problem):
    assert check_step(given_peer, problem, np)["labels_equal_f64"] > 0.999


def test_wrong_labels_fail(given_peer, problem):
    given_peer.labels[:100] = (given_peer.labels[:100] + 1) % 4
    with pytest.raises(NotRightError, match=r"95\.\d+% of the labels"):
        check_step(given_peer, problem, np)


def test_unwritten_labels_fail(given_peer, problem):
    given_peer.labels[-1] = -1
    with pytest.raises(NotRightError, match="labels run from -1"):
        check_step(given_peer, problem, np)


@pytest.mark.parametrize("change", [1.01, np.nan])
def test_wrong_centers_fail(given_peer, problem, change):
    given_peer.new_centers[0] *= change
    with pytest.raises(NotRightError, match="a new center is off"):
        check_step(given_peer, problem, np)


class SetClock(CpuClock):
    """A clock on which an iteration takes 3 ms, and a fit 10 ms more."""

    def call_ms(self, call):
        super().call_ms(call)
        return 3.0

    def wall_ms(self, call):
        _, iterations = super().wall_ms(call)
        return 10.0 + 3 * (iterations if isinstance(iterations, int) else 1), iterations


def test_time_of_steps(given_peer):
    given_peer.steps = True
    assert time_peer(given_peer, SetClock(), 5, 10) == Timing(3.0, "step", 5, 70.0, 20)
    # 20 iterations take 60 ms.
    assert time_peer(given_peer, SetClock(), 5, 0.05) == Timing(3.0, "step", 5)


class SettlingClock(CpuClock):
    """A clock on which a run takes 50 ms, plus 7 ms for each of the first two iterations and 3 ms for others."""

    def __init__(self):
        self.runs = []

    def call_ms(self, call):
        call()
        return 50.0 + 3 * self.runs[-1] + 4 * min(self.runs[-1], 2)


@pytest.mark.parametrize(("converges", "expected"), [(99, 3.0), (15, 3.0), (6, (7 + 4 * 3) / 5), (5, None)])
def test_settled_time(given_peer, converges, expected):
    """Measures the last five iterations, without the constant time of a run."""
    clock, given_peer.steps, given_peer.settles = SettlingClock(), True, True
    given_peer.iterate = lambda iterations: clock.runs.append(min(iterations, converges)) or clock.runs[-1]
    timing = time_peer(given_peer, clock, 3, 60, fits=False)
    assert timing.settled_ms == (expected and pytest.approx(expected))
    if expected:
        most = min(25, converges)
        assert clock.runs[-11:] == [most, *(5 * [most, most - 5])]


def test_mean_time_of_converging_iterations(given_peer):
    given_peer.steps = given_peer.settles = True
    given_peer.iterate = lambda iterations: min(iterations, 15)  # converged
    assert time_peer(given_peer, SetClock(), 5, 10) == Timing(0.2, "mean of 15", 5, 70.0, 20, settled_ms=0.0)
    assert time_peer(given_peer, SetClock(), 5, 10, fits=False) == Timing(0.2, "mean of 15", 5, settled_ms=0.0)


def test_fewer_than_20_iterations_in_a_short_budget(given_peer):
    """An iteration takes 3 / 2 ms in the estimate, so that 0.012 s suffice for eight."""
    given_peer.steps = given_peer.settles = True
    asked = []
    given_peer.iterate = lambda iterations: asked.append(iterations) or iterations
    timing = time_peer(given_peer, SetClock(), 5, 0.012, fits=False)
    assert timing == Timing(3 / 8, "mean of 8", 1, settled_ms=0.0)
    # And once for the settled time: five more iterations, and one difference.
    assert asked == [2, 2, 8, 8, 8, 13, 13, 8]
    # One timing suffices if it takes longer than the whole budget.
    asked.clear()
    assert time_peer(given_peer, SetClock(), 5, 0.006, fits=False) == Timing(0.75, "mean of 4", 1, settled_ms=0.0)
    assert asked == [2, 2, 4, 4, 9, 9, 4]


def test_slow_steps_run_once(given_peer):
    given_peer.steps = True
    made = []
    step, given_peer.step = given_peer.step, lambda: made.append(1) or step()
    assert time_peer(given_peer, SetClock(), 9, 0.007) == Timing(3.0, "step", 1)
    assert len(made) == 1
    assert time_peer(given_peer, SetClock(), 9, 0.04, fits=False) == Timing(3.0, "step", 5)
    assert len(made) == 1 + 6


def test_slope(given_peer):
    assert time_peer(given_peer, SetClock(), 5, 10) == Timing(3.0, "slope", 5, 70.0, 20)
    given_peer.most = 7
    assert time_peer(given_peer, SetClock(), 5, 10) == Timing(3.0, "slope", 5, 31.0, 7)
    # Time for 1 + 0.1 s / 13 ms = 8 iterations: too few for a fit of 20.
    given_peer.most = 20
    timing = time_peer(given_peer, SetClock(), 5, 0.1)
    assert (timing.iter_ms, timing.fit_ms, timing.n_iter) == (3.0, None, None)


def test_no_slope_without_iterations_or_time(given_peer):
    given_peer.most = 1
    with pytest.raises(LeftOutError, match="no slope"):
        time_peer(given_peer, SetClock(), 5, 10)
    with pytest.raises(LeftOutError, match="too slow"):
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


def test_recorded_engines_are_skipped(tmp_path, capsys):
    path, device, commit = tmp_path / "kmeans.json", "NVIDIA H200", "c"
    shapes = [Shape(1000, 16, 16, "float32"), Shape(1000, 16, 64, "float32"), Shape(1000, 16, 64, "float64")]
    of_first = {"what": "kmeans", "n": 1000, "d": 16, "k": 16, "dtype": "float32", "device": device}
    of_first |= {"versions": {}, "date": "2026-11-21"}
    for one in (
        {**of_first, "engine": "tsapps", "commit": commit},
        {**of_first, "engine": "cublas", "commit": "another"},
        {**of_first, "engine": "torch", "commit": commit, "device": "another"},
    ):
        record.store(path, one, kmeans.KEY, {})
    engines = ["tsapps", "cublas", "torch", "tsapps-tf32"]
    recorded = kmeans._recorded(path, {"device": device, "commit": commit})
    plan = kmeans._to_be_timed(shapes, engines, recorded)
    assert plan == dict(zip(shapes, (engines[1:], engines, engines[:3]), strict=True))
    assert "tsapps-tf32   does not support float64" in capsys.readouterr().out
    # A shape with all records is not drawn.
    assert kmeans._to_be_timed(shapes[:1], ["tsapps"], recorded) == {}
    assert kmeans._recorded(tmp_path / "none.json", {}) == set()


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


def test_comparison_on_the_cpu_in_little_time():
    for one in compare_on_cpu(Shape(2000, 5, 4, "float32"), 0, 5, seconds=1e-9):
        assert one["repeats"] == 1
    assert [one["repeats"] for one in compare_on_cpu(Shape(100, 2, 2, "float32"), 0, 3)] == [3, 3]


def recorded_on_cpu(name, path, **limits):
    return list(kmeans.recorded(kmeans.OnCpu(1), Shape.parse(name), (), path, "c", kmeans.Limits(1, **limits)))


def test_what_a_cpu_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setattr(kmeans, "available_host_memory", lambda: 1 << 30)
    path = tmp_path / "kmeans.json"
    assert recorded_on_cpu("1k-3-2-f16", path) == ["1k-3-2-f16: left out, float16 is only measured on a GPU"]
    (line,) = recorded_on_cpu("10M-128-2-f32", path)
    assert line == "10M-128-2-f32: left out, needs about 38.1 GiB of memory, 1.0 are free"
    assert not path.exists()


def test_wrong_fits_on_the_cpu_are_not_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tsapps.bench.kmeans.problems.share_equal", lambda *_: 0.5)
    path = tmp_path / "kmeans.json"
    (line,) = recorded_on_cpu("1k-3-2-f32", path)
    assert line == "1k-3-2-f32: wrong, not recorded: tsapps-cpu on 1k-3-2-f32: 50.0000% of the labels are right"
    assert kmeans.main(["--device", "cpu", "--shapes", "1k-3-2-f32", "--out", str(path)]) == 1
    assert "wrong, not recorded" in capsys.readouterr().out
    assert not path.exists()


class Stopwatch:
    """A `time.perf_counter` that advances by a fixed step at every call."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def perf_counter(self):
        self.now += self.step
        return self.now


@pytest.fixture
def stand_in(monkeypatch, numpy_for_cupy, tmp_path):
    """Replace CuPy by NumPy and our engine by that on the CPU; return the command line and the records' file."""
    monkeypatch.setitem(PEERS, "tsapps", OnCpu)
    monkeypatch.setattr(OnCpu, "settles", False)
    for name, value in (("gpus", lambda: (1,)), ("GpuClock", CpuClock), ("measure", lambda _: Ceilings(4640, {}))):
        monkeypatch.setattr(kmeans, name, value)
    out = tmp_path / "kmeans.json"
    common = ["--no-fit", "--repeats", "2", "--commit", "c", "--seed", "1", "--out", str(out)]
    return lambda *arguments: kmeans.main([*arguments, *common]), out


def test_a_run_ended_by_minutes_is_continued_by_missing(stand_in, monkeypatch, capsys):
    run, out = stand_in
    engines = ("--engine", "tsapps", "--engine", "scikit-learn", "--shapes", "2k-5-4-f32,1k-3-2-f32", "--missing")
    monkeypatch.setattr(kmeans, "time", Stopwatch(7))
    assert run(*engines, "--minutes", "0.3") == 0  # 18 s: over at the third call of the clock
    assert [(one["engine"], one["n"]) for one in record.load(out)] == [("tsapps", 2000)]
    assert "1k-3-2-f32: 0.3 minutes are over; continue with --missing" in capsys.readouterr().out
    assert run(*engines) == 0
    found = record.load(out)
    assert [(one["engine"], one["n"]) for one in found] == [
        ("tsapps", 2000),
        ("scikit-learn", 2000),
        ("tsapps", 1000),
        ("scikit-learn", 1000),
    ]
    for one in found:
        record.check(one, kmeans.FIELDS)
    assert [one["iter_from"] for one in found] == ["step", "slope"] * 2
    assert found[0]["fit_ms"] is None
    kmeans.one_step("tsapps", Shape(2000, 5, 4, "float32"))
    # Nothing is missing now.
    capsys.readouterr()
    assert run(*engines) == 0
    assert "iteration" not in capsys.readouterr().out


def test_failures_of_engines_are_lines(stand_in, monkeypatch, capsys):
    run, out = stand_in
    arguments = ["--engine", "tsapps", "--engine", "scikit-learn", "--shapes", "2k-5-4-f32"]
    monkeypatch.setattr(OnCpu, "step", lambda _: 1 / 0)
    assert run(*arguments) == 1
    assert "2k-5-4-f32 tsapps: not measured: ZeroDivisionError" in capsys.readouterr().out
    assert [one["engine"] for one in record.load(out)] == ["scikit-learn"]
    step = ScikitLearn.step
    monkeypatch.setattr(ScikitLearn, "step", lambda self: (step(self)[0] + 1, step(self)[1]))
    assert run(*arguments) == 1
    assert "2k-5-4-f32 scikit-learn: wrong, not recorded: labels run from 1 to 4" in capsys.readouterr().out


def test_a_shape_that_does_not_fit_the_gpu(stand_in, monkeypatch, capsys):
    run, out = stand_in
    import cupy

    monkeypatch.setattr(cupy.cuda.runtime, "memGetInfo", lambda: (1 << 30, 8 << 30))
    # 2 GiB, a quarter of the GPU, for buffers.
    assert run("--engine", "tsapps", "--shapes", "2k-5-4-f32") == 0
    assert "2k-5-4-f32: left out, needs about 2.0 GiB of memory, 1.0 are free" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert kmeans.main([]) == 1
    assert "no GPU to time" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--shapes", "10M"], ["--engine", "none"], ["--repeats", "0"]])
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit, match="2"):
        kmeans.main(arguments)


def test_a_fit_on_a_cpu_that_ends_too_early_is_not_recorded(monkeypatch):
    import tsapps

    fits = tsapps.TSKMeans
    monkeypatch.setattr(tsapps, "TSKMeans", lambda *, max_iter, **options: fits(max_iter=1, **options))
    with pytest.raises(NotRightError, match="centers differ by"):
        compare_on_cpu(Shape.parse("3k-4-5-f64"), 1, 1)
