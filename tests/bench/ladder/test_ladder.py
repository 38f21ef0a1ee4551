"""The benchmark of the ladder on the CPU."""

import time

import numpy as np
import pytest
from ladder_products import needs_a_compiler

from tsapps.bench.common import record
from tsapps.bench.ladder import run
from tsapps.bench.ladder.cases import CPU_CASES, GPU_CASES, Case, case_named, error_bound
from tsapps.kernels.devices import gpus

pytestmark = needs_a_compiler
NAMES = ["cpu_serial", "cpu_threads", "cpu_openmp", "cpu_vectors"]


def test_names_of_cases():
    assert case_named("20480-4-20480-f64-col") == Case(20_480, 4, 20_480, "float64", "col")
    for case in (*CPU_CASES, *GPU_CASES):
        assert case_named(case.name) == case
    for text in ("", "1-2-3", "1-2-3-f16", "0-2-3-f32", "1-2-3-f32-diagonal", "1-2-3-f32-row-row", "a-2-3-f32"):
        with pytest.raises(ValueError, match=r"expected m-n-k-dtype or m-n-k-dtype-col"):
            case_named(text)


def test_work_of_a_case_by_hand():
    case = Case(3, 5, 7, "float64")
    assert (case.flops, case.read_bytes, case.written_bytes) == (210, 8 * (21 + 35), 8 * 15)
    assert error_bound(6, "float32") == pytest.approx(10 * (2.0**-24 + 2.0**-53) + 2.0**-21, rel=1e-6)


def test_recorded_cases_are_those_that_are_wanted():
    squares = {case.m for case in GPU_CASES if case.m == case.n == case.k}
    assert squares == {256, 512, 1023, 1024, 2048, 4095, 4096, 8192}
    assert {case.dtype for case in GPU_CASES} == {"float32", "float64"}
    assert {case.layout for case in GPU_CASES if case.n <= 16} == {"row", "col"}


def test_run_on_a_cpu(tmp_path, capsys):
    path = tmp_path / "ladder.json"
    shapes = ["--shape", "40-30-20-f32", "--shape", "7-1-300-f64"]
    assert run.main(["--device", "cpu", *shapes, "--out", str(path), "--seed", "3", "--commit", "0" * 40]) == 0
    records = record.load(path)
    assert [one["rung"] for one in records] == 2 * NAMES
    for one in records:
        record.check(one, run.FIELDS)
        assert one["gflops"] == pytest.approx(2 * one["m"] * one["n"] * one["k"] / one["ms"] / 1e6)
        assert one["floor_ms"] is None
        cores = 1 if one["rung"] in ("cpu_serial", "cpu_vectors") else run.available_cores()
        assert one["efficiency"] == pytest.approx(one["speedup_serial"] / cores)
    assert capsys.readouterr().out.count("of the library") == 8
    run.main(["--device", "cpu", *shapes[:2], "--out", str(path), "--commit", "0" * 40])
    assert len(record.load(path)) == 8  # replaced


def test_wrong_results_are_not_recorded(tmp_path, monkeypatch, capsys):
    def rungs(self, A, B, C):
        def refuse():
            raise ValueError("no such grid")

        yield "right", "a rung", lambda: (lambda: A @ B, 1)
        yield "off", "one element too large", lambda: (lambda: A @ B + np.eye(*C.shape, dtype=A.dtype), 1)
        yield "absent", "a rung without an element", lambda: (lambda: np.where(np.eye(*C.shape) > 0, np.nan, A @ B), 1)
        yield "refused", "a rung that cannot be bound", refuse

    monkeypatch.setattr(run.OnCpu, "rungs", rungs)
    path = tmp_path / "ladder.json"
    assert run.main(["--device", "cpu", "--shape", "9-8-7-f64", "--out", str(path)]) == 1
    assert [one["rung"] for one in record.load(path)] == ["right"]
    assert capsys.readouterr().err.splitlines() == [
        *(f"9-8-7-f64 {name}: wrong, not recorded" for name in ("off", "absent")),
        "9-8-7-f64 refused: not measured: no such grid",
    ]


def test_slow_rungs_are_left_out(capsys):
    on, rates = run.OnCpu(), {"cpu_serial float32": 1.0, "cpu_threads float32": 1e12}
    found = list(run.measured(on, Case(20, 20, 20, "float32"), 0, 5.0, rates))
    assert found[0] == "cpu_serial: left out, would take 16 s"
    assert [one["rung"] for one in found[1:]] == NAMES[1:]
    assert rates["cpu_threads float32"] != 1e12


def test_the_rate_of_some_rows_leaves_out_a_rung(monkeypatch):
    on, calls = run.OnCpu(), []

    def rungs(A, B, C):
        yield "slow", "a rung", lambda: (lambda: calls.append(len(C)) or time.sleep(0.05), 1)

    monkeypatch.setattr(on, "rungs", rungs)
    (found,) = run.measured(on, Case(20_000, 200, 200, "float32"), 0, 1.0, {})
    assert found.startswith("slow: left out, would take ")
    assert 3.9 <= float(found.split()[-2]) < 40
    assert calls == [256, 256]


def test_no_device(capsys):
    if gpus():
        pytest.skip("there is a GPU")
    assert run.main(["--device", "cuda"]) == 1
    assert "device 'cuda' was asked for, but" in capsys.readouterr().err


def test_without_a_compiler(monkeypatch, capsys):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert run.main(["--device", "cpu"]) == 1
    assert capsys.readouterr().err == "no C compiler: no-such-compiler is not installed; install gcc, or set CC\n"
    assert run.serial_ms(Case(2, 2, 2, "float32"), 0) is None


def test_a_shape_that_does_not_fit_is_left_out(tmp_path, monkeypatch):
    on = run.OnCpu()
    monkeypatch.setattr(run, "available_host_memory", lambda: 1000)
    (line,) = run.recorded(on, Case(64, 64, 64, "float32"), tmp_path / "x.json", {}, 0, 1.0, {})
    assert line.startswith("64-64-64-f32: left out, needs about")


def test_memory_that_runs_out_ends_one_shape(tmp_path, monkeypatch):
    def library_ms(*_):
        raise MemoryError

    on = run.OnCpu()
    monkeypatch.setattr(on, "library_ms", library_ms)
    lines = list(run.recorded(on, Case(8, 8, 8, "float32"), tmp_path / "x.json", {}, 0, 1.0, {}))
    assert lines == ["8-8-8-f32: not measured: MemoryError: out of memory"]


def test_a_rung_that_a_shape_does_not_have(monkeypatch):
    on = run.OnCpu()
    on.only = ["cpu_serial", "tsm2_v3"]
    lines = [one for one in run.measured(on, Case(8, 8, 8, "float32"), 0, 1.0, {}) if isinstance(one, str)]
    assert lines == ["tsm2_v3: left out, only for column-major matrices"]
