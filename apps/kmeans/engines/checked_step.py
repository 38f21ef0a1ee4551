"""ABFT checks of the iterations of a Lloyd step on a GPU (protect/check_iteration.cuh)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from tsapps.apps.kmeans.engines.running_sums_step import RunningSumsStep
from tsapps.apps.kmeans.protect.launch import FAULTS, LOST, StepCheck, fixed_point_weight
from tsapps.apps.kmeans.results import IterationResult

__all__ = ["ITERATIONS_AHEAD", "CheckedStep"]

#: Maximum number of iterations in flight: the host launches this many before it waits for the oldest outcome.
ITERATIONS_AHEAD = 2


class CheckedStep(RunningSumsStep):
    """A `RunningSumsStep` that launches a check after each iteration of a protected fit.

    Attributes
    ----------
    weight_of_all : int or None
        The weight of all samples of X, as in the sums, if these are some of them.
    """

    weight_of_all: int | None = None

    @abstractmethod
    def result(self, count: int, outcome: Any, at: np.ndarray | None = None) -> IterationResult:
        """Return the result of `iterate` that ended with iteration number `count`; for `at`, see `IterationResult`."""

    @abstractmethod
    def _centers_on_host(self, index: int) -> np.ndarray:
        """Return a copy of `buffers.centers[index]` in host memory."""

    def own_weight(self) -> int:
        """Return the weight of these samples, as in the sums."""
        return fixed_point_weight(self.data, self.integers.scales[-1])

    def begin_check(self) -> None:
        """Prepare for the checks of a sequence of iterations, or for none, if the fit is not protected."""
        if self.protection is None:
            self.check = None
            return
        if self.check is None:
            weight = self.own_weight() if self.weight_of_all is None else self.weight_of_all
            self.check = StepCheck(self.data, self.buffers, self.k, weight, ITERATIONS_AHEAD)
        self.check.begin()

    def launch_check(self, count: int) -> None:
        """Launch the check of iteration number `count` of the current `iterate` call, from 0, in a protected fit."""
        if self.check is None:
            return
        now, slot = count % 2, count % ITERATIONS_AHEAD
        if count == 0 and self.protection is not None:  # hash on the host while the GPU runs the first iteration
            self.check.expect(self.protection.kept.centers)
        self.check.launch(self.buffers.centers[now], self.buffers.centers[1 - now], slot, now)

    def fault(self, count: int) -> str | None:
        """Return the fault that the check of iteration number `count` found, which must have ended, or None."""
        return None if self.check is None else self.check.fault(count % ITERATIONS_AHEAD)

    def checked_end(self, count: int, outcome: Any, fault: str | None) -> IterationResult | None:
        """Return the result of `iterate` that ended with iteration number `count`, checked; None without protection.

        `outcome` and `fault` are those of the iteration.
        """
        protection, now, stays = self.protection, count % 2, fault is not None or bool(outcome["empty"])
        if self.check is None or protection is None:
            return None
        # `at` is not checked here: if it were wrong, recomputing the result of the run would show a difference.
        next_centers = self._centers_on_host(now if stays else 1 - now)
        at = next_centers if stays else self._centers_on_host(now)
        right = self.check.are_right(next_centers, now if stays else 1 - now)
        lost = self.check.lost(count % ITERATIONS_AHEAD) or not right
        if fault is not None or lost:
            protection.keep(at)
            return IterationResult(at, count, False, float("nan"), fault=fault or FAULTS[LOST], lost=lost)
        protection.keep(next_centers)
        return self.result(count, outcome, at)
