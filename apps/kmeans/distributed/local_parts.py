"""Engine for X that several GPUs of this process do not hold together: each reads its part in host memory.

A GPU keeps the half-precision copy of its part if that fits; otherwise the part passes through it in windows, in every
pass (engines/window_pass.py). All links are read at the same time. An iteration takes so long that the host adds up the
sums of the parts (partitioned_engine.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.gpu_rows import memory_of_fit
from tsapps.apps.kmeans.data.moments import total_moments
from tsapps.apps.kmeans.data.pinned_rows import pin, pinnable
from tsapps.apps.kmeans.data.rows import Rows, UnitRows, unscaled
from tsapps.apps.kmeans.distributed.crew import LocalCrew, cut_rows, specs_of
from tsapps.apps.kmeans.distributed.partitioned_data import PartitionedData
from tsapps.apps.kmeans.distributed.partitioned_engine import PartitionedEngine, PartitionedStep, PartLabels
from tsapps.apps.kmeans.distributed.row_range import row_range
from tsapps.apps.kmeans.distributed.sharded_data import joined
from tsapps.apps.kmeans.distributed.sharded_engine import check_alike
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.results import Assignment
from tsapps.kernels.arrays import to_host
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.runtime.pin_in_place import PinningError

__all__ = ["LocalPartsEngine", "parts_of_gpus"]


def parts_of_gpus(source: Rows, dtype: np.dtype, machines: Sequence[Machine]) -> list[Rows] | None:
    """Return the rows of each GPU, if the GPUs do not hold X together, and parts of it can be read; otherwise None.

    Parameters
    ----------
    source : Rows
        X, not rescaled.
    dtype : {float32, float64}
        Working type.
    machines : sequence of Machine
    """
    n, d = source.shape
    parts = cut_rows(n, d, dtype, [1.0] * len(machines))

    def holds(machine: Machine, part: range) -> bool:
        with machine.current():
            return memory_of_fit(len(part), d, dtype, source.dtype) <= machine.free_bytes()

    if all(map(holds, machines, parts)):
        return None
    ranges = [row_range(source, part) for part in parts]
    return [rows for rows in ranges if rows is not None] or None


class LocalPartsEngine(PartitionedEngine):
    """X as parts that GPUs of this process read, and the Lloyd step over them.

    Parameters
    ----------
    source : Rows
        X, which may be rescaled.
    rows : sequence of Rows
        The rows of each GPU, not rescaled: all rows of X, in order.
    dtype : {float32, float64}
        Working type.
    sample_weight : numpy.ndarray of shape (n,), optional
    machines : sequence of Machine
        The GPUs, at least as many as there are parts.

    Notes
    -----
    The constructor raises NoDeviceError if the GPUs are of several kinds; methods do so if one would need cuBLAS.
    """

    protects = True

    def __init__(
        self,
        source: Rows,
        rows: Sequence[Rows],
        dtype: np.dtype,
        sample_weight: np.ndarray | None,
        machines: Sequence[Machine],
    ) -> None:
        check_alike(machines[: len(rows)])
        self._machines, ends = machines[: len(rows)], np.cumsum([some.shape[0] for some in rows]).tolist()
        parts = [range(end - some.shape[0], end) for end, some in zip(ends, rows, strict=True)]
        indices = [machine.index for machine in self._machines]
        devices, device = [f"cuda:{index}" for index in indices], f"cuda:{','.join(map(str, indices))}"
        specs = specs_of(parts, dtype, spherical=isinstance(source, UnitRows), name=source.name, devices=devices)
        weights = None if sample_weight is None else sample_weight.astype(dtype)
        self._crew = LocalCrew(rows, weights, specs, device)
        super().__init__(source, dtype, weights, self._crew)

    @contextmanager
    def fitting(self, k: int, *, draws: bool) -> Iterator[None]:
        """Pin X in place, and begin to compile the kernels of a fit; see `Engine.fitting`."""
        with ExitStack() as entered:
            array = pinnable(unscaled(self.data.source), self.data.dtype)
            if array is not None:  # of which the GPUs pin their parts: two of them may share a page
                with suppress(PinningError):  # the parts find that, too, and are streamed
                    entered.callback(pin(array, self._machines[0]).release)
            entered.enter_context(self._crew.fitting(k, draws=draws))
            yield

    def new_data(self, *arguments: Any) -> PartitionedData:
        """Return the data; `arguments` are those of `PartitionedData`."""
        return _LocalData(self._machines, *arguments)

    def _center_once(self, mean: np.ndarray, k: int) -> None:
        if self.data.spherical:
            self.data.refuse_non_finite()
        self.data.moments()  # raises if X is not finite
        self.center(mean, k)

    def new_step(self, k: int) -> PartitionedStep:
        """Return a new step for k clusters; see `PartitionedEngine.new_step`."""
        return _LocalStep(self.data, k)


class _LocalData(PartitionedData):
    """`PartitionedData` whose moments, 24 bytes per column of a chunk, stay on the GPUs, which are `machines`."""

    def __init__(self, machines: Sequence[Machine], *arguments: Any) -> None:
        self._machines = machines
        super().__init__(*arguments)

    def partial_moments(self, origin: np.ndarray) -> Any:
        """Return the moments of each chunk on the first GPU; see `FixedPointData.partial_moments`."""
        return joined(self._machines, self.ask("own_moments", origin), axis=1)

    def total_moments(self, parts: Any) -> np.ndarray:
        """Return the moments of X in host memory; see `FixedPointData.total_moments`."""
        lead = self._machines[0]
        with lead.current():
            return to_host(total_moments(lead, parts))


class _LocalStep(PartitionedStep):
    """A `PartitionedStep` whose labels are an array in this process, and which can be protected."""

    keeps_sums = False  # in a protected fit, the result is computed again from labels that are reset

    def __init__(self, data: PartitionedData, k: int) -> None:
        self._labels: np.ndarray | None = None
        super().__init__(data, k)

    @property
    def labels(self) -> Any:
        """Label of each sample, (n,), int32, in host memory."""
        if self._labels is None:
            self._labels = PartLabels(self.data).gathered()
        return self._labels

    def reset(self) -> None:
        """Set every label to −1; see `Step.reset`."""
        self._labels = None
        super().reset()

    def assign(self, centers: np.ndarray, *, update: bool = True, potential: bool = False) -> Assignment:
        """Label every sample with its nearest center; see `Step.assign`."""
        self._labels = None
        found = super().assign(centers, update=update, potential=potential)
        if self.protection is not None:
            sums = sum(self.data.ask("own_sums"))
            found.again = Assignment(found.n_reassigned, *self.sums_and_weights(sums), float("nan"))
        return found

    cluster_sizes, same_clustering = Step.cluster_sizes, Step.same_clustering
