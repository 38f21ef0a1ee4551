"""Results of Lloyd's algorithm: the assignment of one pass over X, the outcome of several iterations, and of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.kernel_order import block_sum

__all__ = ["Assignment", "IterationResult", "Report", "Run", "square_shift"]


@dataclass
class Assignment:
    """Cluster sums and statistics of one assignment pass over X.

    Attributes
    ----------
    n_reassigned : int
        Number of samples whose label changed.
    sums : numpy.ndarray of shape (k, d), float64
        Weighted sum of the (centered) samples of each cluster.
    weights : numpy.ndarray of shape (k,), float64
        Total weight of each cluster.
    potential : float
        Σ w·(‖x − c‖² − ‖x‖²) over samples x of weight w and their centers c, which is the inertia minus Σ w·‖x‖². NaN
        unless requested.
    again : Assignment or None
        Protected fits only: the same assignment, but with sums that were computed or copied from the GPU a second time.
    changed : bool
        Protected fits only: True if memory errors changed the centers, or values derived from them, during the pass.
    """

    n_reassigned: int
    sums: np.ndarray
    weights: np.ndarray
    potential: float
    again: "Assignment | None" = None
    changed: bool = False

    def potential_about(self, centers: np.ndarray) -> float:
        """Return `potential` from the sums and weights, for the centers (k, d) that the samples were assigned to."""
        wide = centers.astype(np.float64)
        return float(self.weights @ (wide * wide).sum(axis=1) - 2 * (self.sums * wide).sum())

    def means(self) -> np.ndarray:
        """Return the cluster means, (k, d), float64; an empty cluster gets the mean of the cluster of most weight."""
        heaviest = int(self.weights.argmax())
        empty = self.weights == 0
        means = self.sums * (1 / np.where(empty, 1, self.weights))[:, np.newaxis]
        means[empty] = means[heaviest]
        return means


@dataclass(frozen=True)
class IterationResult:
    """Outcome of one or more Lloyd iterations.

    Attributes
    ----------
    centers : numpy.ndarray of shape (k, d)
        The new centers. If a cluster is empty or a fault was found: the centers that samples were last assigned to.
    count : int
        Number of completed iterations.
    strict : bool
        Whether the last iteration changed no label (strict convergence).
    shift : float
        Σ ‖new c − c‖² of the last iteration; NaN if a cluster is empty or a fault was found.
    empty : Assignment or None
        The last assignment, if it left clusters empty that the host must relocate.
    at : numpy.ndarray of shape (k, d) or None
        The centers that samples were last assigned to; None from an unprotected fit on a GPU.
    fault : str or None
        Description of a fault in the iteration after the `count` completed iterations. That iteration must be repeated
        from `centers`.
    lost : bool
        True if the fault also corrupted `centers`, so that the run must restart from its initial centers.
    relocated : bool
        True if the last iteration relocated empty clusters. Labels may then be out of date even if it changed none.
    """

    centers: np.ndarray
    count: int
    strict: bool
    shift: float
    empty: Assignment | None = None
    at: np.ndarray | None = None
    fault: str | None = None
    lost: bool = False
    relocated: bool = False


@dataclass
class Run:
    """Result of one run, in the coordinates of the engine.

    Attributes
    ----------
    labels : array of shape (n,), int32
        None if the run was read from a checkpoint, until its labels have been computed again.
    centers : numpy.ndarray of shape (k, d)
    inertia : float
    n_iter : int
        Number of iterations.
    converged : bool
        False if the run reached `max_iter` before it converged.
    """

    labels: Any
    centers: np.ndarray
    inertia: float
    n_iter: int
    converged: bool


def square_shift(centers: np.ndarray, following: np.ndarray) -> float:
    """Return the squared center shift Σ ‖new c − c‖² from `centers` to `following`, both of shape (k, d).

    It is computed in float64, with the bits of update/centers.cuh.
    """
    with np.errstate(over="ignore"):
        return float(block_sum(block_sum((following.astype(np.float64) - centers) ** 2)))


#: Callback after each iteration. Arguments: iteration number in the run, from 1; number of reassigned samples;
#: potential (see `Assignment`).
Report = Callable[[int, int, float], None]
