"""From data of any kind to the engine that will work on it."""

import sys
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.frame import ScaledRows
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows, SparseRows, UnitRows, as_numbers, check_real
from tsapps.apps.kmeans.engines.engine import Engine, HostEngine
from tsapps.kernels.arrays import gpu_index, to_host
from tsapps.kernels.devices import Choice, choose_device

__all__ = [
    "ENGINES",
    "METRICS",
    "PRECISIONS",
    "as_rows",
    "check_metric",
    "check_precision",
    "check_sample_weight",
    "check_weights",
    "choose",
    "compute_dtype",
    "is_sparse",
    "open_engine",
    "resident",
]

#: The engines that `engine=` names; "auto" is the best one for the device.
ENGINES = ("auto", "fused", "cublas")
#: The metrics that `metric=` names.
METRICS = ("euclidean", "cosine")
#: What `precision=` names.
PRECISIONS = ("exact", "tf32")


def choose(X: Any, device: str, engine: str) -> Choice:
    """Choose the device, and check that the engine runs there.

    Parameters
    ----------
    X : Rows or array
        The data.
    device : {"auto", "cpu", "cuda", "cuda:i"}
        "auto" follows X to its GPU, else takes a GPU if there is one, else the CPU.
    engine : {"auto", "fused", "cublas"}

    Raises
    ------
    ValueError
        If an argument is none of these, or an engine for GPUs is asked for on the CPU.
    NoDeviceError
        If a GPU is asked for that is not there.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(map(repr, ENGINES))}, got {engine!r}")
    choice = choose_device(device, resident=resident(X))
    if engine != "auto" and not choice.is_gpu:
        raise ValueError(f"engine={engine!r} needs a GPU, and the device is the CPU: {choice.reason}")
    return choice


def check_metric(metric: str) -> None:
    """Raise ValueError if a metric is none of `METRICS`."""
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(map(repr, METRICS))}, got {metric!r}")


def check_precision(precision: str) -> None:
    """Raise ValueError if a precision is none of `PRECISIONS`."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}")


def is_sparse(X: Any) -> bool:
    """Tell whether X is a sparse matrix of SciPy or, on a GPU, of CuPy."""
    if type(X).__module__.startswith("cupyx.scipy.sparse"):
        return True
    scipy_sparse = sys.modules.get("scipy.sparse")  # whoever has such a matrix has imported it
    return scipy_sparse is not None and scipy_sparse.issparse(X)


def resident(X: Any) -> int | None:
    """Return the GPU that X lies on, or None where it lies in host memory."""
    if isinstance(X, Rows):
        return X.device
    return as_rows(X).device if is_sparse(X) else gpu_index(X)


def as_rows(X: Any) -> Rows:
    """See X as blocks of rows: a `Rows` as it is, else a dense array of any library or a sparse matrix.

    Raises
    ------
    ValueError
        If X is not two-dimensional, is empty, or is not of a real number type.
    """
    rows: Rows
    if isinstance(X, Rows):
        rows = X
    elif is_sparse(X):
        rows = SparseRows(X.tocsr())
    else:
        rows = ArrayRows(as_numbers(X))
    if len(rows.shape) != 2:
        raise ValueError(f"X has shape {rows.shape}; expected a matrix of shape (n_samples, n_features)")
    if 0 in rows.shape:
        raise ValueError(f"X has shape {rows.shape}; expected at least one sample and one feature")
    check_real(rows.dtype, rows.name)
    if not rows.dtype.isnative or (rows.dtype.kind not in "fiub" and rows.dtype.name != "bfloat16"):
        raise ValueError(f"{rows.name} has dtype {rows.dtype}; expected real numbers in the machine's byte order")
    return rows


def check_sample_weight(sample_weight: Any, n_samples: int) -> Any:
    """Return the weights as a NumPy or CuPy array of shape (n,), or None where every sample weighs 1.

    Raises
    ------
    ValueError
        If there is not one finite number a sample, one is negative, or all are zero.
    """
    if sample_weight is None:
        return None
    weights = as_numbers(sample_weight, "sample_weight")
    if weights.ndim == 0:
        weights = np.full(n_samples, float(weights))
    if weights.shape != (n_samples,):
        raise ValueError(f"sample_weight has shape {weights.shape}; expected one number a sample, ({n_samples},)")
    check_weights(weights)
    return weights


def check_weights(sample_weight: Any) -> None:
    """Raise ValueError unless weights, if any, are finite, none is negative, and one is not zero."""
    if sample_weight is None:
        return
    weights = np.atleast_1d(to_host(as_numbers(sample_weight, "sample_weight")))
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight has a NaN or an infinity; expected finite numbers")
    if (weights < 0).any():
        index = int(np.argmax(weights < 0))
        raise ValueError(f"sample_weight[{index}] is {weights[index]}; expected no negative weight")
    if not weights.any():
        raise ValueError("sample_weight is zero for every sample; expected a positive weight")


def compute_dtype(dtype: np.dtype, *, on_gpu: bool) -> np.dtype:
    """Return the type that K-means works in for data of `dtype`.

    float32 for float32, else float64: scikit-learn's rule. On a GPU the halves (float16, bfloat16) are widened to
    float32, which holds them exactly.
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
    """Choose the device and build the engine that holds X there.

    Parameters
    ----------
    X : Rows or array of shape (n, d)
        See `as_rows`.
    dtype : {float32, float64}, optional
        The type to work in; by default `compute_dtype` of X's.
    sample_weight : array of shape (n,), optional
    device, engine : str
        See `choose`.
    metric : {"euclidean", "cosine"}
        By "cosine" the engine holds X's rows scaled to norm 1.
    precision : {"exact", "tf32"}
        Whether the kernels of this package prove labels of float32 data, see `TSKMeans`; others always do.
    bounds : bool, optional
        Whether kernels of this package skip rows whose label cannot change, by default where that is likely to pay;
        others ignore it.
    exponent : int
        Rows are worked on times 2^−exponent; see `Frame`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or X is no matrix of real numbers.
    NoDeviceError
        If a GPU is asked for that is not there.
    """
    check_metric(metric)
    check_precision(precision)
    rows = as_rows(X)
    choice = choose(rows, device, engine)
    weights = check_sample_weight(sample_weight, rows.shape[0])
    dtype = np.dtype(dtype) if dtype is not None else compute_dtype(rows.dtype, on_gpu=choice.is_gpu)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
    if metric == "cosine":
        rows = UnitRows(rows, dtype)

    def over(rows: Rows) -> Engine:
        made: Engine
        if not choice.is_gpu:
            made = HostEngine(rows, dtype, weights)
        else:
            from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
            from tsapps.apps.kmeans.engines.select_step import Options
            from tsapps.kernels.runtime.machine import cuda_machine

            options = Options(engine != "cublas", engine == "fused", precision, bounds)
            made = DeviceEngine(rows, dtype, weights, cuda_machine(choice.index), options)
        made.over = over
        return made

    return over(ScaledRows(rows, exponent, dtype) if exponent else rows)
