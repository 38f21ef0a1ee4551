"""Steps with bounds on a HostMachine, whose passes are set and recorded, and what float64 knows of their bounds."""

import numpy as np
import oracle
from kmeans.host_steps import centered, iterate_once, place

from tsapps.apps.kmeans.bounds.plan import BOUNDS_STATE

#: The passes of bounds/state.cuh.
PLAIN, WITH_BOUNDS, SELECT, ACTIVE = range(4)


class RecordedBounds:
    """The bounds of a step, which begin with the next iteration.

    Parameters
    ----------
    step : DeviceStep
        Made with ``bounds=True``.

    Attributes
    ----------
    bounds : Bounds
        May begin after an iteration, however many rows it reassigned.
    state : array of one BOUNDS_STATE
    passes : list of int
        What iterations did.
    """

    def __init__(self, step):
        step._begin_bounds()
        self.step, self.bounds, self.passes = step, step.bounds, []
        self.state = self.bounds.state.view(BOUNDS_STATE)
        self.begins_below(step.data.n_samples + 1)
        self.lists_at_most(len(self.bounds.active))
        self._bind_select = self.bounds.bind_select
        self.bounds.bind_select = self._recorded

    def begins_below(self, n_reassigned):
        """Let bounds begin after iterations that reassigned fewer rows."""
        self.bounds._begin_limit = n_reassigned

    def lists_at_most(self, rows):
        """Let a selection list so many rows, followed by one number that is not its own."""
        self._listed = np.full(rows + 1, 2**32 - 1, np.uint32)
        self.bounds.active = self._listed[:rows]

    def next_is(self, one):
        """Let the next iteration do what one of the passes is."""
        self.state["pass"], self.state["skip_full_assign"] = one, one != PLAIN

    def select(self, labels):
        """List the active rows; return them."""
        stopped = np.zeros(1, np.int32)
        self.bounds.bind_select(labels, stopped)()
        return self.bounds.active[: self.state["active"][0]]

    def assert_selects(self, labels, expected, safe_by_drift):
        """For each drift of all centers, in units of X, `select` lists the rows whose row bound is below it.

        `expected` are row bounds that are right but for rounding, and `safe_by_drift` how many rows are not listed.
        """
        scale = self.step.layout.placement.scale
        self.lists_at_most(len(expected))
        for drift, safe in safe_by_drift.items():
            self.bounds.limits[:] = drift * scale
            self.next_is(SELECT)
            self.state["active"] = 0
            active = self.select(labels)
            assert len(active) == len(expected) - safe
            assert sorted(active) == [i for i in range(len(expected)) if expected[i] < drift * scale]

    def assign(self, centers):
        """Give every sample the label of its nearest center, by the pass that is next; return how many changed."""
        placed = place(self.step, centers)
        self.step._bounded = True
        for launch in self.step._bind_rows(placed):
            launch()
        return int(self.step.buffers.n_reassigned[0])

    def assert_idle_once_stopped(self, centers):
        """No pass that bounds have a part in does anything once iterations stop."""
        placed = place(self.step, centers)
        self.step._bounded = True
        self.step.buffers.stopped[0] = 1
        launches = list(self.step._bind_rows(placed))
        for now in (WITH_BOUNDS, SELECT, ACTIVE):
            self.next_is(now)
            row_bounds, before = self.bounds.row_bounds.copy(), _results(self.step)
            for launch in launches:
                launch()
            assert self.state["pass"] == now
            assert not self.step.buffers.n_reassigned.any()
            np.testing.assert_array_equal(self.bounds.row_bounds, row_bounds)
            np.testing.assert_array_equal(_results(self.step), before)

    def _recorded(self, labels, stopped):
        launch = self._bind_select(labels, stopped)

        def select():
            launch()
            self.passes.append(int(self.state["pass"][0]))
            assert not self.bounds._arrived.any()
            assert self._listed[-1] == 2**32 - 1

        return select


def labels_of(step):
    """Return the labels as iterations keep them."""
    return step.buffers.labels[: step.data.n_samples]


def _results(step):
    return np.concatenate([labels_of(step), step.buffers.sums.ravel()])


def gaps(step, centers):
    """Return how much nearer each row is to its own center than to any other, in float64 and scaled units."""
    distances = np.sqrt(oracle.square_distances(centered(step.data), centers.astype(step.data.dtype)))
    rows, labels = np.arange(step.data.n_samples), labels_of(step)
    own = distances[rows, labels]
    distances[rows, labels] = np.inf
    return (distances.min(axis=1) - own) * step.layout.placement.scale


def run(step, centers, iterations, first=None):
    """Iterate until labels stay; return the labels, the sums, the outcome and the next centers of every iteration.

    The bounds of a step that has some begin with the first iteration, or do what the pass `first` is.
    """
    place(step, centers)
    if step.bounds is not None:
        step._begin_bounds()
        if first is not None:
            step.bounds.state.view(BOUNDS_STATE)["pass"] = first
            step.bounds.skip_full_assign[...] = first != PLAIN
    found = []
    for count in range(iterations):
        _, outcome, following = iterate_once(step, count)
        found.append((labels_of(step).copy(), step.buffers.sums.copy(), outcome, following))
        if outcome["stop"]:
            before = _results(step)
            step._launch(count + 1, 0.0)
            np.testing.assert_array_equal(_results(step), before)
            break
    return found


def assert_same(ours, theirs):
    """Two that `run` returned are the same to the bit."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        for a, b in zip(one[:3], other[:3], strict=True):
            np.testing.assert_array_equal(a, b)
        if not one[2]["empty"]:
            np.testing.assert_array_equal(one[3], other[3])


def assert_same_bits(bounded, plain, centers):
    """Iterations with bounds find what those without do: more than it takes, so that labels settle, and begun anew."""
    for iterations in (12, 3):
        assert_same(run(bounded, centers, iterations), run(plain, centers, iterations))
