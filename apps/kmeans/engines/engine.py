"""An engine: data where it is, and the step that iterates over it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.engines.block_step import BlockStep
from tsapps.apps.kmeans.engines.host_step import HostStep
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.init import plusplus_host
from tsapps.kernels.arrays import to_host

__all__ = ["Engine", "HostEngine"]


class Engine(ABC):
    """Data, and the step for k clusters.

    Attributes
    ----------
    data : Data
    blocks : BlockStep
        A step for any k.
    over : callable
        Makes the same engine over other rows.
    """

    data: Data
    blocks: BlockStep
    over: Callable[[Rows], Engine]
    #: Whether labels are certified.
    certifies = True

    def __enter__(self) -> Self:
        """Make the device of the data the current one."""
        self.data.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Give the device before back."""
        self.data.__exit__(*exception)

    @abstractmethod
    def center(self, mean: np.ndarray, k: int) -> None:
        """Subtract a mean (d,) from X, as the step for k clusters wants it."""

    @abstractmethod
    def step_for(self, k: int) -> Step:
        """Return the step for k clusters: made when it is first asked for, and kept until another k is."""

    @abstractmethod
    def selection(self, k: int) -> tuple[str, str]:
        """Return the name of the step for k clusters, and why it was selected."""

    @abstractmethod
    def draw_plus_plus(self, first: int, draws: np.ndarray) -> np.ndarray | None:
        """Draw samples by greedy k-means++ in a way of the engine's own; see `plusplus.Draw`."""

    def place(self, centers: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Check X, subtract the mean of a fit from it for a single pass, and return centers about what was subtracted.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            About the mean.
        mean : numpy.ndarray of shape (d,)

        Raises
        ------
        ValueError
            If X has a NaN or an infinity; names the row and column.
        """
        self._center_once(mean, len(centers))
        subtracted = to_host(self.data.mean)
        if (subtracted != mean).any():
            centers = centers + (mean.astype(np.float64) - subtracted)
        return centers.astype(self.data.dtype, copy=False)

    def _center_once(self, mean: np.ndarray, k: int) -> None:  # noqa: ARG002 (of GPUs)
        self.data.center_once(mean)


class HostEngine(Engine):
    """Data in host memory, by NumPy and BLAS."""

    data: HostData

    def __init__(self, source: Rows, dtype: np.dtype, sample_weight: np.ndarray | None) -> None:
        self.data = HostData(source, dtype, sample_weight)
        self.blocks = HostStep(self.data)

    def center(self, mean: np.ndarray, k: int) -> None:  # noqa: ARG002 (of GPUs)
        """Subtract a mean (d,) from X; see `Engine.center`."""
        self.data.center(mean)

    def step_for(self, k: int) -> Step:  # noqa: ARG002 (one for any)
        """Return the step; see `Engine.step_for`."""
        return self.blocks

    def selection(self, k: int) -> tuple[str, str]:  # noqa: ARG002 (one for any)
        """Return the name of the step, and why it was selected; see `Engine.selection`."""
        return "host", "the device is the CPU"

    def draw_plus_plus(self, first: int, draws: np.ndarray) -> np.ndarray | None:
        """Draw samples by greedy k-means++ with one distance a sample; see `plusplus_host.draw_plus_plus`."""
        return plusplus_host.draw_plus_plus(self.data, first, draws)
