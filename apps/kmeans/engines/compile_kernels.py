"""Compilation of the kernels of K-means on a GPU, for given sizes, into the disk cache."""

import importlib.util

import numpy as np

from tsapps.apps.kmeans.engines.compile_ahead import Fit, every_kernel_of
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.kernels.devices import NoDeviceError, choose_device
from tsapps.kernels.gpu_specs import KNOWN, GpuSpec, live
from tsapps.kernels.jit.compiler import architecture_of
from tsapps.kernels.jit.precompile import Compiled, compile_into_cache

__all__ = ["COMMON_SHAPES", "DTYPES", "GPUS", "INITS", "compile_kernels"]

#: Shapes (n, d, k) of K-means problems: one of each step of this package.
COMMON_SHAPES = ((1_000_000, 16, 16), (1_000_000, 128, 64), (1_000_000, 128, 1000))
#: Dtypes of X.
DTYPES = ("float32", "float64", "float16", "bfloat16")
#: Values of `init` that name a method.
INITS = ("k-means++", "k-means||", "random")
#: GPUs that need not be installed: those in `KNOWN` for which the kernels of this package compile.
GPUS = tuple(name for name, spec in KNOWN.items() if float(spec.compute_capability) >= 8.0)


def compile_kernels(
    n_samples: int,
    n_features: int,
    n_clusters: int,
    *,
    dtype: str = "float32",
    init: str = "k-means++",
    algorithm: str = "lloyd",
    precision: str = "exact",
    protect: bool = False,
    weighted: bool = False,
    device: str = "cuda",
    gpu: str | None = None,
) -> list[Compiled]:
    """Compile the kernels of K-means for one shape into the disk cache, so that the first fit compiles none.

    Includes the kernels of `predict`, `transform` and `score` for as many samples, and those that a fit needs for some
    values of X only. A few thousand samples more or less rarely change the kernels. Kernels that CuPy compiles for its
    own functions are not included.

    Parameters
    ----------
    n_samples, n_features, n_clusters : int
        The shape of X and the number of clusters, 1 ≤ n_clusters ≤ n_samples.
    dtype : {"float32", "float64", "float16", "bfloat16"}, default="float32"
        The dtype of X. A 16-bit type is that of an X on the GPU: from host memory, the GPU gets it as float32.
    init, algorithm, precision, protect
        As of `TSKMeans`. Only "k-means++" has kernels that no other `init` has.
    weighted : bool, default=False
        Whether `fit` or `score` are called with ``sample_weight``.
    device : {"cuda", "cuda:i"}, default="cuda"
        The GPU for which to compile.
    gpu : str, optional
        Compile for this GPU, which need not be installed, instead of `device`: a name in `GPUS`, such as "H100". Needs
        CuPy, but no driver. The machine with the GPU must share the cache directory, and have the same versions of
        tsapps and CUDA's compiler.

    Returns
    -------
    list of Compiled
        One object for each source; see `Compiled`.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    NoDeviceError
        If there is no such GPU in this machine, or CuPy is not installed.
    OSError
        If the cache cannot be written.

    Examples
    --------
    >>> compile_kernels(1_000_000, 128, 64, gpu="H100")  # doctest: +SKIP
    """
    if min(n_samples, n_features, n_clusters) < 1 or n_clusters > n_samples:
        raise ValueError(
            f"got {n_samples} samples, {n_features} features and {n_clusters} clusters; expected at least 1 of each, "
            f"and at most as many clusters as samples"
        )
    allowed = {"dtype": DTYPES, "init": INITS, "algorithm": ("lloyd", "elkan"), "precision": ("exact", "tf32")}
    given = {"dtype": dtype, "init": init, "algorithm": algorithm, "precision": precision}
    for name, values in allowed.items():
        if given[name] not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got {given[name]!r}")
    spec = _spec_of(device, gpu)
    fit = Fit(
        DeviceEngine,
        (n_samples, n_features),
        _numpy_dtype(dtype),
        np.dtype(np.float64 if dtype == "float64" else np.float32),
        Options(precision=precision, bounds=True if algorithm == "elkan" else None),
        n_clusters,
        init == "k-means++",
        weighted,
        protect,
    )
    return list(compile_into_cache(every_kernel_of(fit, spec), architecture_of(spec.compute_capability)))


def _numpy_dtype(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise ValueError("dtype 'bfloat16' needs ml_dtypes: install it (pip install ml_dtypes)") from error
    return np.dtype(ml_dtypes.bfloat16)


def _spec_of(device: str, gpu: str | None) -> GpuSpec:
    """Return the specification of the GPU for which to compile."""
    if gpu is None:
        choice = choose_device(device)
        if not choice.is_gpu:
            raise ValueError(f"device must be 'cuda' or 'cuda:<number>', got {device!r}: the CPU needs no kernels")
        return live(choice.index)
    if gpu not in GPUS:
        raise ValueError(f"gpu must be one of {', '.join(GPUS)}, got {gpu!r}")
    if importlib.util.find_spec("cupy") is None:
        raise NoDeviceError("CuPy, which contains the compiler, is not installed (pip install 'cupy-cuda13x[ctk]')")
    return KNOWN[gpu]
