"""``tsapps bench kmeans`` on the CPU, on a stand-in for a GPU, and on a GPU."""

import json

import pytest

from tsapps.bench.common.roofline import Ceilings
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.kmeans import problems
from tsapps.bench.kmeans import run as bench
from tsapps.bench.kmeans.peers import PEERS, Cublas, Tsapps
from tsapps.errors import ExitCode
from tsapps.kernels import devices
from tsapps.kernels.gpu_specs import KNOWN

SHAPES = ["--shapes", "2k-5-4-f32, 1k-3-2-f64"]
OUT = "tsapps-bench.json"
PROBE = devices._probe


class OnCpu(Tsapps):
    device = "cpu"
    settles = False


class AlsoOnCpu(Cublas):
    device = "cpu"
    engine = "auto"


@pytest.fixture
def gpu(numpy_for_cupy, stand_in_gpu, monkeypatch):
    """A stand-in GPU with our engines, which run on the CPU, and scikit-learn."""
    stand_in_gpu(KNOWN["H200"])
    monkeypatch.setattr(bench, "GpuClock", CpuClock)
    monkeypatch.setattr(bench, "measure", lambda _: Ceilings(4.0, {"tf32": 1000.0}))
    monkeypatch.setitem(PEERS, "tsapps", OnCpu)
    monkeypatch.setitem(PEERS, "cublas", AlsoOnCpu)
    for name in ("torch", "cuvs", "flash-kmeans", "flashlib"):
        monkeypatch.setattr(PEERS[name], "module", "no_such_module")


def test_without_a_gpu_beside_scikit_learn(succeed, directory):
    text = succeed("bench", "kmeans", *SHAPES)
    assert text.startswith("K-means on the CPU: CuPy is not installed")
    assert text.endswith("4 records in tsapps-bench.json\n")
    for part in ("2k-5-4-f32", "1k-3-2-f64", "ms per iteration", "ms per fit", "of roofline", "× tsapps"):
        assert part in text
    records = json.loads((directory / OUT).read_text())
    assert [(one["engine"], one["n"]) for one in records] == [
        ("tsapps-cpu", 2000),
        ("scikit-learn", 2000),
        ("tsapps-cpu", 1000),
        ("scikit-learn", 1000),
    ]
    line = next(line for line in text.splitlines() if "scikit-learn" in line)
    assert line.split()[-1] == f"{records[1]['iter_ms'] / records[0]['iter_ms']:.2f}"


def test_json_and_quiet(succeed, directory):
    found = json.loads(succeed("bench", "kmeans", *SHAPES, "--out", "mine.json", "--json"))
    assert found == {"file": "mine.json", "left_out": [], "records": json.loads((directory / "mine.json").read_text())}
    assert succeed("bench", "kmeans", *SHAPES, "--out", "mine.json", "--quiet") == ""
    assert len(json.loads((directory / "mine.json").read_text())) == 4  # replaced


def test_engines_on_a_gpu(succeed, directory, gpu):
    text = succeed("bench", "kmeans", "--shapes", "2k-5-4-f32", "--limit", "0.2")
    lines = text.splitlines()
    assert lines[0] == "Not installed: torch, cuvs, flash-kmeans, flashlib."
    ours, cublas = json.loads((directory / OUT).read_text())
    assert [ours["engine"], cublas["engine"]] == ["tsapps", "cublas"]
    assert ours["device"] == "NVIDIA H200"
    assert ours["floor_ms"] == pytest.approx((2000 * 5 * 4 + 8000) / 4e6)
    row = next(line for line in lines if line.split()[:1] == ["cublas"]).split()
    assert row[-1] == f"{cublas['iter_ms'] / ours['iter_ms']:.2f}"
    assert row[-2] == f"{cublas['floor_ms'] / cublas['iter_ms']:.1%}"


def test_two_devices_in_one_file(succeed, directory, gpu):
    engines = ["--engine", "scikit-learn", "--limit", "0.2"]
    for _ in range(2):
        succeed("bench", "kmeans", *SHAPES, "--device", "cpu")
        succeed("bench", "kmeans", *SHAPES, *engines)
    records = json.loads((directory / OUT).read_text())
    assert [one["engine"] for one in records] == 2 * ["tsapps-cpu", "scikit-learn"] + 2 * ["scikit-learn"]
    assert [one["device"] == "NVIDIA H200" for one in records] == 4 * [False] + 2 * [True]


def test_a_wrong_engine(run, directory, gpu, monkeypatch):
    step = AlsoOnCpu.step
    monkeypatch.setattr(AlsoOnCpu, "step", lambda self: (step(self)[0] * 0, step(self)[1]))
    result = run("bench", "kmeans", "--shapes", "2k-5-4-f32", "--limit", "0.2")
    assert result.exit_code == ExitCode.FAILURE
    assert result.stderr.startswith("tsapps: wrong results: 1 (2k-5-4-f32 cublas: wrong, not recorded: ")
    assert "of the labels are the float64 arg-min" in result.stderr
    assert [one["engine"] for one in json.loads((directory / OUT).read_text())] == ["tsapps"]


def test_an_engine_that_fails(succeed, directory, gpu, monkeypatch):
    monkeypatch.setattr(AlsoOnCpu, "step", lambda self: 1 / 0)
    found = json.loads(succeed("bench", "kmeans", "--shapes", "2k-5-4-f32", "--limit", "0.2", "--json"))
    assert found["left_out"] == ["2k-5-4-f32 cublas: not measured: ZeroDivisionError: division by zero"]
    assert [one["engine"] for one in found["records"]] == ["tsapps"]


def test_a_dtype_that_an_engine_lacks(succeed, gpu, monkeypatch):
    monkeypatch.setattr(OnCpu, "dtypes", ("float64",))
    found = json.loads(succeed("bench", "kmeans", "--shapes", "2k-5-4-f32", "--engine", "tsapps", "--json"))
    assert found["left_out"] == ["2k-5-4-f32 tsapps: left out, does not support float32"]


def test_engines_that_are_not_installed(refuse, gpu):
    line = refuse(ExitCode.USAGE, "bench", "kmeans", "--engine", "cuvs", "--engine", "torch")
    assert "--engine: not installed: torch, cuvs: install one of them, or omit --engine" in line


def test_list(succeed, directory):
    text = succeed("bench", "kmeans", "--list")
    for part in (
        "tsapps-protected, tsapps-sm80, tsapps-sm90, cublas",
        "tsapps-cpu, scikit-learn",
        "10M-128-64-f32",
        "273280-3-16-f64",
    ):
        assert part in text
    assert not list(directory.iterdir())


@pytest.mark.parametrize("shape", ["", "5", "10M-2-f32", "1k-2-2-f8", "5-2-6-f32", "1k-3-2-f32,"])
def test_a_shape_that_is_none(refuse, shape):
    assert "--shapes: shape '" in refuse(ExitCode.USAGE, "bench", "kmeans", f"--shapes={shape}")


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--device", "gpu"], ExitCode.USAGE, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'"),
        (["--device", "cuda"], ExitCode.NO_DEVICE, "device 'cuda' was asked for, but CuPy is not installed"),
        (["--engine", "sklearn"], ExitCode.USAGE, "--engine: 'sklearn' is unknown: expected one of tsapps, "),
        (["--engine", "torch"], ExitCode.USAGE, "--engine selects engines on a GPU"),
        (["--limit", "0"], ExitCode.USAGE, "--limit"),
        (["--out", "absent/mine.json"], ExitCode.USAGE, "absent/mine.json: there is no directory"),
    ],
)
def test_wrong_options(refuse, arguments, code, what):
    assert what in refuse(code, "bench", "kmeans", *arguments)


def test_wrong_labels_on_the_cpu(run, directory, monkeypatch):
    monkeypatch.setattr(problems, "share_equal", lambda *_: 0.5)
    result = run("bench", "kmeans", "--shapes", "1k-3-2-f64", "--quiet")
    assert result.exit_code == ExitCode.FAILURE
    assert "wrong results: 1 (1k-3-2-f64: wrong, not recorded: tsapps-cpu on 1k-3-2-f64: 50.0000%" in result.stderr
    assert not (directory / OUT).exists()


@pytest.mark.gpu
def test_on_a_gpu(succeed, monkeypatch):
    monkeypatch.setattr(devices, "_probe", PROBE)
    arguments = ["--shapes", "100k-64-64-f32", "--engine", "tsapps", "--engine", "cublas", "--limit", "1"]
    found = json.loads(succeed("bench", "kmeans", *arguments, "--json"))
    assert found["left_out"] == []
    assert [one["engine"] for one in found["records"]] == ["tsapps", "cublas"]
    assert all(one["fit_ms"] > one["iter_ms"] > 0 for one in found["records"])
