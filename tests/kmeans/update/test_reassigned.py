"""Sums of reassigned rows, sorted or not (SegmentedSum, AddReassigned), on a HostMachine, of lists made up here."""

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda import harness
from hypothesis import strategies as st
from kmeans.host_steps import KINDS, SHAPES, add_sorted, buffers_of, data_on_host, fixed_point_sums

from tsapps.apps.kmeans.update.launch import AddReassigned, SegmentedSum
from tsapps.apps.kmeans.update.plan import LISTS
from tsapps.kernels.runtime.launch import structure

LISTED = 3
FEATURES = sorted({*(d for d, _ in SHAPES), 50, 64, 70, 100})
UNTOUCHED = 2**32 - 1


METHODS = ["pairs", "clusters", "added"]


class Updating:
    """Samples with labels and sums, and what updates these.

    Methods: a `SegmentedSum` of pairs of clusters, of lists of `AmbiguousRow`; a `SegmentedSum` of clusters, of lists
    of `Reassignment`; or such lists added by an `AddReassigned`.
    """

    def __init__(self, X, k, kind, labels, method, *, weights=None, mean=None):
        self.data, self.k, self.method = data_on_host(X, kind, weights, mean), k, method
        self.pairs, self.adds = method == "pairs", method == "added"
        self.buffers, sums = buffers_of(self.data, k)
        self.labels, self.sums, self.scales = self.buffers.labels, self.buffers.sums, sums.scales
        self.labels[:] = labels
        self.sums[:] = self.sums_of(self.labels)
        self.places = np.full(2 * len(X), UNTOUCHED, np.uint32)
        item = "AmbiguousRow" if self.pairs else "Reassignment"
        if self.adds:
            self.add = AddReassigned(self.data, sums.digits, LISTED)
        else:
            self.segments = SegmentedSum(self.data, k, sums.digits, item, LISTED, self.places)

    def sums_of(self, labels):
        return fixed_point_sums(self.data, self.buffers.scales, labels, self.k)

    def items_of(self, rows, to, room):
        """Return a list (room, 4) of rows with their old and new labels."""
        items, some = np.full((room, 4), UNTOUCHED, np.uint32), slice(len(rows))
        items[some, 0], items[some, 1] = rows, self.labels[rows].view(np.uint32)
        if self.pairs:  # the new label is the one bit that is set
            bit = (to % 8 // 2 * 16 + to // 8 * 2 + to % 2).astype(np.uint64)
            mask = np.uint64(1) << bit
            items[some, 2], items[some, 3] = mask & np.uint64(UNTOUCHED), mask >> np.uint64(32)
        else:
            items[some, 2] = to
        return items

    def move(self, rows, to):
        """Give some rows new labels, of which some may be the old ones; return how many moved."""
        parts = np.array_split(np.arange(len(rows)), LISTED)
        room, step = max(map(len, parts)) + 1, 1 if self.pairs else 2
        items = np.stack([self.items_of(rows[part], to[part], room) for part in parts])
        lengths = np.zeros((LISTED, step), np.uint32)
        lengths[:, 0] = [len(part) for part in parts]
        lists = structure(LISTS, items=items, lengths=lengths, capacity=room, step=step)
        self.places[:], self.buffers.n_reassigned[:] = UNTOUCHED, 0
        if self.adds:
            self.add.bind(self.buffers, lists)()
        else:
            launches = self.segments.bind(self.buffers, lists)
            self.ends = add_sorted(self.segments, *launches, stopped=self.buffers.stopped)
        return int(self.buffers.n_reassigned[0])

    def assert_moves(self, rows, to):
        """Rows are in the segments of what they come to and leave, and labels and sums are those of the new labels."""
        before = self.labels.copy()
        found = self.move(rows, to)
        after = before.copy()
        after[rows] = to
        np.testing.assert_array_equal(self.labels, after)
        np.testing.assert_array_equal(self.sums, self.sums_of(after))
        n_reassigned = np.flatnonzero(before != after)
        assert found == len(n_reassigned)
        if self.adds:
            return
        if self.pairs:
            wanted = {((before[row] + 1) << (self.k - 1).bit_length() | after[row], row) for row in n_reassigned}
        else:
            wanted = {(after[row], row) for row in n_reassigned}
            wanted |= {(self.k + before[row], row) for row in n_reassigned if before[row] >= 0}
        assert (self.places[len(wanted) :] == UNTOUCHED).all()
        segments = np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))
        assert set(zip(segments.tolist(), self.places[: len(segments)].tolist(), strict=True)) == wanted


@pytest.mark.parametrize("method", METHODS)
def test_by_hand(method):
    X = np.array([[1.0, 0, 0], [2, 0, 0], [4, 0, 0], [8, 0, 0], [16, 0, 0]])
    of = Updating(X, 3, KINDS[0], [-1, 0, 0, 1, 2], method)
    assert (of.sums[:, 0] / of.scales[0]).tolist() == [6.0, 8.0, 16.0]
    # 0 comes to cluster 2, 1 and 2 go from 0 to 1, 3 stays where it is; 4 is in no list.
    assert of.move(np.arange(4), np.array([2, 1, 1, 1])) == 3
    places = of.places
    assert of.labels.tolist() == [2, 1, 1, 1, 2]
    assert (of.sums[:, 0] / of.scales[0]).tolist() == [0.0, 14.0, 17.0]
    assert of.sums[:, 3].tolist() == [0, 3, 2]
    if method == "pairs":  # (none, 2) is segment 2, and (0, 1) segment 5 of 16
        assert of.ends.tolist() == [0, 0, 1, 1, 1] + 11 * [3]
        assert (places[0], set(places[1:3])) == (0, {1, 2})
    elif method == "clusters":  # come to 1, come to 2, leave 0
        assert of.ends.tolist() == [0, 2, 3, 5, 5, 5]
        assert (set(places[:2]), places[2], set(places[3:5])) == ({1, 2}, 0, {1, 2})


@pytest.mark.each_choice
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize("d", FEATURES)
def test_rows_of_any_length(d, kind, method, rng):
    n, k = 500, 9
    weights = rng.random(n) * 3 if kind[2] else None
    X = 3 * rng.standard_normal((n, d))
    of = Updating(X, k, kind, np.full(n, -1), method, weights=weights, mean=X.mean(axis=0))
    for share in (1.0, 0.6, 0.05):
        rows = rng.permutation(n)[: int(share * n)]
        of.assert_moves(rows, rng.integers(0, k, len(rows)))


@pytest.mark.each_choice
# Segments counted in shared memory or not: by the rows of a list, and by how many there are.
@pytest.mark.parametrize("n", [1, 31, 40, 3000, 9000])
@pytest.mark.parametrize(
    ("k", "method"),
    [*((k, "pairs") for k in (1, 2, 33, 64)), *((k, method) for k in (1, 700) for method in METHODS[1:])],
)
def test_any_number_of_rows_and_clusters(n, k, method, rng):
    of = Updating(rng.standard_normal((n, 3)), k, KINDS[0], rng.integers(-1, k, n), method)
    for _ in range(2):
        of.assert_moves(np.arange(n), rng.integers(0, k, n))


def test_all_rows_of_one_pair(rng):
    n = 30_000  # more than a block sorts at a time
    of = Updating(rng.standard_normal((n, 3)), 64, KINDS[0], np.full(n, 63), "pairs")
    of.assert_moves(np.arange(n), np.full(n, 62))


@pytest.mark.parametrize("method", METHODS)
def test_no_rows(method, rng):
    of = Updating(rng.standard_normal((50, 3)), 4, KINDS[0], np.zeros(50), method)
    of.assert_moves(np.arange(0), np.zeros(0, int))
    of.assert_moves(np.arange(50), np.zeros(50, int))  # listed, but they stay


@pytest.mark.parametrize("method", METHODS)
def test_stopped(method, rng):
    of = Updating(rng.standard_normal((50, 3)), 4, KINDS[0], np.zeros(50), method)
    of.buffers.stopped[:] = 1
    sums = of.sums.copy()
    assert of.move(np.arange(50), np.ones(50, int)) == 0
    assert not of.labels.any()
    np.testing.assert_array_equal(of.sums, sums)
    assert (of.places == UNTOUCHED).all()


@property_test(
    12,
    100,
    d=st.sampled_from(FEATURES),
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 1500),
    k=st.integers(1, 64),
    method=st.sampled_from(METHODS),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**16),
)
def test_any_moves(d, kind, n, k, method, share, seed):
    rng = np.random.default_rng(seed)
    weights = rng.random(n) + 0.1 if kind[2] else None
    of = Updating(rng.standard_normal((n, d)), k, kind, rng.integers(-1, k, n), method, weights=weights)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        rows = rng.permutation(n)[: int(share * n)]
        of.assert_moves(rows, rng.integers(0, k, len(rows)))
