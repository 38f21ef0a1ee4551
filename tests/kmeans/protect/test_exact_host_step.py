"""Protected fits of the step with certified labels on the CPU: faults are found, and the result is the right one."""

from functools import partial

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines import engine as engines
from tsapps.apps.kmeans.engines.exact_host_step import ExactHostStep
from tsapps.apps.kmeans.protect.checks import MOST_AGAIN
from tsapps.errors import FaultError

FOUR = np.array([[0.0], [1.0], [10.0], [11.0]])


class FaultyStep(ExactHostStep):
    """A step in whose passes number `faulty`, from 0, memory changes: before rows are labeled, or after.

    Attributes
    ----------
    made : list
        The steps that were made.
    """

    def __init__(self, data, k, *, faulty, before, made):
        self._faulty, self._before, self.passes = faulty, before, 0
        super().__init__(data, k)
        made.append(self)

    def _relabel(self, nearest, *, update):
        fault = self._faulty.get(self.passes, lambda step, nearest: None)
        self.passes += 1
        if self._before:
            fault(self, nearest)
        count = super()._relabel(nearest, update=update)
        if not self._before:
            fault(self, nearest)
        return count


def fit(X, k, faulty=None, *, before=False, weights=None, **options):
    """Fit X, protected where `faulty` says which passes go wrong; return the result and the number of passes."""
    options = {"init": X[:k].astype(np.float64), "tol": 0, "random_state": np.random.RandomState(0)} | options
    made = []
    step = partial(FaultyStep, faulty=faulty or {}, before=before, made=made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "ExactHostStep", step)
        engine = engines.HostEngine(ArrayRows(X), X.dtype, weights, as_kernels=True)
        found = lloyd.fit(engine, k, protect=faulty is not None, **options)
    return found, made[-1].passes


def assert_same(found, expected):
    """The same clustering to the bit."""
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.centers, expected.centers)
    np.testing.assert_array_equal(found.cluster_sizes, expected.cluster_sizes)
    assert (found.inertia, found.n_iter) == (expected.inertia, expected.n_iter)


def flip(array, place, bit):
    """Flip one bit of one element."""
    bits = array.reshape(-1).view(f"u{array.itemsize}")
    bits[place] ^= np.array(1 << bit, bits.dtype)


def wrong_label(step, nearest):
    flip(step.labels, 0, 0)


def wrong_sum(step, nearest):
    flip(step.sums, 0, 3)


def wrong_weight(step, nearest):
    flip(step.sums, 3, 60)


def wrong_second_sum(step, nearest):
    flip(step._again, 0, 3)


def wrong_center(step, nearest):
    flip(nearest.centers, 1, 51)


def wrong_norm(step, nearest):
    flip(nearest._norms, 1, 50)


OF_SUMS, OF_CENTERS = [wrong_label, wrong_sum, wrong_weight, wrong_second_sum], [wrong_center, wrong_norm]
# From centers 0 and 10: labels 0 0 1 1, then the same at 0.5 and 10.5, and once more to check the result.
HAND = {"init": np.array([[0.0], [10.0]])}


@pytest.mark.parametrize(("when", "before"), [(0, False), (1, True), (1, False)])
@pytest.mark.parametrize("fault", OF_SUMS + OF_CENTERS)
def test_by_hand(fault, when, before):
    expected, _ = fit(FOUR, 2, **HAND)
    assert expected.centers.tolist() == [[0.5], [10.5]]
    found, passes = fit(FOUR, 2, {}, **HAND)
    assert (found.faults, passes) == (0, 3)
    assert_same(found, expected)
    found, passes = fit(FOUR, 2, {when: fault}, before=before, **HAND)
    assert found.faults == 1
    assert passes > 3
    assert_same(found, expected)


@pytest.mark.parametrize("fault", [wrong_label, wrong_sum, wrong_weight])
def test_faults_while_the_result_is_checked(fault):
    expected, _ = fit(FOUR, 2, **HAND)
    found, passes = fit(FOUR, 2, {2: fault}, **HAND)
    assert (found.faults, passes) == (1, 6)  # the whole run, once more
    assert_same(found, expected)
    # Ended by max_iter: the second pass is of the final centers, and the third labels rows once more.
    options = HAND | {"max_iter": 1}
    expected, _ = fit(FOUR, 2, **options)
    assert not expected.converged
    for when in (1, 2):
        found, passes = fit(FOUR, 2, {when: fault}, **options)
        assert (found.faults, passes) == (1, 6)
        assert_same(found, expected)


def test_sums_are_compared_in_the_iteration_of_the_fault():
    # The first two passes, and the first once more; the second then counts every row, and needs another one.
    for fault in (wrong_sum, wrong_second_sum, wrong_center, wrong_norm):
        assert fit(FOUR, 2, {0: fault}, **HAND)[1] == 4


def test_a_label_that_changed_between_passes_shows_in_the_sums():
    """It moves a row that is not where its label is: the totals of the sums stay right, and so do labels."""
    found, passes = fit(FOUR, 2, {1: wrong_label}, before=True, **HAND)
    assert found.faults == 1
    assert passes > 4
    assert_same(found, fit(FOUR, 2, **HAND)[0])


def test_a_fault_that_persists_is_an_error():
    for fault, what in (
        (wrong_sum, "the cluster sums differed when they were computed twice"),
        (wrong_label, "some samples had a label whose center was not the nearest"),
        (wrong_norm, "the centers changed during the assignment"),
    ):
        with pytest.raises(FaultError, match=rf"iteration 1 went wrong {MOST_AGAIN + 1} times, .* {what}"):
            fit(FOUR, 2, dict.fromkeys(range(100), fault), **HAND)


@pytest.mark.parametrize(
    ("name", "fault"),
    [("inertia", "the inertia differed"), ("_sums_of_labels", "the running sums were not those of the samples")],
)
def test_a_result_that_never_comes_out_the_same_is_an_error(name, fault, monkeypatch):
    right, calls = getattr(ExactHostStep, name), []

    def wrong(step, *arguments):
        calls.append(1)
        return right(step, *arguments) + len(calls)

    monkeypatch.setattr(ExactHostStep, name, wrong)
    with pytest.raises(FaultError, match=rf"the result of a run went wrong {MOST_AGAIN + 1} times, .* {fault}"):
        fit(FOUR, 2, {}, **HAND)
    assert len(calls) >= MOST_AGAIN + 1


@property_test(
    30,
    300,
    n=st.sampled_from([70, 300, 1000]),
    kind=st.sampled_from(["labels", "sums", "again", "centers"]),
    weighted=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
    before=st.booleans(),
    empty=st.booleans(),
    max_iter=st.sampled_from([2, 6]),
    seed=st.integers(0, 2**16),
)
def test_any_bit_that_changes_is_found(n, kind, weighted, dtype, before, empty, max_iter, seed):
    """Of a label that stays one of a cluster, of either sums and of centers that stay numbers, in any pass of a fit."""
    rng, k, d = np.random.default_rng(seed), 4, 3
    X = (rng.standard_normal((n, d)) + 3 * rng.integers(0, 2, (n, d))).astype(dtype)
    weights = (rng.random(n) + 0.5).astype(dtype) if weighted else None
    init = X[:k].astype(np.float64)
    if empty:
        init[2] = 1e3
    options = {"init": init, "max_iter": max_iter, "weights": weights}
    expected, _ = fit(X, k, **options)
    right, passes = fit(X, k, {}, **options)
    assert right.faults == 0
    when = int(rng.integers(passes - (kind == "centers")))

    def fault(step, nearest):
        if kind == "labels":
            if step.labels[0] >= 0:
                flip(step.labels, rng.integers(n), rng.integers(2))
        elif kind == "centers":
            flip(nearest.centers, rng.integers(k * d), rng.integers(np.finfo(dtype).nmant))
        else:
            flip(step.sums if kind == "sums" else step._again, rng.integers(k * (d + 1)), rng.integers(64))

    found, _ = fit(X, k, {when: fault}, before=before, **options)
    assert_same(found, expected)
    # What changes after it was last used does not matter: second sums and centers while a result is checked.
    may_be_late = kind in ("again", "centers") or (kind == "labels" and before and when == 0)
    assert found.faults == 1 or (found.faults == 0 and may_be_late)
