"""The exact code: sums of words, and what they tell of words that were changed."""

from dataclasses import replace
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.abft.at_rest.exact_code import SUMS, ExactSums, block_faults, last_weight
from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, layout
from tsapps.apps.abft.at_rest.verdict import Fault, Region
from tsapps.apps.abft.at_rest.verify import encode, verify

WORDS = st.integers(0, 2**32 - 1)


def sums_of(words):
    """The sums of a block by their definition, in Python's whole numbers."""
    length = len(words)
    powers = [sum(comb(length - j + k - 1, k) * int(x) for j, x in enumerate(words)) for k in range(SUMS - 1)]
    return [*powers, sum(last_weight(length - j) * int(x) for j, x in enumerate(words))]


def sums(parts, of):
    """All stripes' sums of bytes in parts."""
    found = []
    exact = ExactSums(of, lambda stripe, one: found.append((stripe, one)))
    for part in parts:
        exact.add(np.frombuffer(part, np.uint8))
    exact.finish()
    assert [stripe for stripe, _ in found] == list(range(of.stripes))
    return np.stack([one for _, one in found])


def matrix(data):
    """Bytes as a matrix of one row."""
    return np.frombuffer(data, np.uint8).reshape(1, -1)


def encoded(data):
    return encode(matrix(data), code="exact")


def faults(data, sidecar):
    """All faults of some bytes, and the regions that are refused."""
    verdict = verify(matrix(data), sidecar)
    return list(verdict.faults), list(verdict.refused)


def repaired(data, found):
    data = bytearray(data)
    for fault in found:
        assert int.from_bytes(data[fault.offset : fault.offset + WORD], "little") == fault.found
        now = fault.was.to_bytes(WORD, "little")
        data[fault.offset : fault.offset + WORD] = now[: len(data) - fault.offset]
    return bytes(data)


def test_by_hand():
    # Words 7, 0, 5: sums 12; 12 + 5 + … by adding up once more each time.
    data = np.array([7, 0, 5], "<u4").tobytes()
    sums = encoded(data)
    assert sums.exact[0, :, 0].tolist() == [
        12,
        3 * 7 + 5,
        6 * 7 + 5,
        10 * 7 + 5,
        last_weight(3) * 7 + last_weight(1) * 5,
    ]
    # The second word becomes 4: all differences are 4 times weights of r = 2.
    damaged = np.array([7, 4, 5], "<u4").tobytes()
    found, refused = faults(damaged, sums)
    assert (found, refused) == ([Fault(4, 4, 0)], [])
    # The first and the last change places: 7 → 5 at r = 3, 5 → 7 at r = 1; no difference of the plain sums.
    found, refused = faults(np.array([5, 0, 7], "<u4").tobytes(), sums)
    assert (found, refused) == ([Fault(0, 5, 7), Fault(8, 7, 5)], [])


def test_last_weights_have_no_order():
    """They differ, have 22 bits, and are what the format says: a sidecar that exists depends on them."""
    weights = [last_weight(r) for r in range(1, ROWS + 1)]
    assert weights[:3] == [175509, 2137235, 3463623]
    assert len(set(weights)) == ROWS
    assert max(weights) < 2**22


def test_whole_numbers_fit():
    """The sums of a full block of largest words are below 2⁶⁴."""
    full = [2**32 - 1] * ROWS
    assert max(sums_of(full)) < 2**64
    data = np.full(ROWS, 2**32 - 1, "<u4").tobytes()
    assert encoded(data).exact[0, :, 0].tolist() == sums_of(full)


@pytest.mark.parametrize(
    ("shape", "itemsize"),
    [
        *(((1, n), 1) for n in (1, 3, 4, 5, 2047, 2048, 2049, 4096, 100_003, 9_000_001)),
        ((5000, 7), 1),  # rows of words of several odd rows
        ((5001, 7), 2),
        ((600, 5000), 4),  # as wide as the matrix
        ((513, 3), 8),
        ((300_000, 3), 2),
    ],
)
def test_sums_are_those_of_the_definition(shape, itemsize, rng):
    of = layout(shape, itemsize)
    data = rng.integers(0, 256, of.n_bytes, np.uint8).tobytes()
    found = sums([data], of)
    assert found.shape == (of.stripes, SUMS, of.width)
    words = np.frombuffer(data + bytes(-of.n_bytes % WORD), "<u4")
    for stripe, column in {(0, 0), (of.stripes - 1, of.width - 1), (of.stripes // 2, of.width // 2)}:
        here = words[stripe * ROWS * of.width :][: ROWS * of.width]
        here = np.append(here, np.zeros(-len(here) % of.width, np.uint32)).reshape(-1, of.width)
        assert len(here) == of.rows(stripe)
        assert found[stripe, :, column].tolist() == sums_of(here[:, column])


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=12), columns=st.integers(1, 9), seed=st.integers(0, 2**16)
)
def test_parts_of_any_size(sizes, columns, seed):
    of = layout((-(-(sum(sizes) or 1) // columns), columns), 1)
    data = np.random.default_rng(seed).integers(0, 256, of.n_bytes, np.uint8).tobytes()
    ends = [*np.cumsum(sizes).tolist(), of.n_bytes]
    parts = [data[begin:end] for begin, end in pairwise([0, *ends])]
    np.testing.assert_array_equal(sums(parts, of), sums([data], of))


def test_wrong_numbers_of_bytes():
    of = layout((1, 8), 1)
    with pytest.raises(ValueError, match="got 4 bytes; expected the 8"):
        sums([b"abcd"], of)
    with pytest.raises(ValueError, match="got 9 bytes; expected the 8"):
        sums([b"abcd", b"abcde"], of)


@property_test(80, 300, block=st.lists(WORDS, min_size=1, max_size=ROWS), data=st.data())
def test_one_or_two_words_of_a_block_are_as_they_were(block, data):
    places = data.draw(st.lists(st.integers(0, len(block) - 1), min_size=1, max_size=2, unique=True))
    damaged = list(block)
    for place in places:
        damaged[place] = data.draw(WORDS)
    found = block_faults(sums_of(damaged), sums_of(block), len(block))
    expected = [(place, damaged[place] - block[place]) for place in sorted(places) if damaged[place] != block[place]]
    assert sorted(found) == expected


@property_test(80, 300, block=st.lists(WORDS, min_size=5, max_size=ROWS), data=st.data())
def test_more_words_of_a_block_are_refused(block, data):
    places = data.draw(st.lists(st.integers(0, len(block) - 1), min_size=3, max_size=20, unique=True))
    damaged = list(block)
    for place in places:
        damaged[place] = data.draw(WORDS.filter(lambda word, place=place: word != block[place]))
    assert block_faults(sums_of(damaged), sums_of(block), len(block)) is None


def test_four_words_that_leave_the_first_sums_alone():
    """(1, −3, 3, −1) has no moments but the third: nothing but S₃ and S₄ tell of it."""
    block = [10] * 8
    damaged = [10, 11, 7, 13, 9, 10, 10, 10]
    now, then = sums_of(damaged), sums_of(block)
    assert now[:3] == then[:3]
    assert block_faults(now, then, 8) is None


@property_test(120, 500, data=st.data(), length=st.integers(1, ROWS), seed=st.integers(0, 2**32))
def test_never_another_correction(data, length, seed):
    """One to six words, some by as little as a bit: what was, or nothing."""
    rng = np.random.default_rng(seed)
    block = rng.integers(0, 2**32, length).tolist()
    damaged = list(block)
    for place in data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=6, unique=True)):
        damaged[place] ^= data.draw(st.one_of(st.integers(0, 31).map(lambda bit: 1 << bit), WORDS))
    changed = [(place, now - then) for place, (now, then) in enumerate(zip(damaged, block, strict=True)) if now != then]
    found = block_faults(sums_of(damaged), sums_of(block), length)
    assert found is None or sorted(found) == changed
    assert found is not None or len(changed) > 2


@pytest.mark.each_choice
@pytest.mark.parametrize("shape", [(1, 3_000_000), (3000, 1000), (600, 5000), (750_000, 4)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
def test_a_run_of_bytes_is_as_it_was(shape, dtype, rng):
    """As many words overwritten as there are blocks beside each other, anywhere: a word each of these, or two."""
    A = rng.standard_normal(shape).astype(dtype)
    data, sidecar = A.tobytes(), encode(A, code="exact")
    run = sidecar.exact.shape[2] * WORD
    assert run >= 4000
    for begin in (0, len(data) // 2 + 1, len(data) - run):
        damaged = bytearray(data)
        damaged[begin : begin + run] = rng.integers(0, 256, run, np.uint8).tobytes()
        verdict = verify(np.frombuffer(damaged, dtype).reshape(shape), sidecar)
        assert verdict.refused == []
        assert repaired(damaged, verdict.faults) == data


@pytest.mark.parametrize("bit", range(64))
def test_any_bit_of_any_number(bit, rng):
    """NaN payloads, negative zeros and denormals among them."""
    words = rng.integers(0, 2**64, 5000, np.uint64)
    words[:4] = np.array([np.nan, -0.0, 5e-324, np.inf]).view(np.uint64)
    words[4] |= np.uint64(0x7FF0000000000001)  # a signalling NaN
    data = words.tobytes()
    sidecar = encoded(data)
    for place in (0, 1, 2, 3, 4, 4999, int(rng.integers(5000))):
        damaged = words.copy()
        damaged[place] ^= np.uint64(1) << np.uint64(bit)
        found, refused = faults(damaged.tobytes(), sidecar)
        assert refused == []
        assert len(found) == 1
        assert repaired(damaged.tobytes(), found) == data


def test_what_was_filled_up_is_not_repaired():
    """Sums that say that a byte past the last was changed are no fault of the data's."""
    data = bytes(range(1, 8))  # the last word has one byte that nobody wrote
    sidecar = encoded(data)
    as_if = replace(sidecar, exact=encoded(bytes([*data, 200])).exact)
    assert faults(data, as_if) == ([], [Region(0, 1, 0, 7)])
    assert faults(data, sidecar) == ([], [])
