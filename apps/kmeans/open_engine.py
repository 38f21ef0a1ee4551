"""Construction of an engine: validates X, weights and options, selects the device, and opens X on that device."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.blocks import SMALL
from tsapps.apps.kmeans.data.frame import ScaledRows
from tsapps.apps.kmeans.data.rows import Rows, UnitRows, as_numbers, as_rows, unscaled
from tsapps.apps.kmeans.engines.engine import Engine, HostEngine
from tsapps.kernels.arrays import gpu_index, is_sparse, to_host
from tsapps.kernels.devices import Choice, choose_device
from tsapps.kernels.system.logs import logger_of

__all__ = [
    "ENGINES",
    "METRICS",
    "PRECISIONS",
    "check_engine",
    "check_metric",
    "check_precision",
    "check_sample_weight",
    "check_weights",
    "choose",
    "compute_dtype",
    "open_engine",
    "resident",
]

_log = logger_of(__name__)
#: Values of the `engine` parameter; "auto" selects the fastest for the data and the device.
ENGINES = ("auto", "fused", "cublas")
#: Values of the `metric` parameter.
METRICS = ("euclidean", "cosine")
#: Values of the `precision` parameter.
PRECISIONS = ("exact", "tf32")


def choose(X: Any, device: str, engine: str = "auto", *, several: bool = True) -> Choice:
    """Choose the device for X, and check that the requested engine runs on that device.

    Parameters
    ----------
    X : Rows, array, frame or sparse matrix
    device : {"auto", "cpu", "cuda", "cuda:i", "cuda:i,j,…", "cuda:all"}
        See `choose_device`.
    engine : {"auto", "fused", "cublas"}
    several : bool
        Whether several GPUs may be requested.

    Returns
    -------
    Choice

    Raises
    ------
    ValueError
        If `device` or `engine` is invalid, or cuBLAS is requested and the device is the CPU.
    NoDeviceError
        If the requested GPU is not present.
    """
    check_engine(engine)
    choice = choose_device(device, resident=resident(X), several=several)
    if engine == "cublas" and not choice.is_gpu:
        raise ValueError(
            f"engine='cublas' needs a GPU, but the device is the CPU ({choice.reason}); use engine='auto' or a GPU"
        )
    return choice


def check_engine(engine: str) -> None:
    """Raise ValueError if `engine` is not one of `ENGINES`."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, got {engine!r}")


def check_metric(metric: str) -> None:
    """Raise ValueError if `metric` is not one of `METRICS`."""
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(map(repr, METRICS))}, got {metric!r}")


def check_precision(precision: str) -> None:
    """Raise ValueError if `precision` is not one of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}")


def resident(X: Any) -> int | None:
    """Return the index of the GPU that holds X; None if X is in host memory."""
    if isinstance(X, Rows):
        return X.device
    return as_rows(X).device if is_sparse(X) else gpu_index(X)


def check_sample_weight(sample_weight: Any, n_samples: int) -> Any:
    """Validate sample weights.

    Parameters
    ----------
    sample_weight : array of shape (n_samples,), number or None
        A number is the weight of every sample; None means 1.
    n_samples : int

    Returns
    -------
    numpy.ndarray or cupy.ndarray of shape (n_samples,), or None

    Raises
    ------
    ValueError
        If the shape is wrong, a weight is negative or not finite, or all weights are zero.
    """
    if sample_weight is None:
        return None
    weights = as_numbers(sample_weight, "sample_weight")
    if weights.ndim == 0:
        weights = np.full(n_samples, float(weights))
    if weights.shape != (n_samples,):
        raise ValueError(f"sample_weight has shape {weights.shape}; expected one number per sample, ({n_samples},)")
    check_weights(weights)
    return weights


def check_weights(sample_weight: Any) -> None:
    """Raise ValueError if a weight is negative or not finite, or if all weights are zero; None is valid."""
    if sample_weight is None:
        return
    weights = np.atleast_1d(to_host(as_numbers(sample_weight, "sample_weight")))
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight has a NaN or an infinity; expected finite numbers")
    if (weights < 0).any():
        index = int(np.argmax(weights < 0))
        raise ValueError(f"sample_weight[{index}] is {weights[index]}; expected non-negative weights")
    if not weights.any():
        raise ValueError("sample_weight is zero for every sample; expected at least one positive weight")


def compute_dtype(dtype: np.dtype, *, on_gpu: bool) -> np.dtype:
    """Return the working type of K-means for data of `dtype`: float32 or float64.

    As in scikit-learn, float32 for float32 data and float64 for all other types. On a GPU, or with the arithmetic of
    one, float32 also for float16 and bfloat16 data, whose values float32 represents exactly.
    """
    narrow = dtype == np.float32 or (on_gpu and dtype.name in ("float16", "bfloat16"))
    return np.dtype(np.float32 if narrow else np.float64)


def open_engine(
    X: Any,
    *,
    dtype: np.dtype | None = None,
    sample_weight: Any = None,
    device: str = "auto",
    engine: str = "auto",
    metric: str = "euclidean",
    precision: str = "exact",
    bounds: bool | None = None,
    exponent: int = 0,
) -> Engine:
    """Choose the device, and create an engine for X on that device.

    Parameters
    ----------
    X : Rows, array, frame or sparse matrix of shape (n, d)
        See `as_rows`.
    dtype : {float32, float64}, optional
        The working type; by default the `compute_dtype` of X.
    sample_weight : array of shape (n,), optional
    device, engine : str
        See `choose`.
    metric : {"euclidean", "cosine"}
        "cosine" scales the rows of X to norm 1.
    precision : {"exact", "tf32"}
        Whether our GPU kernels certify labels of float32 data; see `TSKMeans`. The CPU and cuBLAS ignore it.
    bounds : bool, optional
        Whether our GPU kernels skip rows whose label cannot change; by default only where that usually saves time. The
        CPU and cuBLAS ignore it.
    exponent : int
        The engine computes with rows x · 2^−exponent; see `Frame`.

    Returns
    -------
    Engine

    Raises
    ------
    ValueError
        If an argument is out of its range, or X is not a matrix of real numbers.
    NoDeviceError
        If the requested GPU is not present.
    MemoryError
        If the CPU's memory does not hold the labels and the temporaries of a fit.
    """
    check_metric(metric)
    check_precision(precision)
    rows = as_rows(X)
    choice = choose(rows, device, engine)
    weights = check_sample_weight(sample_weight, rows.shape[0])
    as_kernels = choice.is_gpu or engine == "fused"
    dtype = np.dtype(dtype) if dtype is not None else compute_dtype(rows.dtype, on_gpu=as_kernels)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    if metric == "cosine":
        rows = UnitRows(rows, dtype)

    (n, d), name = rows.shape, rows.name
    of_options = f"metric {metric}" if precision == "exact" else f"metric {metric}, precision {precision}"
    _log.info("%s: %s × %s %s, computed in %s, %s", name, f"{n:,}", f"{d:,}", rows.dtype, dtype, of_options)
    _log.info("%s: device %s: %s", name, choice.device, choice.reason)

    def over(rows: Rows) -> Engine:
        made: Engine
        if not choice.is_gpu:
            made = HostEngine(rows, dtype, weights, as_kernels=as_kernels)
        else:
            from tsapps.apps.kmeans.engines.select_step import Options

            options = Options(engine != "cublas", engine == "fused", precision, bounds)
            made = _gpu_engine(rows, dtype, weights, choice.indices, options)
        made.over = over
        return made

    return over(ScaledRows(rows, exponent, dtype) if exponent else rows)


def _gpu_engine(rows: Rows, dtype: np.dtype, weights: Any, indices: tuple[int, ...], options: Any) -> Engine:
    """Return an engine for the GPUs with these indices; small X is on the first of them alone.

    Several GPUs that do not hold X together read it in host memory, each its part.
    """
    from tsapps.kernels.runtime.machine import cuda_machine

    n, d = rows.shape
    if len(indices) == 1 or n * d * dtype.itemsize <= SMALL:
        from tsapps.apps.kmeans.engines.device_engine import DeviceEngine

        return DeviceEngine(rows, dtype, weights, cuda_machine(indices[0]), options)
    from tsapps.apps.kmeans.distributed.local_parts import LocalPartsEngine, parts_of_gpus
    from tsapps.apps.kmeans.distributed.rates import measured_shares
    from tsapps.apps.kmeans.distributed.sharded_engine import ShardedEngine
    from tsapps.kernels.runtime.all_reduce import connect

    machines = [cuda_machine(index) for index in indices]
    weights = None if weights is None else to_host(weights)
    parts = parts_of_gpus(unscaled(rows), dtype, machines) if options.kernels else None
    if parts is not None:
        return LocalPartsEngine(rows, parts, dtype, weights, machines)
    return ShardedEngine(rows, dtype, weights, machines, options, connect, measured_shares(machines))
