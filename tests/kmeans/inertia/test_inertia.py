"""Inertia, and the check of running sums against the rows: their launcher on the CPU, against float64."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import oracle
import pytest
from exhaustive import every
from host_cuda import harness
from host_cuda.machine import HostMachine, build_together, placed
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps import kmeans
from tsapps.apps.kmeans.data import gpu_rows
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.plan import moment_chunk
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.inertia import plan as inertia_plan
from tsapps.apps.kmeans.inertia.from_sums import inertia_from_terms
from tsapps.apps.kmeans.inertia.launch import partial_inertia, sum_terms, total_inertia
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.launch import structure

WORK = {"float32": "float32", "float64": "float64", "float16": "float32", "bfloat16": "float32"}
#: Digits of sums, by the dtype of X: three with weights.
DIGITS = {"float32": (2, 3), "float64": (3,), "float16": (2, 3), "bfloat16": (2, 3)}
H200 = KNOWN["H200"]
SMALL = replace(H200, shared_memory=2 << 10, shared_memory_per_block=1 << 10)
FOLDER = Path(kmeans.__file__).parent
#: Rows, features, clusters: of one lane, of several, of a warp, of several steps; whole vectors and not.
SHAPES = [(1, 1, 1), (700, 1, 2), (300, 3, 5), (1000, 4, 16), (77, 8, 3), (501, 40, 33), (260, 128, 9), (90, 130, 64)]
SHAPES += [(7, 300, 4), (40, 520, 3)]


class Problem(NamedTuple):
    """The arrays that `partial_inertia` reads."""

    rows: np.ndarray
    shift: np.ndarray
    centers: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None

    def inertia(self, multiprocessors=2, gpu=H200):
        total = np.empty(())
        partial_inertia(HostMachine(multiprocessors, gpu), *self, total=total)
        return float(total)

    def partial(self, first, last, n_total):
        """Return the sums of the chunks of some rows of `n_total`."""
        rows, weights = slice(first, last), None if self.weights is None else self.weights[first:last]
        given = placed(self.rows[rows]), self.shift, self.centers, self.labels[rows], weights
        return partial_inertia(HostMachine(), *given, n_total=n_total)

    def compared(self, sums, digits, scales, of_clusters, of_columns, multiprocessors=2, gpu=H200):
        """Return the inertia, how many labels are of no cluster, and the difference of rows and sums (k, d + 1)."""
        found, scales = np.zeros(1 + 4 * (digits - 1), np.uint64), scales.astype("f4" if digits == 2 else "f8")
        of = {"of_clusters": of_clusters, "of_columns": of_columns, "found": found}
        kept = structure(inertia_plan.RUNNING_SUMS, sums=sums, scales=scales, **of)
        machine, total = HostMachine(multiprocessors, gpu), np.empty(())
        partial_inertia(machine, *self, kept=inertia_plan.RunningSums(digits, kept), total=total)
        stray, *words = map(int, found)
        return float(total), stray, inertia_plan.difference_of(words)

    @property
    def centered(self):
        """The rows less the mean, as kernels round them."""
        return self.rows.astype(self.shift.dtype) - self.shift


def problem_of(X, dtype, mean, centers, labels, weights=None, offset=0):
    """Return a problem whose rows begin `offset` elements after where vectors may."""
    work = WORK[dtype]
    weights = None if weights is None else weights.astype(work)
    labels = labels.astype(np.int32)
    return Problem(placed(X.astype(dtype), offset), mean.astype(work), centers.astype(work), labels, weights)


def drawn(n, d, k, dtype, rng, weighted=False, offset=0):
    X = 5 + rng.standard_normal((n, d))
    weights = rng.random(n) * (np.arange(n) % 3 > 0) if weighted else None
    labels, centers = rng.integers(0, k, n), rng.standard_normal((k, d))
    return problem_of(X, dtype, X.mean(axis=0), centers, labels, weights, offset)


def expected(of):
    """Return Σ w·‖x − c‖², from rows as they are rounded, in float64."""
    delta = of.centered.astype(np.float64) - of.centers.astype(np.float64)[of.labels]
    weights = np.ones(len(delta)) if of.weights is None else of.weights.astype(np.float64)
    return weights @ (delta * delta).sum(axis=1)


def rounding(of):
    """Return what inertia/inertia.cuh says of its total: in double, the additions of all there is in a row besides."""
    return 2.0**-21 if of.shift.dtype == np.float32 else oracle.gamma(of.rows.size + 8, np.float64)


def plan_of(n, d, k, dtype, *, aligned=True, device=H200, digits=None):
    sizes = np.dtype(dtype).itemsize, np.dtype(WORK[dtype]).itemsize
    return inertia_plan.inertia_plan(n, d, k, *sizes, aligned=aligned, device=device, digits=digits)


def kernels_of(dtype):
    """Return the kernels of X's dtype: the plan of each by its name, and whether there are weights."""
    plans = [plan_of(1000, 128, 9, dtype, aligned=a, device=device) for a in (True, False) for device in (H200, SMALL)]
    for digits in DIGITS[dtype]:
        threads = plan_of(1, 1, 1, dtype, digits=digits).threads
        plans += [replace(plan, digits=digits, threads=threads) for plan in plans[:4]]
    types = ELEMENT[dtype], ELEMENT[WORK[dtype]]
    every = [(plan, weighted) for plan in plans for weighted in (True, False)]
    return {plan.kernel(*types, weighted=weighted): (plan, weighted) for plan, weighted in every}


for each in WORK:
    build_together([(FOLDER / "inertia/inertia.cuh", kernels_of(each))])
build_together([(FOLDER / "inertia/inertia.cuh", ["kmeans::add_chunks"])])


def test_three_rows_by_hand():
    # (1, 2) and (3, 4) of center (1, 1); (5, 6), twice, of center (0, 0): 1 + 13 + 2 · 61.
    X, centers = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([[1.0, 1], [0, 0]])
    of = problem_of(X, "float32", np.zeros(2), centers, np.array([0, 0, 1]), np.array([1.0, 1, 2]))
    assert of.inertia() == 136.0


@pytest.mark.each_choice
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_inertia(n, d, k, dtype, weighted, offset, rng):
    of = drawn(n, d, k, dtype, rng, weighted, offset)
    for gpu in (H200, SMALL):  # centers in shared memory, and not
        assert of.inertia(gpu=gpu) == pytest.approx(expected(of), rel=rounding(of), abs=0)


def test_centers_stay_where_they_are_if_they_are_many():
    assert plan_of(1000, 128, 64, "float32").shared_bytes == 65 * 128 * 4
    assert plan_of(1000, 128, 200, "float32").shared_bytes > 0
    assert plan_of(1000, 128, 1000, "float32").shared_bytes == 0
    assert plan_of(40, 520, 3, "float32", device=SMALL).shared_bytes == 0


@pytest.mark.parametrize("blocks", [1, 3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_inertia_has_the_same_bits_for_any_grid(dtype, blocks, rng):
    of = drawn(1900, 40, 9, dtype, rng)
    with harness.schedule(seed=blocks, threads=1 + blocks % 2):
        assert of.inertia(blocks) == of.inertia(2)


def test_chunks_of_many_tiles(monkeypatch, rng):
    monkeypatch.setattr(inertia_plan, "_MOST_CHUNKS", 5)
    for d in (3, 128, 300):
        of = drawn(997, d, 6, "float32", rng)
        assert plan_of(997, d, 6, "float32").chunks == 4
        assert of.inertia() == pytest.approx(expected(of), rel=2.0**-21)


def of_many_scales(n, d, dtype, rng, weighted=False):
    """Return a problem whose squares are rounded when they are added up, and otherwise in another order."""
    X, centers = 10.0 ** rng.integers(-3, 4, (n, 1)) * rng.standard_normal((n, d)), 1e-3 * rng.standard_normal((5, d))
    weights = rng.random(n) if weighted else None
    return problem_of(X, dtype, np.zeros(d), centers, rng.integers(0, 5, n), weights)


@pytest.mark.parametrize("most_chunks", every(2, [5, 1 << 16]))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("d", every(2, [1, 3, 16, 33, 130]))
def test_inertia_has_the_same_bits_however_x_is_distributed(d, dtype, weighted, most_chunks, rng, monkeypatch):
    monkeypatch.setattr(inertia_plan, "_MOST_CHUNKS", most_chunks)
    n = 1900
    of = of_many_scales(n, d, dtype, rng, weighted)
    chunk = inertia_plan.inertia_chunk(n, d, of.rows.itemsize)
    expected = of.inertia()
    for ends in ([0, 2, 4], [0, 1, 3, 4], [0, 1, 2, 3, 4]):
        cuts = [first * (-(-n // 4 // chunk) * chunk) for first in ends]
        sums = [of.partial(first, min(last, n), n) for first, last in itertools.pairwise(cuts)]
        assert float(total_inertia(HostMachine(), np.concatenate(sums))) == expected


def test_bits_of_inertia_show_where_x_was_cut(rng):
    # Chunks in another order; shards that do not begin at one; totals of shards that are added up.
    other = np.zeros(3, int)
    for _ in range(20):
        of = of_many_scales(1000, 16, "float32", rng)
        expected, sums = of.inertia(), of.partial(0, 1000, 1000)
        uneven = np.concatenate([of.partial(0, 500, 1000), of.partial(500, 1000, 1000)])
        cases = rng.permutation(sums), uneven, sums[:16], sums[16:]
        *found, first, last = (float(total_inertia(HostMachine(), case)) for case in cases)
        found = np.array([*found, first + last])
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        other += found != expected
    assert other.all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [1, 3, 16, 33, 130])
def test_inertia_of_blocks_and_shards_of_data(d, dtype, rng, monkeypatch):
    monkeypatch.setattr(inertia_plan, "_MOST_CHUNKS", 32)  # so that the rows of a chunk depend on those of X
    chunk = moment_chunk(1, d, np.dtype(dtype).itemsize)
    n, mean = 3 * chunk + 5, rng.standard_normal(d)
    sizes = [inertia_plan.inertia_chunk(rows, d, np.dtype(dtype).itemsize) for rows in (n, chunk)]
    assert chunk >= sizes[0] > sizes[1]
    of = of_many_scales(n, d, dtype, rng, weighted=True)
    given = of.centers.astype(np.float64), of.labels

    def data_of(rows, memory, shard=None):
        source, weights = ArrayRows(placed(of.rows[rows])), of.weights[rows]
        data = DeviceData(source, np.dtype(dtype), weights, HostMachine(memory=memory), takes_16_bit=True, shard=shard)
        data.center(mean, on_read=True)
        return data

    whole = data_of(slice(n), 1 << 34).inertia(*given)
    assert whole == pytest.approx(expected(of._replace(shift=mean.astype(dtype))), rel=rounding(of))
    sums = []
    for first, last in ((0, chunk), (chunk, n)):
        sums.append(
            data_of(slice(first, last), 1 << 34, Shard(first, n)).partial_inertia(given[0], of.labels[first:last])
        )
    assert float(total_inertia(HostMachine(), np.concatenate(sums))) == whole
    monkeypatch.setattr(DeviceData, "_borrow", lambda data: None)
    monkeypatch.setattr(gpu_rows, "_BLOCK_BYTES", 3 * chunk * d * np.dtype(dtype).itemsize // 2)
    streamed = data_of(slice(n), 0)
    assert [len(block) for _, block in streamed.blocks(0)] == [chunk, chunk, chunk, 5]
    assert streamed.inertia(*given) == whole
    np.testing.assert_array_equal(streamed.partial_inertia(*given), np.concatenate(sums))


def test_what_is_not_a_number_shows(rng):
    of = drawn(300, 40, 3, "float32", rng)
    of.rows[299, 39] = np.nan
    assert np.isnan(of.inertia())
    of.rows[299, 39] = np.inf
    assert of.inertia() == np.inf


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
    of = problem_of(X, dtype, np.zeros(d), centers, labels, weights, seed % 2)
    with harness.schedule(seed=seed):
        assert of.inertia() == float(weights @ ((X - centers[labels]) ** 2).sum(axis=1))


def kept(of, digits, rng):
    """Return the rows' elements and weights as integers (n, d + 1), their scales, and weights to compare them by."""
    weights = np.ones(len(of.rows), of.shift.dtype) if of.weights is None else of.weights
    bits, (n_clusters, d) = 30 if digits == 2 else 46, of.centers.shape
    rows = of.centered * weights[:, np.newaxis]  # rounded as kernels have it
    largest = abs(rows).max(axis=0, initial=2.0**-20).astype(np.float64)
    scales = np.exp2(np.append(bits - np.ceil(np.log2(largest)), 0 if of.weights is None else bits - 1))
    elements = np.rint(np.column_stack([rows, weights]).astype(np.float64) * scales).astype(np.int64)
    of_clusters = 1 + rng.choice(2**31 - 1, n_clusters, replace=False)
    of_columns = rng.integers(1, 2**31, d + 1) * rng.choice((-1, 1), d + 1)
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
    of = problem_of(X, "float32", np.zeros(2), np.zeros((2, 2)), np.array([0, 0, 1]))
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
    of = drawn(n, d, k, dtype, rng, weighted, offset)
    elements, scales, *weights = kept(of, digits, rng)
    right = sums_of(elements, of.labels, k)
    for gpu in (H200, SMALL):
        total, stray, difference = of.compared(right, digits, scales, *weights, gpu=gpu)
        assert (stray, difference) == (0, 0)
        assert total == of.inertia(gpu=gpu)  # the same bits
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
    of = drawn(1900, 40, 9, dtype, rng)
    elements, scales, *weights = kept(of, digits, rng)
    sums = rng.integers(-(2**63), 2**63, (9, 41))
    expected = (weighed(sums_of(elements, of.labels, 9), *weights) - weighed(sums, *weights)) % 2**128
    with harness.schedule(seed=blocks, threads=1 + blocks % 2):
        found = of.compared(sums, digits, scales, *weights, multiprocessors=blocks)
    assert found == (of.inertia(), 0, expected)


def inertia_of_sums(squares, sums, counts, units, centers):
    """Return the inertia and its error bound from cluster sums, (k, d), that are whole numbers of units."""
    integers = np.column_stack([sums / units, counts * 16]).astype(np.int64)
    assert (integers[:, :-1] * units == sums).all()
    terms = sum_terms(HostMachine(), integers, np.append(units, 1 / 16), centers.astype(np.float32))
    return inertia_from_terms(squares, terms)


def test_inertia_from_sums_by_hand():
    # (1, 2) and (3, 4) of center (1, 1), (5, 6) of center (0, 0): 1 + 13 + 61.
    sums, counts, centers = np.array([[4.0, 6], [5, 6]]), np.array([2.0, 1]), np.array([[1.0, 1], [0, 0]])
    inertia, error = inertia_of_sums(91.0, sums, counts, np.array([0.5, 0.25]), centers)
    assert inertia == 75.0
    assert error == 2.0**-24 * (91 + 4) + 2 * (0.5 + 0.25)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("k", "d"), [(1, 1), (3, 255), (2, 257), (300, 5), (4, 3000)])
def test_terms_of_sums(k, d, dtype, rng):
    sums, centers = rng.integers(-(2**62), 2**62, (k, d + 1)), rng.standard_normal((k, d)).astype(dtype)
    units, wide = np.exp2(rng.integers(-50, -30, d + 1).astype(np.float64)), centers.astype(np.float64)
    terms = sum_terms(HostMachine(), sums, units, centers)
    values, rounding = sums * units, 2.0**-52 * (d + 3)
    np.testing.assert_array_equal(terms[:, 0], values[:, -1])
    most = (abs(wide) * abs(values[:, :-1])).sum(axis=1)
    assert (abs(terms[:, 1] - (wide * values[:, :-1]).sum(axis=1)) <= rounding * most).all()
    np.testing.assert_allclose(terms[:, 2], (wide * wide).sum(axis=1), rtol=rounding)
    np.testing.assert_allclose(terms[:, 3], abs(wide) @ units[:-1], rtol=rounding)


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
    inertia, error = inertia_of_sums(float((X * X).sum()), sums, counts, units, centers)
    assert abs(inertia - float(((X - centers[labels].astype(np.float64)) ** 2).sum())) <= error * (1 + 2.0**-20)


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_sum_terms_compile_without_spills(arch):
    names = ["kmeans::sum_terms<float>", "kmeans::sum_terms<double>"]
    used = build((FOLDER / "inertia/sum_terms.cuh").read_text(encoding="utf-8"), names, arch).resources
    assert all(used[name].spill_stores == used[name].spill_loads == 0 for name in names)


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", WORK)
def test_inertia_compiles_without_spills(dtype, arch):
    # Sums of two digits are of samples without weights.
    every = kernels_of(dtype).items()
    kernels = {name: plan for name, (plan, weighted) in every if plan.digits != 2 or not weighted}
    assert len(kernels) == 8 + sum(4 if digits == 2 else 8 for digits in DIGITS[dtype])
    source = (FOLDER / "inertia/inertia.cuh").read_text(encoding="utf-8")
    threads = {**{name: plan.threads for name, plan in kernels.items()}, "kmeans::add_chunks": inertia_plan.THREADS}
    for kernel, used in build(source, list(threads), arch).resources.items():
        assert used.stack == used.spill_stores == used.spill_loads == 0, kernel
        assert used.registers * threads[kernel] <= 65_536, kernel
    constants = dict(re.findall(r"(kInertia\w+) = (\d+)", source))
    assert constants == {"kInertiaThreads": str(inertia_plan.THREADS), "kInertiaRows": str(inertia_plan.ROWS_TOGETHER)}
    kept_sums = (FOLDER / "protect/freivalds.cuh").read_text(encoding="utf-8")
    assert re.search(r"kLastBits = (\d+)", kept_sums)[1] == str(inertia_plan.LAST_BITS)
