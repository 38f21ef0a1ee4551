"""Checks and timings of `bench/kmeans/batched.py` on tiny shapes; our kernels' source runs on the CPU."""

import numpy as np
import pytest
from host_cuda.machine import HostMachine

from tsapps.bench.common import record
from tsapps.bench.common.roofline import Ceilings
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.kmeans import batched as bench
from tsapps.bench.kmeans.batched import PEERS, SHAPES, BatchedTsapps, BatchShape, Step
from tsapps.bench.kmeans.measure import NotRightError, Timing, time_peer
from tsapps.bench.kmeans.problems import Shape
from tsapps.kernels.devices import gpus


class OnHost(BatchedTsapps):
    device = "cpu"

    def _machine(self):
        return HostMachine()


@pytest.fixture(params=["float32", "float16"])
def problem(request):
    shape = BatchShape(3, Shape(300, 5, 4, request.param))
    return shape, *bench.draw(shape, 0, np)


def test_names_round_trip():
    assert len(set(SHAPES)) == 17
    assert all(BatchShape.parse(shape.name) == shape for shape in SHAPES)
    assert BatchShape.parse("32x65536-128-1000-f32").together == Shape(32 * 65536, 128, 1000, "float32")


@pytest.mark.parametrize(
    "name", ["32", "65536-128-1000-f32", "x5-2-1-f32", "0x5-2-1-f32", "ax5-2-1-f32", "3x5-2-6-f32"]
)
def test_invalid_names_are_rejected(name):
    with pytest.raises(ValueError, match="expected"):
        BatchShape.parse(name)


def test_every_adapter_is_listed_under_its_name():
    assert set(PEERS) == {"tsapps", "tsapps-sm80", "tsapps-sm90", "flash-kmeans", "flashlib"}
    assert all(name == peer.name for name, peer in PEERS.items())
    assert {peer.module for peer in PEERS.values()} == {"tsapps", "flash_kmeans", "flashlib"}


@pytest.mark.parametrize(("name", "given"), [("tsapps", "80"), ("tsapps-sm80", ""), ("tsapps-sm90", "80")])
def test_engines_are_timed_with_the_max_arch_of_their_name(name, given, monkeypatch):
    monkeypatch.setenv("TSAPPS_MAX_ARCH", given)
    with pytest.raises(ValueError, match=rf"{name} needs TSAPPS_MAX_ARCH=.*, got"):
        PEERS[name](np.zeros((1, 4, 2)), np.zeros((1, 2, 2)))


def test_draw(problem):
    shape, X, centers = problem
    assert (X.shape, centers.shape) == ((3, 300, 5), (3, 4, 5))
    assert X.dtype.name == centers.dtype.name == shape.each.dtype
    np.testing.assert_array_equal(centers, X[:, :4])
    assert (X[0] != X[1]).mean() > 0.9  # problems differ


@pytest.mark.exhaustive
def test_our_steps_and_iterations(problem):
    shape, X, centers = problem
    peer = OnHost(X, centers)
    checked = bench.check(peer.step(), X, centers, shape, 0, np)
    assert checked["labels_equal_f64"] > 0.999
    assert checked["rows_compared"] == 900
    assert checked["centers_error"] < 1e-5
    assert peer.iterate(2) == peer.iterate(2) == 2
    most = peer.fit(20)
    assert 2 < most <= 20
    assert 2 < peer.iterate(20) <= most
    # Each call starts without labels and gives the result of a fit.
    found = peer._fitted(20)
    np.testing.assert_array_equal(peer._open[20].labels, found.labels)
    np.testing.assert_array_equal(centers, X[:, :4])


def test_times(problem):
    _, X, centers = problem
    peer = OnHost(X, centers)
    timing = time_peer(peer, CpuClock(), 2, 60)
    mean = round(peer.iterate(20))
    assert (timing.iter_from, timing.repeats, timing.n_iter) == (f"mean of {mean}", 2, peer.fit(20))
    assert timing.iter_ms > 0


@pytest.fixture
def right(problem):
    """Labels at the given centers and their means, as other libraries return them."""
    _, X, centers = problem
    labels = np.stack([bench.data.nearest_f64(X[i], centers[i], np.arange(300), np) for i in range(3)])
    new = np.stack([[X[i][labels[i] == j].astype(np.float64).mean(axis=0) for j in range(4)] for i in range(3)])
    return Step(labels, centers, new.astype(X.dtype))


def test_correct_results_pass(problem, right):
    shape, X, centers = problem
    assert bench.check(right, X, centers, shape, 0, np)["labels_equal_f64"] == 1


def test_wrong_labels_of_one_problem_fail(problem, right):
    shape, X, centers = problem
    right.labels[1, :45] = (right.labels[1, :45] + 1) % 4
    with pytest.raises(NotRightError, match=r"of problem 1 85\.\d+%"):
        bench.check(right, X, centers, shape, 0, np)


def test_unwritten_labels_fail(problem, right):
    shape, X, centers = problem
    right.labels[2, -1] = -1
    with pytest.raises(NotRightError, match="problem 2: labels run from -1"):
        bench.check(right, X, centers, shape, 0, np)


@pytest.mark.parametrize("change", [1.1, np.nan])
def test_wrong_centers_fail(problem, right, change):
    shape, X, centers = problem
    right.new[2, 3] *= np.float16(change)
    with pytest.raises(NotRightError, match="a new center is off"):
        bench.check(right, X, centers, shape, 0, np)


def test_new_centers_of_our_step_are_checked(problem):
    shape, X, centers = problem
    step = OnHost(X, centers).step()
    shifted = step.new.copy()
    shifted[0, 0] += 0.5
    with pytest.raises(NotRightError, match="a new center is off"):
        bench.check(Step(step.labels, shifted, shifted), X, centers, shape, 0, np)


def test_a_record_has_every_field(problem):
    shape, *_ = problem
    ceilings = Ceilings(4640, {"tf32": 409, "float16": 754})
    one = bench.measured("tsapps", shape, Timing(2.0, "mean of 20", 9, 50.0, 20), ceilings)
    checked = {"labels_equal_f64": 1.0, "rows_compared": 900}
    common = {"device": "d", "commit": "c", "seed": 1, "date": "2026-11-21", "versions": {}}
    record.check({**one, **checked, **common}, bench.FIELDS)
    itemsize = shape.each.itemsize
    assert one["floor_ms"] == pytest.approx(900 * (5 * itemsize + 4) / 4640e6)
    assert (one["what"], one["b"], one["n"]) == ("kmeans-batched", 3, 300)


def test_a_run(monkeypatch, numpy_for_cupy, tmp_path, capsys):
    monkeypatch.setitem(PEERS, "tsapps", OnHost)
    for name, value in (("gpus", lambda: (1,)), ("GpuClock", CpuClock), ("measure", lambda _: Ceilings(4640, {}))):
        monkeypatch.setattr(bench, name, value)
    out = tmp_path / "kmeans-batched.json"
    options = ["--engine", "tsapps", "--shapes", "3x300-5-4-f32,3x300-5-4-f64", "--repeats", "1", "--commit", "c"]
    assert bench.main([*options, "--out", str(out)]) == 0
    (one,) = record.load(out)
    record.check(one, bench.FIELDS)
    assert (one["b"], one["n"], one["dtype"], one["iter_from"][:8]) == (3, 300, "float32", "mean of ")
    said = capsys.readouterr().out
    assert "3x300-5-4-f32            tsapps        iteration " in said
    assert "3x300-5-4-f64            tsapps        does not support float64" in said
    bench.one_step("tsapps", BatchShape.parse("3x300-5-4-f32"))


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU")
def test_without_a_gpu(capsys):
    assert bench.main([]) == 1
    assert "no GPU to time" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--shapes", "10M-4-4-f32"], ["--engine", "none"], ["--repeats", "0"]])
def test_wrong_arguments(arguments):
    with pytest.raises(SystemExit, match="2"):
        bench.main(arguments)
