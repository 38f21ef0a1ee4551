"""`BalancedAssignment`: the clusters of the samples within the limits, their cost and a lower bound of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["BalancedAssignment"]


@dataclass(frozen=True)
class BalancedAssignment:
    """An assignment within the limits.

    Attributes
    ----------
    labels : array of shape (n,), int32
    cost : float
        Σ ‖x − c‖² over the samples and the centers of their labels.
    bound : float
        No assignment within the limits costs less.
    prices : numpy.ndarray of shape (k,)
        The prices of the clusters, from which a bound follows; see prices.py.
    """

    labels: Any
    cost: float
    bound: float
    prices: np.ndarray

    @property
    def gap(self) -> float:
        """How far the cost may be above the lowest, as a part of the cost; 0 if it is proved to be the lowest."""
        return (self.cost - self.bound) / self.cost if self.cost > self.bound else 0.0
