"""``tsapps bench paper``: options, output and errors, with a stand-in for the measurements."""

import json

import pytest

from tsapps.bench.paper import run as paper
from tsapps.bench.paper.experiments import EXPERIMENTS, cases
from tsapps.errors import ExitCode
from tsapps.kernels.gpu_specs import KNOWN


@pytest.fixture
def gpu(numpy_for_cupy, stand_in_gpu, monkeypatch):
    """A stand-in GPU on which everything takes 1 ms, and its baseline 2 ms."""

    class On:
        seed, device = 7, "NVIDIA H200"

        def measured(self, case):
            yield {
                "run": case.experiment,
                "engine": "tsapps",
                "baseline": "cublas",
                "dtype": case.dtype,
                "m": case.m,
                "k": case.k,
                "n": case.n,
                "ms": 1.0,
                "baseline_ms": 2.0,
                "speedup": 2.0,
                "gbs": 3000.0,
                "baseline_gbs": 1500.0,
                "peak_gbs": 4000.0,
                "paper_device": "Tesla P100",
                "paper_speedup": [1.1, 2.15, 3.0],
                "paper_points": None,
            }

    stand_in_gpu(KNOWN["H200"])
    monkeypatch.setattr(paper, "opened", lambda *_: On())


def test_one_experiment(succeed, directory, gpu):
    text = succeed("bench", "paper", "checksums", "--largest", "2048")
    assert text.splitlines()[0].rstrip() == "checksums on NVIDIA H200"
    (line,) = [line for line in text.splitlines() if "2048 × 2048 · 2 float64" in line]
    assert " ".join(line.split()[6:]) == "tsapps 1 cublas 2 75% : 38% 2.00 1.1 to 3, mean 2.15 (Tesla P100)"
    assert text.endswith("2 records in tsapps-bench.json\n")
    records = json.loads((directory / "tsapps-bench.json").read_text())
    assert [(one["what"], one["run"], one["m"], one["seed"]) for one in records] == [
        ("paper", "checksums", 1024, 7),
        ("paper", "checksums", 2048, 7),
    ]
    succeed("bench", "paper", "checksums", "--largest", "2048", "--quiet")
    assert json.loads((directory / "tsapps-bench.json").read_text()) == records  # replaced


def test_all_experiments_and_json(succeed, gpu):
    found = json.loads(succeed("bench", "paper", "--json"))
    assert len(found["records"]) == sum(len(list(cases(name))) for name in EXPERIMENTS)


def test_list(succeed, directory):
    text = succeed("bench", "paper", "--list")
    assert [line.split()[0] for line in text.splitlines()] == list(EXPERIMENTS)
    assert not list(directory.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["speed"], ExitCode.USAGE, "experiment 'speed': expected versions, bandwidth, kmeans, checksums"),
        (["--device", "cpu"], ExitCode.USAGE, "--device cpu: the experiments of the paper need a GPU"),
        (["--largest", "0"], ExitCode.USAGE, "--largest"),
        ([], ExitCode.NO_DEVICE, "the experiments of the paper need a GPU: CuPy is not installed"),
        (["--device", "cuda"], ExitCode.NO_DEVICE, "device 'cuda' was asked for, but CuPy is not installed"),
    ],
)
def test_refusals(refuse, arguments, code, what):
    assert what in refuse(code, "bench", "paper", *arguments)


def test_wrong_results(run, gpu, monkeypatch):
    def recorded(_, case, *__):
        yield f"{case.name}: wrong, not recorded: off"

    monkeypatch.setattr(paper, "recorded", recorded)
    result = run("bench", "paper", "checksums", "--largest", "1024", "--quiet")
    assert result.exit_code == ExitCode.FAILURE
    assert "wrong results: 1 (checksums 1024 × 1024 · 2 float64: wrong, not recorded: off)" in result.stderr


@pytest.mark.parametrize("columns", [None, 60, 80])
def test_no_number_is_cut_off(succeed, gpu, monkeypatch, columns):
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    text = succeed("bench", "paper", "checksums")
    assert "…" not in text
    assert "(Tesla P100)" in text
