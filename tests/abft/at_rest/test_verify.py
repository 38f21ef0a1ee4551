"""Matrices at rest, in memory and in files: what was changed is found, and is as it was."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.abft.at_rest import source as sources
from tsapps.apps.abft.at_rest.source import ArraySource
from tsapps.apps.abft.at_rest.verdict import AmbiguousError, ChangedError, Region, Verdict
from tsapps.apps.abft.at_rest.verify import encode, repaired, verify
from tsapps.matrix import open_matrix

DTYPES = ["float64", "float32", "float16", "bfloat16", "int8", "uint16", "int64"]


def dtype_of(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def matrix_of(shape, dtype, rng):
    """Any bits at all."""
    size = int(np.prod(shape)) * dtype_of(dtype).itemsize
    return rng.integers(0, 256, size, np.uint8).view(dtype_of(dtype)).reshape(shape)


def same_bits(one, other):
    np.testing.assert_array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


def test_by_hand():
    A = np.arange(12, dtype=np.float32).reshape(3, 4)
    sidecar = encode(open_matrix(A), code="exact")
    assert verify(open_matrix(A), sidecar).clean
    damaged = A.copy()
    damaged[1, 2] = np.nan
    verdict = verify(open_matrix(damaged), sidecar)
    assert (verdict.clean, verdict.refused, verdict.elements(sidecar)) == (False, [], [(1, 2)])
    assert verdict.faults[0].was.to_bytes(4, "little") == np.float32(6).tobytes()
    same_bits(np.frombuffer(b"".join(repaired(open_matrix(damaged), sidecar)), np.float32), A)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7000), (7000, 1), (513, 33), (20_000, 30), (4099, 7), (600, 3000)])
def test_one_element_of_any_matrix(shape, dtype, rng):
    A = matrix_of(shape, dtype, rng)
    sidecar = encode(open_matrix(A), code="exact")
    assert verify(open_matrix(A), sidecar).clean
    for _ in range(3):
        damaged = A.copy()
        place = tuple(int(rng.integers(size)) for size in shape)
        bits = damaged.reshape(-1).view(np.uint8)
        first = (place[0] * shape[1] + place[1]) * A.itemsize
        bits[first : first + A.itemsize] ^= rng.integers(1, 256, A.itemsize, np.uint8)
        verdict = verify(open_matrix(damaged), sidecar)
        assert verdict.refused == []
        assert verdict.elements(sidecar) == [place]
        same_bits(np.frombuffer(b"".join(repaired(open_matrix(damaged), sidecar)), A.dtype).reshape(shape), A)


def test_repr_of_a_verdict():
    fault, region = (8, 1, 0), (0, 1, 2, 4)
    assert repr(Verdict()) == "<Verdict: clean>"
    assert repr(Verdict([fault])) == "<Verdict: 1 fault, 0 refused regions>"
    assert repr(Verdict([fault] * 100_000, [region])) == "<Verdict: 100000 faults, 1 refused region>"
    assert repr(Verdict((), [region] * 2, 8)) == "<Verdict: 0 faults, 2 refused regions>"


def test_files_and_layouts_have_the_same_checksums(tmp_path, rng):
    A = rng.standard_normal((1000, 37)).astype(np.float32)
    expected = encode(open_matrix(A), code="both")
    np.save(tmp_path / "c.npy", A)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(A))
    np.save(tmp_path / "swapped.npy", A.astype(">f4"))
    np.savez(tmp_path / "one.npz", A=A)
    for name in ("c.npy", "fortran.npy", "swapped.npy", "one.npz"):
        found = encode(open_matrix(tmp_path / name), code="both")
        np.testing.assert_array_equal(found.exact, expected.exact)
        np.testing.assert_array_equal(found.rows, expected.rows)
        np.testing.assert_array_equal(found.columns, expected.columns)


def test_what_cannot_be_repaired_is_refused(rng):
    A = rng.standard_normal((3000, 2))
    sidecar = encode(open_matrix(A), code="exact")
    damaged = A.copy()
    damaged[1000:1200] = 0
    verdict = verify(open_matrix(damaged), sidecar)
    assert Region(0, 2048, 0, 1) in list(verdict.refused)
    with pytest.raises(AmbiguousError, match=r"the array in memory: more was .* in rows 0 to 2047 and .* from a copy"):
        repaired(open_matrix(damaged), sidecar)


def test_another_matrix_is_refused(rng):
    A = rng.standard_normal((30, 4))
    sidecar = encode(open_matrix(A), code="exact")
    with pytest.raises(ValueError, match="is 4 × 30 float64, and its sidecar is of a matrix of 30 × 4 float64"):
        verify(open_matrix(A.T), sidecar)
    with pytest.raises(ValueError, match="is 30 × 4 float32, and"):
        verify(open_matrix(A.astype(np.float32)), sidecar)


class Pieces(ArraySource):
    """Blocks of so many rows, whatever was asked for; their elements are others from the given pass on."""

    def __init__(self, array, rows, other=None, from_pass=None):
        super().__init__(array)
        self.most, self.other, self.from_pass, self.passes = rows, other, from_pass, 0

    def blocks(self, rows):
        self.passes += 1
        if self.passes == self.from_pass:
            self.array = self.other
        return super().blocks(min(self.most, rows))

    def in_place(self):
        return None


@pytest.mark.parametrize("code", ["exact", "float", "both"])
def test_blocks_of_any_size(code, rng):
    A = rng.standard_normal((1500, 37)).astype(np.float32)
    expected = encode(A, code=code, block=256)
    for rows in (1, 7, 511, 1500):
        found = encode(Pieces(A, rows), code=code, block=256)
        for name in ("exact", "rows", "columns"):
            # Sums of the float code are of another order of additions.
            one, other = getattr(found, name), getattr(expected, name)
            assert (one is None) == (other is None)
            if name == "exact" and one is not None:
                np.testing.assert_array_equal(one, other)
        assert verify(Pieces(A, rows), expected).clean


def test_a_row_larger_than_memory_is_read_in_pieces(rng, monkeypatch):
    monkeypatch.setattr(sources, "_PART_BYTES", 1 << 12)
    monkeypatch.setattr(sources, "_MOST_PART_BYTES", 1 << 14)
    monkeypatch.setattr(sources, "_PART_COLUMNS", 1 << 10)
    A = rng.standard_normal((3, 5000)).astype(np.float32)
    whole = [part.shape for _, _, part in sources.parts(ArraySource(A))]
    assert whole == 3 * [(1, 1024), (1, 1024), (1, 1024), (1, 1024), (1, 904)]
    sidecar = encode(A, code="both")
    expected = np.add.reduceat(A.astype(np.float64), range(0, 5000, 512), axis=1).T
    np.testing.assert_allclose(sidecar.rows[:, 0], expected, rtol=0, atol=1e-11)
    damaged = A.copy()
    damaged[2, 4999] = 7
    assert verify(damaged, sidecar).elements(sidecar) == [(2, 4999)]
    same_bits(np.frombuffer(b"".join(repaired(damaged, sidecar)), np.float32), A)


def test_many_words_are_read_again_by_a_pass(rng, monkeypatch):
    """More rows than are asked for by their numbers."""
    A = rng.standard_normal((4000, 300)).astype(np.float32)
    sidecar = encode(A, code="exact")
    damaged = A.copy()
    rows = [10, 11, 12, 13, 3000, 3001, 3002, 3003]  # four rows of the matrix are one of words: one of every block
    damaged[rows] = 1
    source = Pieces(damaged, 1000)
    monkeypatch.setattr(sources, "_PART_BYTES", 1200 * 7)  # seven rows, and eight are wrong
    verdict = verify(source, sidecar)
    assert (source.passes, verdict.refused) == (2, [])
    assert verdict.elements(sidecar) == [(i, j) for i in rows for j in range(300)]


@pytest.mark.parametrize("code", ["exact", "float"])
def test_what_changes_meanwhile_is_not_repaired(code, rng):
    A = rng.standard_normal((600, 40)).astype(np.float32)
    sidecar = encode(A, code=code)
    damaged, other = A.copy(), A.copy()
    damaged[5, 5] = 100
    other[5, 5], other[300, 7] = 100, 3
    first = Pieces(damaged, 100)
    verdict = verify(first, sidecar)
    b"".join(repaired(Pieces(damaged, 100), sidecar, verdict=verdict))
    with pytest.raises(ChangedError, match="the array in memory: changed while it was read"):
        b"".join(repaired(Pieces(damaged, 100, other, 1), sidecar, verdict=verdict))
    with pytest.raises(ChangedError):
        b"".join(repaired(Pieces(damaged, 100, other, first.passes + 1), sidecar))


def test_progress_is_told(rng):
    A = rng.standard_normal((5, 4))
    told = []
    sidecar = encode(A, progress=told.append)
    verify(A, sidecar, progress=told.append)
    b"".join(repaired(A, sidecar, progress=told.append))
    assert told == 3 * [A.nbytes]


def test_parameters():
    A = np.ones((3, 4))
    with pytest.raises(ValueError, match="code must be one of exact, float, both, got 'none'"):
        encode(A, code="none")
    with pytest.raises(ValueError, match="weights must be 1 to 4, got 5"):
        encode(A, weights=5)
    with pytest.raises(ValueError, match="block must be one of 256, 512, 1024, got 100"):
        encode(A, block=100)
    with pytest.raises(TypeError, match="complex128 has no checksums"):
        encode(A * 1j)
    with pytest.raises(ValueError, match=r"shape \(3, 4, 1\) has no checksums"):
        encode(A[..., None])
    with pytest.raises(TypeError, match="expected an array"):
        encode("A.npy")
    with pytest.raises(ValueError, match="use the exact code"):
        encode(A.astype(np.longdouble))
    assert encode(A.astype(np.longdouble), code="exact").itemsize == np.dtype(np.longdouble).itemsize


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 2000), st.integers(1, 60)),
    dtype=st.sampled_from(DTYPES),
    faults=st.integers(0, 40),
    seed=st.integers(0, 2**16),
)
def test_repaired_or_refused_and_never_wrong(shape, dtype, faults, seed):
    rng = np.random.default_rng(seed)
    A = matrix_of(shape, dtype, rng)
    sidecar = encode(open_matrix(A), code="exact")
    damaged = A.copy()
    damaged.reshape(-1).view(np.uint8)[rng.integers(0, A.nbytes, faults)] = rng.integers(0, 256, faults, np.uint8)
    try:
        found = b"".join(repaired(open_matrix(damaged), sidecar))
    except AmbiguousError:
        assert faults > 2
    else:
        same_bits(np.frombuffer(found, A.dtype).reshape(shape), A)
