"""The passes of inertia.cuh and library.cuh by their own source, run on the CPU, against float64."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
from host_cuda import harness
from host_cuda.library import H200, WORK, Passes, plan_of
from host_cuda.tall_skinny import DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps import kmeans
from tsapps.apps.kmeans import inertia_plan
from tsapps.kernels.build import build
from tsapps.kernels.plan import ELEMENT

SMALL = replace(H200, shared_memory=2 << 10, shared_memory_per_block=1 << 10)
FOLDER = Path(kmeans.__file__).parent
#: Rows, features, clusters: of one lane, of several, of a warp, of several steps; whole vectors and not.
SHAPES = [(1, 1, 1), (700, 1, 2), (300, 3, 5), (1000, 4, 16), (77, 8, 3), (501, 40, 33), (260, 128, 9), (90, 130, 64)]
SHAPES += [(7, 300, 4), (40, 520, 3)]


def passes(n, d, k, dtype, rng, weighted=False, offset=0):
    X = 5 + rng.standard_normal((n, d))
    weights = rng.random(n) * (np.arange(n) % 3 > 0) if weighted else None
    labels, centers = rng.integers(0, k, n), rng.standard_normal((k, d))
    return Passes(X, dtype, X.mean(axis=0), centers, labels, weights, offset)


def expected(of):
    """Return ‖x − c‖² of every row, from rows as they are rounded, and the weights, in float64."""
    delta = of.centred.astype(np.float64) - of.centers.astype(np.float64)[of.labels]
    weights = np.ones(of.n) if of.weights is None else of.weights.astype(np.float64)
    return (delta * delta).sum(axis=1), weights


def rounding(of):
    """Return what inertia.cuh says of its total: in double, the additions of all there is in a row besides."""
    return 2.0**-21 if of.work == np.float32 else oracle.gamma(of.n * of.d + 8, np.float64)


def test_three_rows_by_hand():
    # (1, 2) and (3, 4) of centre (1, 1); (5, 6), twice, of centre (0, 0): 1 + 13 + 2 · 61.
    X, centers = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([[1.0, 1], [0, 0]])
    of = Passes(X, "float32", np.zeros(2), centers, np.array([0, 0, 1]), np.array([1.0, 1, 2]))
    assert of.inertia() == 136.0
    assert of.distances().tolist() == [1.0, 13.0, 61.0]
    total, square, largest = of.moments(X[0])
    assert (total.tolist(), square.tolist(), largest.tolist()) == ([6, 6], [20, 20], [4, 4])


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_inertia(n, d, k, dtype, weighted, offset, rng):
    of = passes(n, d, k, dtype, rng, weighted, offset)
    distances, weights = expected(of)
    for device in (H200, SMALL):  # centres in shared memory, and not
        assert of.inertia(device=device) == pytest.approx(weights @ distances, rel=rounding(of), abs=0)


def test_centres_stay_where_they_are_if_they_are_many():
    assert plan_of(1000, 128, 64, "float32").shared_bytes == 65 * 128 * 4
    assert plan_of(1000, 128, 200, "float32").shared_bytes > 0
    assert plan_of(1000, 128, 1000, "float32").shared_bytes == 0
    assert plan_of(40, 520, 3, "float32", device=SMALL).shared_bytes == 0


@pytest.mark.parametrize("blocks", [1, 3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inertia_has_the_same_bits_for_any_grid(dtype, blocks, rng):
    of = passes(1900, 40, 9, dtype, rng)
    with harness.schedule(seed=blocks, threads=1 + blocks % 2):
        assert of.inertia(blocks) == of.inertia(2)


def test_slices_of_many_tiles(monkeypatch, rng):
    monkeypatch.setattr(inertia_plan, "_MOST_SLICES", 5)
    for d in (3, 128, 300):
        of = passes(997, d, 6, "float32", rng)
        assert plan_of(997, d, 6, "float32").slices == 5
        distances, weights = expected(of)
        assert of.inertia() == pytest.approx(weights @ distances, rel=2.0**-21)


def test_what_is_not_a_number_shows(rng):
    of = passes(300, 40, 3, "float32", rng)
    of.X[299, 39] = np.nan
    assert np.isnan(of.inertia())
    of.X[299, 39] = np.inf
    assert of.inertia() == np.inf


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_moments_and_distances(n, d, k, dtype, offset, rng):
    of = passes(n, d, k, dtype, rng, offset=offset)
    unit = np.finfo(of.work).eps / 2
    distances, _ = expected(of)
    np.testing.assert_allclose(of.distances(), distances, rtol=unit + oracle.gamma(d + 8, np.float64))
    origin = of.X[n // 2].astype(of.work)
    delta = of.X.astype(np.float64) - origin
    total, square, largest = of.moments(origin)
    # A difference is rounded once, a sum in double for every row.
    each = unit + oracle.gamma(n + 8, np.float64)
    np.testing.assert_allclose(total, delta.sum(axis=0), rtol=0, atol=each * abs(delta).sum(axis=0).max())
    np.testing.assert_allclose(square, (delta * delta).sum(axis=0), rtol=3 * each)
    np.testing.assert_allclose(largest, abs(delta).max(axis=0), rtol=unit)


def test_moments_of_few_rows_in_many_slices(rng):
    of = passes(5, 40, 2, "float32", rng)
    total, _, _ = of.moments(np.zeros(40), slices=9)
    np.testing.assert_allclose(total, of.X.astype(np.float64).sum(axis=0), rtol=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 400),
    d=st.integers(1, 70),
    k=st.integers(1, 20),
    dtype=st.sampled_from(sorted(WORK)),
    seed=st.integers(0, 2**16),
)
def test_inertia_of_grains_is_exact(n, d, k, dtype, seed):
    # Small integers: every square and sum is one.
    rng = np.random.default_rng(seed)
    X, centers = rng.integers(-8, 9, (n, d)), rng.integers(-8, 9, (k, d))
    labels, weights = rng.integers(0, k, n), rng.integers(0, 4, n).astype(np.float64)
    of = Passes(X.astype(DTYPES[dtype]), dtype, np.zeros(d), centers.astype(np.float64), labels, weights, seed % 2)
    with harness.schedule(seed=seed):
        assert of.inertia() == float(weights @ ((X - centers[labels]) ** 2).sum(axis=1))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", WORK)
def test_inertia_compiles_without_spills(dtype, arch):
    pytest.importorskip("cupy", reason="CuPy is not installed (pip install 'tsapps[cuda13]')")
    element, work = ELEMENT[dtype], ELEMENT[WORK[dtype]]
    plans = [plan_of(1000, 128, 9, dtype, aligned=a, device=device) for a in (True, False) for device in (H200, SMALL)]
    names = [plan.kernel(element, work, weighted=weighted) for plan in plans for weighted in (True, False)]
    assert len(set(names)) == 8
    source = (FOLDER / "inertia.cuh").read_text(encoding="utf-8")
    for kernel, used in build(source, names, arch).resources.items():
        assert used.stack == used.spill_stores == used.spill_loads == 0, kernel
        assert used.registers * inertia_plan.THREADS <= 65_536, kernel
    constants = dict(re.findall(r"(kInertia\w+) = (\d+)", source))
    assert constants == {"kInertiaThreads": str(inertia_plan.THREADS), "kInertiaRows": str(inertia_plan.ROWS_TOGETHER)}
