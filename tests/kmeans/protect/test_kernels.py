"""The check of an iteration (StepCheck) on a HostMachine: it finds what is wrong, and nothing else."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from host_cuda import harness
from kmeans.host_steps import (
    DTYPES,
    KINDS,
    SHAPES,
    blobs,
    buffers_of,
    centered,
    data_on_host,
    iterate_once,
    place,
)

from tsapps.apps.kmeans.assign.plan import assign_plan
from tsapps.apps.kmeans.data.plan import vector_of
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep
from tsapps.apps.kmeans.protect import launch
from tsapps.apps.kmeans.protect.launch import FAULTS, StepCheck, fixed_point_weight
from tsapps.apps.kmeans.protect.plan import COLUMNS, HASH_FACTOR, ROWS, THREADS, hash_of

#: What a check may find wrong, as bits in the order of `FAULTS`.
SUMS, CENTERS, LABELS, CHANGED = 1, 2, 4, 8
#: Threads that share a row (as a power of two, more where it is longer), and centers of a block.
SHARES = [(2, 4), (6, 12), (7, 1020)]


def plan_of_share(log2_threads, each):
    """Return a `check_plan` by which at least so many threads share a row, and a block has `each` centers."""

    def check_plan(samples, d, k, itemsize, multiprocessors, *, whole):
        vectors = -(-d // (vector_of(itemsize) if whole else 1))
        shared_by = max(log2_threads, min(5, (vectors - 1).bit_length()))
        groups = -(-samples // (ROWS * THREADS >> shared_by))
        return shared_by, each, groups * -(-k // each) + d // COLUMNS + 1

    return check_plan


class Checks:
    """Checks of the labels, sums and centers in some buffers."""

    def __init__(self, data, buffers, k, weight_scale, *, share=SHARES[0], stride=1):
        # The data too, as buffers have the address of X alone.
        self.data, self.buffers = data, buffers
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(launch, "check_plan", plan_of_share(*share))
            patch.setattr(launch, "stride_of", lambda _: stride)
            self.check = StepCheck(data, buffers, k, fixed_point_weight(data, weight_scale), 1)
        self.check.begin()

    def launched(self, centers, following, *, expected=None, stopped=False):
        """Launch a check of an iteration at `centers`, which made `following`; return whether it finds each fault.

        It expects `expected`, by default the centers.
        """
        now, after = self.buffers.centers
        now[...], after[...], self.buffers.stopped[...] = centers, following, stopped
        self.check.expect(now if expected is None else expected)
        self.check.launch(now, after, 0, 0)
        return self.check._seen[0].tolist()

    def found(self, centers, following, *, expected=None):
        """Check an iteration that was not stopped, whatever was found before; return what is wrong, as bits."""
        self.check.begin()
        seen = self.launched(centers, following, expected=expected)
        assert set(seen) <= {0, 1}
        assert (self.check._over[0] == self.check._turn) == self.buffers.stopped[0] == any(seen)
        faults = [fault for fault, wrong in zip(FAULTS, seen, strict=True) if wrong]
        assert self.check.fault(0) == ("; ".join(faults) or None)
        assert self.check.lost(0) == bool(seen[3])
        return sum(wrong << bit for bit, wrong in enumerate(seen))


def step_of(X, k, kind, weights=None, mean=None):
    """Return a step with no sample in any cluster."""
    data = data_on_host(X, kind, weights, mean, multiprocessors=1)
    step = SmallKStep(data, assign_plan(*data.source.shape, k, data.gpu), k, bounds=False, certifies=True)
    step.reset()
    return step


def checks_of(step, **options):
    return Checks(step.data, step.buffers, step.k, step.integers.scales[-1], **options)


def iterated(d, k, kind, n, rng):
    """Return a step over some data after an iteration, its centers, and those that follow."""
    X, centers = blobs(n, d, k, rng)
    X = X.astype(DTYPES[kind[0]]).astype(np.float64)
    step = step_of(X, k, kind, rng.random(n) * 3 if kind[2] else None, X.mean(axis=0))
    place(step, centers - step.data.shift)
    centers, _, following = iterate_once(step, 0)
    return step, centers, following


def test_by_hand():
    X = np.array([[0.0, 0, 0], [1, 0, 0], [4, 0, 0], [3, 0, 0], [2, 0, 0]])
    step = step_of(X, 2, KINDS[0])
    place(step, np.array([[0.5, 0, 0], [3.5, 0, 0]]))
    centers, _, following = iterate_once(step, 0)
    assert following.tolist() == [[1, 0, 0], [3.5, 0, 0]]
    checks, labels, sums = checks_of(step), step.labels, step.buffers.sums
    assert checks.found(centers, following) == 0
    assert (checks.check._totals / step.integers.scales).tolist() == [10, 0, 0, 5]
    # The sample in the middle is as near to the other center; the one beside it is not.
    labels[4] = 1
    assert checks.found(centers, following) == 0
    labels[3] = 0
    assert checks.found(centers, following) == LABELS
    labels[3:] = 1, 0
    # One is lost; and one is added to the wrong cluster, which the totals do not know of, but the centers.
    sums[0, 1] -= 1
    assert checks.found(centers, following) == SUMS | CENTERS
    sums[0, 1] += 1
    sums[:, 0] += np.array([1, -1]) << 20
    assert checks.found(centers, following) == CENTERS


@pytest.mark.each_choice
@pytest.mark.parametrize("share", SHARES, ids=str)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_what_is_right_is_found_right_and_every_fault_is_found(d, k, kind, share, rng):
    n = 100
    step, centers, following = iterated(d, k, kind, n, rng)
    checks, labels, sums = checks_of(step, share=share), step.labels, step.buffers.sums
    assert checks.found(centers, following) == 0
    totals = checks.check._totals.copy()
    place(step, following)
    _, _, later = iterate_once(step, 0)
    assert checks.found(following, later) == 0
    np.testing.assert_array_equal(checks.check._totals, totals)
    np.testing.assert_array_equal(totals, sums.sum(axis=0).astype(np.uint64))
    # A bit of a sum, of any place: what adds up is wrong, and the center unless it is rounded away.
    for _ in range(5):
        changed = int(rng.integers(k)), int(rng.integers(d + 1))
        held = sums[changed]
        sums[changed] ^= 1 << int(rng.integers(63))
        assert checks.found(following, later) & SUMS
        sums[changed] = held
    changed = int(rng.integers(k)), int(rng.integers(d))
    held = later[changed]
    later[changed] = np.nextafter(held, np.inf)
    assert checks.found(following, later) == CENTERS
    later[changed] = held
    for label in {-1, k}:
        row = int(rng.integers(n))
        held, labels[row] = labels[row], label
        assert checks.found(following, later) == LABELS
        labels[row] = held
    if k > 1:
        row = int(rng.integers(n))
        away = oracle.square_distances(centered(step.data)[row : row + 1], following)
        held, labels[row] = labels[row], away.argmax()
        assert checks.found(following, later) == LABELS
        labels[row] = held
    assert checks.found(following, later) == 0


def test_rows_are_checked_in_turn(rng):
    step, centers, following = iterated(16, 9, KINDS[0], 50, rng)
    checks = checks_of(step, stride=7)
    step.labels[[13, 41]] = 9
    for first in range(7):
        assert checks.found(centers, following) == (LABELS if first == 6 else 0)


def test_iterations_in_a_row(rng):
    """Centers change places from one iteration to the next, and each check leaves the hash that the next expects."""
    X, _ = blobs(300, 16, 9, rng, apart=0.5)
    step = step_of(X, 9, KINDS[0])
    check, buffers = StepCheck(step.data, step.buffers, 9, step.own_weight(), 2), step.buffers
    place(step, X[:9])
    check.begin()
    check.expect(buffers.centers[0])
    for count in range(5):
        now = count % 2
        _, outcome, following = iterate_once(step, count)
        assert not outcome["stop"]
        check.launch(buffers.centers[now], buffers.centers[1 - now], now, now)
        assert check.fault(now) is None
        assert check.are_right(following, 1 - now)
        assert not check.are_right(following + 1, 1 - now)
    buffers.centers[1 - now][3, 5] += 1
    iterate_once(step, count + 1)
    check.launch(buffers.centers[1 - now], buffers.centers[now], 1 - now, 1 - now)
    assert check.lost(1 - now)


def test_labels_of_a_byte(rng):
    step, centers, following = iterated(4, 16, KINDS[0], 90, rng)
    labels = step.labels.astype(np.int8)
    buffers = replace(step.buffers, labels=labels)
    checks = Checks(step.data, buffers, 16, step.integers.scales[-1])
    assert checks.found(centers, following) == 0
    labels[77] = -1
    assert checks.found(centers, following) == LABELS


def test_a_cluster_without_samples_keeps_its_center(rng):
    X, _ = blobs(90, 16, 9, rng)
    step = step_of(X, 9, KINDS[0])
    place(step, np.concatenate([X[:8], np.full((1, 16), 1e3)]))
    centers, outcome, following = iterate_once(step, 0)
    assert outcome["empty"]
    checks = checks_of(step)
    assert checks.found(centers, following) == 0
    following[8, 3] += 1
    assert checks.found(centers, following) == CENTERS


def labelled(X, centers, kind=KINDS[0], **options):
    """Return what checks labels alone: those of the nearest centers in float64, and no sums."""
    data, k = data_on_host(X, kind), len(centers)
    buffers, sums = buffers_of(data, k)
    centers = centers.astype(data.dtype)
    buffers.labels[:] = oracle.square_distances(centered(data), centers).argmin(axis=1)
    buffers.sums[:] = 0
    checks = Checks(data, buffers, k, sums.scales[-1], **options)
    checks.check._totals[-1] = 0
    return checks, centers


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3], KINDS[4]], ids=lambda kind: kind[0])
@pytest.mark.parametrize(("d", "k"), [(1, 3), (4, 16), (15, 17), (64, 6), (130, 5), (4096, 5)])
def test_every_row_of_a_group_is_checked(d, k, kind, rng):
    for log2_threads, each in SHARES:
        # A group of rows, and a piece of another; of long rows, so that tests end soon, one of few.
        log2_threads = 7 if d > 1000 else max(log2_threads, 5 if d > 32 else 3)
        n = (ROWS * THREADS >> log2_threads) + 3
        X, centers = blobs(n, d, k, rng)
        X = X.astype(DTYPES[kind[0]]).astype(np.float64)
        checks, centers = labelled(X, centers, kind, share=(log2_threads, each))
        labels = checks.buffers.labels
        assert checks.found(centers, centers) == 0
        for row in range(n):
            held = labels[row]
            labels[row] = (held + 1 + rng.integers(k - 1)) % k
            assert checks.found(centers, centers) == LABELS, row
            labels[row] = held


@pytest.mark.parametrize("d", [1, 15, 16, 17, 40])
def test_every_column_is_checked(d, rng):
    k = 33 if d == 40 else 11  # more than a block has at a time, or not
    X, centers = blobs(50, d, k, rng)
    checks, centers = labelled(X, centers)
    sums, units = checks.buffers.sums, checks.buffers.units
    sums[...] = rng.integers(-(1 << 40), 1 << 40, sums.shape)
    sums[:, -1] = rng.integers(1, 99, k)
    checks.check._totals[-1] = sums[:, -1].sum()
    following = (sums[:, :-1] * units[:-1]) * (1 / (sums[:, -1:] * units[-1]))
    following = following.astype(np.float32)
    assert checks.found(centers, following) == 0
    for column in range(d + 1):
        cluster = int(rng.integers(k))
        sums[cluster, column] += 1
        assert checks.found(centers, following) & SUMS, column
        sums[cluster, column] -= 1
        if column < d:
            held = following[cluster, column]
            following[cluster, column] = np.nextafter(held, np.float32(np.inf))
            assert checks.found(centers, following) == CENTERS, column
            following[cluster, column] = held


@pytest.mark.parametrize("share", SHARES, ids=str)
def test_what_float32_cannot_tell_is_told_by_float64(share):
    # ‖x − c‖² of 1 and of 1 − 2⁻²² in the first two, and of what overflows in the third and the fourth.
    X, centers = np.zeros((3, 20)), np.zeros((4, 20))
    centers[0, 3], centers[1, 7] = 1, 1 - 2.0**-23
    centers[2:, 11] = 3e25, 1e25
    X[2, 11] = 9e25
    checks, centers = labelled(X, centers, share=share)
    labels = checks.buffers.labels
    assert labels.tolist() == [1, 1, 2]
    for row, wrong in ((0, 0), (1, 0), (2, 3)):
        assert checks.found(centers, centers) == 0
        held, labels[row] = labels[row], wrong
        assert checks.found(centers, centers) == LABELS
        labels[row] = held


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[3]], ids=lambda kind: kind[0])
def test_any_of_equal_centers_will_do(kind, rng):
    X, centers = blobs(90, 6, 5, rng)
    checks, centers = labelled(X, np.concatenate([centers, centers]), kind)
    labels = checks.buffers.labels
    labels[::2] += 5
    assert checks.found(centers, centers) == 0
    labels[8] = (labels[8] + 1) % 10
    assert checks.found(centers, centers) == LABELS


def test_what_follows_the_end_is_not_checked(rng):
    step, centers, following = iterated(16, 9, KINDS[0], 50, rng)
    checks = checks_of(step)
    # What ended iterations is checked; what comes after it is not, until others begin.
    assert not any(checks.launched(centers, following, stopped=True))
    assert checks.check._over[0] == checks.check._turn == 1
    step.labels[:] -= 2
    assert not any(checks.launched(centers, following, stopped=True))
    assert checks.check._over[0] == 1
    checks.check.begin()
    assert checks.launched(centers, following, stopped=True) == [0, 0, 1, 0]


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
    step, centers, following = iterated(d, k, kind, 50, rng)
    checks = checks_of(step)
    assert checks.found(centers, following) == 0
    np.testing.assert_array_equal(checks.check._hashes[1], hash_of(following))
    assert checks.check.are_right(following, 1)
    place(step, following)
    _, _, later = iterate_once(step, 0)
    assert checks.found(following, later) == 0

    def found(changed):
        """What a check finds at centers in whose place others were computed; sums and labels are those of the right."""
        return checks.found(changed, later, expected=following) & CHANGED

    assert found(following) == 0
    bits = 8 * following.dtype.itemsize
    for bit in {0, 1, bits // 2, bits - 2, bits - 1}:
        changed = following.copy()
        element = int(rng.integers(k)), int(rng.integers(d))
        changed.view(f"u{bits // 8}")[element] ^= 1 << bit
        assert found(changed) == CHANGED, bit
    if k > 1:
        a, b = rng.choice(k, 2, replace=False)
        changed = following.copy()
        changed[[a, b]] = changed[[b, a]]
        assert found(changed) == CHANGED
        changed = following.copy()
        changed[a] = centers[a]
        assert found(changed) == (CHANGED if (changed != following).any() else 0)


def test_constants_are_those_of_the_kernel():
    constants = {"kCheckThreads": THREADS, "kCheckRows": ROWS, "kCheckColumns": COLUMNS, "kHashFactor": HASH_FACTOR}
    assertions = [f"static_assert(kmeans::{name} == {value}ULL);" for name, value in constants.items()]
    harness.build("\n".join(['#include "apps/kmeans/protect/check_iteration.cuh"', *assertions]))
