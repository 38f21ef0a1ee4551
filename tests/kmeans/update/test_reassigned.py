"""Rows that change their label: sort_reassigned.cuh and segmented_sum.cuh, run on the CPU, of lists made up here."""

import numpy as np
import pytest
from host_cuda import harness
from host_cuda.fused_kmeans import FEATURES, KINDS, Iterations, types_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.kmeans.update.plan import LISTS

LISTED = 3


class Sorting(Iterations):
    """Samples with labels, and lists of their new ones; `pairs` are sorted by two clusters, else each cluster is."""

    def __init__(self, X, k, kind, labels, *, pairs, weights=None, mean=None):
        self.pairs = pairs
        super().__init__(X, k, kind, weights, mean)
        self.stopped, self.labels = np.zeros(1, np.int32), np.array(labels, np.int32)
        self.sums[:] = self.sums_of(self.labels)

    def sums_of(self, labels):
        """Return the sums of labels in NumPy's integers, of those that are not negative."""
        one = np.ones(self.n, self.work) if self.weights is None else self.weights
        scales = self.work_scales
        values = np.column_stack([self.centered * one[:, np.newaxis], one]).astype(scales.dtype)
        sums = np.zeros((self.k, self.d + 1), np.int64)
        np.add.at(sums, labels[labels >= 0], np.rint(values * scales).astype(np.int64)[labels >= 0])
        return sums

    def scatter_add(self, rows, to):
        """Give some rows new labels, of which some may be the old ones; return how many moved, and the places."""
        parts = np.array_split(np.arange(len(rows)), LISTED)
        room = max(map(len, parts)) + 1
        items = np.full((LISTED, room, 4), 2**32 - 1, np.uint32)
        lengths = np.zeros((LISTED, 2), np.uint32)
        for items_of, length, part in zip(items, lengths, parts, strict=True):
            length[0] = len(part)
            which = items_of[: len(part)]
            which[:, 0], which[:, 1] = rows[part], self.labels[rows[part]].view(np.uint32)
            if self.pairs:  # an `AmbiguousRow`: the new label is the one bit that is set
                bit = (to[part] % 8 // 2 * 16 + to[part] // 8 * 2 + to[part] % 2).astype(np.uint64)
                mask = np.uint64(1) << bit
                which[:, 2], which[:, 3] = mask & np.uint64(2**32 - 1), mask >> np.uint64(32)
            else:
                which[:, 2] = to[part]
        lists = np.array((items.ctypes.data, lengths.ctypes.data, room, 2, 0), LISTS)
        places = np.full(2 * len(rows), 2**32 - 1, np.uint32)
        return self.move_segments(self.rows(), lists, LISTED, places), places

    def assert_moves(self, rows, to):
        """Rows are in the segments of what they come to and leave, and labels and sums are those of the new labels."""
        before = self.labels.copy()
        found, places = self.scatter_add(rows, to)
        after = before.copy()
        after[rows] = to
        np.testing.assert_array_equal(self.labels, after)
        np.testing.assert_array_equal(self.sums, self.sums_of(after))
        n_reassigned = np.flatnonzero(before != after)
        assert found == len(n_reassigned)
        if self.pairs:
            wanted = {((before[row] + 1) << (self.k - 1).bit_length() | after[row], row) for row in n_reassigned}
        else:
            wanted = {(after[row], row) for row in n_reassigned}
            wanted |= {(self.k + before[row], row) for row in n_reassigned if before[row] >= 0}
        assert (places[len(wanted) :] == 2**32 - 1).all()
        segments = np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))
        assert set(zip(segments.tolist(), places[: len(segments)].tolist(), strict=True)) == wanted


@pytest.mark.parametrize("pairs", [True, False], ids=["pairs", "clusters"])
def test_by_hand(pairs):
    X = np.array([[1.0, 0, 0], [2, 0, 0], [4, 0, 0], [8, 0, 0], [16, 0, 0]])
    of = Sorting(X, 3, KINDS[0], [-1, 0, 0, 1, 2], pairs=pairs)
    assert (of.sums[:, 0] / of.scales[0]).tolist() == [6.0, 8.0, 16.0]
    # 0 comes to cluster 2, 1 and 2 go from 0 to 1, 3 stays where it is; 4 is in no list.
    n_reassigned, places = of.scatter_add(np.arange(4), np.array([2, 1, 1, 1]))
    assert n_reassigned == 3
    assert of.labels.tolist() == [2, 1, 1, 1, 2]
    assert (of.sums[:, 0] / of.scales[0]).tolist() == [0.0, 14.0, 17.0]
    assert of.sums[:, 3].tolist() == [0, 3, 2]
    if pairs:  # (none, 2) is segment 2, and (0, 1) segment 5 of 16
        assert of.ends.tolist() == [0, 0, 1, 1, 1] + 11 * [3]
        assert (places[0], set(places[1:3])) == (0, {1, 2})
    else:  # come to 1, come to 2, leave 0
        assert of.ends.tolist() == [0, 2, 3, 5, 5, 5]
        assert (set(places[:2]), places[2], set(places[3:5])) == ({1, 2}, 0, {1, 2})


@pytest.mark.each_choice
@pytest.mark.parametrize("pairs", [True, False], ids=["pairs", "clusters"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: types_of(*kind)[-1])
@pytest.mark.parametrize("d", sorted(set(FEATURES)))
def test_rows_of_any_length(d, kind, pairs, rng):
    n, k = 500, 9
    weights = rng.random(n) * 3 if kind[2] else None
    X = 3 * rng.standard_normal((n, d))
    of = Sorting(X, k, kind, np.full(n, -1), pairs=pairs, weights=weights, mean=X.mean(axis=0))
    for share in (1.0, 0.6, 0.05):
        rows = rng.permutation(n)[: int(share * n)]
        of.assert_moves(rows, rng.integers(0, k, len(rows)))


@pytest.mark.each_choice
# Segments counted in shared memory or not: by the rows of a list, and by how many there are.
@pytest.mark.parametrize("n", [1, 31, 40, 3000, 9000])
@pytest.mark.parametrize(("k", "pairs"), [(1, True), (2, True), (33, True), (64, True), (1, False), (700, False)])
def test_any_number_of_rows_and_clusters(n, k, pairs, rng):
    of = Sorting(rng.standard_normal((n, 3)), k, KINDS[0], rng.integers(-1, k, n), pairs=pairs)
    for _ in range(2):
        of.assert_moves(np.arange(n), rng.integers(0, k, n))


def test_all_rows_of_one_pair(rng):
    n = 30_000  # more than a block sorts at a time
    of = Sorting(rng.standard_normal((n, 3)), 64, KINDS[0], np.full(n, 63), pairs=True)
    of.assert_moves(np.arange(n), np.full(n, 62))


def test_no_rows(rng):
    of = Sorting(rng.standard_normal((50, 3)), 4, KINDS[0], np.zeros(50), pairs=True)
    of.assert_moves(np.arange(0), np.zeros(0, int))
    of.assert_moves(np.arange(50), np.zeros(50, int))  # listed, but they stay


def test_stopped(rng):
    of = Sorting(rng.standard_normal((50, 3)), 4, KINDS[0], np.zeros(50), pairs=True)
    of.stopped[:] = 1
    sums = of.sums.copy()
    n_reassigned, places = of.scatter_add(np.arange(50), np.ones(50, int))
    assert n_reassigned == 0
    assert not of.labels.any()
    np.testing.assert_array_equal(of.sums, sums)
    assert (places == 2**32 - 1).all()


@settings(max_examples=40, deadline=None)
@given(
    d=st.sampled_from(FEATURES),
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 1500),
    k=st.integers(1, 64),
    pairs=st.booleans(),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**16),
)
def test_any_moves(d, kind, n, k, pairs, share, seed):
    rng = np.random.default_rng(seed)
    weights = rng.random(n) + 0.1 if kind[2] else None
    of = Sorting(rng.standard_normal((n, d)), k, kind, rng.integers(-1, k, n), pairs=pairs, weights=weights)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        rows = rng.permutation(n)[: int(share * n)]
        of.assert_moves(rows, rng.integers(0, k, len(rows)))
