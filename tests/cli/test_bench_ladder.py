"""``tsapps bench``: options, output and errors."""

import json

import pytest
from ladder_products import needs_a_compiler

from tsapps.bench.ladder import run as ladder
from tsapps.errors import ExitCode

pytestmark = needs_a_compiler
NAMES = ["cpu_serial", "cpu_threads", "cpu_openmp", "cpu_vectors"]
SHAPES = ["--shapes", "40-30-20-f32, 7-5-300-f64-col"]


def test_without_a_gpu_the_rungs_on_the_cpu(succeed, directory):
    text = succeed("bench", "ladder", *SHAPES)
    assert text.startswith("The rungs on the CPU: CuPy is not installed")
    assert text.endswith("8 records in tsapps-bench.json\n")
    for part in ("40-30-20-f32", "7-5-300-f64-col", "triple loop", "vectors of 32 bytes", "GFLOP/s", "× serial"):
        assert part in text
    records = json.loads((directory / "tsapps-bench.json").read_text())
    assert [(one["rung"], one["layout"]) for one in records] == [
        *((name, "row") for name in NAMES),
        *((name, "col") for name in NAMES),
    ]


def test_json_and_a_file_of_ones_own(succeed, directory):
    found = json.loads(succeed("bench", "ladder", *SHAPES[:1], "9-8-7-f32", "--out", "mine.json", "--json"))
    assert found["file"] == "mine.json"
    assert found["records"] == json.loads((directory / "mine.json").read_text())
    succeed("bench", "ladder", *SHAPES[:1], "9-8-7-f32", "--out", "mine.json", "--quiet")
    assert len(json.loads((directory / "mine.json").read_text())) == 4  # replaced


def test_some_rungs(succeed, directory):
    succeed("bench", "ladder", *SHAPES, "--rungs", "cpu_vectors, cpu_serial")
    records = json.loads((directory / "tsapps-bench.json").read_text())
    assert [one["rung"] for one in records] == ["cpu_serial", "cpu_vectors"] * 2


def test_quiet(succeed):
    assert succeed("bench", "ladder", *SHAPES, "--quiet") == ""


def test_list(succeed, directory):
    text = succeed("bench", "ladder", "--list")
    for part in ("register_tile, tsm2_v0", "cpu_serial", "20480-16-20480-f64-col", "2048-2048-2048-f32"):
        assert part in text
    assert not list(directory.iterdir())


@pytest.mark.parametrize("shape", ["", "5", "1-2-3", "1-2-3-f16", "0-2-3-f32", "1-2-3-f32-diagonal", "1-2-3-f32,"])
def test_a_shape_that_is_none(refuse, shape):
    line = refuse(ExitCode.USAGE, "bench", "ladder", f"--shapes={shape}")
    assert "expected m-n-k-dtype or m-n-k-dtype-col, such as 20480-4-20480-f64-col" in line


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["--device", "gpu"], ExitCode.USAGE, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'"),
        (["--device", "cuda"], ExitCode.NO_DEVICE, "device 'cuda' was asked for, but CuPy is not installed"),
        (["--rungs", "cpu_magic"], ExitCode.USAGE, "--rungs: rung 'cpu_magic': expected cpu_serial, cpu_threads"),
        (["--rungs", ""], ExitCode.USAGE, "--rungs: rung '': expected cpu_serial, cpu_threads"),
        (["--out", "absent/mine.json"], ExitCode.USAGE, "absent/mine.json: there is no directory"),
        (["--limit", "0"], ExitCode.USAGE, "--limit"),
    ],
)
def test_wrong_options(refuse, arguments, code, what):
    assert what in refuse(code, "bench", "ladder", *arguments)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{}", "mine.json holds a dict; expected a list of records"),
        ('[{"name": "mine", "x": 1}]', "the record lacks the field 'what'"),
        ("no JSON", "mine.json"),
    ],
)
def test_a_file_that_has_no_records(refuse, directory, content, what):
    (directory / "mine.json").write_text(content)
    assert what in refuse(ExitCode.USAGE, "bench", "ladder", *SHAPES[:1], "2-2-2-f32", "--out", "mine.json")


def test_a_directory_as_the_file(refuse, directory):
    (directory / "mine").mkdir()
    assert "mine: is a directory" in refuse(ExitCode.USAGE, "bench", "ladder", "--out", "mine")


def test_what_is_left_out(succeed):
    text = succeed("bench", "ladder", "--shapes", "200-300-300-f32", "--limit", "0.001")
    assert "left out, would take" in text
    found = json.loads(succeed("bench", "ladder", "--shapes", "200-300-300-f32", "--limit", "0.001", "--json"))
    assert found["left_out"][0].startswith("200-300-300-f32 cpu_serial: left out, would take")


def test_no_compiler(refuse, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    line = refuse(ExitCode.FAILURE, "bench", "ladder", "--device", "cpu")
    assert line == "tsapps: no C compiler: no-such-compiler is not installed; install gcc, or set CC\n"


def test_wrong_results(run, monkeypatch, directory):
    def rungs(self, A, B, C):
        yield "off", "off by one", lambda: (lambda: A @ B + 1, 1)

    monkeypatch.setattr(ladder.OnCpu, "rungs", rungs)
    result = run("bench", "ladder", "--shapes", "3-3-3-f64", "--quiet")
    assert result.exit_code == ExitCode.FAILURE
    assert result.stderr == "tsapps: wrong results: 1 (3-3-3-f64 off: wrong, not recorded)\n"
    assert not (directory / "tsapps-bench.json").exists()
