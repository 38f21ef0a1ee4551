"""Sums of words on the CPU by NumPy and by numba."""

import platform
from math import comb

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps.apps.abft.at_rest.interleave import ROWS
from tsapps.apps.abft.at_rest.select_adder import COMPILED_FROM, adder
from tsapps.apps.abft.at_rest.word_sums import SUMS, add_by_blas, last_weight


@pytest.fixture(params=["NumPy", "numba"], scope="module")
def add(request):
    if request.param == "NumPy":
        return add_by_blas
    pytest.importorskip("numba")
    from tsapps.apps.abft.at_rest.compiled_sums import add_compiled

    return add_compiled


def definition(words):
    """The sums of columns of words in Python's whole numbers."""
    left = range(len(words), 0, -1)
    weights = [[comb(r + k - 1, k) for r in left] for k in range(SUMS - 1)] + [[last_weight(r) for r in left]]
    return np.array(weights, object) @ words.astype(object)


def computed(add, words, ends=()):
    """The sums of columns, whose rows are added in parts that end at `ends`."""
    sums = np.zeros((SUMS, words.shape[1]), np.uint64)
    for begin, end in zip([0, *ends], [*ends, len(words)], strict=True):
        add(sums, words[begin:end], len(words) - begin)
    return sums


def test_by_hand(add):
    # Words 7, 0, 5: sums 12; 12 + 5 + … by adding up once more each time. Words 1, 2, 3 beside them.
    words = np.array([[7, 1], [0, 2], [5, 3]], "<u4")
    expected = [
        [12, 6],
        [3 * 7 + 5, 3 + 2 * 2 + 3],
        [6 * 7 + 5, 6 + 3 * 2 + 3],
        [10 * 7 + 5, 10 + 4 * 2 + 3],
        [175509 * 5 + 3463623 * 7, 175509 * 3 + 2137235 * 2 + 3463623],
    ]
    assert computed(add, words).tolist() == expected
    assert computed(add, words, [1]).tolist() == expected


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 100, ROWS])
@pytest.mark.parametrize("columns", [1, 3, 511, 513, 1100])
def test_sums_are_those_of_the_definition(add, rows, columns, rng):
    words = rng.integers(0, 2**32, (rows, columns), np.uint32)
    words[:, -1] = 2**32 - 1
    np.testing.assert_array_equal(computed(add, words), definition(words))


def test_any_place_in_memory(add, rng):
    """Some columns of read-only rows at an odd address, and sums that are columns of others."""
    content = rng.integers(0, 256, 30 * 700 * 4 + 1, np.uint8)
    content.flags.writeable = False
    words = content[1:].view("<u4").reshape(30, 700)[:, 40:640]
    assert not words.flags.aligned
    sums = np.full((SUMS, 800), 9, np.uint64)
    sums[:, 100:700] = 0
    add(sums[:, 100:700], words, 30)
    np.testing.assert_array_equal(sums[:, 100:700], definition(words))
    assert (sums[:, :100] == 9).all()
    assert (sums[:, 700:] == 9).all()


def test_a_read_only_map_of_a_file(add, tmp_path, rng):
    words = rng.integers(0, 2**32, (70, 33), np.uint32)
    words.tofile(tmp_path / "words")
    mapped = np.memmap(tmp_path / "words", "<u4", "r", shape=words.shape)
    np.testing.assert_array_equal(computed(add, mapped), definition(words))


@property_test(
    30,
    200,
    rows=st.integers(1, ROWS),
    columns=st.integers(1, 600),
    ends=st.lists(st.integers(0, ROWS)),
    seed=st.integers(),
)
def test_rows_in_parts(rows, columns, ends, seed):
    words = np.random.default_rng(abs(seed)).integers(0, 2**32, (rows, columns), np.uint32)
    ends = sorted(end for end in ends if end <= rows)
    expected = computed(add_by_blas, words)
    np.testing.assert_array_equal(computed(add_by_blas, words, ends), expected)
    pytest.importorskip("numba")
    np.testing.assert_array_equal(computed(adder(COMPILED_FROM), words, ends), expected)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instructions of x86-64")
def test_the_compiled_loop_is_vectorized():
    numba = pytest.importorskip("numba")
    from tsapps.apps.abft.at_rest import compiled_sums

    compiled = numba.njit(compiled_sums._SIGNATURE)(compiled_sums._add_rows)
    (code,) = compiled.inspect_asm().values()
    assert code.count("pmuludq") >= 8  # a multiplication of several columns for each of eight rows
