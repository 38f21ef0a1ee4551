"""Greedy k-means++ by its launcher on the CPU, step by step."""

import numpy as np
from host_cuda.machine import HostMachine, placed
from sklearn.datasets import make_blobs

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.init.plan import plusplus_plan, pruned_plan
from tsapps.apps.kmeans.init.plusplus_launch import GreedyDraw, draw_plus_plus
from tsapps.apps.kmeans.init.pruned_launch import PrunedSteps
from tsapps.kernels.gpu_specs import KNOWN

H200 = KNOWN["H200"]
#: Features, clusters, dtype and whether samples have weights: rows of a lane, of several, of a warp; of elements and of
#: vectors; one sum a lane and two.
SHAPES = [
    (1, 2, "float64", True),
    (3, 9, "float32", False),
    (4, 16, "float32", True),
    (16, 60, "float32", False),
    (40, 12, "float64", False),
    (130, 8, "float32", True),
    (128, 60, "float32", False),
    (130, 400, "float64", False),
    (300, 5, "float32", False),
    (1100, 60, "float32", False),
    (2500, 4, "float64", True),
]


def trials_of(k):
    return 2 + int(np.log(k))


def plan_of(n, d, k, dtype, device=H200):
    size = np.dtype(dtype).itemsize
    return plusplus_plan(n, d, trials_of(k), size, aligned=d * size % 16 == 0, device=device)


def data_of(X, dtype, weights=None, **machine):
    return DeviceData(ArrayRows(placed(X.astype(dtype))), np.dtype(dtype), weights, HostMachine(**machine))


class Seeding(GreedyDraw):
    """A draw of k samples whose random numbers are given step by step.

    Parameters
    ----------
    X, k, dtype, weights
    first : int
    plan : PlusPlusPlan, optional
    quantized : bool
        Whether there is a quantized copy of X − mean.
    machine
        Of `HostMachine`.

    Attributes
    ----------
    candidates : array of shape (k, trials)
        Those of each step so far.
    """

    def __init__(self, X, k, dtype, weights=None, *, first=0, plan=None, quantized=False, **machine):
        data, self.plan = data_of(X, dtype, weights, **machine), plan or plan_of(*X.shape, k, dtype)
        self.X = data.held
        if quantized:
            data.center(data.moments()[0], on_read=True)
        draws = np.full((k - 1, self.plan.trials), np.nan)
        super().__init__(data, data.held, self.plan, draws)
        self.candidates = np.full((k, self.plan.trials), first)
        self.begin(first)
        if quantized:
            planned = pruned_plan(self.plan, X.shape[1], X.itemsize, weighted=weights is not None, device=H200)
            self.by_copy = PrunedSteps(data, data.held, self.plan, planned, self.closest, self.sums)

    def place(self, step, candidates, center=None):
        """Make samples the candidates of a step, and one the center of the step before it, instead of those drawn."""
        rows, indices = self.parts(self.points[step % 2])
        rows[1:], indices[:] = self.X[candidates], candidates
        if center is not None:
            rows[0] = self.X[center]
        self.candidates[step] = candidates

    def prune(self, step):
        """Evaluate a step's candidates by the quantized copy."""
        self.by_copy.evaluate(self.points[step % 2].ctypes.data)

    def step(self, step, draws=None):
        """Evaluate a step's candidates, and draw the next step's, if there is one."""
        self.evaluate(step)
        self.follow(step, draws)

    def follow(self, step, draws=None):
        """Draw the candidates of the next step."""
        if draws is not None:
            self.draws[step] = draws
        self.sample(step)
        if step < len(self.draws):
            rows, self.candidates[step + 1] = self.parts(self.points[(step + 1) % 2])
            np.testing.assert_array_equal(rows, self.X[[self.chosen[step], *self.candidates[step + 1]]])


def blobs(n, d, k, seed=0):
    X, _ = make_blobs(n, d, centers=max(2, k // 2), center_box=(-4, 4), random_state=seed)
    return X


def drawn(data, first, draws):
    """Return the samples that are drawn."""
    return draw_plus_plus(data, first, draws).tolist()
