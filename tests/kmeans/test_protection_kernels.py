"""The check of an iteration by its kernel's own source on the CPU: what is wrong is found, and nothing else."""

import numpy as np
import pytest
from host_cuda.checked_kmeans import CENTRES, LABELS, SUMS, CheckedIterations
from host_cuda.fused_kmeans import KINDS, SHAPES, blobs
from host_cuda.tall_skinny import DTYPES


def test_by_hand():
    X = np.array([[0.0, 0, 0], [1, 0, 0], [4, 0, 0], [3, 0, 0], [2, 0, 0]])
    centers = np.array([[0.5, 0, 0], [3.5, 0, 0]])
    of = CheckedIterations(X, 2, KINDS[0])
    _, moved = of.iterate(centers)
    _, following = of.advance(centers, moved)
    assert following.tolist() == [[1, 0, 0], [3.5, 0, 0]]
    assert of.check(centers, following) == 0
    assert (of.columns_of_sums[1] / of.scales).tolist() == [10, 0, 0, 5]
    # The sample in the middle is as near to the other centre; the one beside it is not.
    of.labels[4] = 1
    assert of.check(centers, following) == 0
    of.labels[3] = 0
    assert of.check(centers, following) == LABELS
    of.labels[3:] = 1, 0
    of.begin()
    # One is lost; and one is added to the wrong cluster, which the totals do not know of, but the centres.
    of.sums[0, 1] -= 1
    assert of.check(centers, following) == SUMS | CENTRES
    of.sums[0, 1] += 1
    of.begin()
    of.sums[:, 0] += np.array([1, -1]) << 20
    assert of.check(centers, following) == CENTRES


def checked(d, k, kind, n, rng):
    """Return iterations of some data, their centres, and those that follow."""
    X, centers = blobs(n, d, k, rng)
    X = X.astype(DTYPES[kind[0]]).astype(np.float64)
    weights = rng.random(n) * 3 if kind[2] else None
    mean = X.mean(axis=0)
    of, centers = CheckedIterations(X, k, kind, weights, mean), centers - mean
    _, moved = of.iterate(centers)
    _, following = of.advance(centers, moved)
    return of, centers.astype(of.work), following


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "k"), SHAPES)
def test_what_is_right_is_found_right_and_every_fault_is_found(d, k, kind, parts, rng):
    n, parts = 200, min(parts, max(1, k // 2))
    of, centers, following = checked(d, k, kind, n, rng)
    assert of.check(centers, following, parts=parts) == 0
    totals = of.columns_of_sums[1].copy()
    of.iterate(following)
    moved = int(rng.integers(1, n))
    _, later = of.advance(following, moved)
    assert of.check(following, later, parts=parts) == 0
    np.testing.assert_array_equal(of.columns_of_sums[1], totals)
    np.testing.assert_array_equal(totals, of.sums.sum(axis=0).astype(np.uint64))

    def found():
        of.begin()
        return of.check(following, later, parts=parts)

    # A bit of a sum, of any place: what adds up is wrong, and the centre unless it is rounded away.
    for _ in range(5):
        place = int(rng.integers(k)), int(rng.integers(d + 1))
        held = of.sums[place]
        of.sums[place] ^= 1 << int(rng.integers(63))
        assert found() & SUMS
        of.sums[place] = held
    place = int(rng.integers(k)), int(rng.integers(d))
    held = later[place]
    later[place] = np.nextafter(held, np.inf)
    assert found() == CENTRES
    later[place] = held
    for label in {-1, k}:
        row = int(rng.integers(n))
        held, of.labels[row] = of.labels[row], label
        assert found() == LABELS
        of.labels[row] = held
    if k > 1:
        row = int(rng.integers(n))
        away = ((of.centred[row].astype(np.float64) - following) ** 2).sum(axis=1)
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


def test_a_cluster_without_samples_keeps_its_centre(rng):
    X, _ = blobs(90, 16, 9, rng)
    centers = np.concatenate([X[:8], np.full((1, 16), 1e3)])
    of = CheckedIterations(X, 9, KINDS[0])
    _, moved = of.iterate(centers)
    outcome, following = of.advance(centers, moved)
    assert outcome["empty"]
    assert of.check(centers, following) == 0
    following[8, 3] += 1
    assert of.check(centers, following) == CENTRES


def test_what_follows_the_end_is_not_checked(rng):
    of, centers, following = checked(16, 9, KINDS[0], 50, rng)
    of.checks[2] = 1
    stopped, seen = np.ones(1, np.int32), np.full(1, 77, np.uint32)
    some = of.labels - 2, of.n, 0, 1, 1
    state = of.columns_of_sums, of.checks, stopped, seen
    arguments = centers, following, of.k, *some, of.sums, 1 / of.scales, of.weight, *state
    of.checked.call(f"check_int_{of.name}", of.rows(), *arguments)
    assert seen[0] == 77
    assert of.checks.tolist() == [0, 0, 1, 0]
