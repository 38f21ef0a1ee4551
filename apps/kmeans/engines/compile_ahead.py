"""Compilation of the kernels of a fit, all at once: a fit of zeros on a machine that only compiles.

Otherwise each kernel would begin to compile when the fit first needs it, after the kernels before it have run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.inertia.launch import sum_terms, total_inertia
from tsapps.apps.kmeans.init.plusplus import n_trials
from tsapps.apps.kmeans.init.plusplus_launch import greedy_draw
from tsapps.apps.kmeans.protect.checks import Protection
from tsapps.apps.kmeans.update import relocation
from tsapps.apps.kmeans.update.relocation import Relocation
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.jit.compiler import architecture
from tsapps.kernels.jit.kernel import begin_compilation
from tsapps.kernels.runtime.compiling_machine import CompilingMachine, DescribedGpu
from tsapps.kernels.runtime.machine import Machine

__all__ = ["Fit", "begin_kernels_of", "every_kernel_of", "rounded_up", "run_without_computing"]

# Maximum number of elements of the zeros; more do not change the choice of kernels.
_MOST_ELEMENTS = 1 << 28
# More clusters do not change the choice of kernels of the cuBLAS step.
_MANY_CLUSTERS = 65
# Sets the moments of data: mean, mean variance of the features, and largest |x − mean| of each feature.
_Assume = Callable[[DeviceData], None]


@dataclass(frozen=True)
class Fit:
    """What determines the kernels of a fit, except the values of X.

    Attributes
    ----------
    engine : type
        The class of the engine, which is created with the arguments of `DeviceEngine`.
    shape, x_dtype : tuple of int, numpy.dtype
        Shape (n, d) and dtype of X; n may be larger than that of X.
    dtype : {float32, float64}
        The working dtype.
    options : Options
    k : int
        Number of clusters.
    draws : bool
        Whether k-means++ draws the initial centers.
    weighted : bool
        Whether samples have weights.
    protect : bool
        Whether the fit checks every iteration and the result.
    place : {"gpu", "link", "streamed"}
        Where kernels read X: in GPU memory, in pinned host memory, or in windows that pass through the GPU.
    """

    engine: type
    shape: tuple[int, int]
    x_dtype: np.dtype
    dtype: np.dtype
    options: Options
    k: int
    draws: bool
    weighted: bool = False
    protect: bool = False
    place: str = "gpu"


def rounded_up(n: int) -> int:
    """Return the power of two from n on, by which fits with similar numbers of samples compile ahead only once."""
    return 1 << (n - 1).bit_length()


@lru_cache(256)
def begin_kernels_of(fit: Fit, machine: Machine) -> None:
    """Begin to compile the kernels that a fit probably needs, in the background; once for equal arguments.

    If this process may not reserve memory without using it, kernels compile when they are needed.
    """

    def begin(source: Any, *names: str) -> None:
        begin_compilation(source, names, architecture(machine.index))

    try:
        run_without_computing(fit, CompilingMachine(machine, begin))
    except MemoryError:
        return


def every_kernel_of(fit: Fit, gpu: GpuSpec) -> list[tuple[Path | str, tuple[str, ...]]]:
    """Return the kernels that a fit may need on a GPU, and `predict`, `transform` and `score` of an X of this shape.

    These are more than one fit needs: some depend on the values of X (`_value_kinds`), on the free memory (without
    enough of it, X is read in windows), or on whether a cluster becomes empty. The GPU need not be installed.

    Returns
    -------
    list of (path or str, tuple of str)
        The arguments of `Machine.kernels`: sources, and the name expressions that are compiled together.

    Raises
    ------
    MemoryError
        If the process may not reserve memory of the size of X without using it.
    """
    found: dict[tuple[Path | str, tuple[str, ...]], None] = {}

    def begin(source: Path | str, *names: str) -> None:
        found[source, names] = None

    machine = CompilingMachine(DescribedGpu(gpu), begin)
    n, d = fit.shape
    for weighted in dict.fromkeys((fit.weighted, False)):  # `predict` has no weights
        one = replace(fit, weighted=weighted)
        for rows in dict.fromkeys((n, rounded_up(n))):  # a fit begins to compile the kernels of either
            for assume in _value_kinds(d):
                for place in ("gpu", "streamed"):
                    run_without_computing(replace(one, shape=(rows, d), place=place), machine, assume, relocates=True)
        for x_dtype in dict.fromkeys((fit.x_dtype, fit.dtype)):  # some passes convert a 16-bit X
            _run_passes(replace(one, x_dtype=x_dtype), machine)
    return list(found)


def _value_kinds(d: int) -> Iterator[_Assume | None]:
    """Yield the kinds of values of X, (n, d), by which kernels are selected.

    They are: values near their mean (None: zeros), values far from zero, and values with a heavy tail, whose cluster
    sums have three limbs.
    """
    yield None
    for mean, largest in ((1e4, 1.0), (0.0, 1e4)):
        moments = np.full(d, mean), 1.0, np.full(d, largest)

        def assume(data: DeviceData, moments: tuple[np.ndarray, float, np.ndarray] = moments) -> None:
            data.origin, data.known_moments = moments[0].astype(data.dtype), moments

        yield assume


def run_without_computing(
    fit: Fit, machine: CompilingMachine, assume: _Assume | None = None, *, relocates: bool = False
) -> None:
    """Request from a machine the kernels that a fit probably needs.

    Parameters
    ----------
    fit : Fit
    machine : CompilingMachine
    assume : callable, optional
        Sets the moments of the data, which are otherwise those of zeros.
    relocates : bool
        Whether clusters become empty.

    Raises
    ------
    MemoryError
        If the process may not reserve memory of the size of X without using it.
    """
    n, d = fit.shape
    rows = min(n, max(fit.k, _MOST_ELEMENTS // d))
    engine = _engine_of_zeros(fit, rows, fit.x_dtype, machine)
    data = engine.data
    data.moments()
    if assume is not None:
        assume(data)
    if data.is_small:
        data.rounded_moments()
    engine.center(np.zeros(d) if assume is None else data.cached_moments[0], fit.k)
    if fit.draws and data.rounds_draws(fit.k):
        data.square_distances(np.zeros((1, d)))
    elif fit.draws and fit.k > 1 and fit.place != "streamed":
        # A 16-bit X is converted for k-means++.
        drawn = data if data.held is not None else _engine_of_zeros(fit, rows, fit.dtype, machine).data
        greedy_draw(drawn, 0, np.zeros((fit.k - 1, n_trials(fit.k))))
    step = engine.step_for(fit.k)
    if isinstance(step, DeviceStep):
        step.create_bounds()
        if relocates and n > relocation.MOST_ORDERED:
            Relocation(data, step.buffers, step.integers.digits).bind(step.buffers.centers[0])
        if not fit.weighted:
            sum_terms(machine, step.buffers.sums, step.buffers.units, step.buffers.centers[0])
        data.inertia(np.zeros((fit.k, d)), step.labels)
        if fit.protect:
            step.protection = Protection()
            step.assign(np.zeros((fit.k, d), fit.dtype), update=False)
            step.checked_inertia(np.zeros((fit.k, d), fit.dtype))


def _engine_of_zeros(fit: Fit, rows: int, x_dtype: np.dtype, machine: CompilingMachine) -> Any:
    """Return a new engine for zeros of shape (rows, d), with weights if the samples of the fit have weights."""
    source = ArrayRows(np.zeros((rows, fit.shape[1]), x_dtype))
    source.device = machine.index
    weights = np.ones(rows, fit.dtype) if fit.weighted else None
    engine = fit.engine(source, fit.dtype, weights, machine, fit.options)
    if fit.place != "gpu":
        engine.data.move_away(pinned=fit.place == "link")
    return engine


def _run_passes(fit: Fit, machine: CompilingMachine) -> None:
    """Request the kernels of passes over X and of the cuBLAS step, which do not depend on the number of samples.

    They draw initial centers by k-means‖, relocate empty clusters, compute the result of `transform`, label a small X,
    and iterate where no other step can.
    """
    d = fit.shape[1]
    engine = _engine_of_zeros(fit, 1, fit.x_dtype, machine)
    data, labels = engine.data, np.zeros(1, np.int32)
    data.moments()
    data.square_distances(np.zeros((1, d)))
    data.own_distances(np.zeros((1, d)), labels)
    data.inertia(np.zeros((fit.k, d)), labels)
    total_inertia(machine, np.zeros(1))  # of several blocks
    engine.blocks.assign(np.zeros((min(fit.k, _MANY_CLUSTERS), d), fit.dtype))
