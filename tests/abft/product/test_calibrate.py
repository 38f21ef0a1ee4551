"""Calibration of the CPU: its measurements, the false positives of its threshold, and its file."""

import json
from dataclasses import asdict
from math import sqrt
from unittest.mock import patch

import numpy as np
import pytest
from exhaustive import every
from scipy.stats import norm

from tsapps.apps.abft.product import calibrate as calibration
from tsapps.apps.abft.product import cpu as product_cpu
from tsapps.apps.abft.product import exact_products
from tsapps.apps.abft.product.calibrate import (
    Calibration,
    Depth,
    Scale,
    calibrate,
)
from tsapps.apps.abft.product.calibration_file import calibration_path, load_calibration, save_calibration
from tsapps.apps.abft.product.matmul import check_product, matmul
from tsapps.apps.abft.product.rounding_model import RoundingModel, rounding_deviations
from tsapps.apps.abft.product.thresholds import DTYPES, confidence, product_variance, statistical
from tsapps.bench.abft.campaign import DISTRIBUTIONS, draw


class Calibrations(dict):
    """The calibration of each dtype, made on demand, of some rows and depths; others select the model."""

    def __init__(self, rows, depths, select_depths):
        super().__init__()
        self.rows, self.depths, self.select_depths = rows, depths, select_depths

    def __missing__(self, dtype):
        with (
            patch.object(calibration, "DEPTHS", self.depths),
            patch.object(calibration, "_SELECT_DEPTHS", self.select_depths),
        ):
            return self.setdefault(dtype, calibrate(dtype, rows=self.rows, p=1e-6))


@pytest.fixture(
    scope="module",
    name="calibrations",
    # A model differs by the order within a run; tests have depths between those measured, and beyond the last.
    params=[
        (64, (16, 100, 300), (100,)),
        pytest.param((1024, (16, 64, 256, 1024), (600,)), marks=pytest.mark.exhaustive),
    ],
    ids=["few rows", "many rows"],
)
def _calibrations(request):
    return Calibrations(*request.param)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def some(dtype="float32", **change):
    given = {"device": "cpu", "dtype": dtype, "p": 1e-6, "confidence": 0.99}
    depths = tuple(
        Depth(
            k,
            100,
            Scale(RoundingModel(0.0, (1, 2), 256), own, 1e-7, own, 1e-7),
            Scale(RoundingModel(), others, 1e-7, 1e-7, others),
            True,
        )
        for k, own, others in ((10, 2e-7, 5e-7), (100, 3e-7, 6e-7))
    )
    return Calibration(**(given | {"depths": depths} | change))


def test_error_of_a_depth_by_hand():
    found = some()
    assert [found.error(k) for k in (1, 10, 11, 100)] == [2e-7, 2e-7, 3e-7, 3e-7]
    assert found.error(1000) == pytest.approx(3e-7 * sqrt(10))
    assert [found.error(k, own=False) for k in (1, 11)] == [5e-7, 6e-7]
    assert found.error(1000, own=False) == pytest.approx(6e-7 * sqrt(10))
    assert [found.bounds(50, 8, own=own).model for own in (True, False)] == [
        RoundingModel(0.0, (1, 2), 256),
        RoundingModel(),
    ]


def test_repr():
    assert repr(some()) == "<Calibration: float32 on cpu, p 1e-06, confidence 0.99, k 10, 100>"


@pytest.mark.parametrize(("dtype", "products"), [("float32", 25), ("float64", 2), ("float16", 2)])
def test_products_of_float32_on_tensor_cores_lose_more(dtype, products):
    assert product_variance(dtype) == products
    found = statistical(64, 16, dtype, 1e-7, 1e-6, model=RoundingModel(products))
    assert found.model.products == products
    assert found.row >= statistical(64, 16, dtype, 1e-7, 1e-6).row


@pytest.mark.parametrize("dtype", every(2, ["float32", "float64"]))
def test_sums_of_others_on_a_gpu(monkeypatch, dtype):
    """A GPU whose own kernels accumulate in twice the precision, and where other libraries add sequentially."""
    monkeypatch.setattr(calibration, "device_name", lambda device: "cpu" if device is None else "a GPU")
    monkeypatch.setattr(calibration, "DEPTHS", (64, 1024))
    with monkeypatch.context() as patched:
        patched.setattr(calibration, "sums_of", lambda A, B, *_: exact_products.exact_rows(A, B)[0])
        patched.setattr(calibration, "emulated_sums_of", lambda A, B, *_: exact_products.exact_rows(A, B)[0])
        found = calibrate(dtype, 0, rows=128, p=1e-6)
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    assert found.predicted
    for depth in found.depths:
        assert depth.own.error == unit / sqrt(3)  # the least
        assert depth.own.error <= depth.others.error < 2 * unit
    assert found.depths[1].others.error > 1.2 * found.depths[1].own.error
    rng = np.random.default_rng(5)
    A, B = rng.lognormal(0, 1, (500, 1024)).astype(dtype), rng.lognormal(0, 1, (1024, 8)).astype(dtype)
    off = abs(next(calibration._sequential(A, B, dtype, 0)) - exact_products.exact_rows(A, B)[0])
    bounds = found.bounds(1024, 8, own=False)
    assert (off <= bounds.spread * rounding_deviations(A, B, bounds.model)).all()


def sequential_sums(A, B):
    total = np.zeros((len(A), B.shape[1]), A.dtype)
    for step in range(A.shape[1]):
        total += A[:, step, np.newaxis] * B[step]
    return total


@pytest.mark.exhaustive
@pytest.mark.parametrize("accumulators", [(1, 2), (1,), (2,), (4,)])
def test_the_order_of_a_blas_is_found(monkeypatch, accumulators):
    """A BLAS that adds each run by several accumulators in turn, with different numbers in different rows."""

    def multiply(A, B):
        total = np.zeros((len(A), B.shape[1]), A.dtype)
        for first in range(0, A.shape[1], product_cpu.RUN):
            chunk = slice(first, first + product_cpu.RUN)
            for place, q in enumerate(accumulators):
                rows = slice(place, None, len(accumulators))
                a, b = A[rows, chunk], B[chunk]
                total[rows] += sum(sequential_sums(a[:, i::q], b[i::q]) for i in range(q))
        return total

    monkeypatch.setattr(product_cpu, "multiply", multiply)
    monkeypatch.setattr(calibration, "DEPTHS", (64, 1000))
    for depth in calibrate("float32", rows=128, p=1e-6).depths:
        assert (depth.own.walk.accumulators, depth.own.walk.run) == (accumulators, product_cpu.RUN)
        # Additions with errors of up to half a last place have 0.58 u; the margin is the width of the interval.
        assert depth.own.error < 1.2 * 2.0**-24


@pytest.mark.exhaustive
@pytest.mark.each_choice
@pytest.mark.parametrize(("m", "k", "w"), [(1, 300, 5), (200, 300, 40), (999, 90, 1), (150, 700, 8)])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_that_were_not_measured(calibrations, dtype, distribution, m, k, w):
    rng = np.random.default_rng(m)
    A, B = draw(distribution, (m, k), dtype, rng), draw(distribution, (k, w), dtype, rng)
    C, bounds = np.empty((m, w), A.dtype), calibrations[dtype].bounds(k, w)
    (_, sums, _), *_ = product_cpu.checked_blocks(A, B, bounds, C)
    allowed = bounds.spread * rounding_deviations(A, B, bounds.model)
    # Up to 8,000 elements, with p = 10⁻⁶: two exceed it with probability 3·10⁻⁵.
    assert (abs(sums - exact_products.exact_rows(A, B)[0]) > allowed).sum() < 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_of_others_on_the_cpu(calibrations, dtype):
    rng = np.random.default_rng(7)
    A, B = rng.lognormal(0, 1, (300, 1024)).astype(dtype), rng.lognormal(0, 1, (1024, 8)).astype(dtype)
    bounds, exact = calibrations[dtype].bounds(1024, 8, own=False), exact_products.exact_rows(A, B)[0]
    allowed = bounds.spread * rounding_deviations(A, B, bounds.model)
    for sums in (sequential_sums(A, B), product_cpu.multiply(A, B), product_cpu.multiply(A[:1], B)):
        assert (abs(sums - exact[: len(sums)]) <= allowed[: len(sums)]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_intervals_and_errors(calibrations, dtype):
    found = calibrations[dtype]
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    for depth in found.depths:
        assert depth.n == calibrations.rows * 16
        for scale in (depth.own, depth.others):
            assert scale.low < scale.high <= scale.error
            assert scale.tail <= scale.error
            # The error of sequential additions, up to a factor: a BLAS does not restart where the model does.
            assert unit / sqrt(3) <= scale.error < 6 * unit
            assert scale.low > unit / 4


def gaussian(n, seed, wide=0.0):
    """|x| with scale 1, and a share with scale 3."""
    rng = np.random.default_rng(seed)
    return abs(rng.standard_normal(n)) * np.where(rng.random(n) < wide, 3.0, 1.0)


@pytest.mark.parametrize("n", [256, 4096, 65_536])
def test_scales_of_gaussians(n):
    every = np.array([calibration._scales(gaussian(n, seed), 0.9) for seed in range(200)])
    # A 90 % interval contains the scale in nine of ten cases; fewer than 80 % of 200 have probability 10⁻⁵.
    assert ((every[:, 0] < 1) & (every[:, 1] > 1)).mean() > 0.8
    # A Gaussian's square exceeds y² by slightly less than 2, depending on y; this is the upper end of the interval.
    assert 0.9 < np.median(every[:, 2]) < 1.3


@pytest.mark.parametrize("wide", [0.03, 0.1])
def test_a_long_tail_is_detected(wide):
    def beyond(e, p):
        edge = e * confidence(p)
        return wide * 2 * norm.sf(edge / 3) + (1 - wide) * 2 * norm.sf(edge)

    for seed in range(20):
        _, high, tail = calibration._scales(gaussian(65_536, seed, wide), 0.99)
        for p in (1e-4, 1e-6, 1e-9, 1e-12):
            assert beyond(max(high, tail), p) <= p
    # The root mean square alone would be exceeded far more often.
    assert beyond(high, 1e-9) > 1e-6


@pytest.mark.each_choice
@pytest.mark.parametrize("distribution", ["normal", "uniform"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_statistical_threshold_is_tight_with_few_false_positives(calibrations, dtype, distribution):
    import ml_dtypes

    numpy_type = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    rng = np.random.default_rng(5)
    m, k, w = 20_000, 256, 16
    draw = rng.standard_normal if distribution == "normal" else rng.random
    A, B = draw((m, k)).astype(numpy_type), draw((k, w)).astype(numpy_type)
    found = matmul(A, B, threshold=calibrations[dtype])
    # Of 320,000 elements, 0.3 are expected to exceed it; five do with probability 2·10⁻⁵.
    assert found.n_faults < 5
    assert found.suspected < m // 100
    # Within twenty times the actual rounding errors before rounding to 16 bits (root mean squares).
    bounds = calibrations[dtype].bounds(k, w)
    off = calibration.sums_of(A[:500], B, dtype, None) - exact_products.exact_rows(A[:500], B)[0]
    allowed = bounds.spread * rounding_deviations(A[:500], B, bounds.model)
    assert np.sqrt((allowed**2).mean()) < 20 * np.sqrt((off**2).mean())


@pytest.mark.each_choice
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_distribution_of_the_campaign(calibrations, dtype, distribution):
    m, k, w = 2000, 64, 16
    rng = np.random.default_rng(8)
    A, B = draw(distribution, (m, k), dtype, rng), draw(distribution, (k, w), dtype, rng)
    bounds = calibrations[dtype].bounds(k, w)
    sums = calibration.sums_of(A, B, dtype, None)
    off = sums - exact_products.exact_rows(A, B)[0]
    allowed = bounds.spread * rounding_deviations(A, B, bounds.model)
    # All elements are tested, not only those of flagged rows: three of 32,000 exceed it with probability 6·10⁻⁶.
    assert (abs(off) > allowed).sum() < 3
    assert sum(len(rows) for rows, *_ in product_cpu.wrong_elements(A, B, sums.astype(A.dtype), range(m), bounds)) < 3
    # A BLAS that adds cancelling pairs sequentially computes nearly all bfloat16 sums exactly.
    lossy = off != 0 if (off != 0).mean() < 0.1 else np.full(off.shape, True)
    assert np.sqrt((allowed[lossy] ** 2).mean()) < 20 * np.sqrt((off[lossy] ** 2).mean())


@pytest.mark.parametrize("dtype", DTYPES)
def test_calibration_data_lose_bits(dtype):
    """Exact sums give no information. Exception: nearly equal 16-bit data, in float16 if pairs are adjacent."""
    found = calibration._products(dtype, None, 256, 64, np.random.default_rng(2))
    exact = [i for i, product in enumerate(found) if (product.own == product.exact).all()]
    assert exact in {"bfloat16": ([5],), "float16": ([], [5])}.get(dtype, ([],))


@pytest.mark.each_choice
@pytest.mark.parametrize("k", [256, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_next_to_a_wrong_one_have_no_false_positives(calibrations, monkeypatch, dtype, k):
    """Sums that cancel to zero, with partial sums as large as possible."""
    numpy_type = draw("normal", (1, 1), dtype, np.random.default_rng()).dtype
    rng, m, w = np.random.default_rng(k), 2000, 16
    A, B = np.empty((m, k), numpy_type), np.empty((k, w), numpy_type)
    order = rng.permutation(k // 2)
    A[:, ::2], B[::2] = rng.normal(1, 0.3, (m, k // 2)), rng.normal(1, 0.3, (k // 2, w))
    A[:, 1::2], B[1::2] = -A[:, ::2][:, order], B[::2][order]
    threshold, multiply = calibrations[dtype], product_cpu.multiply  # calibrated before products are wrong

    def faulty(A, B):
        product = multiply(A, B)
        product[:, 0] += 1000
        return product

    monkeypatch.setattr(product_cpu, "multiply", faulty)
    found = matmul(A, B, threshold=threshold)
    assert found.suspected == m
    false_positives = [one for one in found.faults if one.column]
    assert found.n_faults == m + len(false_positives)
    # With p = 10⁻⁶, two of 30,000 have probability 4·10⁻⁴.
    assert len(false_positives) < 2


def test_a_device_whose_exact_sums_are_inexact(monkeypatch):
    multiply = product_cpu.multiply
    monkeypatch.setattr(product_cpu, "multiply", lambda A, B: multiply(A, B) * np.float32(1 + 2.0**-22))
    with pytest.raises(
        ArithmeticError,
        match=r"sums of bfloat16 on cpu that are exact in any order have errors of up to .*: use threshold='proven'",
    ):
        calibrate("bfloat16", rows=16)


def test_save_and_load():
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


HEAD = {"version": 8, "device": "cpu", "dtype": "float32", "p": 1e-6, "confidence": 0.99}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"depths": []}',
        json.dumps(HEAD | {"depths": []}),
        json.dumps(HEAD | {"depths": [{"k": 3}]}),
        json.dumps(HEAD | {"depths": [asdict(depth) for depth in some().depths[::-1]]}),
        json.dumps(HEAD | {"depths": [asdict(some().depths[0]) | {"k": 0}]}),
        json.dumps(HEAD | {"depths": [asdict(some().depths[0]) | {"k": "10"}]}),
        json.dumps(HEAD | {"depths": [asdict(one) for one in some().depths]}).replace('"run": 256', '"run": 0', 1),
    ],
)
def test_files_with_other_content(text):
    path = save_calibration(some())
    path.write_text(text)
    with pytest.raises(ValueError, match=r"is no calibration.*make one with tsapps abft-calibrate --dtype float32"):
        load_calibration("float32")


def test_files_of_another_version():
    path = save_calibration(some())
    whole = json.loads(path.read_text())
    assert whole["version"] == 8
    # The first version had no version field, and errors relative to other magnitudes.
    del whole["version"]
    for depth in whole["depths"]:
        depth["largest"] = depth.pop("others")
    path.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=r"it has version 1; expected 8.*make one with tsapps abft-calibrate"):
        load_calibration("float32")
    path.write_text(json.dumps(whole | {"version": 9}))
    with pytest.raises(ValueError, match="it has version 9; expected 8"):
        load_calibration("float32")


@pytest.mark.parametrize("change", [{"dtype": "float64"}, {"device": "another"}, {"p": 2.0}, {"p": "high"}])
def test_files_of_another_device_or_dtype(change):
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
        ({"p": 0.0}, "p is 0.0; expected a false positive rate"),
    ],
)
def test_wrong_arguments(change, message):
    with pytest.raises(ValueError, match=message):
        calibrate(**({"dtype": "float32"} | change))
