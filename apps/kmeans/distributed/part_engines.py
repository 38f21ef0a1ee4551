"""What computes the passes over the rows of a `Part`: a CPU or a GPU. Both answer with the same bits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.data.shard import Shard, Statistics
from tsapps.apps.kmeans.distributed.burst import Member, member_of
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.engines.exact_host_step import ExactHostStep
from tsapps.apps.kmeans.init.oversampling_chunks import ChunkedOversampling
from tsapps.apps.kmeans.init.oversampling_host import HostOversampling
from tsapps.apps.kmeans.init.plusplus_host import ChunkedDraw, ChunkedDraws
from tsapps.kernels.devices import NoDeviceError, choose_device

if TYPE_CHECKING:
    from tsapps.apps.kmeans.data.device_data import DeviceData
    from tsapps.kernels.runtime.machine import Machine

__all__ = ["PartEngine", "PartStep", "engine_of_part"]


class PartStep(Protocol):
    """The labels and the fixed-point cluster sums of the rows of a part, for k clusters."""

    k: int

    @property
    def labels(self) -> Any:
        """Label of each row, (n,), int32, on the device of the part."""

    def reset(self) -> None:
        """Set every label to −1 and the sums to zero."""

    def assign_own(self, centers: np.ndarray) -> tuple[int, np.ndarray]:
        """Label every row; return how many labels have changed, and `own_sums`."""

    def own_sums(self) -> np.ndarray:
        """Return a copy of the sums of the rows, (k, d + 1), int64."""


class PartEngine(Protocol):
    """The rows of a part on one device."""

    @property
    def data(self) -> HostData | DeviceData:
        """The rows, and passes over them."""

    def fitting(self, k: int, *, draws: bool) -> AbstractContextManager[None]:
        """Return a context for a fit, in which a GPU can read rows in host memory; see `Engine.fitting`."""

    def center(self, statistics: Statistics, point: np.ndarray) -> None:
        """Subtract a point, (d,), from all rows that are read from now on; all rows of X have these statistics."""

    def new_step(self, k: int) -> PartStep:
        """Return a step for k clusters with all labels −1."""

    def member(self, step: PartStep) -> Member | None:
        """Return where a burst of a step would run; None if it has no bursts."""

    def new_draw(self, trials: int) -> ChunkedDraws:
        """Return the rows as samples from which k-means++ draws, with so many candidates per step."""

    def new_oversampling(self, k: int) -> ChunkedOversampling:
        """Return the rows as samples from which k-means‖ draws, to begin from k centers."""


class _HostPart:
    """Rows on a CPU, with one thread; see `PartEngine`."""

    def __init__(self, rows: Rows, dtype: np.dtype, weights: np.ndarray | None, shard: Shard) -> None:
        self.data = HostEngine(rows, dtype, weights, as_kernels=True, shard=shard, threads=1).data

    def fitting(self, k: int, *, draws: bool) -> AbstractContextManager[None]:  # noqa: ARG002 (for a GPU)
        return nullcontext()

    def center(self, statistics: Statistics, point: np.ndarray) -> None:
        self.data.adopt(statistics)
        self.data.center(point)

    def new_step(self, k: int) -> PartStep:
        return ExactHostStep(self.data, k)

    def member(self, step: PartStep) -> Member | None:  # noqa: ARG002 (it is on a CPU)
        return None

    def new_draw(self, trials: int) -> ChunkedDraws:
        return ChunkedDraw(self.data, trials)

    def new_oversampling(self, k: int) -> ChunkedOversampling:
        return HostOversampling(self.data, k)


class _DevicePart:
    """Rows on a GPU; see `PartEngine`."""

    def __init__(self, rows: Rows, dtype: np.dtype, weights: np.ndarray | None, shard: Shard, machine: Machine) -> None:
        from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
        from tsapps.apps.kmeans.engines.select_step import Options

        self._engine = DeviceEngine(rows, dtype, weights, machine, Options(always=True), shard)
        self.data, self.fitting = self._engine.data, self._engine.fitting

    def center(self, statistics: Statistics, point: np.ndarray) -> None:
        self.data.adopt(statistics)
        self.data.center(point, on_read=True)

    def new_step(self, k: int) -> PartStep:
        self._refuse_cublas(k)
        step = cast(PartStep, self._engine.step_for(k))
        step.reset()
        return step

    def member(self, step: PartStep) -> Member | None:
        from tsapps.apps.kmeans.engines.device_step import DeviceStep

        # update/centers.cuh does not normalise the means of the cosine metric.
        bursts = isinstance(step, DeviceStep) and not self.data.spherical
        return member_of(self.data.machine) if bursts else None

    def _refuse_cublas(self, k: int) -> None:
        name, reason = self._engine.selection(k)
        if name == "cublas":
            raise NoDeviceError(
                f"a part of X on {self.data.device} needs the kernels of this package, but {reason}; use one GPU that "
                "has all of X, or device='cpu'"
            )

    def new_draw(self, trials: int) -> ChunkedDraws:
        return self._engine.chunked_draw(trials)

    def new_oversampling(self, k: int) -> ChunkedOversampling:
        self._refuse_cublas(k)
        return self._engine.chunked_oversampling(k)


def engine_of_part(rows: Rows, dtype: np.dtype, weights: np.ndarray | None, shard: Shard, device: str) -> PartEngine:
    """Return the engine of a part.

    Parameters
    ----------
    rows : Rows
        The rows of the part, in host memory.
    dtype : {float32, float64}
        Working type.
    weights : numpy.ndarray of shape (n,), optional
    shard : Shard
        Which rows of X the part has.
    device : {"cpu", "cuda", "cuda:i"}

    Raises
    ------
    NoDeviceError
        If this process has no such GPU.
    """
    if device == "cpu":
        return _HostPart(rows, dtype, weights, shard)
    return _DevicePart(rows, dtype, weights, shard, gpu_of(device))


def gpu_of(device: str) -> Machine:
    """Return a GPU of this process by its name."""
    from tsapps.kernels.runtime.machine import cuda_machine

    return cuda_machine(choose_device(device).indices[0])
