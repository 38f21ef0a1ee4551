"""Selection of the Lloyd step (the kernels of an iteration) for k clusters on a GPU, from facts about data and GPU."""

from dataclasses import dataclass, replace
from typing import Any

from tsapps.apps.kmeans.assign.large_k_mma_plan import mma_stream_plan
from tsapps.apps.kmeans.assign.large_k_plan import WINDOW, ResidentPlan, large_k_plan, list_candidates, stream_plan
from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_BYTES,
    AMBIGUOUS_LARGE_K_BYTES,
    MOST_CLUSTERS,
    MOST_LARGE_K,
    REASSIGNMENT_BYTES,
    assign_plan,
)
from tsapps.apps.kmeans.data.fixed_point_data import WEIGHTS_DIFFER
from tsapps.apps.kmeans.data.plan import padded
from tsapps.apps.kmeans.small_d.plan import ALIGNMENT, fma_plan
from tsapps.apps.kmeans.update.fixed_point import NARROW
from tsapps.apps.kmeans.update.plan import PLACE_BYTES
from tsapps.kernels.gpu_specs import GpuSpec

__all__ = ["MOST_SAMPLES", "Facts", "Norms", "Options", "StepPlan", "iteration_bytes", "select_step", "why_cublas"]

#: Exclusive upper limit of the number of samples: row indices have 32 bits, and the last tiles are padded.
MOST_SAMPLES = 2**32 - 128
# Maximum number of features for which float32 sums give accurate row norms (half_copy.cuh).
_MOST_FEATURES = 2**18
_LEAST_CAPABILITY = 8.0
# By default, Hamerly bounds are used if X has at most _MOST_BOUNDED features and at least _LEAST_BOUNDED elements. For
# a smaller X, the kernel launches for bounds take as long as the time that bounds save.
_MOST_BOUNDED, _LEAST_BOUNDED = 256, 1 << 26


@dataclass(frozen=True)
class Options:
    """Options of the caller.

    Attributes
    ----------
    kernels : bool
        Whether kernels of this package may be selected; otherwise always cuBLAS.
    always : bool
        Whether kernels of this package are also used for small float64 data, and for single passes over small data.
    precision : {"exact", "tf32"}
        Whether float32 labels are certified ("exact") or not ("tf32").
    bounds : bool, optional
        Whether Hamerly bounds skip rows whose label cannot change. None means: if that is likely to save time.
    """

    kernels: bool = True
    always: bool = False
    precision: str = "exact"
    bounds: bool | None = None


@dataclass(frozen=True)
class Norms:
    """Norms of the rows x − s, where s is the point that kernels would subtract from each row when they read it.

    Attributes
    ----------
    shift : float
        ‖s‖.
    rows : float
        Upper bound of ‖x − s‖ over the rows x.
    digits : {2, 3}
        Number of limbs of a fixed-point element; see `Integers`.
    """

    shift: float
    rows: float
    digits: int


@dataclass(frozen=True)
class Facts:
    """Facts about the data and the memory of its GPU, from which `select_step` selects.

    Attributes
    ----------
    n, d : int
        Numbers of samples and features.
    dtype : {"float32", "float64"}
        Dtype of the computation and of the centers.
    x_dtype : str
        Dtype of X as kernels read it.
    over_link : bool
        Whether X is in host memory, where the GPU reads it through the link.
    why_streamed : str, optional
        Why kernels cannot read X where it is; None if they can.
    x_address : int
        Device address of X; 0 if X is not on the GPU.
    weighted : bool
        Whether samples have weights.
    weights_alike : bool
        Whether one fixed-point scale represents all nonzero weights accurately.
    small : bool
        Whether X is so small that results follow scikit-learn's rounding; see `SMALL`.
    single_pass : bool
        Whether labels are computed once, as in `predict`.
    free_bytes : int
        Bytes of GPU memory that the half-precision copy of X and the buffers of iterations may use.
    norms : Norms, optional
        None until the moments of X have been computed.
    """

    n: int
    d: int
    dtype: str
    x_dtype: str
    x_address: int = 0
    over_link: bool = False
    why_streamed: str | None = None
    weighted: bool = False
    weights_alike: bool = True
    small: bool = False
    single_pass: bool = False
    free_bytes: int = 1 << 62
    norms: Norms | None = None


@dataclass(frozen=True)
class StepPlan:
    """The selected Lloyd step.

    Attributes
    ----------
    step : {"cublas", "small_d", "small_k", "large_k"}
        Name of the step.
    reason : str
        Why the step was selected.
    plan : FmaPlan, ProductsPlan, MmaPlan or StreamPlan, optional
        Plan of the assignment kernel; None for cuBLAS.
    bounds : bool
        Whether Hamerly bounds may skip rows.
    certifies : bool
        Whether labels are certified.
    streamed : bool
        Whether the step reads X in windows, in every iteration: the GPU holds no half-precision copy.
    """

    step: str
    reason: str
    plan: Any = None
    bounds: bool = False
    certifies: bool = True
    streamed: bool = False


def why_cublas(facts: Facts, gpu: GpuSpec, options: Options) -> str | None:
    """Return why only cuBLAS can be selected, for every k; None if another step may be. Does not need `facts.norms`."""
    if not options.kernels:
        return "engine='cublas' was asked for"
    if facts.small and not options.always:
        if facts.dtype == "float64":
            return "small float64 data follows scikit-learn's rounding"
        if facts.single_pass:
            return "a single pass over small data takes less time than a copy of X"
    if float(gpu.compute_capability) < _LEAST_CAPABILITY:
        return f"compute capability {gpu.compute_capability} is below {_LEAST_CAPABILITY}, which the kernels require"
    if facts.n >= MOST_SAMPLES:
        return f"{facts.n} samples exceed 32-bit row indices"
    if facts.d > _MOST_FEATURES:
        return f"{facts.d} features exceed {_MOST_FEATURES}"
    if not facts.weights_alike:
        return WEIGHTS_DIFFER
    return None


def iteration_bytes(n: int, d: int, k: int, panels: int, *, copied: bool = True) -> int:
    """Return the approximate size in bytes of the half-precision copy, the row lists of an iteration, and the centers.

    `panels` is the number of 16-column panels per row for large k; 0 for small k. `copied` is False if there is no
    half-precision copy.
    """
    lists = n * 2 * (AMBIGUOUS_BYTES + PLACE_BYTES)
    if panels:
        lists = min(n, WINDOW) * (REASSIGNMENT_BYTES + AMBIGUOUS_LARGE_K_BYTES[list_candidates(panels)])
    width = 16 * panels or padded(d)
    return n * (2 * width * copied + 4) + lists + k * (2 * width + 3 * 8 * (d + 1))


def select_step(facts: Facts, k: int, gpu: GpuSpec, options: Options) -> StepPlan:
    """Select the Lloyd step for k clusters.

    Parameters
    ----------
    facts : Facts
        Must include `norms`, unless `why_cublas` returns a reason.
    k : int
    gpu : GpuSpec
    options : Options

    Returns
    -------
    StepPlan

    Raises
    ------
    ValueError
        If `facts` has no `norms` and `why_cublas` returns None.
    """
    reason = why_cublas(facts, gpu, options)
    if reason is not None:
        return StepPlan("cublas", reason)
    if facts.norms is None:
        raise ValueError("select_step needs facts.norms, got None: compute the moments of X first")
    n, d = facts.n, facts.d
    certifies = options.precision == "exact" or facts.x_dtype != "float32"
    pays = d <= _MOST_BOUNDED and n * d >= _LEAST_BOUNDED
    bounds = pays if options.bounds is None else options.bounds
    # Kernels for few features read X itself in every iteration.
    on_gpu = not facts.over_link and facts.why_streamed is None
    if not facts.weighted and facts.dtype == "float32" and on_gpu:
        plan = fma_plan(d, k, facts.x_dtype, facts.norms.shift, facts.norms.rows, gpu)
        if plan is not None and facts.norms.digits == NARROW and facts.x_address % ALIGNMENT == 0:
            return StepPlan("small_d", f"d = {d} and k = {k}: one launch reads X in place", plan, bounds, certifies)
    why = f"k = {k} > {MOST_CLUSTERS}"
    if k <= MOST_CLUSTERS:
        small_k = assign_plan(n, d, k, gpu, bounds=bounds)
        if small_k is not None:
            reason = f"k = {k} <= {MOST_CLUSTERS}: centers stay in shared memory"
            return _if_it_fits(StepPlan("small_k", reason, small_k, bounds, certifies), facts, k, 0)
        why = f"shared memory does not hold {k} centers of {d} features"
    if k > MOST_LARGE_K:
        return StepPlan("cublas", f"k = {k} exceeds the limit, {MOST_LARGE_K}")
    by_wgmma = (large_k_plan if on_gpu else stream_plan)(d, k, gpu, certifies=certifies)
    large_k = by_wgmma or mma_stream_plan(d, k, gpu, certifies=certifies)
    if large_k is None:
        return StepPlan("cublas", f"no kernel for d = {d} and k = {k} fits the GPU")
    copied = not isinstance(large_k, ResidentPlan)
    how = "centers are streamed" if copied else f"d = {d}: X is read in place"
    found = StepPlan("large_k", f"{why}: {how}", large_k, False, certifies)
    return _if_it_fits(found, facts, k, large_k.row_panels, copied=copied)


def _if_it_fits(found: StepPlan, facts: Facts, k: int, panels: int, *, copied: bool = True) -> StepPlan:
    """Return `found`; or the step in windows of X, if kernels cannot read X, or its half-precision copy is too large.

    Parameters as for `iteration_bytes`. A step that reads X itself becomes cuBLAS if its buffers do not fit.
    """
    needed, why = iteration_bytes(facts.n, facts.d, k, panels, copied=copied), facts.why_streamed
    if why is None and needed <= facts.free_bytes:
        return found
    if why is None:
        what = "a half-precision copy needs" if copied else "lists of rows need"
        why = f"{what} {needed} bytes, but {facts.free_bytes} are free"
    if not copied:
        return replace(found, step="cublas", reason=why, plan=None, bounds=False, certifies=True)
    return replace(found, reason=f"{found.reason}; X is read in windows: {why}", bounds=False, streamed=True)
