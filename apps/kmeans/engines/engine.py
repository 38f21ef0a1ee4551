"""Engine interface: X on its device, and a Lloyd step for k clusters; and its implementation for the CPU."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Self

import numpy as np

from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.fixed_point_data import WEIGHTS_DIFFER
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.engines.block_step import BlockStep
from tsapps.apps.kmeans.engines.exact_host_step import ExactHostStep
from tsapps.apps.kmeans.engines.host_step import HostStep
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.init import plusplus_host
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.oversampling import BlockOversampling, Oversampling
from tsapps.apps.kmeans.init.oversampling_chunks import OversamplingByChunks
from tsapps.apps.kmeans.init.oversampling_host import HostOversampling
from tsapps.kernels.system.logs import logger_of

__all__ = ["Engine", "HostEngine"]

_log = logger_of(__name__)


class Engine(ABC):
    """X on its device, and the Lloyd step for k clusters.

    Attributes
    ----------
    data : Data
    over : callable
        Takes other `Rows`, and returns an engine of the same kind and with the same options for them.
    """

    data: Data
    over: Callable[[Rows], Engine]
    #: Whether labels are certified, and whether fits can be protected.
    certifies, protects = True, True
    #: Whether another fit can use this engine: the fits so far left X as a new engine would read it.
    is_reusable = False
    #: Whether fits of several numbers of clusters can share launches; see `sweep.fit.fit_together`.
    fits_together = False

    def __enter__(self) -> Self:
        """Make the device of the data the current one."""
        self.data.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the device that was current before `__enter__`."""
        self.data.__exit__(*exception)

    @abstractmethod
    def center(self, mean: np.ndarray, k: int) -> None:
        """Center X about `mean` (d,): now or on every read, depending on the step for k clusters."""

    def fitting(self, k: int, *, draws: bool) -> AbstractContextManager[None]:  # noqa: ARG002 (for a GPU)
        """Return a context for a fit of k clusters, in which a GPU's kernels compile and can read X in host memory.

        `draws` says whether k-means++ draws the initial centers.
        """
        return nullcontext()

    @abstractmethod
    def step_for(self, k: int) -> Step:
        """Return the Lloyd step for k clusters; calls with the same k return the same object."""

    @abstractmethod
    def selection(self, k: int) -> tuple[str, str]:
        """Return the name of the step for k clusters, and why it was selected."""

    @abstractmethod
    def draw_plus_plus(self, first: int, draws: np.ndarray, chosen: Chosen | None = None) -> np.ndarray | None:
        """Draw samples by greedy k-means++ on the engine's device.

        Parameters
        ----------
        first : int
            Index of the first sample.
        draws : numpy.ndarray of shape (k − 1, trials)
            Uniform random numbers in [0, 1); see `plusplus.Draw`.
        chosen : callable, optional
            See `Chosen`.

        Returns
        -------
        numpy.ndarray of shape (k,) or None
            Indices of the drawn samples. None if the engine cannot draw; `plusplus.kmeans_plusplus` then does.
        """

    @abstractmethod
    def oversampling(self, k: int) -> Oversampling:
        """Return an `Oversampling` of X, of which k-means‖ draws samples for k clusters."""

    def place(self, centers: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Check that X is finite, center X for a single pass, and shift the centers by the same point.

        Parameters
        ----------
        centers : numpy.ndarray of shape (k, d)
            Centers minus `mean`.
        mean : numpy.ndarray of shape (d,)
            The mean that a fit subtracted. The engine may subtract zero from X instead.

        Returns
        -------
        numpy.ndarray of shape (k, d)
            Centers minus the point that the engine subtracts from X, in the working dtype.

        Raises
        ------
        ValueError
            If X has a NaN or an infinity. The message names the row and column.
        """
        self._center_once(mean, len(centers))
        if _log.isEnabledFor(logging.INFO):
            _log.info("k = %d: one pass, step %s: %s", len(centers), *self.selection(len(centers)))
        subtracted = self.data.host_mean()
        if (subtracted != mean).any():
            centers = centers + (mean.astype(np.float64) - subtracted)
        return centers.astype(self.data.dtype, copy=False)

    def _center_once(self, mean: np.ndarray, k: int) -> None:  # noqa: ARG002 (k selects the step on a GPU)
        """Check that X is finite, and center it about `mean` (d,) for a single pass."""
        self.data.center_once(mean)


class HostEngine(Engine):
    """CPU engine: X in host memory or read from its source in every pass, and a Lloyd step by NumPy and BLAS.

    Parameters
    ----------
    source : Rows
        X, of shape (n, d), of any real dtype.
    dtype : {float32, float64}
        Working dtype.
    sample_weight : numpy.ndarray of shape (n,), optional
    as_kernels : bool
        Whether small X, too, is processed with the arithmetic of the kernels of a GPU, not with scikit-learn's.
    shard : Shard, optional
        Which rows of a larger matrix `source` has; by default, it has all rows.
    threads : int, optional
        Maximum number of threads; by default, one per core.
    """

    data: HostData
    is_reusable = True  # X is centered once, about the same point for every k

    def __init__(
        self,
        source: Rows,
        dtype: np.dtype,
        sample_weight: np.ndarray | None,
        *,
        as_kernels: bool = False,
        shard: Shard | None = None,
        threads: int | None = None,
    ) -> None:
        self.data = HostData(source, dtype, sample_weight, shard, threads)
        #: Blockwise Lloyd step, which supports any k.
        self.blocks: BlockStep = HostStep(self.data)
        self.data.as_kernels = (as_kernels or not self.data.is_small) and self.data.weights_alike
        self._step: ExactHostStep | None = None

    def center(self, mean: np.ndarray, k: int) -> None:  # noqa: ARG002 (k selects the step on a GPU)
        """Center X about `mean` (d,), or about the point that a GPU would subtract; see `Engine.center`."""
        self._step = None
        self.data.center(self.data.subtracted(mean) if self.data.as_kernels else mean)

    def _center_once(self, mean: np.ndarray, k: int) -> None:
        self._step = None
        super()._center_once(mean, k)

    def step_for(self, k: int) -> Step:
        """Return the step for k clusters; see `Engine.step_for`."""
        if not self.data.as_kernels:
            return self.blocks
        if self._step is None or self._step.k != k:
            self._step = ExactHostStep(self.data, k)
        return self._step

    def selection(self, k: int) -> tuple[str, str]:  # noqa: ARG002 (the step does not depend on k)
        """Return the name of the step, and why it was selected; see `Engine.selection`."""
        if self.data.as_kernels:
            return "exact_host", "the device is the CPU"
        if self.data.weights_alike:
            return "host", "small data follows scikit-learn's rounding"
        return "host", WEIGHTS_DIFFER

    def draw_plus_plus(self, first: int, draws: np.ndarray, chosen: Chosen | None = None) -> np.ndarray | None:
        """Draw samples by greedy k-means++ in O(n) memory; see `plusplus_host.draw_plus_plus`."""
        return plusplus_host.draw_plus_plus(self.data, first, draws, chosen)

    def oversampling(self, k: int) -> Oversampling:
        """Return an `Oversampling` of X; see `Engine.oversampling`."""
        if self.data.as_kernels:
            return OversamplingByChunks(HostOversampling(self.data, k))
        return BlockOversampling(self.data, self.blocks.nearest)
