"""The exact code: sums of words, and what they tell of words that were changed."""

from itertools import pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.abft.exact import ROWS, SUMS, WORD, Fault, block_faults, exact_sums, layout, stripe_faults

WORDS = st.integers(0, 2**32 - 1)


def sums_of(words):
    """The sums of a block by their definition, in Python's whole numbers."""
    length = len(words)
    return [sum(comb(length - j + k - 1, k) * int(x) for j, x in enumerate(words)) % 2**64 for k in range(SUMS)]


def encode(data):
    return exact_sums([memoryview(data)], layout(len(data)))


def faults(data, sums):
    """All faults of some bytes, and the blocks that are refused."""
    of = layout(len(data))
    found, refused = [], []
    for stripe in range(of.stripes):
        begin, end = of.stripe_bytes(stripe)
        here, not_here = stripe_faults(memoryview(data)[begin:end], stripe, sums[stripe], of)
        found += here
        refused += [(stripe, column) for column in not_here]
    return found, refused


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
    sums = encode(data)
    assert sums[0, :, 0].tolist() == [12, 3 * 7 + 5, 6 * 7 + 5, 10 * 7 + 5, 15 * 7 + 5]
    # The second word becomes 4: all differences are 4 times weights of r = 2.
    damaged = np.array([7, 4, 5], "<u4").tobytes()
    found, refused = faults(damaged, sums)
    assert (found, refused) == ([Fault(4, 4, 0)], [])
    # The first and the last change places: 7 → 5 at r = 3, 5 → 7 at r = 1; no difference of the plain sums.
    found, refused = faults(np.array([5, 0, 7], "<u4").tobytes(), sums)
    assert (found, refused) == ([Fault(0, 5, 7), Fault(8, 7, 5)], [])


def test_whole_numbers_fit():
    """The first four sums of a full block of largest words are below 2⁶⁴."""
    full = [2**32 - 1] * ROWS
    exact = [sum(comb(ROWS - j + k - 1, k) * x for j, x in enumerate(full)) for k in range(SUMS)]
    assert max(exact[:4]) < 2**64 < exact[4]
    data = np.full(ROWS, 2**32 - 1, "<u4").tobytes()
    assert encode(data)[0, :, 0].tolist() == sums_of(full)


@pytest.mark.parametrize("n_bytes", [1, 3, 4, 5, 2047, 2048, 2049, 4096, 100_003, 9_000_001])
def test_sums_are_those_of_the_definition(n_bytes, rng):
    data = rng.integers(0, 256, n_bytes, np.uint8).tobytes()
    of = layout(n_bytes)
    sums = encode(data)
    words = np.frombuffer(data + bytes(-n_bytes % WORD), "<u4")
    for stripe, column in {(0, 0), (of.stripes - 1, of.width - 1), (of.stripes // 2, of.width // 2)}:
        here = words[stripe * ROWS * of.width :][: ROWS * of.width]
        here = np.append(here, np.zeros(-len(here) % of.width, np.uint32)).reshape(-1, of.width)
        assert len(here) == of.rows(stripe)
        assert sums[stripe, :, column].tolist() == sums_of(here[:, column])


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=12), seed=st.integers(0, 2**16))
def test_parts_of_any_size(sizes, seed):
    n_bytes = sum(sizes) or 1
    data = np.random.default_rng(seed).integers(0, 256, n_bytes, np.uint8).tobytes()
    ends = np.cumsum([*sizes, n_bytes - sum(sizes)]).tolist()
    parts = [memoryview(data)[begin:end] for begin, end in pairwise([0, *ends])]
    np.testing.assert_array_equal(exact_sums(parts, layout(n_bytes)), encode(data))


def test_as_many_bytes_as_announced():
    some, more = memoryview(b"abcd"), memoryview(b"abcde")
    with pytest.raises(ValueError, match="4 of the 8 bytes"):
        exact_sums([some], layout(8))
    with pytest.raises(ValueError, match="more than the 8 bytes"):
        exact_sums([some, more], layout(8))
    with pytest.raises(ValueError, match="nothing to encode"):
        layout(0)


@settings(max_examples=300, deadline=None)
@given(block=st.lists(WORDS, min_size=1, max_size=ROWS), data=st.data())
def test_one_or_two_words_of_a_block_are_as_they_were(block, data):
    places = data.draw(st.lists(st.integers(0, len(block) - 1), min_size=1, max_size=2, unique=True))
    damaged = list(block)
    for place in places:
        damaged[place] = data.draw(WORDS)
    found = block_faults(sums_of(damaged), sums_of(block), len(block))
    expected = [(place, damaged[place] - block[place]) for place in sorted(places) if damaged[place] != block[place]]
    assert sorted(found) == expected


@settings(max_examples=300, deadline=None)
@given(block=st.lists(WORDS, min_size=5, max_size=ROWS), data=st.data())
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


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
def test_a_run_of_bytes_is_as_it_was(dtype, rng):
    """16 KiB overwritten, anywhere: a word each of 4096 blocks, or two."""
    data = rng.standard_normal(3_000_000).astype(dtype).tobytes()
    sums, n_bytes = encode(data), len(data)
    run = layout(n_bytes).width * WORD
    for begin in (0, n_bytes // 2 + 1, n_bytes - run):
        damaged = bytearray(data)
        damaged[begin : begin + run] = rng.integers(0, 256, run, np.uint8).tobytes()
        found, refused = faults(damaged, sums)
        assert refused == []
        assert repaired(damaged, found) == data


@pytest.mark.parametrize("bit", range(64))
def test_any_bit_of_any_number(bit, rng):
    """NaN payloads, negative zeros and denormals among them."""
    words = rng.integers(0, 2**64, 5000, np.uint64)
    words[:4] = np.array([np.nan, -0.0, 5e-324, np.inf]).view(np.uint64)
    words[4] |= np.uint64(0x7FF0000000000001)  # a signalling NaN
    data = words.tobytes()
    sums = encode(data)
    for place in (0, 1, 2, 3, 4, 4999, int(rng.integers(5000))):
        damaged = words.copy()
        damaged[place] ^= np.uint64(1) << np.uint64(bit)
        found, refused = faults(damaged.tobytes(), sums)
        assert refused == []
        assert len(found) == 1
        assert repaired(damaged.tobytes(), found) == data


def test_what_was_filled_up_is_not_repaired():
    """Sums that say that a byte past the last was changed are no fault of the data's."""
    data = bytes(range(1, 8))  # the last word has one byte that nobody wrote
    sums = encode(data)
    as_if = encode(bytes([*data, 200]))
    assert faults(data, as_if)[1] == [(0, 0)]
    assert faults(data, sums) == ([], [])
