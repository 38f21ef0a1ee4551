"""How rows are cut into shards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsapps.apps.kmeans.data.shard import cut


@pytest.mark.parametrize(
    ("n", "chunk", "shares", "expected"),
    [
        (100, 10, [1, 1], [(0, 50), (50, 100)]),
        (101, 10, [1, 1], [(0, 60), (60, 101)]),  # 11 chunks
        (95, 10, [9, 1], [(0, 90), (90, 95)]),
        (95, 10, [99, 1], [(0, 90), (90, 95)]),  # one chunk at least
        (95, 10, [1, 99], [(0, 10), (10, 95)]),
        (30, 10, [1, 1, 1], [(0, 10), (10, 20), (20, 30)]),
        (15, 10, [1, 1, 1], [(0, 10), (10, 15)]),  # two chunks: the third share gets none
        (7, 10, [1, 1], [(0, 7)]),
    ],
)
def test_by_hand(n, chunk, shares, expected):
    assert [(part.start, part.stop) for part in cut(n, chunk, shares)] == expected


@given(
    st.integers(1, 10_000),
    st.integers(0, 10).map(lambda exponent: 1 << exponent),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=9),
)
def test_whole_chunks_for_every_share(n, chunk, shares):
    parts, chunks = cut(n, chunk, shares), -(-n // chunk)
    assert len(parts) == min(len(shares), chunks)
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == n
    assert all(len(part) > 0 and part.start % chunk == 0 for part in parts)
    shares = shares[:chunks]
    if len(shares) * len(shares) < chunks * min(shares) / sum(shares):  # no share is rounded up to one chunk
        sizes = np.array([-(-len(part) // chunk) for part in parts])
        np.testing.assert_allclose(sizes, np.array(shares) / sum(shares) * chunks, atol=1.01)
