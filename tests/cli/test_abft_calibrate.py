"""`tsapps abft-calibrate`: the calibration is stored, and the statistical threshold uses it."""

import json
from pathlib import Path

import numpy as np
import pytest

from tsapps.apps.abft.product import calibrate
from tsapps.apps.abft.product.calibrate import DEPTHS
from tsapps.apps.abft.product.calibration_file import load_calibration
from tsapps.apps.abft.product.matmul import matmul
from tsapps.errors import ExitCode


@pytest.fixture(autouse=True)
def _own_cache(directory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
    monkeypatch.setattr(calibrate, "_SELECT_DEPTHS", (64,))  # one depth is enough to test the command


@pytest.mark.parametrize("depths", [(16, 1000), pytest.param(DEPTHS, marks=pytest.mark.exhaustive)], ids=["few", "all"])
def test_calibration_is_stored(succeed, directory, monkeypatch, depths):
    monkeypatch.setattr(calibrate, "DEPTHS", depths)
    report = json.loads(succeed("abft-calibrate", "--dtype", "float32", "--rows", 16, "--p", "1e-6", "--json"))
    assert report["device"] == "cpu"
    (found,) = report["calibrations"]
    assert (found["dtype"], found["p"], found["confidence"]) == ("float32", 1e-6, 0.99)
    assert [depth["k"] for depth in found["depths"]] == list(depths)
    assert found["path"] == str(directory / "cache" / "tsapps" / "abft" / "cpu-float32.json")
    kept = load_calibration("float32")
    assert [depth.own.error for depth in kept.depths] == [depth["own"]["error"] for depth in found["depths"]]
    A = np.ones((4, 3), np.float32)
    assert matmul(A, A.T, threshold="statistical").threshold == "statistical"


def test_every_type_and_the_table(succeed, monkeypatch):
    monkeypatch.setattr(calibrate, "DEPTHS", (16, 64))
    table = succeed("abft-calibrate", "--rows", 16)
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        assert f"\n{dtype} " in table
        assert load_calibration(dtype).p == 1e-9
    assert "exceeded by rounding with probability 1e-09; intervals of confidence 0.99" in table
    assert succeed("abft-calibrate", "--rows", 16, "--dtype", "float32", "--quiet") == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--p", 0), 2, "--p 0: expected a number between 1e-12 and 1"),
        (("--p", "1e-13"), 2, "--p 1e-13: expected a number between 1e-12 and 1"),
        (("--confidence", 1), 2, "--confidence 1: expected a number between 0 and 1"),
        (("--device", "cuda"), 4, "device 'cuda' was asked for, but"),
        (("--device", "tpu"), 2, "--device must be"),
    ],
)
def test_wrong_use(refuse, arguments, code, message):
    assert message in refuse(code, "abft-calibrate", *arguments)


def test_unwritable_cache_is_reported_before_measuring(directory, refuse, monkeypatch):
    def measure(*_, **__):
        raise AssertionError("measured first")

    monkeypatch.setattr("tsapps.apps.abft.product.calibrate.calibrate", measure)
    (directory / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(directory / "file"))
    line = refuse(ExitCode.FAILURE, "abft-calibrate", "--device", "cpu", "--dtype", "float32")
    assert "Not a directory" in line or "File exists" in line
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", lambda: Path("nowhere"))
    line = refuse(ExitCode.FAILURE, "abft-calibrate", "--device", "cpu", "--dtype", "float32")
    assert "set HOME or XDG_CACHE_HOME" in line
