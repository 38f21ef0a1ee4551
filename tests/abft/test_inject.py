"""Faults: as large as they say they are, where they say, and the same from the same seed."""

import numpy as np
import pytest

from tsapps.apps.abft import encode, inject, locate, verify
from tsapps.apps.abft.inject import FAULTS


def bits_of(A):
    return np.unpackbits(np.ascontiguousarray(A).view(np.uint8).reshape(-1))


def same(one, other):
    return one.astype(one.dtype.newbyteorder("<")).tobytes() == other.astype(other.dtype.newbyteorder("<")).tobytes()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2", "i1"])
def test_says_what_it_did(fault, dtype, rng):
    A = (50 * rng.standard_normal((900, 31)) + 60).astype(dtype)
    A[A == 0] = 1
    damaged = np.asfortranarray(A)
    places = inject(damaged, fault, np.random.default_rng(7))
    assert places
    kind = f"u{A.itemsize}"
    changed = np.argwhere(A.view(kind) != damaged.view(kind))
    assert places == [tuple(place) for place in changed.tolist()]
    again = A.copy()
    assert inject(again, fault, np.random.default_rng(7)) == places
    assert same(again, damaged)
    sidecar = encode(A, code="exact")
    assert not verify(damaged, sidecar).clean
    if fault in ("bit", "two-bits", "word"):
        assert locate(damaged, sidecar) == places


def test_sizes(rng):
    A = rng.standard_normal((400, 50))

    def mismatches(fault, size=None):
        damaged = A.copy()
        places = inject(damaged, fault, rng, size=size)
        return places, bits_of(damaged) != bits_of(A), damaged

    assert mismatches("bit")[1].sum() == 1
    assert mismatches("two-bits")[1].sum() == 2
    assert mismatches("bit", 64)[1].sum() == 64
    for fault, size, count in (("word", None, 1), ("words", None, 3), ("words", 40, 40)):
        assert mismatches(fault, size)[1].reshape(-1, 32).any(axis=1).sum() == count
    changed = np.flatnonzero(mismatches("burst", 1000)[1].reshape(-1, 8).any(axis=1))
    assert len(changed) == 1000
    assert changed[-1] - changed[0] == 999
    places, _, damaged = mismatches("tile", 10)
    assert len(places) == 100
    assert not damaged[tuple(np.transpose(places))].any()
    places, _, damaged = mismatches("rectangle", 3)
    (a, b), (c, d), (e, f), (g, h) = places
    assert (a, e, b, d) == (c, g, f, h)
    assert np.abs((damaged - A)[tuple(np.transpose(places))] - [3, -3, -3, 3]).max() < 1e-14


def test_small_arrays(rng):
    for fault in ("bit", "two-bits", "word", "burst", "tile"):
        A = np.ones((1, 1), np.int8)
        assert inject(A, fault, rng) == [(0, 0)]
        assert A[0, 0] != 1
    A = np.ones((1, 7), np.int8)  # the last word has one byte that nobody wrote
    assert len(inject(A, "words", rng, size=2)) == 7


def test_parameters(rng):
    A = np.ones((3, 1), np.int8)
    for arguments, message in (
        ((A, "flood", rng), "fault must be one of bit, two-bits, .*, got 'flood'"),
        ((A, "words", rng), "size is 3; expected at most 1, the words of"),
        ((A, "rectangle", rng), "3 × 1 has no rectangle"),
        ((A[0], "bit", rng), r"got an array of shape \(1,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            inject(*arguments)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        inject(A, "bit", rng, size=0)
    with pytest.raises(ValueError, match="size is 9; expected at most 8, the bits of an element of int8"):
        inject(A, "bit", rng, size=9)
    A.flags.writeable = False
    with pytest.raises(ValueError, match="inject faults into a copy"):
        inject(A, "bit", rng)
