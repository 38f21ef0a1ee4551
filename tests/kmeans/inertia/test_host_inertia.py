"""Inertia in NumPy: the bits of the kernels, which run on a HostMachine, from rows and from running cluster sums."""

import itertools
from fractions import Fraction

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from host_cuda.machine import HostMachine
from hypothesis import strategies as st
from kmeans.inertia.test_inertia import SHAPES, WORK, drawn, expected, problem_of, rounding

from tsapps.apps.kmeans.data import host_data
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.inertia import host_inertia, launch
from tsapps.apps.kmeans.inertia import plan as inertia_plan
from tsapps.apps.kmeans.inertia.from_sums import (
    INERTIA_ERROR,
    inertia_from_terms,
    inertia_of_sums,
    may_use_sums,
)
from tsapps.apps.kmeans.inertia.plan import inertia_chunk
from tsapps.apps.kmeans.update.fixed_point import integers_of

#: Also several chunks and tiles of one lane a row, of few, and of single elements.
MORE_SHAPES = [*SHAPES, (3000, 4, 3), (30_000, 3, 2), (2000, 17, 5), (999, 2, 4)]


def chunk_of(of):
    return inertia_chunk(*of.rows.shape, of.rows.itemsize)


def in_numpy(of, first=0, last=None, chunk=None):
    """Return the inertia of each chunk of some rows of a problem, all by default."""
    some = slice(first, last)
    weights = None if of.weights is None else of.weights[some]
    given = of.centered[some], of.centers, of.labels[some], weights
    return host_inertia.partial_inertia(*given, chunk=chunk or chunk_of(of), itemsize=of.rows.itemsize)


def of_many_scales(n, d, k, dtype, rng, weighted=False):
    """Return a problem whose squares are rounded when they are added up, also in float64, so that the order matters."""
    X = (10.0 ** rng.integers(-4, 5, (n, 1)) * rng.standard_normal((n, d))).clip(-60_000, 60_000)
    shift, centers = (1e-5 * rng.standard_normal(shape) for shape in (d, (k, d)))
    weights = rng.random(n) * (np.arange(n) % 5 > 0) if weighted else None
    return problem_of(X, dtype, shift, centers, rng.integers(0, k, n), weights)


def test_three_rows_by_hand():
    # (1, 2) and (3, 4) of center (1, 1); (5, 6), twice, of center (0, 0): 1 + 13 + 2 · 61.
    X, centers = np.array([[1.0, 2], [3, 4], [5, 6]]), np.array([[1.0, 1], [0, 0]])
    labels, weights = np.array([0, 0, 1], np.int32), np.array([1.0, 1, 2])
    sums = host_inertia.partial_inertia(X, centers, labels, weights, chunk=1 << 10, itemsize=8)
    assert sums.tolist() == [136.0]
    sums = host_inertia.partial_inertia(X, centers, labels, None, chunk=1 << 10, itemsize=8)
    assert sums.tolist() == [75.0]


def test_squares_are_added_up_in_the_working_type_by_hand():
    # A vector of four float32: 2²⁴ and three ones, which are lost. Eight float16 are two vectors of four.
    X, center = np.array([[2.0**12, 1, 1, 1, 1, 1, 1, 1]], np.float32), np.zeros((1, 8), np.float32)
    labels = np.zeros(1, np.int32)
    for itemsize, of_row in ((4, 2.0**24 + 4), (2, 2.0**24 + 4), (8, 2.0**24 + 6)):
        sums = host_inertia.partial_inertia(X, center, labels, None, chunk=1 << 10, itemsize=itemsize)
        assert sums.tolist() == [of_row]
    # Single elements of four rows, 32 / 8 rows apart, are added up in float32.
    rows = np.concatenate([X, np.zeros((3, 8)), X**0, np.zeros((3, 8)), X**0, np.zeros((7, 8))]).astype(np.float32)
    sums = host_inertia.partial_inertia(rows[:, :7], center[:, :7], np.zeros(16, np.int32), None, chunk=16, itemsize=4)
    assert sums.tolist() == [2.0**24 + 6 + 2 * 6]


def test_totals_by_hand():
    sums = np.zeros(1300)
    sums[[0, 640, 1280]] = 2.0**53, 1, 1  # of one thread: both ones are lost
    assert host_inertia.total_inertia(sums) == 2.0**53
    sums[[640, 1280]], sums[[5, 645]] = 0, 1  # of another thread
    assert host_inertia.total_inertia(sums) == 2.0**53 + 2
    sums[[5, 645]], sums[[32, 64]] = 0, 1  # of other warps
    assert host_inertia.total_inertia(sums) == 2.0**53
    assert host_inertia.total_inertia(np.array([3.0])) == 3.0


@pytest.mark.each_choice
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize(("n", "d", "k"), MORE_SHAPES)
def test_bits_of_the_kernels(n, d, k, dtype, weighted, rng):
    for of in (drawn(n, d, k, dtype, rng, weighted), of_many_scales(n, d, k, dtype, rng, weighted)):
        sums = in_numpy(of)
        np.testing.assert_array_equal(sums, of.partial(0, n, n))
        total = host_inertia.total_inertia(sums)
        assert total == of.inertia()
        assert total == pytest.approx(expected(of), rel=rounding(of), abs=0)


@pytest.mark.parametrize("chunks", [1, 31, 640, 641, 2000, 3 * 640])
def test_totals_have_the_bits_of_the_kernel(chunks, rng):
    sums = 10.0 ** rng.integers(-3, 4, chunks) * rng.random(chunks)
    found = host_inertia.total_inertia(sums)
    assert found == float(launch.total_inertia(HostMachine(), sums))
    others = [host_inertia.total_inertia(rng.permutation(sums)) for _ in range(5)]
    assert chunks == 1 or any(other != found for other in others), "choose data whose sums depend on the order"


@pytest.mark.parametrize(
    ("d", "dtype"), [(1, "float32"), (12, "float32"), (12, "float64"), (40, "float16"), (33, "float64")]
)
def test_bits_show_the_order_of_rows_and_of_features(d, dtype, rng):
    other = np.zeros(2, int)
    for _ in range(20):
        of = of_many_scales(1000, d, 3, dtype, rng)
        chunk = 1024
        sums, rows, columns = in_numpy(of, chunk=chunk), rng.permutation(1000), rng.permutation(d)
        first = of._replace(rows=of.rows[rows], labels=of.labels[rows])
        turned = of._replace(rows=of.rows[:, columns], centers=of.centers[:, columns], shift=of.shift[columns])
        other += [(found != sums).any() for found in (in_numpy(first, chunk=chunk), in_numpy(turned, chunk=chunk))]
    assert other[0]
    assert other[1] or d == 1


@property_test(
    40,
    600,
    n=st.integers(1, 1200),
    d=st.one_of(st.integers(1, 9), st.integers(10, 150)),
    k=st.integers(1, 9),
    dtype=st.sampled_from(sorted(WORK)),
    weighted=st.booleans(),
    most_chunks=st.sampled_from([1, 5, 1 << 16]),
    seed=st.integers(0, 2**16),
)
def test_bits_of_the_kernels_for_any_rows_and_any_cut(n, d, k, dtype, weighted, most_chunks, seed):
    """Of the whole, and of blocks that begin at chunks."""
    rng = np.random.default_rng(seed)
    of = of_many_scales(n, d, k, dtype, rng, weighted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inertia_plan, "_MOST_CHUNKS", most_chunks)
        chunk, by_kernels = chunk_of(of), of.partial(0, n, n)
        total = of.inertia()
    sums = in_numpy(of, chunk=chunk)
    np.testing.assert_array_equal(sums, by_kernels)
    assert host_inertia.total_inertia(sums) == total
    cuts = [0, *(chunk * np.unique(rng.integers(1, len(sums), 3)) if len(sums) > 1 else ()), n]
    blocks = [in_numpy(of, first, last, chunk) for first, last in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(blocks), sums)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [3, 4])
def test_squares_that_overflow(d, dtype, rng):
    of = drawn(100, d, 3, dtype, rng)
    of.rows[7] = np.sqrt(np.finfo(dtype).max) * 2
    sums = in_numpy(of)
    np.testing.assert_array_equal(sums, of.partial(0, 100, 100))
    assert host_inertia.total_inertia(sums) == np.inf == of.inertia()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_inertia_of_data_depends_neither_on_threads_nor_on_blocks(dtype, weighted, rng, monkeypatch):
    n = 7000
    of = of_many_scales(n, 5, 4, dtype, rng, weighted)
    mean, expected = of.shift.astype(np.float64), of.inertia()
    for threads, elements, copies in ((1, 1 << 21, True), (3, 1, True), (2, 5 * 3000, True), (2, 1, False)):
        monkeypatch.setattr(host_data, "available_cores", lambda threads=threads: threads)
        monkeypatch.setattr(host_data, "_TASK_ELEMENTS", elements)
        monkeypatch.setattr(HostData, "fits", lambda data, size, copies=copies: copies)
        data = HostData(ArrayRows(of.rows), of.shift.dtype, of.weights)
        data.center(mean)
        assert (data.held is None) != copies
        assert data.inertia(of.centers, of.labels) == expected
        np.testing.assert_array_equal(data.partial_inertia(of.centers, of.labels), of.partial(0, n, n))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("k", "d"), [(1, 1), (3, 255), (2, 257), (300, 5), (4, 3000)])
def test_terms_of_sums_have_the_bits_of_the_kernel(k, d, dtype, rng):
    sums, units = rng.integers(-(2**62), 2**62, (k, d + 1)), np.exp2(rng.integers(-50, -30, d + 1).astype(np.float64))
    centers = (10.0 ** rng.integers(-3, 4, (k, d)) * rng.standard_normal((k, d))).astype(dtype)
    terms = host_inertia.sum_terms(sums, units, centers)
    np.testing.assert_array_equal(terms, launch.sum_terms(HostMachine(), sums, units, centers))
    if d > 256:  # a thread has several features
        backwards = host_inertia.sum_terms(sums[:, [*range(d)[::-1], d]], units[[*range(d)[::-1], d]], centers[:, ::-1])
        assert (backwards[:, 1] != terms[:, 1]).any()


def test_terms_of_sums_by_hand():
    # Center (1, −2): two rows of weights 1 and 2; the sums are 3 · ½ and 8 · ¼.
    terms = host_inertia.sum_terms(np.array([[3, 8, 6]]), np.array([0.5, 0.25, 0.5]), np.array([[1.0, -2]], np.float32))
    assert terms.tolist() == [[3.0, 1.5 - 4, 5.0, 0.5 + 0.5]]
    assert inertia_from_terms(20.0, terms) == (20 - 2 * -2.5 + 15, 2.0**-24 * (20 + 15) + 3.0)


def data_of(X, dtype="float32", weights=None):
    """Return data centered as a fit has it."""
    data = HostData(ArrayRows(X.astype(dtype)), np.dtype("float64" if dtype == "float64" else "float32"), weights)
    mean, _ = data.moments()
    data.center(data.subtracted(mean))
    return data


def test_sums_are_used_where_x_has_eight_times_their_bytes(rng):
    # Two clusters of three features: 2 · 4 · 8 bytes. Rows have 12 bytes, or 6.
    for dtype, least in (("float32", 43), ("float16", 86)):
        for n, uses in ((least - 1, False), (least, True)):
            assert may_use_sums(data_of(rng.standard_normal((n, 3)), dtype), 2) == uses
    X = rng.standard_normal((1000, 3))
    assert not may_use_sums(data_of(X, "float64"), 2)
    assert not may_use_sums(data_of(X, weights=np.ones(1000, np.float32)), 2)


def sums_of(data, labels, k):
    """Return cluster sums as a step has them, and their units."""
    (rows,), integers = data.each_block(lambda _, block: block.copy(), data.n_features), integers_of(data)
    sums = np.zeros((k, rows.shape[1] + 1), np.int64)
    np.add.at(sums[:, :-1], labels, np.rint(rows * integers.scales[:-1]).astype(np.int64))
    sums[:, -1] = np.bincount(labels, minlength=k) * int(integers.scales[-1])
    return rows, sums, 1 / integers.scales


def exact_inertia(X, subtracted, centers, labels):
    """Return Σ‖x − s − c‖² as a fraction."""
    x, s, c, exponent = oracle.whole_numbers(X, subtracted, centers)
    return Fraction(int(((x - s - c[labels]) ** 2).sum()), 1 << 2 * exponent)


@pytest.mark.parametrize(("apart", "is_exact"), [(2.0, True), (2.5, True), (3.0, False), (1e3, False)])
def test_sums_are_exact_enough_for_clusters_that_are_not_far_apart(apart, is_exact, rng):
    # Clusters of variance 1 at ±a: rounding may change 2⁻²⁴ of a² + 1 and of a², and 2⁻²⁰ of 1 is allowed.
    labels = (np.arange(20_000) % 2).astype(np.int32)
    data = data_of(np.where(labels, apart, -apart)[:, np.newaxis] + rng.standard_normal((20_000, 1)))
    rows, sums, units = sums_of(data, labels, 2)
    centers = np.array([[rows[labels == label].mean()] for label in (0, 1)], np.float32)
    found = inertia_of_sums(data, host_inertia.sum_terms(sums, units, centers))
    assert (found is not None) == is_exact
    if is_exact:
        assert found == pytest.approx(
            float(((rows.astype(np.float64) - centers[labels]) ** 2).sum()), rel=INERTIA_ERROR
        )


@property_test(
    40,
    600,
    n=st.integers(10, 600),
    d=st.integers(1, 9),
    k=st.integers(1, 4),
    apart=st.sampled_from([0.0, 1.0, 4.0]),
    scale=st.sampled_from([1.0, 2.0**-8, 2.0**-12]),
    away=st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 2**16),
)
def test_inertia_of_sums_is_exact_enough_or_none(n, d, k, apart, scale, away, seed):
    """Also of tight clusters, whose inertia is small compared with Σ‖x‖², and of data far from zero."""
    rng = np.random.default_rng(seed)
    middles, labels = apart * rng.standard_normal((k, d)), rng.integers(0, k, n).astype(np.int32)
    X = (away + middles[labels] + scale * rng.standard_normal((n, d))).astype(np.float32)
    data = data_of(X)
    _, sums, units = sums_of(data, labels, k)
    centers = (away + middles + scale * 0.1 - data.host_mean()).astype(np.float32)
    terms = host_inertia.sum_terms(sums, units, centers)
    found = inertia_of_sums(data, terms)
    inertia, error = inertia_from_terms(data.n_total * d * data.spread()[1] ** 2, terms)
    exact = exact_inertia(X, data.host_mean(), centers, labels)
    # The bound is of rounded rows. Σ‖x‖² has errors of float64, at most 2⁻⁴⁰ of the terms, and those of rounding the
    # differences from the first row, once each.
    wide = X.astype(np.float64)
    about = float(np.square(wide - wide[0]).sum())
    moments = 2.0**-23 * (about * float(np.square(wide - wide.mean(axis=0)).sum())) ** 0.5
    moments += 2.0**-40 * (about + float(terms[:, 0] @ terms[:, 2]))
    assert abs(Fraction(inertia) - exact) <= Fraction(error + moments)
    if found is not None:
        assert found == inertia
        assert abs(Fraction(found) - exact) <= Fraction(INERTIA_ERROR * found + moments)


def test_inertia_of_the_cosine_metric_is_half(rng):
    data = data_of(rng.standard_normal((500, 3)))
    rows, sums, units = sums_of(data, np.zeros(500, np.int32), 1)
    terms = host_inertia.sum_terms(sums, units, np.zeros((1, 3), np.float32))
    found = inertia_of_sums(data, terms)
    assert found == pytest.approx(float((rows.astype(np.float64) ** 2).sum()), rel=INERTIA_ERROR)
    data.spherical = True
    assert inertia_of_sums(data, terms) == found / 2
