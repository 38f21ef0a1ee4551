"""The check of an iteration by its kernel's own source on the CPU: what is wrong is found, and nothing else."""

import numpy as np
import pytest
from host_cuda.checked_kmeans import CENTERS, CHANGED, LABELS, SUMS, CheckedIterations
from host_cuda.fused_kmeans import KINDS, SHAPES, blobs
from host_cuda.tall_skinny import DTYPES

from tsapps.apps.kmeans.protect.plan import ROWS, THREADS, hash_of

#: Threads that share a row (as a power of two, more where it is longer), and centers of a block.
SHARES = [(2, 4), (6, 12), (7, 1020)]


def test_by_hand():
    X = np.array([[0.0, 0, 0], [1, 0, 0], [4, 0, 0], [3, 0, 0], [2, 0, 0]])
    centers = np.array([[0.5, 0, 0], [3.5, 0, 0]])
    of = CheckedIterations(X, 2, KINDS[0])
    _, n_reassigned = of.iterate(centers)
    _, following = of.update_centers(centers, n_reassigned)
    assert following.tolist() == [[1, 0, 0], [3.5, 0, 0]]
    assert of.check(centers, following) == 0
    assert (of.totals / of.scales).tolist() == [10, 0, 0, 5]
    # The sample in the middle is as near to the other center; the one beside it is not.
    of.labels[4] = 1
    assert of.check(centers, following) == 0
    of.labels[3] = 0
    assert of.check(centers, following) == LABELS
    of.labels[3:] = 1, 0
    of.begin()
    # One is lost; and one is added to the wrong cluster, which the totals do not know of, but the centers.
    of.sums[0, 1] -= 1
    assert of.check(centers, following) == SUMS | CENTERS
    of.sums[0, 1] += 1
    of.begin()
    of.sums[:, 0] += np.array([1, -1]) << 20
    assert of.check(centers, following) == CENTERS


def checked(d, k, kind, n, rng):
    """Return iterations of some data, their centers, and those that follow."""
    X, centers = blobs(n, d, k, rng)
    X = X.astype(DTYPES[kind[0]]).astype(np.float64)
    weights = rng.random(n) * 3 if kind[2] else None
    mean = X.mean(axis=0)
    of, centers = CheckedIterations(X, k, kind, weights, mean), centers - mean
    _, n_reassigned = of.iterate(centers)
    _, following = of.update_centers(centers, n_reassigned)
    return of, centers.astype(of.work), following


@pytest.mark.each_choice
@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_what_is_right_is_found_right_and_every_fault_is_found(d, k, kind, share, rng):
    n = 200
    options = dict(zip(("log2_threads", "each"), share, strict=True))
    of, centers, following = checked(d, k, kind, n, rng)
    assert of.check(centers, following, **options) == 0
    totals = of.totals.copy()
    of.iterate(following)
    n_reassigned = int(rng.integers(1, n))
    _, later = of.update_centers(following, n_reassigned)
    assert of.check(following, later, **options) == 0
    np.testing.assert_array_equal(of.totals, totals)
    np.testing.assert_array_equal(totals, of.sums.sum(axis=0).astype(np.uint64))

    def found():
        of.begin()
        return of.check(following, later, **options)

    # A bit of a sum, of any place: what adds up is wrong, and the center unless it is rounded away.
    for _ in range(5):
        place = int(rng.integers(k)), int(rng.integers(d + 1))
        held = of.sums[place]
        of.sums[place] ^= 1 << int(rng.integers(63))
        assert found() & SUMS
        of.sums[place] = held
    place = int(rng.integers(k)), int(rng.integers(d))
    held = later[place]
    later[place] = np.nextafter(held, np.inf)
    assert found() == CENTERS
    later[place] = held
    for label in {-1, k}:
        row = int(rng.integers(n))
        held, of.labels[row] = of.labels[row], label
        assert found() == LABELS
        of.labels[row] = held
    if k > 1:
        row = int(rng.integers(n))
        away = ((of.centered[row].astype(np.float64) - following) ** 2).sum(axis=1)
        held, of.labels[row] = of.labels[row], away.argmax()
        assert found() == LABELS
        of.labels[row] = held
    assert found() == 0


def test_rows_are_checked_in_turn(rng):
    of, centers, following = checked(16, 9, KINDS[0], 50, rng)
    of.labels[[13, 41]] = 9
    for first in range(7):
        of.begin()
        assert of.check(centers, following, first, 7) == (LABELS if first == 6 else 0)


def test_labels_of_a_byte(rng):
    of, centers, following = checked(4, 16, KINDS[0], 90, rng)
    of.labels = of.labels.astype(np.int8)
    assert of.check(centers, following) == 0
    of.labels[77] = -1
    assert of.check(centers, following) == LABELS


def test_a_cluster_without_samples_keeps_its_center(rng):
    X, _ = blobs(90, 16, 9, rng)
    centers = np.concatenate([X[:8], np.full((1, 16), 1e3)])
    of = CheckedIterations(X, 9, KINDS[0])
    _, n_reassigned = of.iterate(centers)
    outcome, following = of.update_centers(centers, n_reassigned)
    assert outcome["empty"]
    assert of.check(centers, following) == 0
    following[8, 3] += 1
    assert of.check(centers, following) == CENTERS


def labelled(X, centers, kind=KINDS[0]):
    """Return what checks labels alone: those of the nearest centers in float64, and no sums."""
    of = CheckedIterations(X, len(centers), kind)
    centers = centers.astype(of.work)
    wide = of.centered.astype(np.float64)
    of.labels[:] = [((centers.astype(np.float64) - row) ** 2).sum(axis=1).argmin() for row in wide]
    of.totals[-1] = 0
    return of, centers


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3], KINDS[4]], ids=lambda kind: kind[0])
@pytest.mark.parametrize(("d", "k"), [(1, 3), (4, 16), (15, 17), (64, 6), (130, 5), (4096, 5)])
def test_every_row_of_a_group_is_checked(d, k, kind, rng):
    for log2_threads, each in SHARES:
        # A group of rows, and a piece of another; of long rows, so that tests end soon, one of few.
        log2_threads = 7 if d > 1000 else max(log2_threads, 5 if d > 32 else 3)
        n = (ROWS * THREADS >> log2_threads) + 3
        X, centers = blobs(n, d, k, rng)
        of, centers = labelled(X.astype(DTYPES[kind[0]]).astype(np.float64), centers, kind)
        options = {"log2_threads": log2_threads, "each": each}
        assert of.check(centers, centers, **options) == 0
        for row in range(n):
            of.begin()
            held = of.labels[row]
            of.labels[row] = (held + 1 + rng.integers(k - 1)) % k
            assert of.check(centers, centers, **options) == LABELS, row
            of.labels[row] = held


@pytest.mark.parametrize("d", [1, 15, 16, 17, 40])
def test_every_column_is_checked(d, rng):
    k = 33 if d == 40 else 11  # more than a block has at a time, or not
    X, centers = blobs(50, d, k, rng)
    of, centers = labelled(X, centers)
    of.sums[...] = rng.integers(-(1 << 40), 1 << 40, of.sums.shape)
    of.sums[:, -1] = rng.integers(1, 99, k)
    of.totals[-1] = of.sums[:, -1].sum()
    following = (of.sums[:, :-1] / of.scales[:-1]) * (1 / (of.sums[:, -1:] / of.scales[-1]))
    following = following.astype(of.work)
    assert of.check(centers, following) == 0
    for column in range(d + 1):
        cluster = int(rng.integers(k))
        of.begin()
        of.sums[cluster, column] += 1
        assert of.check(centers, following) & SUMS, column
        of.sums[cluster, column] -= 1
        if column < d:
            of.begin()
            held = following[cluster, column]
            following[cluster, column] = np.nextafter(held, np.float32(np.inf))
            assert of.check(centers, following) == CENTERS, column
            following[cluster, column] = held


def test_what_float32_cannot_tell_is_told_by_float64():
    # ‖x − c‖² of 1 and of 1 − 2⁻²² in the first two, and of what overflows in the third and the fourth.
    X, centers = np.zeros((3, 20)), np.zeros((4, 20))
    centers[0, 3], centers[1, 7] = 1, 1 - 2.0**-23
    centers[2:, 11] = 3e25, 1e25
    X[2, 11] = 9e25
    of, centers = labelled(X, centers)
    assert of.labels.tolist() == [1, 1, 2]
    for share in SHARES:
        options = dict(zip(("log2_threads", "each"), share, strict=True))
        for row, wrong in ((0, 0), (1, 0), (2, 3)):
            of.begin()
            assert of.check(centers, centers, **options) == 0
            held, of.labels[row] = of.labels[row], wrong
            assert of.check(centers, centers, **options) == LABELS
            of.labels[row] = held


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]], ids=lambda kind: kind[0])
def test_any_of_equal_centers_will_do(kind, rng):
    X, centers = blobs(90, 6, 5, rng)
    of, centers = labelled(X, np.concatenate([centers, centers]), kind)
    of.labels[::2] += 5
    assert of.check(centers, centers) == 0
    of.labels[8] = (of.labels[8] + 1) % 10
    assert of.check(centers, centers) == LABELS


def test_what_follows_the_end_is_not_checked(rng):
    of, centers, following = checked(16, 9, KINDS[0], 50, rng)
    stopped, some = np.ones(1, np.int32), (of.n, 0, 1)
    # What ended iterations is checked; what comes after it is not, until others begin.
    assert not of.launch(centers, following, stopped, some, 2, 4).any()
    assert of.over[0] == of.number == 1
    of.labels -= 2
    of.known = True
    assert not of.launch(centers, following, stopped, some, 2, 4).any()
    assert of.over[0] == 1
    of.begin()
    assert of.launch(centers, following, stopped, some, 2, 4).tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_hash_by_hand(dtype):
    centers = np.array([[1.0, -2.0], [0.5, 0.0]], dtype)
    centers_half = {np.float32: (0x3F800000, 0xC0000000, 0x3F000000), np.float64: (0x3FF00000, 0xC0000000, 0x3FE00000)}[
        dtype
    ]
    # Of float64 the upper half is in the lower too, which is zero of these numbers.
    one, minus_two, half = (bits if dtype == np.float32 else bits << 32 | bits for bits in centers_half)
    factor = 0x9E3779B97F4A7C15
    assert hash_of(centers).tolist() == [(one + 3 * half) * factor % 2**64, minus_two * factor % 2**64]


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]], ids=lambda kind: kind[0])
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_centers_that_changed_after_their_check_are_found(d, k, kind, rng):
    of, centers, following = checked(d, k, kind, 50, rng)
    assert of.check(centers, following) == 0
    np.testing.assert_array_equal(of.hashes[1], hash_of(following))
    of.iterate(following)
    _, later = of.update_centers(following, 1)
    assert of.check(following, later) == 0

    def found(changed):
        """What a check finds at centers in whose place others were computed; sums and labels are those of the right."""
        of.begin()
        of.expected = following
        try:
            return of.check(changed, later) & CHANGED
        finally:
            of.expected = None

    assert found(following) == 0
    bits = 8 * following.dtype.itemsize
    for bit in {0, 1, bits // 2, bits - 2, bits - 1}:
        changed = following.copy()
        place = int(rng.integers(k)), int(rng.integers(d))
        changed.view(f"u{bits // 8}")[place] ^= 1 << bit
        assert found(changed) == CHANGED, bit
    if k > 1:
        a, b = rng.choice(k, 2, replace=False)
        changed = following.copy()
        changed[[a, b]] = changed[[b, a]]
        assert found(changed) == CHANGED
        changed = following.copy()
        changed[a] = centers[a]
        assert found(changed) == (CHANGED if (changed != following).any() else 0)
