"""``tsapps bench gemm`` on the CPU, on a stand-in for a GPU, and on a GPU."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tsapps.bench.common import record, roofline
from tsapps.bench.common.roofline import Streams
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.gemm import libraries, measure
from tsapps.errors import ExitCode
from tsapps.kernels import devices
from tsapps.kernels.gpu_specs import KNOWN

SHAPES = ["--shapes", "200-3-100-f32, 5-4-300-f64-col"]
OUT = "tsapps-bench.json"
PROBE = devices._probe


@pytest.fixture
def gpu(numpy_for_cupy, stand_in_gpu, monkeypatch):
    """A stand-in GPU on which NumPy computes, and a read of 4 GB takes a second."""

    def best(A, B, out, *, trans_a, check, **_):
        np.matmul(A.T if trans_a else A, B, out=out)
        check()
        return "cublasLt[0] (own orders)", 2.0

    def calls(self, cell, A, B, C):
        yield "tsm2r", "a plan", lambda: np.matmul(A.T if cell.shape == "tsmttsm" else A, B, out=C)

    stand_in_gpu(KNOWN["H200"])
    monkeypatch.setattr(measure, "GpuClock", CpuClock)
    monkeypatch.setattr(roofline, "measure_streams", lambda _: Streams(((0.0, 4.0), (1.0, 4.0))))
    monkeypatch.setattr(roofline, "measure_matmul_tflops", lambda _: {})
    monkeypatch.setattr(libraries, "best", best)
    monkeypatch.setattr(measure.GpuBench, "calls", calls)


def test_without_a_gpu_beside_numpy(succeed, directory):
    text = succeed("bench", "gemm", *SHAPES)
    assert text.startswith("Products on the CPU: CuPy is not installed")
    assert text.endswith("2 records in tsapps-bench.json\n")
    for part in ("200-3-100-f32", "5-4-300-f64-col", "GB/s", "GFLOP/s", "of library", "of roofline", "error / bound"):
        assert part in text
    records = json.loads((directory / OUT).read_text())
    assert [(one["what"], one["shape"], one["layout"]) for one in records] == [
        ("gemm", "tsm2r", "row"),
        ("gemm", "tsmttsm", "col"),
    ]


def test_json_and_quiet(succeed, directory):
    found = json.loads(succeed("bench", "gemm", *SHAPES, "--out", "mine.json", "--json"))
    assert found == {"file": "mine.json", "left_out": [], "records": json.loads((directory / "mine.json").read_text())}
    assert succeed("bench", "gemm", *SHAPES, "--out", "mine.json", "--quiet") == ""
    assert len(json.loads((directory / "mine.json").read_text())) == 2  # replaced


def test_two_devices_in_one_file(succeed, directory, gpu):
    succeed("bench", "gemm", *SHAPES, "--device", "cpu")
    text = succeed("bench", "gemm", *SHAPES)
    assert text.splitlines()[0].rstrip() == "Products on NVIDIA H200"
    records = json.loads((directory / OUT).read_text())
    assert [one["kernel"] for one in records] == ["numpy", "numpy", "tsm2r", "tsm2r"]
    first = records[2]
    assert (first["device"], first["library"], first["library_ms"]) == ("NVIDIA H200", "cublasLt[0] (own orders)", 2.0)
    assert first["floor_ms"] == pytest.approx(4 * (200 * 100 + 100 * 3 + 200 * 3) / 4e6)
    assert f"{first['floor_ms'] / first['ms']:.1%}" in text
    succeed("bench", "gemm", *SHAPES)
    assert len(json.loads((directory / OUT).read_text())) == 4


def test_list(succeed, directory):
    text = succeed("bench", "gemm", "--list")
    for part in ("20480-8-20480-f64-col", "16-16-10000000-f16", "10000000-16-16-bf16", "64-64-100000-f32"):
        assert part in text
    assert not list(directory.iterdir())


@pytest.mark.parametrize("shape", ["", "5", "1-2-3", "1-2-3-f8", "0-2-3-f32", "1-2-3-f32,"])
def test_a_shape_that_is_none(refuse, shape):
    line = refuse(ExitCode.USAGE, "bench", "gemm", f"--shapes={shape}")
    assert "--shapes: shape '" in line
    assert "expected m-n-k-dtype or m-n-k-dtype-col, such as 20480-8-20480-f32" in line


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--device", "gpu"], ExitCode.USAGE, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'"),
        (["--device", "cuda"], ExitCode.NO_DEVICE, "device 'cuda' was asked for, but CuPy is not installed"),
        (["--out", "absent/mine.json"], ExitCode.USAGE, "absent/mine.json: there is no directory"),
    ],
)
def test_wrong_options(refuse, arguments, code, what):
    assert what in refuse(code, "bench", "gemm", *arguments)


def test_a_wrong_product(run, directory, gpu, monkeypatch):
    def calls(self, cell, A, B, C):
        yield "off", "a plan", lambda: A @ B + (cell.w == 3)

    monkeypatch.setattr(measure.GpuBench, "calls", calls)
    result = run("bench", "gemm", "--shapes", "200-3-100-f32,200-4-100-f32")
    assert result.exit_code == ExitCode.FAILURE
    assert "200-3-100-f32: wrong, not recorded: an element is off by" in result.stdout
    assert result.stderr.startswith("tsapps: wrong results: 1 (200-3-100-f32: wrong, not recorded: ")
    assert [one["w"] for one in json.loads((directory / OUT).read_text())] == [4]


def test_what_is_left_out(succeed, directory):
    found = json.loads(succeed("bench", "gemm", "--shapes", "10000000-1000000-4-f64,9-9-9-f16", "--json"))
    large, half = found["left_out"]
    assert large.startswith("10000000-1000000-4-f64: left out, needs about 74")
    assert half == "9-9-9-f16: left out, float16 is only measured on a GPU"
    assert found["records"] == []
    assert not (directory / OUT).exists()


def test_brackets_in_a_line(succeed, monkeypatch):
    """Text in brackets is no markup of a table."""

    def library(*_):
        raise ValueError("no [bold] way [/red]")

    monkeypatch.setattr(measure.CpuBench, "library", library)
    text = succeed("bench", "gemm", "--shapes", "9-9-9-f32")
    assert "ValueError: no [bold] way [/red]" in " ".join(text.split())


def test_an_interruption_keeps_what_was_measured(directory):
    widths = [3, 4, *range(33, 65)]  # all but the first two take a tenth of a second or more
    shapes = ",".join(f"{200 if w < 33 else 30_000}-{w}-1000-f64" for w in widths)
    process = subprocess.Popen(
        [sys.executable, "-m", "tsapps", "bench", "gemm", "--device", "cpu", "--shapes", shapes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # With the second record stored, the first is in the table.
    while process.poll() is None and not ((directory / OUT).exists() and len(record.load(directory / OUT)) > 1):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    text, errors = process.communicate()
    assert (process.returncode, errors) == (130, "tsapps: interrupted\n")
    found = [one["w"] for one in json.loads((directory / OUT).read_text())]
    assert 2 <= len(found) < len(widths)
    assert found == widths[: len(found)]
    assert "200-3-1000-f64" in text


@pytest.mark.gpu
def test_on_a_gpu(succeed, monkeypatch, directory):
    monkeypatch.setattr(devices, "_probe", PROBE)
    names = "1000-3-500-f32,1000-4-16-f16,8-8-5000-f64-col,256-4-256-f64-col"
    found = json.loads(succeed("bench", "gemm", "--shapes", names, "--json"))
    assert found["left_out"] == []
    assert len(found["records"]) == 3 + 5  # and TSM2 as published
    assert all(0 < one["floor_ms"] for one in found["records"])
