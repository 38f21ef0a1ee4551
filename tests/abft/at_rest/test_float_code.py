"""The float code: its sums against fractions, what it finds and rebuilds, and what it must leave alone."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.abft.at_rest import float_decode
from tsapps.apps.abft.at_rest.correct import correct, locate
from tsapps.apps.abft.at_rest.verdict import AmbiguousError, Region
from tsapps.apps.abft.at_rest.verify import encode, verify

DTYPES = ["float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]
# Those whose elements are rebuilt from sums that have many more digits.
REBUILT = ["float32", "int8", "uint8", "int16", "int32", "uint32"]


def dtype_of(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def matrix_of(shape, dtype, rng):
    return (100 * rng.standard_normal(shape)).astype(dtype_of(dtype))


def encoded(A, weights=2, block=256):
    return encode(A, code="float", weights=weights, block=block)


def test_by_hand():
    A = np.array([[1, 2, 3], [10, 20, 30]], np.float32)
    sidecar = encode(A, code="float", weights=3)
    assert sidecar.rows.tolist() == [[[6, 60], [1 + 4 + 9, 10 + 40 + 90], [1 + 8 + 27, 10 + 80 + 270]]]
    assert sidecar.columns.tolist() == [[[11, 22, 33], [21, 42, 63], [41, 82, 123]]]
    assert (sidecar.rows.dtype, sidecar.code) == (np.float64, "float")
    damaged = A.copy()
    damaged[1, 0] = np.inf
    verdict = verify(damaged, sidecar)
    assert verdict.elements(sidecar) == [(1, 0)]
    assert verdict.faults[0] == (12, 0x7F800000, 0x41200000, 4)
    np.testing.assert_array_equal(correct(damaged, sidecar), A)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "weights", "block"), [((700, 300), 4, 256), ((3, 1100), 2, 512), ((1, 1), 1, 1024)])
def test_sums_are_those_of_the_definition(shape, weights, block, dtype, rng):
    A = matrix_of(shape, dtype, rng)
    sidecar = encoded(A, weights, block)
    halves = dtype in ("float16", "bfloat16")
    assert sidecar.rows.dtype == sidecar.columns.dtype == (np.float32 if halves else np.float64)
    for found, lines in ((sidecar.rows, A), (sidecar.columns, A.T)):
        m, n = lines.shape
        assert found.shape == (-(-n // block), weights, m)
        for b, i in {(0, 0), (len(found) - 1, m - 1), (len(found) // 2, m // 2)}:
            here = [Fraction(float(x)) if dtype != "int64" else Fraction(int(x)) for x in lines[i, b * block :][:block]]
            for p in range(weights):
                terms = [Fraction((j + 1) ** p) * x for j, x in enumerate(here)]
                # Added up in float64; halves are then rounded once more.
                bound = oracle.gamma(block + 2, np.float64) * float(sum(map(abs, terms)))
                bound += halves * 2.0**-24 * abs(float(sum(terms)))
                assert abs(Fraction(float(found[b, p, i])) - sum(terms)) <= bound


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_made_elsewhere_are_of_another_order(dtype, rng):
    """Added up backwards, and those of halves in float32: no fault of anyone's."""
    A = matrix_of((600, 520), dtype, rng)
    sidecar = encoded(A)
    kind = sidecar.rows.dtype
    wide = A.astype(kind)

    def backwards(lines, b):
        here = lines[:, b * 256 :][:, :256]
        weights = np.arange(1, here.shape[1] + 1, dtype=kind)
        sums = [np.cumsum(terms[:, ::-1], axis=1, dtype=kind)[:, -1] for terms in (here, here * weights)]
        return np.stack(sums)

    other = replace(
        sidecar,
        rows=np.stack([backwards(wide, b) for b in range(3)]),
        columns=np.stack([backwards(wide.T, b) for b in range(3)]),
    )
    # Sums of float32 in float64 are rounded here and there, as a BLAS happens to add.
    if dtype in ("float64", "float16"):
        assert not np.array_equal(other.rows, sidecar.rows)
    assert verify(A, other).clean
    damaged = A.copy()
    damaged[300, 519] = 90 if A[300, 519] < 10 else 0
    assert locate(damaged, other) == [(300, 519)]


@pytest.mark.parametrize("dtype", REBUILT)
@pytest.mark.parametrize("shape", [(1, 1), (1, 700), (700, 1), (300, 270), (257, 1025)])
def test_one_element_of_any_matrix(shape, dtype, rng):
    A = matrix_of(shape, dtype, rng)
    sidecar = encoded(A)
    for weights in (1, 2, 4):
        sidecar = encoded(A, weights)
        for _ in range(3):
            place = tuple(int(rng.integers(size)) for size in shape)
            damaged = A.copy()
            bits = damaged.view(f"u{A.itemsize}")
            bits[place] ^= np.array(1, bits.dtype) << int(rng.integers(8 * A.itemsize - 4, 8 * A.itemsize))
            assert locate(damaged, sidecar) == [place]
            assert correct(damaged, sidecar).tobytes() == A.tobytes()


def test_several_of_one_tile(rng):
    """No two in a row or a column: their ratios tell which is which; with one weight, nothing does."""
    A = matrix_of((256, 256), "float32", rng)
    damaged = A.copy()
    damaged[3, 200], damaged[100, 7], damaged[255, 255] = 1e6, np.nan, -1e3
    assert correct(damaged, encoded(A)).tobytes() == A.tobytes()
    assert verify(damaged, encoded(A, 1)).refused == [Region(3, 256, 7, 256)]
    # A rectangle of them is refused whatever there is.
    damaged = A.copy()
    damaged[np.ix_([3, 100], [7, 200])] += np.array([[5, -5], [-5, 5]], np.float32)
    for weights in (1, 2, 4):
        verdict = verify(damaged, encoded(A, weights))
        assert (len(verdict.faults), verdict.clean) == (0, weights == 1)
        assert verdict.refused == ([] if weights == 1 else [Region(3, 101, 7, 201)])


def test_many_tiles_are_read_some_at_a_time(rng, monkeypatch):
    from tsapps.apps.abft.at_rest import float_decode

    monkeypatch.setattr(float_decode, "_TILES_BYTES", 2 * 4 * 256**2)
    A = matrix_of((1000, 900), "float32", rng)
    damaged = A.copy()
    places = [(i, j) for i in range(20, 1000, 256) for j in range(30, 900, 256)]
    for i, j in places:
        damaged[i, j] += 1000
    verdict = verify(damaged, encoded(A))
    assert verdict.elements(encoded(A)) == places
    assert correct(damaged, encoded(A)).tobytes() == A.tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_what_has_as_many_digits_as_its_sums_is_located_only(dtype, rng):
    A = matrix_of((300, 300), dtype, rng)
    damaged = A.copy()
    damaged[290, 5] = 1e4
    sidecar = encoded(A)
    assert verify(damaged, sidecar).refused == [Region(290, 291, 5, 6)]
    assert locate(damaged, sidecar) == [(290, 5)]
    with pytest.raises(AmbiguousError, match="in rows 290 to 290 and columns 5 to 5"):
        correct(damaged, sidecar)


def test_zeros_are_exact():
    """Where all others are zero there is nothing to round, in float64 either."""
    A = np.zeros((30, 30))
    damaged = A.copy()
    damaged[3, 4] = np.nan
    np.testing.assert_array_equal(correct(damaged, encoded(A)), A)


def test_sums_that_are_not_finite_say_nothing(rng):
    A = matrix_of((300, 600), "float32", rng)
    A[7, 8], A[9, 300] = np.nan, np.inf
    sidecar = encoded(A)
    assert verify(A, sidecar).clean
    damaged = A.copy()
    damaged[7, 9] += 100  # its row says nothing, its column does: somewhere in it
    assert verify(damaged, sidecar).refused == [Region(0, 256, 9, 10)]
    damaged = A.copy()
    damaged[100, 100] += 100  # both say something
    assert verify(damaged, sidecar).elements(sidecar) == [(100, 100)]
    with np.errstate(over="ignore"):
        huge = np.full((300, 300), 3e38, np.float32).astype(np.float64) * 5e269
    assert np.isinf(encoded(huge, 4).rows).any()
    assert verify(huge, encoded(huge, 4)).clean


@settings(max_examples=150, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 600), st.integers(1, 300)),
    dtype=st.sampled_from(["float32", "float16", "float64", "int16", "int64"]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e4]),
    words=st.integers(1, 6),
    weights=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_never_another_correction(shape, dtype, scale, words, weights, seed):
    """What was changed is as it was, or refused, or (by less than rounding) not seen; the rest is left alone."""
    rng = np.random.default_rng(seed)
    A = (scale * rng.standard_normal(shape)).astype(dtype)
    sidecar = encoded(A, weights)
    assert verify(A, sidecar).clean
    damaged = A.copy()
    bits = damaged.view(f"u{A.itemsize}")
    for _ in range(words):
        place = tuple(int(rng.integers(size)) for size in shape)
        bits[place] ^= np.array(rng.integers(1, 2 ** (8 * A.itemsize - 1)), bits.dtype) | np.array(
            rng.integers(2) << (8 * A.itemsize - 1), bits.dtype
        )
    verdict = verify(damaged, sidecar)
    for element in verdict.elements(sidecar):
        assert damaged[element] != A[element]
    for fault in verdict.faults:
        place = divmod(fault.offset // A.itemsize, shape[1])
        was = np.array(fault.was, bits.dtype).view(A.dtype)
        assert was == A[place]  # a zero's sign is not known


def test_sums_by_a_gpu_are_enough_where_they_are_the_same_bits(rng, monkeypatch):
    A = matrix_of((700, 300), "float32", rng)
    A[100, 200] = np.nan
    sidecar, told, reads = encoded(A), [], []
    sums = {"rows": sidecar.rows.copy(), "columns": sidecar.columns.copy()}

    def by_gpu(source, device, of, *, code, weights, block, progress):
        assert (device, code, weights, block) == (None, "float", 2, 256)
        progress(A.nbytes)
        return sums

    parts = float_decode.parts
    monkeypatch.setattr(float_decode, "sums_on_gpu", by_gpu)
    monkeypatch.setattr(float_decode, "parts", lambda *source: reads.append(1) or parts(*source))
    sums["rows"][0, 0, 100] = 7  # where the sidecar's says nothing
    assert verify(A, sidecar, progress=told.append).clean
    assert (reads, told) == ([], [A.nbytes])
    # Sums in another order: the CPU's decide.
    sums["columns"][1, 1, 5] = np.nextafter(sums["columns"][1, 1, 5], np.inf)
    assert verify(A, sidecar, progress=told.append).clean
    assert (len(reads), told) == (1, 2 * [A.nbytes])
    A[300, 5] = 1e6
    sums["columns"][1, 1, 5] = 1e9
    assert verify(A, sidecar, progress=told.append).elements(sidecar) == [(300, 5)]
    assert told == 3 * [A.nbytes]
