"""The float code near the largest, the smallest normal and denormal numbers, against sums in whole numbers."""

from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps.apps.abft.at_rest.correct import correct, locate
from tsapps.apps.abft.at_rest.float_code import gamma
from tsapps.apps.abft.at_rest.float_decode import WeightedCheck
from tsapps.apps.abft.at_rest.verdict import Region
from tsapps.apps.abft.at_rest.verify import encode, repaired, verify

BLOCK = 256
FLOATS = ["float64", "float32", "float16", "bfloat16"]
# One denormal float64: every element of every type is a whole multiple of it.
UNIT = Fraction(1, 2**1074)


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def largest(dtype):
    return (np.iinfo if dtype.kind in "iu" else ml_dtypes.finfo)(dtype).max


def encoded(A, weights=2):
    return encode(A, code="float", weights=weights, block=BLOCK)


def whole(x):
    """Return a finite element as a whole number of units."""
    return int(Fraction(x.item() if x.dtype.kind in "iu" else float(x)) / UNIT)


def exact_sums(A, weights):
    """Return Σ w x and Σ |w x| along rows and along columns, as whole numbers, each (blocks, weights, lines)."""
    elements = np.array([[whole(x) for x in row] for row in A], object)
    answer = []
    for lines in (elements, elements.T):
        blocks = []
        for begin in range(0, lines.shape[1], BLOCK):
            here = lines[:, begin : begin + BLOCK]
            powers = np.array([[(j + 1) ** p for j in range(here.shape[1])] for p in range(weights)], object)
            blocks.append(np.stack([powers.dot(here.T), powers.dot(abs(here).T)]))
        answer.append(np.stack(blocks, axis=1))
    return answer


def rounded(units, kind):
    """Return whole numbers of units as sums of a type; infinite where they are larger than its largest number."""

    def one(n):
        try:
            return float(n * UNIT)
        except OverflowError:
            return np.inf if n > 0 else -np.inf

    with np.errstate(over="ignore"):
        return np.vectorize(one, otypes=[np.float64])(units).astype(kind)


def backwards(A, weights, kind):
    """Return sums along rows and along columns, added up from the last to the first in their own type."""
    answer = []
    with np.errstate(over="ignore", invalid="ignore"):
        for lines in (A.astype(kind), A.T.astype(kind)):
            blocks = []
            for begin in range(0, lines.shape[1], BLOCK):
                here = lines[:, begin : begin + BLOCK]
                powers = np.arange(1, here.shape[1] + 1, dtype=kind)
                terms = [(here * powers**p)[:, ::-1] for p in range(weights)]
                blocks.append([np.cumsum(term, axis=1, dtype=kind)[:, -1] for term in terms])
            answer.append(np.array(blocks, kind))
    return answer


def sidecars(A, weights):
    """Return sidecars of a matrix: our own, of sums that are rounded once, and of sums in another order."""
    own = encoded(A, weights)
    kind = own.rows.dtype
    once = [rounded(sums[0], kind) for sums in exact_sums(A, weights)]
    other = backwards(A, weights, kind)
    return own, *(replace(own, rows=rows, columns=columns) for rows, columns in (once, other))


def ways(A):
    """Return the parts of a matrix in several ways: all at once, some rows or one row at a time, and by pieces."""
    m, n = A.shape
    yield [(0, 0, A)]
    yield [(i, 0, A[i : i + 3]) for i in range(0, m, 3)]
    yield [(i, 0, A[i : i + 1]) for i in range(m)]
    yield [(i, j, A[i : i + 1, j : j + BLOCK]) for i in range(m) for j in range(0, n, BLOCK)]


def wrong_lines(parts, sidecar):
    check = WeightedCheck(sidecar)
    for part in parts:
        check.add(*part)
    return check.wrong()


def is_clean(A, sidecar):
    """Whether all users of the sums find nothing, however the matrix comes."""
    verified = verify(A, sidecar).clean and b"".join(repaired(A, sidecar)) == A.tobytes()
    return verified and not any(wrong.any() for parts in ways(A) for wrong in wrong_lines(parts, sidecar))


def cancelling(shape, low, high, dtype, rng):
    """Return a matrix whose plain sums are zero, of elements from `low` to `high` whose partial sums need not be."""
    m, n = shape
    magnitudes = np.minimum(low + (high - low) * rng.random((m // 2, n // 2)), high).astype(dtype)
    A = np.kron(magnitudes.astype(np.float64), [[1, -1], [-1, 1]]).astype(dtype)
    for axis, size in enumerate(shape):
        A = A.take(np.concatenate([b + rng.permutation(min(BLOCK, size - b)) for b in range(0, size, BLOCK)]), axis)
    return A


def test_by_hand():
    most = np.finfo(np.float64).max
    A = np.array([[most, most, -most, -most, 1.0]])
    sidecar = encoded(A, 3)
    assert sidecar.rows[0, :, 0].tolist() == [1.0, -np.inf, -np.inf]
    assert sidecar.columns[0, 0].tolist() == A[0].tolist()
    assert is_clean(A, sidecar)
    for changed in (0.0, -most, most / 2, np.nan, -np.inf):
        damaged = A.copy()
        damaged[0, 1] = changed
        assert locate(damaged, sidecar) == [(0, 1)]


@pytest.mark.parametrize(("dtype", "kind"), [("float64", np.float64), ("bfloat16", np.float32)])
def test_a_sum_that_is_just_past_the_largest_number(dtype, kind):
    """The element's next one would be 2^1024 (2^128), as their sum is; its sum elsewhere was cut off."""
    most = dtype_of(dtype).type(largest(dtype_of(dtype)))
    step = np.array(2.0 ** (970 + 1 if dtype == "float64" else 120)).astype(most.dtype)
    A = np.array([[most, step]])
    sidecar = encoded(A, 1)
    assert sidecar.rows.tolist() == [[[np.inf]]]
    elsewhere = replace(sidecar, rows=np.full((1, 1, 1), np.finfo(kind).max, kind))
    assert is_clean(A, elsewhere)
    damaged = A.copy()
    damaged[0, 0] = -most
    assert locate(damaged, elsewhere) == [(0, 0)]


@pytest.mark.parametrize(
    ("dtype", "weights", "shape"),
    [*((dtype, weights, (4, 520)) for dtype in FLOATS for weights in (1, 2, 4)), ("float64", 2, (260, 2))],
)
def test_near_the_largest_number(dtype, weights, shape, rng):
    kind = dtype_of(dtype)
    most = float(largest(kind))
    A = cancelling(shape, most / 2, most, kind, rng)
    if shape[0] == 4:
        A = np.vstack([cancelling((2, 520), 1, 2, kind, rng), A])  # and ordinary lines beside them
    own, once, other = sidecars(A, weights)
    for found, sums in zip((own.rows, own.columns), exact_sums(A, weights), strict=True):
        expected = rounded(sums[0], found.dtype)
        bound = rounded(sums[1], np.float64) * gamma(BLOCK, found.dtype)
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isfinite(found), finite)
        assert finite[:, 0].all()
        with np.errstate(over="ignore"):
            assert (abs(found[finite] - expected[finite]) <= np.where(np.isfinite(bound), bound, most)[finite]).all()
    for sidecar in (own, once, other):
        assert is_clean(A, sidecar)
    i, j = len(A) - 1, int(rng.integers(shape[1]))
    for changed in (-A[i, j], 0, np.nan, np.inf):
        damaged = A.copy()
        damaged[i, j] = changed
        for parts in ways(damaged):
            rows, columns = wrong_lines(parts, own)
            assert np.argwhere(rows).tolist() == [[j // BLOCK, i]]
            assert np.argwhere(columns).tolist() == [[i // BLOCK, j]]
        for sidecar in (own, once):
            if dtype == "float32" or not verify(damaged, sidecar).refused:
                assert correct(damaged, sidecar).tobytes() == A.tobytes()
            else:
                assert verify(damaged, sidecar).refused == [Region(i, i + 1, j, j + 1)]


def test_a_large_change_within_an_infinite_bound(rng):
    """Sums of magnitudes overflow, and the sum itself does not."""
    most = np.finfo(np.float64).max
    A = cancelling((4, 600), most / 8, most / 4, np.dtype(np.float64), rng)
    sidecar = encoded(A, 1)
    damaged = A.copy()
    damaged[2, 300] += most / 1000
    assert locate(damaged, sidecar) == [(2, 300)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_several_of_one_tile(dtype, rng):
    """Which row goes with which column is told by sums that do not overflow, or not at all."""
    kind = dtype_of(dtype)
    most = float(largest(kind))
    A = cancelling((20, 200), most / 2, most, kind, rng)
    damaged, sidecar = A.copy(), encoded(A)
    for place in ((3, 150), (7, 20), (15, 90)):
        damaged[place] = -A[place]
    verdict = verify(damaged, sidecar)
    assert not verdict.clean
    if dtype == "float32":
        assert correct(damaged, sidecar).tobytes() == A.tobytes()
    else:
        assert (verdict.refused[0].row, verdict.refused[-1].row_end, len(verdict.faults)) == (3, 16, 0)


@pytest.mark.parametrize("weights", [1, 4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_near_the_smallest_numbers(dtype, weights, rng):
    """Denormal numbers, and then normal ones too: what is exact is repaired, and the rest found."""
    kind = dtype_of(dtype)
    info = ml_dtypes.finfo(kind)
    least, normal = float(info.smallest_subnormal), float(info.smallest_normal)
    for high in (4 * least, normal, 4 * normal):
        A = cancelling((6, 520), least, high, kind, rng)
        A[3] = (normal * rng.standard_normal(520)).astype(kind)
        A[4, 7] = least
        own, once, other = sidecars(A, weights)
        for sidecar in (own, once, other):
            assert is_clean(A, sidecar)
            damaged = A.copy()
            damaged[5, 300] = 64 * normal
            assert locate(damaged, sidecar) == [(5, 300)]
            if dtype == "float32":
                assert correct(damaged, sidecar).tobytes() == A.tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_denormal_numbers_are_rebuilt(dtype, rng):
    """Sums of denormal numbers are exact: one unit is found, and an element repaired in float64 too."""
    least = np.finfo(dtype).smallest_subnormal
    A = rng.integers(-9, 10, (300, 280)).astype(dtype) * least
    for sidecar in sidecars(A[:5], 2):
        damaged = A[:5].copy()
        damaged[3, 270] += least
        assert correct(damaged, sidecar).tobytes() == (A[:5] + 0).tobytes()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_largest_integers(dtype, rng):
    info = np.iinfo(dtype)
    A = rng.choice(np.array([info.min, info.max], dtype), (6, 520))
    for sidecar in sidecars(A, 4):
        assert is_clean(A, sidecar)
        damaged = A.copy()
        damaged[4, 260] = info.max if A[4, 260] == info.min else info.min
        assert locate(damaged, sidecar) == [(4, 260)]
        if A.itemsize <= 4:
            assert correct(damaged, sidecar).tobytes() == A.tobytes()


@property_test(
    15,
    250,
    shape=st.tuples(st.integers(1, 5), st.integers(1, 60) | st.integers(257, 270)),
    transposed=st.booleans(),
    opposite=st.booleans(),
    dtype=st.sampled_from(FLOATS),
    spread=st.sampled_from([0, 3, 60, 200, 2100]),
    weights=st.integers(1, 4),
    at_top=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_range(shape, transposed, opposite, dtype, spread, weights, at_top, seed):
    """Clean is clean; of a changed element, only its lines are wrong, and they are where two roundings do not hide it.

    Elements are from the largest number down, or from the smallest up, over so many powers of two.
    """
    rng, kind = np.random.default_rng(seed), dtype_of(dtype)
    info = ml_dtypes.finfo(kind)
    least, most = int(np.log2(float(info.smallest_subnormal))), int(info.maxexp) - 1
    exponents = rng.integers(max(least, most - spread), most + 1, shape) if at_top else None
    exponents = rng.integers(least, min(most, least + spread) + 1, shape) if exponents is None else exponents
    signs = rng.choice([-1.0, 1.0], shape)
    A = np.ldexp(signs * np.minimum(1 + rng.random(shape), 2 - 2.0**-7), exponents).astype(kind)
    if opposite:  # sums of all are zero, and of some are not
        half = shape[1] // 2
        A[:, half : 2 * half] = -A[:, :half]
    A = np.ascontiguousarray(A.T) if transposed else A
    own, once, other = sidecars(A, weights)
    for sidecar in (own, once, other):
        assert is_clean(A, sidecar)
    place = tuple(int(rng.integers(size)) for size in A.shape)
    damaged = A.copy()
    damaged[place] = rng.choice(np.array([0.0, -float(A[place]), float(info.max), float(info.min)])).astype(kind)
    change = abs(whole(damaged[place]) - whole(A[place]))
    limit = Fraction(4 * gamma(BLOCK, own.rows.dtype))
    both = zip((own.rows, own.columns), exact_sums(A, weights), exact_sums(damaged, weights), strict=True)
    for axis, (stored, was, now) in enumerate(both):
        (line, across), found = (place, place[::-1])[axis], []
        block, weight = across // BLOCK, across % BLOCK + 1
        certain = any(
            np.isfinite(stored[block, p, line])
            and change * weight**p > limit * max(was[1, block, p, line], now[1, block, p, line])
            for p in range(weights)
        )
        for parts in ways(damaged):
            found = np.argwhere(wrong_lines(parts, own)[axis]).tolist()
            assert found == [[block, line]] or (found == [] and not certain)
