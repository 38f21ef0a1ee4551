"""What Lloyd steps with fixed-point cluster sums have in common: the format of the sums, and the inertia from them."""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property

import numpy as np

from tsapps.apps.kmeans.data.fixed_point_data import FixedPointData
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.inertia.from_sums import inertia_of_sums, may_use_sums
from tsapps.apps.kmeans.update.fixed_point import Integers, integers_of

__all__ = ["FixedPointStep"]


class FixedPointStep(Step):
    """Lloyd step for k clusters whose cluster sums are integers, over data whose point to subtract is final.

    Attributes
    ----------
    data : FixedPointData
    k : int
    """

    data: FixedPointData
    k: int
    keeps_sums = True

    @cached_property
    def integers(self) -> Integers:
        """Format of the sums."""
        return integers_of(self.data)

    @property
    def sums_units(self) -> np.ndarray:  # type: ignore[override]
        """Fixed-point unit of each column of the sums, (d + 1,)."""
        return 1 / self.integers.scales

    def sums_and_weights(self, integer_sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted sum (k, d) and the weight (k,) of each cluster, float64, from sums (k, d + 1), int64."""
        values = integer_sums / self.integers.scales
        return values[:, :-1], values[:, -1]

    @abstractmethod
    def terms_of_sums(self, centers: np.ndarray) -> np.ndarray:
        """Return the terms of `inertia_from_terms`, (k, 4), from the current sums; `centers` as for `inertia`."""

    def inertia_of_sums(self, centers: np.ndarray) -> float | None:
        """Return the inertia from the sums; None if a pass over X is faster or more exact."""
        return inertia_of_sums(self.data, self.terms_of_sums(centers)) if may_use_sums(self.data, self.k) else None

    def inertia(self, centers: np.ndarray) -> float:
        """Return the inertia, from the sums if they are exact enough; see `Step.inertia`."""
        found = self.inertia_of_sums(centers)
        return super().inertia(centers) if found is None else found
