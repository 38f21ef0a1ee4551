"""How bytes are dealt out: matrices of any size, by arithmetic alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, Layout, fold, layout


@pytest.mark.parametrize(
    ("shape", "itemsize", "width", "stripes"),
    [
        ((20480, 20480), 4, 20480, 40),  # a row of the matrix is a row of words
        ((1 << 20, 128), 4, 8 * 128, 256),  # 8 rows of 512 bytes are 4 KiB
        ((1 << 20, 9), 4, 64 * 9, 32),  # 128 rows of 36 bytes would be more than 4 KiB
        ((1 << 20, 3), 1, 1024 * 3 // 4, 2),  # rows of words of 1024 rows of three bytes each
        ((2000, 3), 2, 2 * 6 // 4, 2),  # two rows of six bytes are whole words; of four there would be only 500
        ((511, 5000), 4, 4096, 2),  # too few rows: flat
        ((1, 10), 8, 1, 1),
        ((100, 1 << 30), 4, 4096, 100 * (1 << 30) // 4096 // 512),
        ((512, 1 << 30), 4, 1 << 30, 1),
    ],
)
def test_by_hand(shape, itemsize, width, stripes):
    of = layout(shape, itemsize)
    assert (of.n_bytes, of.width, of.stripes) == (shape[0] * shape[1] * itemsize, width, stripes)


LARGE = st.tuples(st.integers(1, 1 << 40), st.integers(1, 1 << 32))
SMALL = st.tuples(st.integers(1, 5000), st.integers(1, 50))


@given(shape=LARGE | SMALL, itemsize=st.sampled_from([1, 2, 4, 8, 16]))
def test_every_byte_is_in_one_block(shape, itemsize):
    of, together = layout(shape, itemsize), fold(shape, itemsize)
    row_bytes = shape[1] * itemsize
    assert of.n_bytes == shape[0] * row_bytes
    # Stripes follow each other; all but the last have 512 rows of words.
    last = of.stripes - 1
    assert of.stripe_bytes(0)[0] == 0
    assert of.stripe_bytes(last)[1] == of.n_bytes
    assert of.stripe_bytes(last)[0] < of.n_bytes
    if last:
        assert of.stripe_bytes(last - 1)[1] == of.stripe_bytes(last)[0]
        assert of.rows(last - 1) == ROWS
    assert 1 <= of.rows(last) <= ROWS
    assert (last * ROWS + of.rows(last)) * of.width >= of.n_words > (last * ROWS + of.rows(last) - 1) * of.width
    if together:
        # Whole rows of the matrix are a row of words, and the first block is full.
        assert together & (together - 1) == 0
        assert of.width * WORD == together * row_bytes
        assert of.rows(0) == ROWS
        assert together <= 4 or together * row_bytes <= 4096
        bigger = 2 * together
        assert bigger * row_bytes > 4096 or shape[0] // bigger < ROWS
    else:
        assert 1 <= of.width <= 4096
        assert of.width == 4096 or of.rows(0) == min(ROWS, of.n_words)


@pytest.mark.parametrize(("shape", "itemsize"), [((0, 3), 4), ((3, 0), 4), ((3, 3), 0)])
def test_nothing_is_refused(shape, itemsize):
    with pytest.raises(ValueError, match="nothing to encode"):
        layout(shape, itemsize)


def test_rows_of_the_last_stripe():
    of = Layout(4 * (512 * 10 + 15), 10)  # 15 words: a row, and half of one
    assert (of.stripes, of.rows(0), of.rows(1)) == (2, 512, 2)
    assert of.stripe_bytes(1) == (20480, 20540)
