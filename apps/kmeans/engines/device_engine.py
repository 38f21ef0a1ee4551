"""GPU engine: X on a GPU, and the Lloyd step selected for k clusters (kernels of this package or cuBLAS)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.data.shard import Shard
from tsapps.apps.kmeans.engines.compile_ahead import Fit, begin_kernels_of, rounded_up
from tsapps.apps.kmeans.engines.cublas_step import CublasStep
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep
from tsapps.apps.kmeans.engines.select_step import Facts, Norms, Options, StepPlan, select_step, why_cublas
from tsapps.apps.kmeans.engines.small_d_step import SmallDFmaStep, SmallDMmaStep, norms_of
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.engines.streamed_step import StreamedStep
from tsapps.apps.kmeans.engines.window_pass import WindowPass
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.oversampling import Oversampling
from tsapps.apps.kmeans.init.oversampling_chunks import ChunkedOversampling, OversamplingByChunks
from tsapps.apps.kmeans.init.oversampling_step import StepOversampling
from tsapps.apps.kmeans.init.plusplus_host import ChunkedDraw, ChunkedDraws, draw_samples
from tsapps.apps.kmeans.init.plusplus_launch import BegunDraw, draw_plus_plus
from tsapps.apps.kmeans.init.plusplus_part import DeviceDraw
from tsapps.apps.kmeans.small_d.plan import FmaPlan
from tsapps.apps.kmeans.update.fixed_point import integers_of
from tsapps.kernels.arrays import address, to_host
from tsapps.kernels.runtime.machine import CudaMachine, Machine
from tsapps.kernels.system.logs import logger_of

__all__ = ["DeviceEngine"]

_log = logger_of(__name__)


class DeviceEngine(Engine):
    """X on a GPU, and the Lloyd step selected for it.

    Parameters
    ----------
    source : Rows
        X, of shape (n, d), of any real dtype.
    dtype : {float32, float64}
        Working dtype.
    sample_weight : numpy.ndarray of shape (n,), optional
    machine : Machine
    options : Options
    shard : Shard, optional
        Which rows of a larger matrix `source` has; by default, it has all rows.
    """

    data: DeviceData

    def __init__(
        self,
        source: Rows,
        dtype: np.dtype,
        sample_weight: np.ndarray | None,
        machine: Machine,
        options: Options,
        shard: Shard | None = None,
    ) -> None:
        self.data = DeviceData(source, dtype, sample_weight, machine, takes_16_bit=options.kernels, shard=shard)
        #: Blockwise Lloyd step, which supports any k.
        self.blocks = CublasStep(self.data)
        self.options = options
        self._selected: tuple[int, StepPlan] | None = None
        self._step: Step | None = None
        self._begun: list[BegunDraw] = []

    @property
    def certifies(self) -> bool:  # type: ignore[override]
        """Whether labels are certified: always, except for float32 X with precision="tf32"."""
        return self.options.precision == "exact" or self.data.dtype_as_read != np.float32

    @property
    def is_reusable(self) -> bool:  # type: ignore[override]
        """Whether another fit can use this engine: the GPU holds X, and the fits so far have not centered it."""
        return self.data.is_as_read

    @property
    def fits_together(self) -> bool:  # type: ignore[override]
        """Whether fits of several numbers of clusters can share launches: see `sweep.fit.fit_together`."""
        return self.certifies and self.is_reusable and not self.data.spherical

    def _facts(self, *, single_pass: bool = False) -> Facts:
        """Return the facts about the data that need no pass over X; `norms` is None."""
        data, X = self.data, self.data.rows_on_gpu
        why_streamed = data.why_streamed or "X is not stored row-major in GPU memory"
        return Facts(
            n=data.n_samples,
            d=data.n_features,
            dtype=data.dtype.name,
            x_dtype=data.dtype_as_read.name,
            x_address=0 if X is None else address(X),
            over_link=data.over_link,
            why_streamed=why_streamed if X is None else None,
            weighted=data.sample_weight is not None,
            weights_alike=data.weights_alike,
            small=data.is_small,
            single_pass=single_pass,
            free_bytes=data.available_bytes() + data.half_copy_bytes,
        )

    def _select(self, k: int, subtracted: np.ndarray | None = None, *, single_pass: bool = False) -> StepPlan:
        """Select the Lloyd step for k clusters.

        `subtracted` (d,) is the point that kernels would subtract from each row on read; by default `data.shift`.
        """
        self._step = None  # frees the memory of the step for another k
        facts = self._facts_with_norms(subtracted, single_pass=single_pass)
        selected = select_step(facts, k, self.data.gpu, self.options)
        self._selected = k, selected
        _log.debug("k = %d: %s", k, selected)
        return selected

    def _facts_with_norms(self, subtracted: np.ndarray | None, *, single_pass: bool = False) -> Facts:
        facts = self._facts(single_pass=single_pass)
        if why_cublas(facts, self.data.gpu, self.options) is None:
            digits = integers_of(self.data, subtracted).digits
            facts = replace(facts, norms=Norms(*norms_of(self.data, subtracted), digits))
        return facts

    def selections(self, mean: np.ndarray, ks: Sequence[int]) -> dict[int, StepPlan]:
        """Return the steps that fits alone would select for several numbers of clusters; `mean` as of `center`."""
        facts = self._facts_with_norms(self.data.subtracted(mean))
        return {k: select_step(facts, k, self.data.gpu, self.options) for k in ks}

    def center(self, mean: np.ndarray, k: int) -> None:
        """Center X about `mean` (d,); see `Engine.center`. Kernels of this package subtract the mean on read."""
        selected = self._select(k, self.data.subtracted(mean))
        self.data.center(mean, on_read=selected.step != "cublas")

    def _center_once(self, mean: np.ndarray, k: int) -> None:
        reason = why_cublas(self._facts(single_pass=True), self.data.gpu, self.options)
        if reason is not None:
            self._selected, self._step = (k, StepPlan("cublas", reason)), None
            self.data.center_once(mean)
            return
        if self.data.spherical:
            self.data.refuse_non_finite()  # raises if X is not finite; the message names a row of the caller's X
        self.data.moments()  # raises if X is not finite
        self.center_for_pass(mean, k)

    def center_for_pass(self, mean: np.ndarray, k: int) -> None:
        """Center X, whose moments are known and finite, about `mean` (d,) for a single pass with k centers."""
        selected = self._select(k, self.data.subtracted(mean), single_pass=True)
        self.data.center(mean, on_read=selected.step != "cublas")

    @contextmanager
    def fitting(self, k: int, *, draws: bool) -> Iterator[None]:
        """Pin X in place if the GPU holds no copy, and begin to compile the kernels of a fit; see `Engine.fitting`."""
        try:
            self.data.pin_rows()
            self._begin_kernels(k, draws=draws)
            yield
            self.data.check_pinned()
        finally:
            self.data.unpin_rows()

    def _begin_kernels(self, k: int, *, draws: bool) -> None:
        """Begin to compile the kernels of a fit of k clusters in the background, as far as they are known."""
        data = self.data
        usual = data.sample_weight is None and not data.spherical and self.certifies
        if usual and self.options.kernels and isinstance(data.machine, CudaMachine):
            place = "link" if data.over_link else "streamed" if data.rows_on_gpu is None else "gpu"
            sizes, dtypes = (rounded_up(data.n_samples), data.n_features), (data.dtype_as_read, data.dtype)
            fit = Fit(DeviceEngine, sizes, *dtypes, self.options, k, draws, place=place)
            begin_kernels_of(fit, data.machine)

    def _plan_for(self, k: int) -> StepPlan:
        if self._selected is None or self._selected[0] != k:
            return self._select(k)
        return self._selected[1]

    def selection(self, k: int) -> tuple[str, str]:
        """Return the name of the step for k clusters, and why it was selected; see `Engine.selection`."""
        selected = self._plan_for(k)
        return selected.step, selected.reason

    def step_for(self, k: int) -> Step:
        """Return the step for k clusters; see `Engine.step_for`."""
        selected = self._plan_for(k)
        if self._step is None:
            self._step = self.blocks if selected.step == "cublas" else self._new_step(selected, k)
        return self._step

    def _new_step(self, selected: StepPlan, k: int) -> Step:
        """Return a new Lloyd step of the selected kind, with all labels −1."""

        def on_window(window: DeviceData) -> DeviceStep:
            return _step_on(window, replace(selected, bounds=False), k)

        if selected.streamed:
            return StreamedStep(self.data, k, on_window)
        step = _step_on(self.data, selected, k)
        if self.data.over_link:
            step.windows = WindowPass(self.data, on_window)
        step.reset()
        return step

    def serves(self, k: int) -> bool:
        """Return True if the step for k clusters uses kernels of this package, not cuBLAS."""
        return self._plan_for(k).step != "cublas"

    def streams(self, k: int) -> bool:
        """Return True if the step for k clusters reads X in windows, in every iteration."""
        return self._plan_for(k).streamed

    def oversampling(self, k: int) -> Oversampling:
        """Return an `Oversampling` of X; see `Engine.oversampling`."""
        return OversamplingByChunks(self.chunked_oversampling(k))

    def chunked_oversampling(self, k: int) -> ChunkedOversampling:
        """Return the samples from which k-means‖ draws, and which the step for k clusters labels."""
        step = self.step_for(k)
        step.protection = None

        def label(points: np.ndarray) -> list[Any]:
            step.assign(points, update=False)
            return [step.labels]

        step.reset()
        return StepOversampling(self.data, k, [self.data], label)

    def draw_plus_plus(self, first: int, draws: np.ndarray, chosen: Chosen | None = None) -> np.ndarray | None:
        """Draw samples by greedy k-means++ on the GPU, without host synchronisation; see `Engine.draw_plus_plus`.

        If X is in host memory and kernels cannot read it there, the CPU draws the same samples.
        """
        if not self.options.kernels:
            return None
        for begun in self._begun:
            if begun.first == first and np.array_equal(begun.draws, draws):
                self._begun.remove(begun)
                return begun.samples()
        found = draw_plus_plus(self.data, first, draws, chosen)
        if found is not None or self.data.source.device is not None:
            return found
        return draw_samples(self.chunked_draw(draws.shape[1]), first, draws, chosen)

    def begin_plus_plus(self, numbers: Sequence[tuple[int, np.ndarray]]) -> None:
        """Launch draws of which `draw_plus_plus` will be asked: first samples and random numbers."""
        self._begun = BegunDraw.begin(self.data, numbers) if self.options.kernels else []

    def chunked_draw(self, trials: int) -> ChunkedDraws:
        """Return the samples from which k-means++ draws chunk by chunk; on the CPU, if kernels cannot read X."""
        found, data = DeviceDraw.of(self.data, trials), self.data
        if found is not None:
            return found
        weights = None if data.sample_weight is None else to_host(data.sample_weight)
        return ChunkedDraw(HostData(data.source, data.dtype, weights, data.shard), trials, data.host_mean())


def _step_on(data: DeviceData, selected: StepPlan, k: int) -> DeviceStep:
    """Return a new step of the selected kind on data that kernels can read."""
    plan, flags = selected.plan, {"bounds": selected.bounds}
    if selected.step == "small_d":
        return (SmallDFmaStep if isinstance(plan, FmaPlan) else SmallDMmaStep)(data, plan, k, **flags)
    if selected.step == "small_k":
        return SmallKStep(data, plan, k, certifies=selected.certifies, **flags)
    return LargeKStep(data, plan, k, certifies=selected.certifies)
