"""`tsapps info`: installed versions, devices, and the default device."""

import json
from dataclasses import replace

import numpy
import pytest

import tsapps
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.system.cache import cache_directory

H100 = replace(KNOWN["H100"], name="NVIDIA H100")


def test_without_a_gpu_says_why(succeed):
    report = json.loads(succeed("info", "--json"))
    why = "CuPy is not installed (pip install 'cupy-cuda13x[ctk]')"
    assert report["gpus"] == []
    assert report["why_no_gpu"] == why
    assert report["auto"] == {"device": "cpu", "reason": why}
    assert report["cpu"]["cores"] >= 1
    assert report["cpu"]["memory_available"] > 0
    assert report["versions"]["tsapps"] == tsapps.__version__
    assert report["versions"]["numpy"] == numpy.__version__
    assert "h5py" in report["optional"]


def test_with_a_gpu_names_it(succeed, stand_in_gpu):
    installed = stand_in_gpu(H100)
    report = json.loads(succeed("info", "--json"))
    assert report["gpus"] == [installed.as_dict()]
    assert report["auto"]["device"] == "cuda:0"
    table = succeed("info")
    assert "NVIDIA H100, 80.0 GiB, compute capability 9.0, 132 multiprocessors" in table
    assert "cuda:0: NVIDIA H100 is available" in table
    assert [of["step"] for of in report["kmeans_steps"]["cuda:0"]] == ["small_d", "small_k", "large_k"]
    assert "cuda:0 K-means 1M × 128, k = 64" in table
    assert "small_k: k = 64 <= 64: centers stay in shared memory" in table


def test_table(succeed):
    table = succeed("info")
    for what in ("tsapps", "python", "numpy", "scikit-learn", "cpu", "gpu", "auto", "checksums", "cache", "optional"):
        assert any(line.startswith(f"{what} ") for line in table.splitlines()), what
    assert "none: CuPy is not installed" in table


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("/fast/cache", "/fast/cache/tsapps"), ("", "/home/ann/.cache/tsapps"), ("relative", None)],
)
def test_cache_directory(monkeypatch, setting, expected):
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_CACHE_HOME", setting)
    assert str(cache_directory()) == (expected or "/home/ann/.cache/tsapps")
