"""Faults of sums and centers, at every seam of a pass: a protected fit gives the result of a fit without them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps import TSKMeans
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.protect.checks import FaultError, Kept, same_bits
from tsapps.bench.kmeans import faults

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
#: Trials in which each of these is the fault of every third run or so, without protection.
GROSS = ["sums exchanged", "centers exchanged before use", "next centers exchanged", "centers given out exchanged"]


@pytest.mark.parametrize("fault", GROSS)
def test_without_protection_another_result_is_found(fault, rng):
    fault = faults.FAULTS[fault]
    found = {faults.tried(faults.host_engine, fault, "any", "blobs", "float64", rng, protect=False) for _ in range(12)}
    assert "other unnoticed" in found


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_no_fault_gives_another_result(fault, rng):
    found = []
    for when in (*faults.WHEN, "any"):
        kind = faults.KINDS[int(rng.integers(len(faults.KINDS)))]
        dtype = ("float32", "float64")[int(rng.integers(2))]
        found.append(faults.tried(faults.host_engine, faults.FAULTS[fault], when, kind, dtype, rng))
    assert not {"other noticed", "other unnoticed", "raised"} & set(found)
    assert set(found) != {"no effect"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_no_fault_of_many_gives_another_result(fault):
    # More of them are tried by tsapps.bench.abft --campaign --target kmeans.
    rng = np.random.default_rng(list(fault.encode()))
    for number, (when, kind) in enumerate(product(faults.WHEN, faults.KINDS)):
        dtype = ("float32", "float64")[number % 2]
        found = faults.tried(faults.host_engine, faults.FAULTS[fault], when, kind, dtype, rng)
        assert found in ("no effect", "healed", "repaired"), (when, kind, dtype)


@pytest.mark.parametrize("fault", ["sums exchanged", "centers exchanged before use", "next centers exchanged"])
def test_a_fault_in_any_of_several_runs(fault, rng):
    of = faults.draw("blobs", "float32", rng)
    of = replace(of, options={"init": "random", "n_init": 3, "tol": 0.0})
    clean = faults.injected(faults.host_engine, of, None)
    found = []
    for at in range(0, clean[0].made, max(1, clean[0].made // 8)):
        trial = faults.Trial(faults.FAULTS[fault], at, 5)
        found.append(faults.outcome_of(clean, faults.injected(faults.host_engine, of, trial)))
    assert "repaired" in found
    assert set(found) <= {"no effect", "healed", "repaired"}


def test_bits_are_compared():
    assert same_bits(np.array([1.0, np.nan]), np.array([1.0, np.nan]))
    assert not same_bits(np.array([0.0]), np.array([-0.0]))
    assert not same_bits(np.array([1.0, 2.0]), np.array([2.0, 1.0]))


@property_test(
    30, 3000, element=st.integers(0, 11), bit=st.integers(0, 31), which=st.sampled_from(["centers", "copy", "both"])
)
def test_of_two_copies_the_right_one_is_told(element, bit, which):
    centers = np.arange(12, dtype=np.float32).reshape(4, 3)
    right, kept = centers.copy(), Kept(centers)
    for one in (centers,) if which == "centers" else (kept.centers,) if which == "copy" else (centers, kept.centers):
        one.view("u4").reshape(-1)[element] ^= np.uint32(1 << bit)
    if which == "both":
        assert not kept.differs(centers)
        with pytest.raises(FaultError, match="the centers changed, and so did their copy"):
            kept.intact(centers)
        return
    assert kept.differs(centers)
    assert same_bits(kept.intact(centers), right)


DATA = ["near the largest", "tiny", "outliers", "zero weights", "equal", "one cluster each"]


@property_test(
    24,
    500,
    kind=st.sampled_from(DATA),
    dtype=st.sampled_from([np.float32, np.float64]),
    k=st.integers(1, 6),
    seed=st.integers(0, 2**31 - 1),
)
def test_no_false_positives_of_extreme_data(kind, dtype, k, seed):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(k, 200)), int(rng.integers(1, 6))
    X, weights = rng.standard_normal((n, d)), None
    if kind == "near the largest":
        X *= float(np.finfo(dtype).max) ** 0.5 / (8 * n)
    elif kind == "tiny":
        X *= float(np.finfo(dtype).tiny) ** 0.5
    elif kind == "outliers":
        X[0] *= 1e6
    elif kind == "zero weights":
        weights = rng.integers(0, 3, n).astype(dtype)
        weights[0] = 1
    elif kind == "equal":
        X = X[rng.integers(0, min(2, n), n)]
    else:
        X, k = X[: min(n, 6)], min(n, 6)
    X = X.astype(dtype)
    fits = [
        TSKMeans(k, random_state=0, device="cpu", protect=protect).fit(ArrayRows(X), sample_weight=weights)
        for protect in (False, True)
    ]
    assert fits[1].faults_ == 0
    assert same_bits(fits[0].cluster_centers_, fits[1].cluster_centers_)
    np.testing.assert_array_equal(fits[0].labels_, fits[1].labels_)
    assert fits[0].n_iter_ == fits[1].n_iter_


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e154, 1e300])
def test_one_cluster_is_right_whatever_overflows(scale):
    X = np.random.default_rng(0).standard_normal((300, 3)) * scale
    with np.errstate(over="ignore", invalid="ignore"):
        kmeans = TSKMeans(1, device="cpu", protect=True).fit(X)
    assert kmeans.faults_ == 0
    assert not kmeans.labels_.any()
