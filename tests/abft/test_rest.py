"""Matrices at rest, in memory and in files: what was changed is found, and is as it was."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.abft.rest import AmbiguousError, encode, repaired, verify
from tsapps.matrix import open_matrix

DTYPES = ["float64", "float32", "float16", "int8", "uint16"]


def matrix_of(shape, dtype, rng):
    """Any bits at all."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return rng.integers(0, 256, size, np.uint8).view(dtype).reshape(shape)


def same_bits(one, other):
    np.testing.assert_array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


def test_by_hand():
    A = np.arange(12, dtype=np.float32).reshape(3, 4)
    sidecar = encode(open_matrix(A))
    assert verify(open_matrix(A), sidecar).clean
    damaged = A.copy()
    damaged[1, 2] = np.nan
    verdict = verify(open_matrix(damaged), sidecar)
    assert (verdict.clean, verdict.refused, verdict.elements(sidecar)) == (False, [], [(1, 2)])
    assert verdict.faults[0].was.to_bytes(4, "little") == np.float32(6).tobytes()
    same_bits(np.frombuffer(b"".join(repaired(open_matrix(damaged), sidecar)), np.float32), A)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7000), (7000, 1), (513, 33), (20_000, 300)])
def test_one_element_of_any_matrix(shape, dtype, rng):
    A = matrix_of(shape, dtype, rng)
    sidecar = encode(open_matrix(A))
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
        same_bits(np.frombuffer(b"".join(repaired(open_matrix(damaged), sidecar)), dtype).reshape(shape), A)


def test_files_and_layouts_have_the_same_checksums(tmp_path, rng):
    A = rng.standard_normal((1000, 37)).astype(np.float32)
    expected = encode(open_matrix(A)).exact
    np.save(tmp_path / "c.npy", A)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(A))
    np.save(tmp_path / "swapped.npy", A.astype(">f4"))
    np.savez(tmp_path / "one.npz", A=A)
    for name in ("c.npy", "fortran.npy", "swapped.npy", "one.npz"):
        np.testing.assert_array_equal(encode(open_matrix(tmp_path / name)).exact, expected)


def test_what_cannot_be_repaired_is_refused(rng):
    A = rng.standard_normal((3000, 2))
    sidecar = encode(open_matrix(A))
    damaged = A.copy()
    damaged[1000:1200] = 0
    verdict = verify(open_matrix(damaged), sidecar)
    assert verdict.refused
    with pytest.raises(AmbiguousError, match=r"the array in memory: in \d+ blocks of stripe 0 .* from a copy"):
        b"".join(repaired(open_matrix(damaged), sidecar))


def test_another_matrix_is_refused(rng):
    A = rng.standard_normal((30, 4))
    sidecar = encode(open_matrix(A))
    with pytest.raises(ValueError, match="is 4 × 30 float64, and its sidecar is of a matrix of 30 × 4 float64"):
        verify(open_matrix(A.T), sidecar)
    with pytest.raises(ValueError, match="is 30 × 4 float32, and"):
        verify(open_matrix(A.astype(np.float32)), sidecar)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 200), st.integers(1, 60)),
    dtype=st.sampled_from(DTYPES),
    faults=st.integers(0, 40),
    seed=st.integers(0, 2**16),
)
def test_repaired_or_refused_and_never_wrong(shape, dtype, faults, seed):
    rng = np.random.default_rng(seed)
    A = matrix_of(shape, dtype, rng)
    sidecar = encode(open_matrix(A))
    damaged = A.copy()
    damaged.reshape(-1).view(np.uint8)[rng.integers(0, A.nbytes, faults)] = rng.integers(0, 256, faults, np.uint8)
    try:
        found = b"".join(repaired(open_matrix(damaged), sidecar))
    except AmbiguousError:
        assert faults > 2
    else:
        same_bits(np.frombuffer(found, dtype).reshape(shape), A)
