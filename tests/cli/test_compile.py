"""``tsapps compile``: options, output and errors; that nothing is missing is in tests/kmeans/engines."""

import json
import os
import subprocess
import sys

import pytest

from tsapps.apps.kmeans.engines import compile_kernels as module
from tsapps.errors import ExitCode
from tsapps.kernels.jit.precompile import Compiled

SHAPE = ["--shape", "3000,3,5"]
SOURCES = [Compiled("a.cuh", ("a<float>",), 1.25, False), Compiled("b.cuh", ("b", "c"), 0.5, True)]


@pytest.fixture
def asked(monkeypatch, directory):
    """Compile nothing; return what was to be compiled."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    asked = []

    def compile_kernels(*sizes, **options):
        asked.append((sizes, options))
        return SOURCES

    monkeypatch.setattr(module, "compile_kernels", compile_kernels)
    return asked


def test_no_gpu(refuse):
    assert "device 'cuda' was asked for, but CuPy is not installed" in refuse(ExitCode.NO_DEVICE, "compile", *SHAPE)


@pytest.mark.parametrize("shape", ["5", "5,6", "5,6,7,8", "a,b,c", "1e6,16,16", "-5,6,2", "5,,2", ""])
def test_a_shape_that_is_not_three_numbers(refuse, shape):
    line = refuse(ExitCode.USAGE, "compile", "--gpu", "H100", f"--shape={shape}")
    assert line == f"tsapps: --shape {shape}: expected rows, columns and clusters, such as 1000000,128,64\n"


@pytest.mark.parametrize("shape", ["0,6,7", "5,0,2", "5,6,0", "5,6,7"])
def test_a_shape_out_of_range(refuse, shape):
    line = refuse(ExitCode.USAGE, "compile", "--gpu", "H100", f"--shape={shape}")
    assert "expected at least 1 of each, and at most as many clusters as rows" in line


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--device", "cpu"], "--device cpu: expected cuda or cuda:<number>: the CPU needs no kernels"),
        (["--device", "gpu"], "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'"),
        (["--gpu", "H900"], f"--gpu H900: expected one of {', '.join(module.GPUS)}"),
        (["--gpu", "H100", "--device", "cuda:0"], "it excludes --device"),
    ],
)
def test_a_gpu_that_is_none(refuse, arguments, what):
    assert what in refuse(ExitCode.USAGE, "compile", *arguments)


def test_a_cache_that_cannot_be_written(refuse, directory, monkeypatch):
    (directory / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    pytest.importorskip("cupy", reason="the compiler is in CuPy")
    assert str(directory / "cache") in refuse(ExitCode.FAILURE, "compile", "--gpu", "H100", *SHAPE)


def test_common_shapes(succeed, asked):
    succeed("compile", "--gpu", "H100")
    assert [sizes for sizes, _ in asked] == list(module.COMMON_SHAPES)
    usual = {"init": "k-means++", "algorithm": "lloyd", "precision": "exact", "protect": False, "weighted": False}
    assert all(options == usual | {"dtype": "float32", "device": "cuda", "gpu": "H100"} for _, options in asked)


def test_the_help_names_the_common_shapes(succeed):
    text = " ".join(succeed("compile", "--help").split())
    assert all(",".join(map(str, shape)) in text for shape in module.COMMON_SHAPES)


def test_options(succeed, asked):
    given = ["--init", "k-means||", "--algorithm", "elkan", "--precision", "tf32", "--protect", "--weighted"]
    succeed("compile", "--gpu", "A100", *SHAPE, "--shape", "7,6,5", "--dtype", "float64", "--dtype", "float16", *given)
    assert [(sizes, options["dtype"]) for sizes, options in asked] == [
        (sizes, dtype) for sizes in ((3000, 3, 5), (7, 6, 5)) for dtype in ("float64", "float16")
    ]
    expected = {"init": "k-means||", "algorithm": "elkan", "precision": "tf32", "protect": True, "weighted": True}
    assert expected.items() <= asked[0][1].items()


def test_the_table(succeed, asked, directory):
    lines = succeed("compile", "--gpu", "H100", *SHAPE).splitlines()
    assert lines[0].startswith("3,000 × 3 float32, k = 5  0.0")
    assert lines[0].endswith(" s, 1 compiled, 1 in the cache; longest: a.cuh 1.25 s")
    assert lines[1].endswith(" s, 1 compiled for H100")
    assert lines[2].split() == ["cache", str(directory / "tsapps" / "cubin")]
    assert len(lines) == 3


def test_nothing_to_compile(succeed, asked, monkeypatch):
    monkeypatch.setattr(module, "compile_kernels", lambda *_, **options: SOURCES[1:])
    assert " s, all 1 in the cache\n" in succeed("compile", "--gpu", "H100", *SHAPE)


def test_json(succeed, asked, directory):
    report = json.loads(succeed("compile", "--gpu", "H100", *SHAPE, "--json"))
    assert (report["device"], report["compiled"], report["cache"]) == ("H100", 1, str(directory / "tsapps" / "cubin"))
    (shape,) = report["shapes"]
    assert (shape["n"], shape["d"], shape["k"], shape["dtype"]) == (3000, 3, 5, "float32")
    assert shape["sources"][1] == {"source": "b.cuh", "kernels": ["b", "c"], "seconds": 0.5, "was_cached": True}


def test_quiet(run, asked):
    done = run("compile", "--gpu", "H100", *SHAPE, "--quiet")
    assert (done.exit_code, done.output) == (0, "")


@pytest.mark.compile
def test_compiled_once(succeed, directory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory))
    small = ["--gpu", "A100", "--shape", "300,4,2", "--dtype", "float64", "--init", "random", "--json"]
    first, second = (json.loads(succeed("compile", *small)) for _ in range(2))
    assert first["compiled"] == len(first["shapes"][0]["sources"]) >= 5
    assert second["compiled"] == 0
    kept = list((directory / "tsapps" / "cubin").glob("*.json"))
    assert len(kept) == first["compiled"]


# --- On a GPU ------------------------------------------------------------------------------------------------------

_FIT = """
import sys
import cupy
import numpy as np
from tsapps import TSKMeans

n, d, k, dtype, values = sys.argv[1:]
shape = int(n), int(d)
X = np.random.default_rng(0).standard_normal(shape, np.float32)
X[5] *= 1000 if values == "tail" else 1
X = cupy.asarray((X + 100 if values == "far" else X).astype(dtype))
kmeans = TSKMeans(int(k), random_state=0, max_iter=5, tol=0).fit(X)
kmeans.predict(X), kmeans.predict(X[:100]), kmeans.transform(X[:100]), kmeans.score(X)
"""


def kept_in(directory):
    return {path: path.stat().st_mtime_ns for path in (directory / "tsapps" / "cubin").iterdir()}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((300_000, 16, 16), "float32"),
        ((600_000, 128, 64), "float32"),
        ((100_000, 128, 200), "float32"),
        ((100_000, 32, 16), "float16"),
        ((100_000, 70, 6), "float64"),
        ((3000, 10, 70), "float64"),
    ],
)
def test_a_fit_of_a_new_process_compiles_nothing(directory, shape, dtype):
    environment = os.environ | {"XDG_CACHE_HOME": str(directory)}
    sizes = ",".join(map(str, shape))
    command = [sys.executable, "-m", "tsapps", "compile", "--shape", sizes, "--dtype", dtype]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    before = kept_in(directory)
    assert before
    for values in ("near", "far", "tail"):
        fit = [sys.executable, "-c", _FIT, *map(str, shape), dtype, values]
        done = subprocess.run(fit, env=environment, check=True, capture_output=True, text=True)
        assert "compiled a kernel" not in done.stderr
        assert kept_in(directory) == before, values
