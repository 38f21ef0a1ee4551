"""tsapps.bench.scale.gpus, where HostMachines stand in for GPUs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from host_cuda.machine import HostMachine
from kmeans.distributed.test_sharded_engine import AllReduce

import tsapps
from tsapps.apps.kmeans import open_engine
from tsapps.apps.kmeans.data import blocks
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.distributed.sharded_engine import ShardedEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.scale import gpus
from tsapps.bench.scale.gpus import CASES, Case


@pytest.fixture
def on(numpy_for_cupy, monkeypatch):
    """Return an `OnGpus` of two machines; whole fits run on the CPU."""
    fits = tsapps.TSKMeans

    def engine(X, device):
        machines = [HostMachine() for _ in device.split(",")]
        return ShardedEngine(ArrayRows(X), X.dtype, None, machines, Options(always=True), AllReduce)

    monkeypatch.setattr(blocks, "SMALL", 0)
    monkeypatch.setattr(open_engine, "open_engine", engine)
    monkeypatch.setattr(tsapps, "TSKMeans", lambda k, *, device, **options: fits(k, device="cpu", **options))
    monkeypatch.setattr(gpus, "GpuClock", CpuClock)
    monkeypatch.setattr(gpus, "free_memory", lambda _: None)
    monkeypatch.setattr(gpus, "gpus", lambda: ("an H200", "another"))
    for name, value in (("_REPEATS", 1), ("_SHORT", 2), ("_LONG", 5), ("_FIT", 3)):
        monkeypatch.setattr(gpus, name, value)
    monkeypatch.setattr(gpus, "_EXCHANGES", 2)
    return gpus.OnGpus(2, 3)


def test_a_case(on):
    found = on.measured(Case(1100, 20, 5))
    assert (found["mode"], found["parts"], found["n"], found["k"]) == ("gpus", 2, 1100, 5)
    assert all(found[name] > 0 for name in ("iter_ms", "single_ms", "exchange_ms", "seed_ms", "single_seed_ms"))


def test_another_digest_is_wrong(on, monkeypatch):
    fit = gpus.OnGpus._fit

    def differing(self, X, init, device):
        found = fit(self, X, init, device)
        found.inertia_ += device.count(",")
        return found

    monkeypatch.setattr(gpus.OnGpus, "_fit", differing)
    with pytest.raises(NotRightError, match="the digests are"):
        on.measured(Case(1100, 20, 5))


def test_a_run_that_converges_is_not_timed(on, monkeypatch):
    monkeypatch.setattr(gpus, "_SPREAD", np.float32(100))
    with pytest.raises(NotRightError, match="the run converged after 2 iterations; expected more than 2"):
        on.measured(Case(1100, 20, 2))


def test_the_command_line(on, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(gpus, "CASES", (Case(1_000_000, 20, 9),))
    times = dict.fromkeys(("iter_ms", "single_ms", "exchange_ms", "seed_ms", "single_seed_ms"), 2.0)
    shape = {"n": 1_000_000, "d": 20, "k": 9, "parts": 2, "dtype": "float32"}
    measured = {"engine": "tsapps", "mode": "gpus", **shape, **times, "digest": "0123"}
    made = SimpleNamespace(device="NVIDIA H200", seed=3, modules=("cupy",), measured=lambda case: measured)
    monkeypatch.setattr(gpus, "OnGpus", lambda parts, seed: made)
    assert gpus.main(["1M-20-9", "--out", str(tmp_path / "scale.json")]) == 0
    (one,) = json.loads((tmp_path / "scale.json").read_text())
    assert (one["what"], one["mode"], one["digest"]) == ("scale", "gpus", "0123")
    assert "1.00 ×" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        gpus.main(["1M"])


@pytest.mark.parametrize("found", [(), ("an H200",)])
def test_too_few_gpus(found, monkeypatch, capsys):
    monkeypatch.setattr(gpus, "gpus", lambda: found)
    assert gpus.main([]) == 1
    assert "no 2 GPUs to time" in capsys.readouterr().err


def test_the_names_of_the_cases():
    assert [case.name for case in CASES] == ["20M-128-64", "20M-128-1024", "4M-768-1000", "80M-32-64", "60M-128-64"]
