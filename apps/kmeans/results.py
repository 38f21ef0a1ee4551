"""What an engine's passes find: assignments, and where iterations ended."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

__all__ = ["Assignment", "IterationResult", "Report", "square_shift"]


@dataclass
class Assignment:
    """What one assignment pass found.

    Attributes
    ----------
    n_reassigned : int
        Samples whose label changed.
    sums : numpy.ndarray of shape (k, d), float64
        Weighted sum of the (centered) samples of each cluster.
    weights : numpy.ndarray of shape (k,), float64
        Weight in each cluster.
    potential : float
        Σ w·score over the samples: the inertia less Σ w·‖x‖². NaN unless asked for.
    again : Assignment or None
        Of a protected fit: the same, of sums that were added up a second time, or came from the GPU a second time.
    changed : bool
        Of a protected fit: whether the centers, or what the pass made of them, changed during the pass.
    """

    n_reassigned: int
    sums: np.ndarray
    weights: np.ndarray
    potential: float
    again: "Assignment | None" = None
    changed: bool = False

    def means(self) -> np.ndarray:
        """Return sums / weights (k, d); a cluster that is empty takes the place of the heaviest one."""
        heaviest = int(self.weights.argmax())
        empty = self.weights == 0
        means = self.sums * (1 / np.where(empty, 1, self.weights))[:, np.newaxis]
        means[empty] = means[heaviest]
        return means


@dataclass(frozen=True)
class IterationResult:
    """Where some iterations ended.

    Attributes
    ----------
    centers : numpy.ndarray of shape (k, d)
        The next ones; those that the last labels are of, if a cluster is empty.
    count : int
        How many iterations there were.
    strict : bool
        Whether no label changed in the last.
    shift : float
        Σ ‖new c − c‖² of the last; NaN if a cluster is empty.
    empty : Assignment or None
        The last assignment, if it left a cluster empty.
    at : numpy.ndarray of shape (k, d) or None
        The centers that the last labels are of; None from a GPU without protection.
    fault : str or None
        What was found wrong with the iteration after these `count`, which is to be made again, at `centers`.
    lost : bool
        Whether `centers` are wrong too, so that the run is to be made again from its first centers.
    """

    centers: np.ndarray
    count: int
    strict: bool
    shift: float
    empty: Assignment | None = None
    at: np.ndarray | None = None
    fault: str | None = None
    lost: bool = False


def square_shift(centers: np.ndarray, following: np.ndarray) -> float:
    """Return Σ ‖new c − c‖²."""
    return float(((following - centers) ** 2).sum())


#: Called after every iteration with its number in the run, from 1, the labels that changed, and Σ w·score.
Report = Callable[[int, int, float], None]
