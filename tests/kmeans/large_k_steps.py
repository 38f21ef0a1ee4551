"""Steps for large k on a HostMachine, and plans of their products for tests."""

from dataclasses import replace

import numpy as np
from host_cuda import harness
from kmeans.host_steps import DTYPES, KINDS, assert_right, assign_placed, away_of, blobs, data_on_host, place

from tsapps.apps.kmeans.assign.large_k_plan import ResidentPlan, StreamPlan
from tsapps.apps.kmeans.assign.plan import AMBIGUOUS_LARGE_K_BYTES
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep

BLOCKS = 3
#: d and a plan: rows that stay in turns of one chunk and of several, and rows that stream by; and lanes that keep the
#: candidates of all column tiles, of up to 312 centers.
STAYS, STAYS_IN_PARTS, STREAMS, KEEPS_ALL = (
    (100, StreamPlan(7, 1, 4, 5, 2)),
    (50, StreamPlan(2, 2, 3, 3, 4)),
    (70, StreamPlan(1, 5, 2, 3, 5, 200, stays=False)),
    (40, StreamPlan(3, 1, 4, 5, 2, 104, levels=False, tiles=3)),
)
PLANS = [STAYS, STAYS_IN_PARTS, STREAMS, KEEPS_ALL]
#: d and a plan that splits rows: with all columns in use, with padding, and with the rows' tiles in parts.
SPLITS = [
    (16, StreamPlan(3, 1, 4, 4, 2, split=True)),
    (3, StreamPlan(1, 1, 2, 3, 2, split=True)),
    (13, StreamPlan(2, 2, 3, 3, 4, split=True)),
]
#: Plans for centers in shared memory: with one to four features per lane. The last has so many column tiles that their
#: loop is not unrolled.
RESIDENTS = [
    ResidentPlan(128, 2, 16, groups=1),
    ResidentPlan(104, 2, 3, groups=2),
    ResidentPlan(96, 3, 11, groups=2),
    ResidentPlan(128, 1, 7, groups=1),
    ResidentPlan(40, 7, 5, groups=1),
]


class Step(LargeKStep):
    """A step that can be told how to update the sums: True to sort reassigned rows, False to add them."""

    sorts = None

    @property
    def _sorts(self):
        return super()._sorts if self.sorts is None else self.sorts


def step_of(X, k, kind, plan, weights=None, mean=None, *, certifies=True, middle=None):
    """Return a step with no sample in any cluster."""
    data = data_on_host(X, kind, weights, mean, middle=middle, multiprocessors=BLOCKS)
    if isinstance(plan, StreamPlan):
        plan = replace(plan, levels=plan.levels and certifies)
    step = Step(data, plan, k, certifies=certifies)
    step.reset()
    return step


def candidates(step):
    """Return how many candidates each ambiguous row has, or 0 for all centers, before they are rescored."""
    lengths = step._lengths.reshape(-1, 3)
    words = AMBIGUOUS_LARGE_K_BYTES[step._plan.candidates] // 4
    ambiguous = step._ambiguous.view(np.uint32).reshape(len(lengths), -1, words)
    assert (lengths <= ambiguous.shape[1]).all()
    each = zip(ambiguous, lengths, strict=True)
    found = np.concatenate([[*(some[:listed, 2] % 2**16), *np.zeros(all_, int)] for some, (_, listed, all_) in each])
    assert step.ambiguous_counts().tolist() == [np.count_nonzero(found), np.count_nonzero(found == 0)]
    return found


def assign(step, centers):
    """Assign samples to centers; return the `candidates` of ambiguous rows and the number of reassigned rows."""
    found = assign_placed(step, place(step, centers), candidates)
    assert (step._lengths <= step._capacity).all()
    return found


def assert_labels_and_sums(d, plan, kind, n, k, most_ambiguous, rng):
    """Assert the labels and sums of two assignments, and that few rows are ambiguous in each."""
    away = away_of(kind)
    X, centers = blobs(n, d, k, rng, apart=0.7)
    weights = rng.random(n) * 3 if kind[2] else None
    X = (X + away).astype(DTYPES[kind[0]]).astype(np.float64)
    step = step_of(X, k, kind, plan, weights, X.mean(axis=0))
    assert step.data.shift.any() or not away
    centers = centers + away - step.data.shift
    for scale, step.sorts in ((0, False), (0.2, True)):
        now = centers + scale * rng.standard_normal(centers.shape)
        before = step.labels.copy()
        ambiguous, n_reassigned = assign(step, now)
        assert_right(step, now)
        assert n_reassigned == np.count_nonzero(before != step.labels)
        assert len(ambiguous) <= most_ambiguous


def assert_right_whatever_the_data(d, plan, kind, n, k, grain, seed):
    """Assert the labels and sums of random data in two assignments, of which `grain` makes many ties."""
    rng = np.random.default_rng(seed)
    X, centers = blobs(n, d, k, rng, apart=rng.choice([0.1, 1.0, 30.0]))
    if grain:
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    step = step_of(X, k, kind, plan)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        for now in (centers, centers[::-1].copy()):
            assign(step, now)
            assert_right(step, now)


def assert_lowest_of_equal_centers(d, plan, places, most_ambiguous, rng):
    """Assert that of equal centers at `places` the lowest index wins, and that no row is ambiguous because of them."""
    X, centers = blobs(150, d, 210, rng, apart=0.5)
    X[:100] = centers[places[-1]] + 0.1 * rng.standard_normal((100, d))
    centers[places] = centers[places[-1]]
    step = step_of(X, 210, KINDS[0], plan)
    ambiguous, _ = assign(step, centers)
    assert_right(step, centers)
    assert (step.labels[:100] == places[0]).all()
    assert len(ambiguous) <= most_ambiguous
