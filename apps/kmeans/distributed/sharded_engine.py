"""Engine for several GPUs of this process: X as shards of consecutive rows, and one Lloyd step on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.frame import ScaledRows
from tsapps.apps.kmeans.data.rows import Rows, UnitRows, unscaled
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.distributed.crew import cut_rows
from tsapps.apps.kmeans.distributed.deadline import AllReduce, OneGpu, wait_for_launches
from tsapps.apps.kmeans.distributed.row_range import ArrayRange
from tsapps.apps.kmeans.distributed.sharded_data import ShardedData
from tsapps.apps.kmeans.distributed.sharded_step import ShardedStep
from tsapps.apps.kmeans.distributed.upload import distribute
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.engines.select_step import MOST_SAMPLES, Options
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.oversampling import Oversampling
from tsapps.apps.kmeans.init.oversampling_chunks import OversamplingByChunks
from tsapps.apps.kmeans.init.oversampling_step import StepOversampling
from tsapps.apps.kmeans.init.plusplus_shards import draw_plus_plus_of_shards
from tsapps.kernels.arrays import to_host
from tsapps.kernels.devices import NoDeviceError
from tsapps.kernels.runtime.machine import Machine

__all__ = ["ShardedEngine", "check_alike"]


class ShardedEngine(Engine):
    """X on several GPUs, and the Lloyd step selected for it on each.

    Parameters
    ----------
    source : Rows
        X, of shape (n, d), of any real dtype.
    dtype : {float32, float64}
        Working dtype.
    sample_weight : numpy.ndarray of shape (n,), optional
    machines : sequence of Machine
        The GPUs. Of a small X, the last may get no rows.
    options : Options
    connect : callable
        Takes the machines that get rows, and returns the `AllReduce` of their arrays.
    shares : sequence of float, optional
        For each GPU, its share of the rows; by default, all have the same.

    Notes
    -----
    Methods raise NoDeviceError if a GPU would need cuBLAS, whose sums depend on the distribution of X.
    """

    data: ShardedData

    def __init__(
        self,
        source: Rows,
        dtype: np.dtype,
        sample_weight: np.ndarray | None,
        machines: Sequence[Machine],
        options: Options,
        connect: Callable[[Sequence[Machine]], AllReduce],
        shares: Sequence[float] | None = None,
    ) -> None:
        n, d = source.shape
        if n >= MOST_SAMPLES:
            raise NoDeviceError(f"{source.name} has {n} rows; expected less than {MOST_SAMPLES} on several GPUs")
        parts = cut_rows(n, d, dtype, [1.0] * len(machines) if shares is None else shares)
        machines = machines[: len(parts)]
        check_alike(machines)
        self._all_reduce = connect(machines) if len(machines) > 1 else OneGpu()
        base = unscaled(source)
        self._engines = []
        for part, machine, array in zip(parts, machines, distribute(base, parts, machines, dtype), strict=True):
            rows = _rescaled_like(source, ArrayRange(array, base.name, part.start, base, machine.index))
            weights = None if sample_weight is None else sample_weight[part.start : part.stop]
            with machine.current():
                self._engines.append(DeviceEngine(rows, dtype, weights, machine, options, Shard(part.start, n)))
        self.data = ShardedData(source, dtype, sample_weight, [engine.data for engine in self._engines])
        self._step: tuple[int, ShardedStep] | None = None

    @property
    def certifies(self) -> bool:  # type: ignore[override]
        """Whether labels are certified; see `DeviceEngine.certifies`."""
        return all(engine.certifies for engine in self._engines)

    @contextmanager
    def fitting(self, k: int, *, draws: bool) -> Iterator[None]:
        """Begin to compile the kernels of a fit; see `Engine.fitting`."""
        with self._engines[0].fitting(k, draws=draws):
            yield

    def center(self, mean: np.ndarray, k: int) -> None:
        """Center X about `mean` (d,); see `Engine.center`."""
        self._step = None
        for engine in self._engines:
            with engine:
                engine.center(mean, k)
        self._refuse_cublas(k)

    def _center_once(self, mean: np.ndarray, k: int) -> None:
        self._step = None
        if self.data.spherical:
            self.data.refuse_non_finite()
        self.data.moments()  # raises if X is not finite
        for engine in self._engines:
            with engine:
                engine.center_for_pass(mean, k)
        self._refuse_cublas(k)

    def _refuse_cublas(self, k: int) -> None:
        """Raise NoDeviceError if a GPU would stream its rows, or use cuBLAS, whose sums depend on the shards."""
        for engine in self._engines:
            step, reason = engine.selection(k)
            if step == "cublas" or engine.streams(k):
                raise NoDeviceError(
                    f"device={self.data.device!r}: several GPUs need the kernels of this package, but on "
                    f"{engine.data.device} {reason}; use one GPU"
                )

    def step_for(self, k: int) -> ShardedStep:
        """Return the step for k clusters; see `Engine.step_for`."""
        if self._step is None or self._step[0] != k:
            steps = []
            for engine in self._engines:
                with engine:
                    step = engine.step_for(k)
                assert isinstance(step, DeviceStep)  # see `_refuse_cublas`
                steps.append(step)
            self._step = k, ShardedStep(self.data, steps, self._all_reduce)
        return self._step[1]

    def selection(self, k: int) -> tuple[str, str]:
        """Return the name of the step of the first GPU for k clusters, and why it was selected."""
        return self._engines[0].selection(k)

    def oversampling(self, k: int) -> Oversampling:
        """Return an `Oversampling` of X, whose rows the steps for k clusters label; see `Engine.oversampling`."""
        step = self.step_for(k)

        def label(points: np.ndarray) -> list[Any]:
            step.assign(points, update=False)
            return step.labels_on_gpus()

        step.reset()
        return OversamplingByChunks(StepOversampling(self.data, k, self.data.shards, label))

    def draw_plus_plus(self, first: int, draws: np.ndarray, chosen: Chosen | None = None) -> np.ndarray:
        """Draw samples by greedy k-means++ on all GPUs; see `Engine.draw_plus_plus`.

        Raises
        ------
        NoDeviceError
            If the kernels do not support the shape of X.
        """
        wait = self._wait_for_draws
        drawn = draw_plus_plus_of_shards(self.data.shards, self._all_reduce, first, draws, wait, chosen)
        if drawn is None:
            raise NoDeviceError(
                f"device={self.data.device!r}: k-means++ on several GPUs does not support this X of shape "
                f"{self.data.source.shape} for {len(draws) + 1} clusters; use one GPU or another init"
            )
        self._wait_for_draws()
        with self._engines[0]:
            return to_host(drawn)

    def _wait_for_draws(self) -> None:
        with self._engines[0].data as lead:
            work = 1e4 * self.data.n_samples * self.data.n_features  # more than of the steps that are launched together
            wait_for_launches(lead.machine, self._all_reduce, work, f"k-means++ on {self.data.device}")


def check_alike(machines: Sequence[Machine]) -> None:
    """Raise NoDeviceError if GPUs are of several kinds: their code may round differently."""
    kinds = {machine.gpu.compute_capability: machine.index for machine in machines}
    if len(kinds) > 1:
        found = ", ".join(f"{kind} (cuda:{index})" for kind, index in kinds.items())
        raise NoDeviceError(
            f"the GPUs have the compute capabilities {found}; expected GPUs of one kind: name those alike"
        )


def _rescaled_like(source: Rows, rows: Rows) -> Rows:
    """Return some rows of a matrix, rescaled as the matrix `source` rescales its rows."""
    if isinstance(source, ScaledRows):
        return ScaledRows(rows, source.exponent, source.dtype)
    return UnitRows(rows, source.dtype) if isinstance(source, UnitRows) else rows
