"""Calibrations of the CPU: what they measure, what the threshold then promises, and the file that keeps them."""

import json

import numpy as np
import pytest

from tsapps.apps.abft import product_cpu
from tsapps.apps.abft.calibration import (
    Calibration,
    Depth,
    calibrate,
    calibration_path,
    load_calibration,
    save_calibration,
)
from tsapps.apps.abft.product import check_product, matmul
from tsapps.apps.abft.thresholds import DTYPES, statistical


@pytest.fixture(scope="module", name="calibrations")
def _calibrations():
    return {dtype: calibrate(dtype, rows=256, p=1e-6) for dtype in DTYPES}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def some(dtype="float32", **change):
    given = {"device": "cpu", "dtype": dtype, "p": 1e-6, "confidence": 0.99}
    depths = Depth(10, 2e-7, 1e-7, 2e-7, 4e-7, 100), Depth(100, 3e-7, 1e-7, 3e-7, 4e-7, 100)
    return Calibration(**(given | {"depths": depths} | change))


def test_error_of_a_depth_by_hand():
    found = some()
    assert [found.error(k) for k in (1, 10, 11, 100)] == [2e-7, 2e-7, 3e-7, 3e-7]
    assert found.error(1000) == pytest.approx(3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_intervals_hold_what_was_measured(calibrations, dtype):
    found = calibrations[dtype]
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    for depth in found.depths:
        assert depth.n == 256 * 16
        assert depth.low < depth.high <= depth.error
        # No sum of k products is as bad as k roundings, and it is not exact where there are many.
        assert depth.error < depth.k * unit
        assert depth.error > unit / 16 or depth.k < 64


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_statistical_threshold_is_tight_and_seldom_wrong(calibrations, dtype, distribution):
    import ml_dtypes

    kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    rng = np.random.default_rng(5)
    m, k, w = 20_000, 256, 16
    draw = rng.standard_normal if distribution == "normal" else rng.random
    A, B = draw((m, k)).astype(kind), draw((k, w)).astype(kind)
    found = matmul(A, B, threshold=calibrations[dtype])
    # 320,000 elements, of which a third of one is expected to be beyond it; five are with probability 2·10⁻⁵.
    assert found.n_faults < 5
    assert found.suspected < m // 100
    # Within twenty times the rounding errors that there are: their root mean square, of what is summed in.
    bounds = statistical(k, w, dtype, calibrations[dtype].error(k), 1e-6)
    work = product_cpu.working_type(A.dtype)
    exact, _, square = product_cpu.exact_rows(A[:500], B)
    off = A[:500].astype(work) @ B.astype(work) - exact
    allowed = bounds.spread * np.sqrt(exact**2 + square)
    assert np.sqrt((allowed**2).mean()) < 20 * np.sqrt((off**2).mean())


def test_what_is_saved_is_found():
    assert save_calibration(some()) == calibration_path("cpu", "float32")
    assert load_calibration("float32") == some()
    A, B = np.ones((4, 3), np.float32), np.ones((3, 2), np.float32)
    assert matmul(A, B, threshold="statistical").threshold == "statistical"
    C = A @ B
    C[1, 1] += np.float32(1e-4)
    assert not check_product(A, B, C, threshold="statistical").clean


def test_without_a_calibration():
    with pytest.raises(ValueError, match="there is no calibration for float64 on cpu: make one with tsapps abft-calib"):
        matmul(np.ones((2, 2)), np.ones((2, 2)), threshold="statistical")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"depths": []}',
        json.dumps({"device": "cpu", "dtype": "float32", "p": 1e-6, "confidence": 0.99, "depths": []}),
        json.dumps({"device": "cpu", "dtype": "float32", "p": 1e-6, "confidence": 0.99, "depths": [{"k": 3}]}),
    ],
)
def test_files_that_hold_something_else(text):
    path = save_calibration(some())
    path.write_text(text)
    with pytest.raises(ValueError, match=r"is no calibration.*make one with tsapps abft-calibrate --dtype float32"):
        load_calibration("float32")


@pytest.mark.parametrize("change", [{"dtype": "float64"}, {"device": "another"}, {"p": 2.0}, {"p": "high"}])
def test_files_of_something_else(change):
    path = save_calibration(some())
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="is no calibration"):
        load_calibration("float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int32"}, "dtype is 'int32'"),
        ({"level": 1.0}, "level is 1.0; expected a confidence"),
        ({"rows": 3}, "rows is 3; expected at least 16"),
        ({"p": 0.0}, "p is 0.0; expected a false-alarm rate"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        calibrate(**({"dtype": "float32"} | change))
