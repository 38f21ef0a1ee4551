"""Compilation of the kernels of a fit, all at once: a fit of zeros on a machine that only compiles.

Otherwise each kernel would begin to compile when the fit first needs it, after the kernels before it have run.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.init.plusplus import n_trials
from tsapps.apps.kmeans.init.plusplus_launch import greedy_draw
from tsapps.kernels.jit.compiler import architecture
from tsapps.kernels.jit.kernel import begin_compilation
from tsapps.kernels.runtime.compiling_machine import CompilingMachine
from tsapps.kernels.runtime.machine import Machine

__all__ = ["Fit", "begin_kernels_of", "run_without_computing"]

# Maximum number of elements of the zeros; more do not change the choice of kernels.
_MOST_ELEMENTS = 1 << 28


@dataclass(frozen=True)
class Fit:
    """What determines the kernels of a fit, except the values of X.

    Attributes
    ----------
    engine : type
        The class of the engine, which is created with the arguments of `DeviceEngine`.
    shape, x_dtype : tuple of int, numpy.dtype
        Shape (n, d) and dtype of X, which is on the GPU; n may be larger than that of X.
    dtype : {float32, float64}
        The working dtype.
    options : Options
    k : int
        Number of clusters.
    draws : bool
        Whether k-means++ draws the initial centers.
    """

    engine: type
    shape: tuple[int, int]
    x_dtype: np.dtype
    dtype: np.dtype
    options: Options
    k: int
    draws: bool


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


def run_without_computing(fit: Fit, machine: CompilingMachine) -> None:
    """Request from a machine the kernels that a fit probably needs.

    Raises
    ------
    MemoryError
        If the process may not reserve memory of the size of X without using it.
    """
    n, d = fit.shape
    rows = min(n, max(fit.k, _MOST_ELEMENTS // d))

    def engine_of(x_dtype: np.dtype) -> Any:
        source = ArrayRows(np.zeros((rows, d), x_dtype))
        source.device = machine.index
        return fit.engine(source, fit.dtype, None, machine, fit.options)

    engine = engine_of(fit.x_dtype)
    data = engine.data
    data.moments()
    if data.is_small:
        data.rounded_moments()
    engine.center(np.zeros(d), fit.k)
    if fit.draws and data.rounds_draws(fit.k):
        data.square_distances(np.zeros((1, d)))
    elif fit.draws and fit.k > 1:
        # A 16-bit X is converted for k-means++.
        drawn = data if data.held is not None else engine_of(fit.dtype).data
        greedy_draw(drawn, 0, np.zeros((fit.k - 1, n_trials(fit.k))))
    step = engine.step_for(fit.k)
    if isinstance(step, DeviceStep):
        step.create_bounds()
        data.inertia(np.zeros((fit.k, d)), step.labels)
