"""Calibrations of the CPU: what they measure, what the threshold then promises, and the file that keeps them."""

import json
from dataclasses import asdict
from math import sqrt
from unittest.mock import patch

import numpy as np
import pytest
from exhaustive import every
from scipy.stats import norm

from bench.abft.campaign import DISTRIBUTIONS, draw
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
from tsapps.apps.abft.product.rounding_model import Walk, walks
from tsapps.apps.abft.product.thresholds import DTYPES, confidence, of_products, statistical


class Calibrations(dict):
    """The calibration of each dtype, by products of some rows, and walks chosen at some depths; made when wanted."""

    def __init__(self, rows, chosen_at):
        super().__init__()
        self.rows, self.chosen_at = rows, chosen_at

    def __missing__(self, dtype):
        with (
            patch.object(calibration, "DEPTHS", (16, 64, 256, 1024)),
            patch.object(calibration, "_CHOSEN_AT", self.chosen_at),
        ):
            return self.setdefault(dtype, calibrate(dtype, rows=self.rows, p=1e-6))


@pytest.fixture(
    scope="module",
    name="calibrations",
    params=[(256, (300,)), pytest.param((1024, (600,)), marks=pytest.mark.exhaustive)],
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
            k, 100, Scale(Walk(0.0, (1, 2), 256), own, 1e-7, own, 1e-7), Scale(Walk(), others, 1e-7, 1e-7, others), True
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
    assert [found.bounds(50, 8, own=own).walk for own in (True, False)] == [Walk(0.0, (1, 2), 256), Walk()]


def test_repr():
    assert repr(some()) == "<Calibration: float32 on cpu, p 1e-06, confidence 0.99, k 10, 100>"


@pytest.mark.parametrize(("dtype", "products"), [("float32", 25), ("float64", 2), ("float16", 2)])
def test_products_of_float32_on_tensor_cores_lose_more(dtype, products):
    assert of_products(dtype) == products
    found = statistical(64, 16, dtype, 1e-7, 1e-6, walk=Walk(products))
    assert found.walk.products == products
    assert found.row >= statistical(64, 16, dtype, 1e-7, 1e-6).row


@pytest.mark.parametrize("dtype", every(2, ["float32", "float64"]))
def test_sums_of_others_on_a_gpu(monkeypatch, dtype):
    """Of a GPU whose own kernels add up in twice the precision, and which others have add up one after another."""
    monkeypatch.setattr(calibration, "device_name", lambda device: "cpu" if device is None else "a GPU")
    monkeypatch.setattr(calibration, "DEPTHS", (64, 1024))
    with monkeypatch.context() as patched:
        patched.setattr(calibration, "sums_of", lambda A, B, *_: exact_products.exact_rows(A, B)[0])
        patched.setattr(calibration, "predicted_sums_of", lambda A, B, *_: exact_products.exact_rows(A, B)[0])
        found = calibrate(dtype, 0, rows=512, p=1e-6)
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    assert found.predicted
    for depth in found.depths:
        assert depth.own.error == unit / sqrt(3)  # the least
        assert depth.own.error <= depth.others.error < 2 * unit
    assert found.depths[1].others.error > 1.2 * found.depths[1].own.error
    rng = np.random.default_rng(5)
    A, B = rng.lognormal(0, 1, (2000, 1024)).astype(dtype), rng.lognormal(0, 1, (1024, 8)).astype(dtype)
    off = abs(next(calibration._in_order(A, B, dtype, 0)) - exact_products.exact_rows(A, B)[0])
    bounds = found.bounds(1024, 8, own=False)
    assert (off <= bounds.spread * walks(A, B, bounds.walk)).all()


def one_after_another(A, B):
    total = np.zeros((len(A), B.shape[1]), A.dtype)
    for step in range(A.shape[1]):
        total += A[:, step, np.newaxis] * B[step]
    return total


@pytest.mark.exhaustive
@pytest.mark.parametrize("accumulators", [(1, 2), (1,), (2,), (4,)])
def test_the_order_of_a_blas_is_found(monkeypatch, accumulators):
    """Of one that adds up each run by several accumulators in turn, and others in other rows."""

    def multiply(A, B):
        total = np.zeros((len(A), B.shape[1]), A.dtype)
        for first in range(0, A.shape[1], product_cpu.RUN):
            chunk = slice(first, first + product_cpu.RUN)
            for place, q in enumerate(accumulators):
                rows = slice(place, None, len(accumulators))
                a, b = A[rows, chunk], B[chunk]
                total[rows] += sum(one_after_another(a[:, i::q], b[i::q]) for i in range(q))
        return total

    monkeypatch.setattr(product_cpu, "multiply", multiply)
    monkeypatch.setattr(calibration, "DEPTHS", (64, 1000))
    for depth in calibrate("float32", rows=128, p=1e-6).depths:
        assert (depth.own.walk.accumulators, depth.own.walk.run) == (accumulators, product_cpu.RUN)
        # What additions lose that are off by up to half a last place is 0.58 u; and the width of an interval.
        assert depth.own.error < 1.2 * 2.0**-24


@pytest.mark.each_choice
@pytest.mark.parametrize(("m", "k", "w"), [(1, 300, 5), (700, 300, 40), (999, 90, 1), (321, 700, 16)])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_sizes_than_those_that_are_measured(calibrations, dtype, distribution, m, k, w):
    rng = np.random.default_rng(m)
    A, B = draw(distribution, (m, k), dtype, rng), draw(distribution, (k, w), dtype, rng)
    C, bounds = np.empty((m, w), A.dtype), calibrations[dtype].bounds(k, w)
    (_, sums, _), *_ = product_cpu.checked_blocks(A, B, bounds, C)
    allowed = bounds.spread * walks(A, B, bounds.walk)
    # Up to 28,000 elements, with p = 10⁻⁶: two are beyond it with probability 4·10⁻⁴.
    assert (abs(sums - exact_products.exact_rows(A, B)[0]) > allowed).sum() < 2


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_of_others_on_the_cpu(calibrations, dtype):
    rng = np.random.default_rng(7)
    A, B = rng.lognormal(0, 1, (2000, 1024)).astype(dtype), rng.lognormal(0, 1, (1024, 8)).astype(dtype)
    bounds, exact = calibrations[dtype].bounds(1024, 8, own=False), exact_products.exact_rows(A, B)[0]
    allowed = bounds.spread * walks(A, B, bounds.walk)
    for sums in (one_after_another(A, B), product_cpu.multiply(A, B), product_cpu.multiply(A[:1], B)):
        assert (abs(sums - exact[: len(sums)]) <= allowed[: len(sums)]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_intervals_hold_what_was_measured(calibrations, dtype):
    found = calibrations[dtype]
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    for depth in found.depths:
        assert depth.n == calibrations.rows * 16
        for scale in (depth.own, depth.others):
            assert scale.low < scale.high <= scale.error
            assert scale.tail <= scale.error
            # What additions one after another have; a BLAS begins anew here and there, and not where the walk does.
            assert unit / sqrt(3) <= scale.error < 6 * unit
            assert scale.low > unit / 4


def gaussian(n, seed, wide=0.0):
    """|x| of the scale 1, but for a share that has the scale 3."""
    rng = np.random.default_rng(seed)
    return abs(rng.standard_normal(n)) * np.where(rng.random(n) < wide, 3.0, 1.0)


@pytest.mark.parametrize("n", [256, 4096, 65_536])
def test_scales_of_gaussians(n):
    every = np.array([calibration._scales(gaussian(n, seed), 0.9) for seed in range(200)])
    # An interval of 90 % holds the scale of nine in ten; the chance that 200 have fewer than 80 % is 10⁻⁵.
    assert ((every[:, 0] < 1) & (every[:, 1] > 1)).mean() > 0.8
    # A Gaussian's square exceeds y² by a little less than 2, the more so the smaller y; it is the interval's upper end.
    assert 0.9 < np.median(every[:, 2]) < 1.3


@pytest.mark.parametrize("wide", [0.03, 0.1])
def test_a_long_tail_is_seen(wide):
    def beyond(e, p):
        edge = e * confidence(p)
        return wide * 2 * norm.sf(edge / 3) + (1 - wide) * 2 * norm.sf(edge)

    for seed in range(20):
        _, high, tail = calibration._scales(gaussian(65_536, seed, wide), 0.99)
        for p in (1e-4, 1e-6, 1e-9, 1e-12):
            assert beyond(max(high, tail), p) <= p
    # By the root mean square it would have been exceeded ever more often than it says.
    assert beyond(high, 1e-9) > 1e-6


@pytest.mark.each_choice
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
    bounds = calibrations[dtype].bounds(k, w)
    off = calibration.sums_of(A[:500], B, dtype, None) - exact_products.exact_rows(A[:500], B)[0]
    allowed = bounds.spread * walks(A[:500], B, bounds.walk)
    assert np.sqrt((allowed**2).mean()) < 20 * np.sqrt((off**2).mean())


@pytest.mark.each_choice
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_distribution_of_the_campaign(calibrations, dtype, distribution):
    m, k, w = 20_000, 64, 16
    rng = np.random.default_rng(8)
    A, B = draw(distribution, (m, k), dtype, rng), draw(distribution, (k, w), dtype, rng)
    bounds = calibrations[dtype].bounds(k, w)
    sums = calibration.sums_of(A, B, dtype, None)
    off = sums - exact_products.exact_rows(A, B)[0]
    allowed = bounds.spread * walks(A, B, bounds.walk)
    # All are judged, not only those of rows that are suspected: five of 320,000 are beyond it with probability 2·10⁻⁵.
    assert (abs(off) > allowed).sum() < 5
    assert sum(len(rows) for rows, *_ in product_cpu.wrong(A, B, sums.astype(A.dtype), range(m), bounds)) < 5
    # A BLAS that adds pairs which cancel one behind the other loses nothing of nearly all sums of bfloat16.
    lossy = off != 0 if (off != 0).mean() < 0.1 else np.full(off.shape, True)
    assert np.sqrt((allowed[lossy] ** 2).mean()) < 20 * np.sqrt((off[lossy] ** 2).mean())


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_drawn_loses_bits(dtype):
    """What loses none says nothing; of 16 bits, what is all but alike, in float16 if pairs follow each other."""
    found = calibration._products(dtype, None, 256, 64, np.random.default_rng(2))
    silent = [i for i, product in enumerate(found) if (product.own == product.exact).all()]
    assert silent in {"bfloat16": ([5],), "float16": ([], [5])}.get(dtype, ([],))


@pytest.mark.each_choice
@pytest.mark.parametrize("k", [256, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_beside_a_column_that_was_struck_is_called_wrong(calibrations, monkeypatch, dtype, k):
    """Of what cancels to nothing, in a sum whose parts are as large as they can be beside it."""
    kind, rng, m, w = draw("normal", (1, 1), dtype, np.random.default_rng()).dtype, np.random.default_rng(k), 2000, 16
    A, B = np.empty((m, k), kind), np.empty((k, w), kind)
    order = rng.permutation(k // 2)
    A[:, ::2], B[::2] = rng.normal(1, 0.3, (m, k // 2)), rng.normal(1, 0.3, (k // 2, w))
    A[:, 1::2], B[1::2] = -A[:, ::2][:, order], B[::2][order]
    multiply = product_cpu.multiply

    def struck(A, B):
        product = multiply(A, B)
        product[:, 0] += 1000
        return product

    monkeypatch.setattr(product_cpu, "multiply", struck)
    found = matmul(A, B, threshold=calibrations[dtype])
    assert found.suspected == m
    beside = [one for one in found.faults if one.column]
    assert found.n_faults == m + len(beside)
    # With p = 10⁻⁶, two of the 30,000 with probability 4·10⁻⁴.
    assert len(beside) < 2


def test_a_device_that_is_not_as_it_is_taken_for(monkeypatch):
    multiply = product_cpu.multiply
    monkeypatch.setattr(product_cpu, "multiply", lambda A, B: multiply(A, B) * np.float32(1 + 2.0**-22))
    with pytest.raises(ArithmeticError, match=r"sums of bfloat16 on cpu are off by up to .*: use threshold='proven'"):
        calibrate("bfloat16", rows=16)


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
def test_files_that_hold_something_else(text):
    path = save_calibration(some())
    path.write_text(text)
    with pytest.raises(ValueError, match=r"is no calibration.*make one with tsapps abft-calibrate --dtype float32"):
        load_calibration("float32")


def test_files_of_another_version():
    path = save_calibration(some())
    whole = json.loads(path.read_text())
    assert whole["version"] == 8
    # As files were that said no version, whose errors are relative to other magnitudes.
    del whole["version"]
    for depth in whole["depths"]:
        depth["largest"] = depth.pop("others")
    path.write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=r"is of version 1; expected 8.*make one with tsapps abft-calibrate"):
        load_calibration("float32")
    path.write_text(json.dumps(whole | {"version": 9}))
    with pytest.raises(ValueError, match="is of version 9; expected 8"):
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
