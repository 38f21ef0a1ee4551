"""tsapps.bench.scale on stand-ins for a GPU, on which NumPy and scikit-learn compute; and on a GPU."""

import json
from contextlib import nullcontext

import numpy as np
import pytest

import tsapps
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.scale import run
from tsapps.bench.scale.run import CASES, Case


@pytest.fixture
def on(numpy_for_cupy, monkeypatch):
    """Return an `OnGpus` whose fits run on the CPU; the link copies 50 GB/s, and a pass reads 40."""
    fits = tsapps.TSKMeans

    def on_the_cpu(k, *, device, **options):
        assert device.startswith("cuda")
        return fits(k, device="cpu", **options)

    monkeypatch.setattr(tsapps, "TSKMeans", on_the_cpu)
    monkeypatch.setattr(run, "GpuClock", CpuClock)
    monkeypatch.setattr(run.OnGpus, "_link_gbs", lambda _: 50.0)
    monkeypatch.setattr(run.OnGpus, "_pass_gbs", lambda *_: 40.0)
    monkeypatch.setattr(run, "free_memory", lambda _: None)
    monkeypatch.setattr(run, "gpus", lambda: ("an H200",))
    made = run.OnGpus(3)
    made.xp.cuda.Memory, made.xp.cuda.Device = bytearray, nullcontext
    made.xp.cuda.runtime.memGetInfo = lambda: (30_000, 1 << 40)
    return made


def test_a_fit_is_compared_with_one_that_holds_x(on):
    found = on.measured(Case("memory", 900, 4, 3))
    assert (found["link_gbs"], found["pass_gbs"], found["source"]) == (50.0, 40.0, "memory")
    assert found["held_iter_ms"] is not None
    assert found["fit_ms"] > 0
    assert found["iter_ms"] == (found["fit_ms"] - found["first_ms"]) / (found["iterations"] - 1)


def test_another_digest_is_wrong(on, monkeypatch):
    fit, count = run.OnGpus._fit, iter(range(1000))

    def differing(self, X, init, iterations, device):
        found = fit(self, X, init, iterations, device)
        found.inertia_ += next(count)
        return found

    monkeypatch.setattr(run.OnGpus, "_fit", differing)
    with pytest.raises(NotRightError, match="the digest is"):
        on.measured(Case("memory", 900, 4, 3))


def test_x_larger_than_the_gpu_is_not_held(on):
    assert on.measured(Case("memory", 2000, 4, 3))["held_iter_ms"] is None


def test_the_file_holds_the_rows_drawn():
    X = run.drawn(Case("file", 100_000, 2, 5), 1)
    np.testing.assert_array_equal(X, run.drawn(Case("file", 100_000, 2, 5), 1))
    assert np.isfinite(X).all()
    assert len(np.unique(X[:, 0])) > 90_000
    for place in ("file", "files"):
        with run.placed(X, place) as source:
            np.testing.assert_array_equal(source.rows(np.arange(0, 100_000, 777)), X[::777])
    with run.placed(X, "memory") as source:
        assert source is X


def test_the_command_line(on, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run, "CASES", (Case("memory", 1_000_000, 2, 3),))
    monkeypatch.setattr(run, "OnGpus", lambda seed, parts: on)
    on.device = "NVIDIA H200"
    assert run.main(["memory-1M-2-3", "--out", str(tmp_path / "scale.json"), "--seed", "3"]) == 0
    (one,) = json.loads((tmp_path / "scale.json").read_text())
    assert (one["what"], one["n"], one["parts"]) == ("scale", 1_000_000, 1)
    assert one["digest"] in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run.main(["memory"])
    monkeypatch.setattr(run, "gpus", lambda: ())
    assert run.main([]) == 1
    assert "no 1 GPUs to time" in capsys.readouterr().err


def test_the_names_of_the_cases():
    assert [case.name for case in CASES] == [
        "memory-16M-256-64",
        "file-16M-256-64",
        "memory-8M-256-256",
        "memory-16M-256-64-windows",
        "memory-8M-256-256-windows",
        "files-16M-256-64-windows",
        "memory-100M-256-64",
    ]
    assert CASES[-1].size == 102_400_000_000


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "copied"), [("memory", True), ("file", True), ("memory", False), ("files", False)])
def test_on_a_gpu(source, copied):
    pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    found = run.OnGpus(1).measured(Case(source, 4_000_000, 500, 20, copied))
    assert min(found[name] for name in ("first_ms", "fit_ms", "pass_gbs", "link_gbs")) > 0
