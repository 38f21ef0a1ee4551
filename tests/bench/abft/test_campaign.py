"""Fault-injection campaign: confidence intervals and outcomes by hand, and whole cells on the CPU."""

from dataclasses import replace

import numpy as np
import pytest

from tsapps.apps.abft import Verdict
from tsapps.bench.abft import at_rest as abft_at_rest
from tsapps.bench.abft import campaign, thresholds
from tsapps.bench.abft import kmeans as abft_kmeans
from tsapps.bench.abft import product as product_faults
from tsapps.bench.abft import run as abft
from tsapps.bench.abft import summary as abft_summary
from tsapps.bench.abft.at_rest import Damage, Matrix, judged, try_at_rest, try_sidecar
from tsapps.bench.abft.campaign import cells, draw, flipped, interval
from tsapps.bench.abft.product import Limits, try_product
from tsapps.bench.common import record


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # 0 of n: 1 − high is the n-th root of 2.5 %. n of n: the same for low.
        (0, 200, 0.0, 1 - 0.025 ** (1 / 200)),
        (200, 200, 0.025 ** (1 / 200), 1.0),
        (1, 1, 0.025, 1.0),
        # 1 of 2: (1 − low)² = 97.5 % = high².
        (1, 2, 1 - 0.975**0.5, 0.975**0.5),
        (0, 0, 0.0, 1.0),
    ],
)
def test_intervals_by_hand(successes, trials, low, high):
    assert interval(successes, trials) == pytest.approx((low, high), abs=1e-12)


def test_interval_ends_match_binomial_tails():
    low, high = interval(7, 50)
    from scipy.stats import binom

    assert binom.sf(6, 50, low) == pytest.approx(0.025)
    assert binom.cdf(7, 50, high) == pytest.approx(0.025)


@pytest.mark.parametrize(("successes", "trials"), [(-1, 5), (6, 5)])
def test_invalid_successes_are_rejected(successes, trials):
    with pytest.raises(ValueError, match="successes of 5 trials"):
        interval(successes, trials)


def test_every_combination_is_one_cell():
    every = list(cells())
    assert len(set(every)) == len(every)
    assert {cell.target for cell in every} == {"at-rest", "sidecar", "product", "mid-product", "judged"}
    at_rest = {(one.code, one.fault) for one in every if one.target == "at-rest" and one.dtype == "float16"}
    faults = ("none", "bit", "two-bits", "word", "two-words", "tile", "rectangle")
    assert at_rest == {(code, fault) for code in ("exact", "float") for fault in faults}
    on_gpu = {(one.target, one.fault) for one in every if "cuda" in one.engines and one.target != "product"}
    assert ("mid-product", "none") in on_gpu
    assert {target for target, fault in on_gpu if fault != "none"} == {"at-rest"}


def test_every_bit_is_flipped_in_turn():
    rng = np.random.default_rng(0)
    masks, bits = flipped("bit", 16, 40, rng)
    assert masks[:16].tolist() == [1 << i for i in range(16)]
    assert bits == set(range(16))
    masks, bits = flipped("two-bits", 64, 128, rng)
    assert [one.bit_count() for one in masks.tolist()] == [2] * 128
    assert bits == set(range(64))
    assert flipped("word", 16, 1000, rng)[0].max() < 1 << 16


def test_cancelling_products_have_small_sums():
    rng = np.random.default_rng(0)
    A, B = draw("cancelling", (10, 64), "float64", rng), draw("cancelling", (64, 16), "float64", rng)
    assert (abs(A @ B) < 0.01 * (abs(A) @ abs(B))).all()
    assert (draw("sparse", (100, 100), "float32", rng) == 0).mean() == pytest.approx(0.9, abs=0.02)


# --- At rest ----------------------------------------------------------------------------------------------------------

# Two stripes of 512 rows; rows have 16 KiB and are not folded: block 4096·s + j has stripe s and column j.
SHAPE = (1024, 4096)


def test_outcomes_by_hand():
    before = np.full(SHAPE[0] * SHAPE[1] * 4, 7, np.uint8)
    row = SHAPE[1] * 4
    offsets = np.array([0, 4, 8, 600 * row, 600 * row + 20])
    faults = Damage(np.arange(5), offsets, np.full(5, 1, np.uint8))
    was, now, other = 0x07070707, 0x07070706, 0x07070701
    verdict = Verdict(
        [(0, now, was), (4, now, other), (40, was, other)],  # repaired; miscorrected; not corrupted
        [(0, 512, 2, 3), (512, 1024, 9, 10)],  # not repairable; not corrupted
    )
    found = judged(Matrix(SHAPE, 4, True), before, verdict, faults)
    assert (found.trials, found.detected, found.located) == (5, 3, 2)
    assert (found.repaired, found.miscorrected) == (1, 1)
    assert (found.clean, found.false_alarms) == (2 * 4096 - 5, 2)
    assert (found.certain, found.certain_detected, found.certain_repaired) == (5, 3, 1)


def test_three_words_of_a_block_have_no_guarantee():
    offsets = np.array([0, 1, 2, 3]) * SHAPE[1] * 4
    faults = Damage(np.array([0, 0, 0, 1]), np.append(offsets[:3], 4), np.full(4, 1, np.uint8))
    found = judged(Matrix(SHAPE, 4, True), np.zeros(SHAPE[0] * SHAPE[1] * 4, np.uint8), Verdict(), faults)
    assert (found.trials, found.certain, found.detected) == (2, 1, 0)


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("shape", [campaign.PLAIN, campaign.FOLDED, campaign.FLAT])
def test_trials_share_no_unit(shape, exact, itemsize, rng):
    if not exact and shape != campaign.PLAIN:
        pytest.skip("the float code has tiles of 256 × 256")
    matrix, trials = Matrix(shape, itemsize, exact), 100
    units = matrix.unit(matrix.elements(trials, 2, rng))
    assert units.min() >= 0
    assert units.max() < matrix.units
    # Both elements of a trial share a unit, and no two trials do.
    assert (units[:, 0] == units[:, 1]).all()
    assert len(np.unique(units)) == trials


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(abft_at_rest, "CLEAN", 60_000)
    monkeypatch.setattr(product_faults, "CLEAN", 60_000)
    monkeypatch.setattr(product_faults, "_CLEAN_ROWS", 10_000)


def cell(target, code, fault, dtype="float32", **change):
    one = next(one for one in cells() if (one.target, one.code) == (target, code))
    return replace(one, fault=fault, dtype=dtype, **change)


@pytest.mark.parametrize("fault", ["bit", "two-bits", "word", "two-words", "rectangle"])
def test_guaranteed_repairs_at_rest(fault):
    found = try_at_rest(cell("at-rest", "exact", fault), 5, "cpu")
    assert found.trials == (32 * 200 if fault == "bit" else 800)
    assert (found.detected, found.located, found.repaired, found.certain) == (found.trials,) * 4
    assert (found.miscorrected, found.false_alarms) == (0, 0)
    assert found.bits == (set(range(32)) if "bit" in fault else set())
    assert found.clean > 0


def test_more_than_two_words_at_rest_are_not_repaired():
    found = try_at_rest(cell("at-rest", "exact", "tile", m=1024), 5, "cpu")
    assert (found.trials, found.detected, found.repaired, found.miscorrected, found.certain) == (800, 800, 0, 0, 0)


def test_float_code_repairs_large_changes():
    found = try_at_rest(cell("at-rest", "float", "bit", m=1024, n=1024), 5, "cpu")
    assert found.trials == 16
    assert 8 <= found.repaired <= found.located <= found.detected <= 16
    assert found.miscorrected == 0


@pytest.mark.parametrize("code", ["exact", "float"])
def test_clean_matrices(few, code):
    found = try_at_rest(cell("at-rest", code, "none", m=1024, n=4096), 5, "cpu")
    assert found.clean >= 10_000
    assert (found.trials, found.false_alarms) == (0, 0)


@pytest.mark.parametrize("fault", ["bit", "tile", "rectangle"])
def test_sidecars(fault):
    found = try_sidecar(cell("sidecar", "sha256", fault), 5, "cpu")
    assert 200 <= found.trials <= 1600
    assert found.detected + found.harmless == found.trials
    assert found.detected > 0.99 * found.trials
    assert found.miscorrected == 0


# --- During computation -----------------------------------------------------------------------------------------------


def test_limits_by_hand():
    A, B = np.array([[1.0, -2.0]]), np.array([[3.0], [0.5]])
    found = Limits.of(A, B, rounded=True)
    assert found.exact.tolist() == [[2.0]]
    # Σ|ab| is 4, with ten roundings; guaranteed detection: 2.1 times 2 · 6 + 16 roundings.
    assert found.within[0, 0] == pytest.approx(4 * 10 * 2.0**-53)
    assert found.certain[0] == pytest.approx(2.1 * 4 * 28 * 2.0**-53)


@pytest.mark.parametrize("target", ["product", "mid-product"])
@pytest.mark.parametrize(("dtype", "fault"), [("float64", "bit"), ("float16", "word"), ("bfloat16", "tile")])
def test_products(target, dtype, fault):
    found = try_product(cell(target, "proven", fault, dtype), 5, "cpu")
    assert found.trials > 300
    assert found.certain > 20
    assert found.certain_repaired == found.certain_detected == found.certain
    assert found.detected >= found.certain
    assert (found.miscorrected, found.false_alarms) == (0, 0)
    assert fault != "bit" or found.bits == set(range(64))


def test_undetected_faults_are_counted():
    """An absolute threshold that is far too large detects nothing."""
    one, blind = cell("product", "proven", "word"), 1e300
    with pytest.MonkeyPatch.context() as patch:
        check = product_faults.check_product
        patch.setattr(product_faults, "check_product", lambda *a, **k: check(*a, **k | {"threshold": blind}))
        found = try_product(one, 5, "cpu")
    assert found.certain > 100
    assert found.certain_detected < 100
    assert abft.findings(campaign.record_of(one, found, 5))


@pytest.mark.parametrize("target", ["product", "mid-product"])
def test_clean_products(few, target):
    found = try_product(cell(target, "proven", "none"), 5, "cpu")
    assert (found.trials, found.clean, found.false_alarms) == (0, 10_000 * 16, 0)
    assert found.threshold_ratio > 10


@pytest.mark.exhaustive
def test_every_element_is_tested(few, monkeypatch):
    one = cell("judged", "statistical", "none")
    found = product_faults.try_judged(one, 5, "cpu")
    assert (found.trials, found.clean) == (0, 10_000 * 16)
    assert found.false_alarms <= 4  # 1/6 is expected; five have probability 10⁻⁶
    # A calibration with a tenth of the actual rounding error gives many false positives.
    right = product_faults._calibrated("float32", "cpu")
    depths = tuple(replace(depth, own=replace(depth.own, error=depth.own.error / 10)) for depth in right.depths)
    monkeypatch.setattr(product_faults, "_calibrated", lambda *_: replace(right, depths=depths))
    found = product_faults.try_judged(one, 5, "cpu")
    assert found.false_alarms > 1000
    assert abft.findings(campaign.record_of(one, found, 5))


@pytest.mark.exhaustive
def test_threshold_ratios(monkeypatch, capsys):
    monkeypatch.setattr(thresholds, "_PRODUCTS", 1 << 20)
    monkeypatch.setattr("sys.argv", ["abft_ratios.py", "--device", "cpu", "--dtype", "float16", "--k", "64"])
    assert thresholds.main() == 0
    row = capsys.readouterr().out.splitlines()[2].split(" | ")
    assert row[:2] == ["| float16", "64"]
    ratios = dict(zip(campaign.DISTRIBUTIONS, row[3:9], strict=True))
    # One by one these add up exactly; a BLAS with several accumulators may round them.
    ratios["cancelling"] = ratios["cancelling"].replace("–", "10")
    # A threshold for 10⁻⁶ cannot be below a Gaussian's 4.9; above 20 would contradict the documentation.
    assert all(4.9 < float(ratio) < 20 for ratio in ratios.values())
    beyond, _, n = row[9].split()[:3]
    assert (int(beyond) <= 1, n) == (True, "98,304")


# --- The command line -------------------------------------------------------------------------------------------------


def test_campaign_end_to_end(tmp_path, monkeypatch, capsys):
    some = [cell("sidecar", "sha256", "word"), cell("at-rest", "exact", "word"), cell("product", "proven", "word")]
    of_kmeans = next(abft_kmeans.cells())
    monkeypatch.setattr(campaign, "cells", lambda: iter(some))
    monkeypatch.setattr(abft, "cells_of_kmeans", lambda: iter([of_kmeans]))
    arguments = ["--campaign", "--device", "cpu", "--seed", "5", "--commit", "abc", "--out", str(tmp_path / "out.json")]
    assert abft.main(arguments) == 0
    assert "4 cells tried, 0 findings" in capsys.readouterr().out
    records = record.load(tmp_path / "out.json")
    for one in records:
        record.check(one, campaign.FIELDS)
    assert [(one["target"], one["trials"], one["detected"]) for one in records] == [
        ("at-rest", 800, 800),
        ("kmeans", 10, records[1]["detected"]),
        ("product", 800, records[2]["detected"]),
        ("sidecar", 400, 400),
    ]
    assert records[0]["intervals"]["miscorrected"] == [0, pytest.approx(1 - 0.025 ** (1 / 800))]
    assert {(one["commit"], one["seed"], one["engine"]) for one in records} == {("abc", 5, "cpu")}
    assert abft.main([*arguments, "--missing"]) == 0
    assert "0 cells tried" in capsys.readouterr().out
    assert abft.main([*arguments, "--minutes", "0"]) == 0
    assert "4 are left for --missing" in capsys.readouterr().out


def test_findings_by_hand():
    well = {"code": "exact", "trials": 10, "miscorrected": 0, "certain": 10, "certain_detected": 10}
    well |= {"certain_repaired": 10, "false_alarms": 0, "clean": 100, "intervals": {"false_alarms": [0.0, 0.03]}}
    assert abft.findings(well) == []
    assert abft.findings(well | {"miscorrected": 1}) == ["1 of 10 miscorrected"]
    assert abft.findings(well | {"certain_repaired": 9}) == ["9 of 10 certain to be repaired"]
    alarmed = well | {"false_alarms": 1, "intervals": {"false_alarms": [2e-7, 1e-6]}}
    assert abft.findings(alarmed) == ["1 false positives among 100"]
    assert abft.findings(alarmed | {"code": "statistical"}) == []


def test_speed_needs_a_gpu(capsys):
    with pytest.raises(SystemExit):
        abft.main(["--speed", "--device", "cpu"])
    assert "--speed times a GPU" in capsys.readouterr().err


def test_the_summary_by_hand():
    one = {"target": "product", "code": "proven", "fault": "bit", "trials": 8, "detected": 5, "repaired": 4}
    one |= {"miscorrected": 0, "certain": 4, "certain_repaired": 3, "clean": 100, "false_alarms": 1}
    one |= {"dtype": "float16", "distribution": "sparse", "threshold_ratio": None}
    lines = abft_summary.text([one, one, one | {"fault": "none", "trials": 0}]).splitlines()
    high = 1 - 0.025 ** (1 / 16)
    assert lines[2] == f"| product | proven | bit | 16 | 62.5 % | 50 % | 8 | 75 % | 0 | {high:.1e} |"
    assert [line.split(" | ")[2:5] for line in lines[-2:]] == [["next to faults", "200", "2"], ["clean", "100", "1"]]
    measured = [one | {"threshold_ratio": ratio} for ratio in (6.0, 7.25, 7.0)]
    assert abft_summary.text([*measured, one | {"distribution": "wide"}]).splitlines()[-3:] == [
        "| threshold | over rounding errors of | normal | uniform | lognormal | sparse | cancelling | wide |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
        "| proven | float16 | – | – | – | 7.2 | – | – |",
    ]


def test_kmeans_cells_are_pairs_of_fault_and_time():
    every = list(abft_kmeans.cells())
    assert len(set(every)) == len(every)
    assert {cell.engines for cell in every} == {("cpu",), ("cuda",)}
    assert {(cell.code, *cell.engines) for cell in every} == {("numpy", "cpu"), ("cublas", "cuda")}
    assert {cell.fault.partition("; ")[2] for cell in every} == set(abft_kmeans.WHEN)


@pytest.mark.parametrize(
    ("outcome", "harmless", "detected", "repaired", "miscorrected", "found"),
    [
        ("healed", 10, 0, 0, 0, []),
        ("repaired", 0, 10, 10, 0, []),
        ("raised", 0, 10, 0, 0, ["0 of 10 certain to be repaired"]),
        ("other unnoticed", 0, 0, 0, 10, ["10 of 10 miscorrected", "0 of 10 certain to be detected"]),
    ],
)
def test_kmeans_outcomes_are_counted(outcome, harmless, detected, repaired, miscorrected, found, monkeypatch):
    monkeypatch.setattr(abft_kmeans, "tried", lambda *_: outcome)
    cell = next(cell for cell in abft_kmeans.cells() if cell.code == "numpy")
    counts = abft_kmeans.try_kmeans(cell, 0, "cpu")
    assert (counts.trials, counts.harmless, counts.detected, counts.repaired) == (10, harmless, detected, repaired)
    assert counts.miscorrected == miscorrected
    assert abft.findings(campaign.record_of(cell, counts, 0))[: len(found)] == found


def test_kmeans_cell_on_the_cpu():
    cell = next(cell for cell in abft_kmeans.cells() if cell.fault == "next centers exchanged; any")
    counts = abft_kmeans.try_kmeans(replace(cell, code="numpy"), 1, "cpu")
    assert counts.repaired > 5
    assert counts.miscorrected == 0
    assert counts.certain == counts.certain_repaired == counts.repaired
