"""The order in which `DeviceStep.iterate` launches iterations and relocations, on a model of the word `stopped`."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from tsapps.apps.kmeans.engines.device_step import ITERATIONS_AHEAD, DeviceStep
from tsapps.apps.kmeans.update.plan import OUTCOME


class ModelStep(DeviceStep):
    """A step whose launches only keep `stopped` and the outcomes as the kernels do (update/relocate.cuh).

    Parameters
    ----------
    empty : sequence of int
        The number of clusters that each iteration leaves empty.
    converges : int
        The iteration after which the run stops; none if it is not among them.

    Attributes
    ----------
    done : list of int
        The iterations that the launches have computed.
    """

    def __init__(self, empty, converges):
        stream = SimpleNamespace(synchronize=lambda: None)
        self.data = SimpleNamespace(
            spherical=False, n_samples=1, machine=SimpleNamespace(current_stream=lambda: stream)
        )
        self._outcomes, self._bounded_before = np.zeros(ITERATIONS_AHEAD, OUTCOME), [False] * ITERATIONS_AHEAD
        self._events = [SimpleNamespace(record=lambda: None, synchronize=lambda: None)] * ITERATIONS_AHEAD
        self._empty, self._converges, self._stopped, self._launched = empty, converges, 0, 0
        self.done = []

    def _bind_rows(self, centers):
        raise NotImplementedError

    def begin(self, centers):
        pass

    def _launch(self, count, tol):
        self._launched += 1
        assert self._launched <= 4 * len(self._empty), "the host launches without end"
        if self._stopped == 0:
            self.done.append(count)
            self._end(count, self._empty[count], relocated=0)
        if self._relocates:
            self._relocate(count)

    def _launch_relocation(self, count, tol):
        self._relocates = True
        self._relocate(count)

    def _relocate(self, count):
        """Relocate the clusters that the last iteration left empty, whose launches these must be."""
        if self._stopped > 1:
            assert count == self.done[-1]
            self._end(count, 0, relocated=self._stopped - 1)

    def _end(self, count, empty, relocated):
        stops = empty > 0 or count == self._converges
        self._outcomes[count % ITERATIONS_AHEAD] = stops, empty, 1, relocated, 10.0 + count, 0.0
        self._stopped = stops + empty

    def _can_relocate(self, empty):
        return True

    def _stage_centers(self, index):
        self._staged = index, self.done[-1]

    def _centers_on_host(self, index):
        return index


@pytest.mark.parametrize("number", range(1, 7))
def test_each_iteration_once_whichever_leave_clusters_empty(number):
    for empty in product((0, 1), repeat=number):
        for converges in range(number + 1):
            step, told = ModelStep(empty, converges), []
            result = step.iterate(None, 0, number, 0.0, lambda iteration, *_, told=told: told.append(iteration))
            last = min(converges, number - 1)
            assert step.done == list(range(last + 1))
            assert told == list(range(1, last + 2))
            assert (result.count, result.centers, result.shift) == (last + 1, 1 - last % 2, 10.0 + last)
            assert (result.empty, result.relocated) == (None, bool(empty[last]))
            if converges == number:  # the centers of the last iteration were copied after its relocation
                assert step._staged == (1 - last % 2, last)
