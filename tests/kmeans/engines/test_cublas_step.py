"""The passes of inertia.cuh and cublas_step.cuh by their own source, run on the CPU, against float64."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
from host_cuda import harness
from host_cuda.library import DIGITS, H200, WORK, Passes, libraries, plan_of
from host_cuda.tall_skinny import DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps import kmeans
from tsapps.apps.kmeans.inertia import plan as inertia_plan
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.plan.mma import ELEMENT

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
    delta = of.centered.astype(np.float64) - of.centers.astype(np.float64)[of.labels]
    weights = np.ones(of.n) if of.weights is None else of.weights.astype(np.float64)
    return (delta * delta).sum(axis=1), weights


def rounding(of):
    """Return what inertia/inertia.cuh says of its total: in double, the additions of all there is in a row besides."""
    return 2.0**-21 if of.work == np.float32 else oracle.gamma(of.n * of.d + 8, np.float64)


def test_three_rows_by_hand():
    # (1, 2) and (3, 4) of center (1, 1); (5, 6), twice, of center (0, 0): 1 + 13 + 2 · 61.
    X, centers = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([[1.0, 1], [0, 0]])
    of = Passes(X, "float32", np.zeros(2), centers, np.array([0, 0, 1]), np.array([1.0, 1, 2]))
    assert of.inertia() == 136.0
    assert of.distances().tolist() == [1.0, 13.0, 61.0]
    total, square, largest = of.moments(X[0])
    assert (total.tolist(), square.tolist(), largest.tolist()) == ([6, 6], [20, 20], [4, 4])


@pytest.mark.each_choice
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_inertia(n, d, k, dtype, weighted, offset, rng):
    of = passes(n, d, k, dtype, rng, weighted, offset)
    distances, weights = expected(of)
    for device in (H200, SMALL):  # centers in shared memory, and not
        assert of.inertia(device=device) == pytest.approx(weights @ distances, rel=rounding(of), abs=0)


def test_centers_stay_where_they_are_if_they_are_many():
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


@pytest.mark.parametrize("slices", [1, 7, 9, 100])
def test_moments_of_few_rows_in_many_slices(slices, rng):
    of = passes(5, 40, 2, "float32", rng)
    total, _, largest = of.moments(np.zeros(40), slices)
    np.testing.assert_allclose(total, of.X.astype(np.float64).sum(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(largest, abs(of.X).max(axis=0))


def test_the_largest_of_several_blocks_of_rows(rng):
    of = passes(50, 3, 2, "float32", rng)
    own = abs(of.X).max(axis=0).astype(np.float64)
    before = own + np.array([1, -0.01, 0])
    _, _, largest = of.moments(np.zeros(3), before=before)
    np.testing.assert_array_equal(largest, [before[0], own[1], own[2]])


@settings(max_examples=60, deadline=None)
@given(
    n=st.one_of(st.integers(1, 300), st.sampled_from([32, 33, 34, 64, 65, 66, 129, 1000])),
    d=st.integers(2, 70),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**16),
)
def test_columns_are_added_up_as_numpy_does(n, d, dtype, seed):
    rng = np.random.default_rng(seed)
    X = (10.0 ** rng.integers(-3, 4, d) * rng.standard_normal((n, d)) + rng.standard_normal(d)).astype(dtype)
    about, sums = X.mean(axis=0), np.full(d, np.nan, dtype)
    libraries()[dtype].call("in_order", 0, X, about, n, d, sums)
    np.testing.assert_array_equal(sums, X.sum(axis=0))
    libraries()[dtype].call("in_order", 1, X, about, n, d, sums)
    np.testing.assert_array_equal((sums / np.intp(n)).astype(dtype), X.var(axis=0, mean=about[np.newaxis]))


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


def kept(of, digits, rng):
    """Return the rows' elements and weights as integers (n, d + 1), their scales, and weights to compare them by."""
    bits, weights = 30 if digits == 2 else 46, np.ones(of.n, of.work) if of.weights is None else of.weights
    rows = of.centered * weights[:, np.newaxis]  # rounded as kernels have it
    largest = abs(rows).max(axis=0, initial=2.0**-20).astype(np.float64)
    scales = np.exp2(np.append(bits - np.ceil(np.log2(largest)), 0 if of.weights is None else bits - 1))
    elements = np.rint(np.column_stack([rows, weights]).astype(np.float64) * scales).astype(np.int64)
    k = len(of.centers)
    of_clusters = 1 + rng.choice(2**31 - 1, k, replace=False)
    of_columns = rng.integers(1, 2**31, of.d + 1) * rng.choice((-1, 1), of.d + 1)
    return elements, scales, of_clusters.astype(np.int32), of_columns.astype(np.int32)


def sums_of(elements, labels, k):
    sums = np.zeros((k, elements.shape[1]), np.int64)
    np.add.at(sums, labels, elements)
    return sums


def weighed(sums, of_clusters, of_columns):
    """Return Σ r[c] · s[j] · sums[c, j], in Python's integers."""
    r, s = of_clusters.astype(object), of_columns.astype(object)
    return int(r @ (sums.astype(object) @ s)) % 2**128


KEPT = [(dtype, digits) for dtype, all_digits in DIGITS.items() for digits in all_digits]


def test_sums_of_three_rows_by_hand():
    # Rows (1, 2), (3, 4) of cluster 0 and (5, 6) of cluster 1, times 16 and 32: r = 3, 7, and s = 2, −5, 11.
    X = np.array([[1.0, 2], [3, 4], [5, 6]])
    of = Passes(X, "float32", np.zeros(2), np.zeros((2, 2)), np.array([0, 0, 1]))
    scales, weights = np.array([16.0, 32, 1]), (np.array([3, 7], np.int32), np.array([2, -5, 11], np.int32))
    sums = np.array([[64, 192, 2], [80, 192, 1]])
    assert of.compared(sums, 2, scales, *weights) == (91.0, 0, 0)
    # What went to the other cluster; and what was lost.
    sums[:, 1] += 32, -32
    assert of.compared(sums, 2, scales, *weights)[1:] == (0, 2**128 - (3 - 7) * -5 * 32)
    sums[:, 1] -= 32, -32
    sums[1, 2] = 0
    assert of.compared(sums, 2, scales, *weights)[1:] == (0, 7 * 11)


@pytest.mark.each_choice
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "digits"), KEPT)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_sums_are_compared_with_the_rows(n, d, k, dtype, digits, weighted, offset, rng):
    of = passes(n, d, k, dtype, rng, weighted, offset)
    elements, scales, *weights = kept(of, digits, rng)
    right = sums_of(elements, of.labels, k)
    for device in (H200, SMALL):
        total, stray, difference = of.compared(right, digits, scales, *weights, device=device)
        assert (stray, difference) == (0, 0)
        assert total == of.inertia(device=device)  # the same bits
    # Any other sums, of 64 bits, are other by as much.
    sums = rng.integers(-(2**63), 2**63, right.shape)
    expected = (weighed(right, *weights) - weighed(sums, *weights)) % 2**128
    assert of.compared(sums, digits, scales, *weights)[1:] == (0, expected)
    if k > 1:
        # A bit of a sum that is in another cluster's, its column's total unchanged: the last, the first, any.
        for bit in (0, 62, int(rng.integers(63))):
            (a, b), j = rng.choice(k, 2, replace=False), int(rng.integers(d + 1))
            sums = right.copy()
            sums[[a, b], j] += np.array([1, -1]) << bit
            assert of.compared(sums, digits, scales, *weights)[2] != 0
        # Rows with the label of another cluster; and with none.
        row = int(rng.integers(n))
        held = int(of.labels[row])
        if elements[row].any():
            of.labels[row] = (held + 1 + rng.integers(k - 1)) % k
            assert of.compared(right, digits, scales, *weights)[2] != 0
    row = int(rng.integers(n))
    for label in (-1, k, 2**30):
        held, of.labels[row] = of.labels[row], label
        assert of.compared(right, digits, scales, *weights)[1] == 1
        of.labels[row] = held


@pytest.mark.each_choice
@pytest.mark.parametrize("blocks", [1, 3, 7])
@pytest.mark.parametrize(("dtype", "digits"), KEPT)
def test_sums_are_compared_by_any_grid(dtype, digits, blocks, rng):
    of = passes(1900, 40, 9, dtype, rng)
    elements, scales, *weights = kept(of, digits, rng)
    sums = rng.integers(-(2**63), 2**63, (9, 41))
    expected = (weighed(sums_of(elements, of.labels, 9), *weights) - weighed(sums, *weights)) % 2**128
    with harness.schedule(seed=blocks, threads=1 + blocks % 2):
        found = of.compared(sums, digits, scales, *weights, blocks=blocks)
    assert found == (of.inertia(), 0, expected)


def comparing(dtype):
    """Return what plans have where sums are compared."""
    return [{"digits": of, "threads": plan_of(1, 1, 1, dtype, digits=of).threads} for of in DIGITS[dtype]]


def test_inertia_from_sums_by_hand():
    # (1, 2) and (3, 4) of center (1, 1), (5, 6) of center (0, 0): 1 + 13 + 61.
    sums, counts, centers = np.array([[4.0, 6], [5, 6]]), np.array([2.0, 1]), np.array([[1.0, 1], [0, 0]])
    inertia, error = inertia_plan.inertia_from_sums(91.0, sums, counts, np.array([0.5, 0.25]), centers)
    assert inertia == 75.0
    assert error == 2.0**-24 * (91 + 4) + 2 * (0.5 + 0.25)


@settings(max_examples=60)
@given(
    st.integers(1, 400), st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**32 - 1), st.sampled_from([8, 20, 30])
)
def test_error_of_inertia_from_sums(n, d, k, seed, bits):
    """Of rows that are rounded to float32, and then to units, as the steps round them; many are the same row."""
    rng = np.random.default_rng(seed)
    X = rng.choice(rng.standard_normal((max(1, n // 20), d)), n)
    centers, labels = rng.standard_normal((k, d)).astype(np.float32), rng.integers(0, k, n)
    units = np.exp2(rng.integers(2 - bits, 4 - bits, d).astype(np.float64))
    kept, sums = np.rint(X.astype(np.float32) / units) * units, np.zeros((k, d))
    np.add.at(sums, labels, kept)
    counts = np.bincount(labels, minlength=k).astype(np.float64)
    inertia, error = inertia_plan.inertia_from_sums(float((X * X).sum()), sums, counts, units, centers)
    assert abs(inertia - float(((X - centers[labels].astype(np.float64)) ** 2).sum())) <= error * (1 + 2.0**-20)


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", WORK)
def test_inertia_compiles_without_spills(dtype, arch):
    element, work = ELEMENT[dtype], ELEMENT[WORK[dtype]]
    plans = [plan_of(1000, 128, 9, dtype, aligned=a, device=device) for a in (True, False) for device in (H200, SMALL)]
    # Sums of two digits are of samples without weights.
    plans += [replace(plan, **of) for plan in plans for of in comparing(dtype)]
    kernels = {
        plan.kernel(element, work, weighted=weighted): plan
        for plan in plans
        for weighted in ((True, False) if plan.digits != 2 else (False,))
    }
    assert len(kernels) == 8 + sum(4 if digits == 2 else 8 for digits in DIGITS[dtype])
    source = (FOLDER / "inertia/inertia.cuh").read_text(encoding="utf-8")
    for kernel, used in build(source, list(kernels), arch).resources.items():
        assert used.stack == used.spill_stores == used.spill_loads == 0, kernel
        assert used.registers * kernels[kernel].threads <= 65_536, kernel
    constants = dict(re.findall(r"(kInertia\w+) = (\d+)", source))
    assert constants == {"kInertiaThreads": str(inertia_plan.THREADS), "kInertiaRows": str(inertia_plan.ROWS_TOGETHER)}
    kept_sums = (FOLDER / "protect/freivalds.cuh").read_text(encoding="utf-8")
    assert re.search(r"kLastBits = (\d+)", kept_sums)[1] == str(inertia_plan.LAST_BITS)
