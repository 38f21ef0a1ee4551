"""Dask arrays and data frames as X of `TSKMeans`: the fit on the workers of a cluster, and results as Dask has them.

Dask is imported only if X is one of its collections. An `estimator` is a `TSKMeans`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from tsapps.apps.kmeans.checkpoint import checkpoint_of
from tsapps.apps.kmeans.data.blocks import SMALL
from tsapps.apps.kmeans.data.rows import check_real
from tsapps.apps.kmeans.open_engine import (
    check_engine,
    check_metric,
    check_precision,
    check_sample_weight,
    compute_dtype,
)
from tsapps.apps.kmeans.validation import check_parameters
from tsapps.kernels.arrays import to_host

__all__ = ["fit", "for_collections", "is_dask", "predict", "score", "transform"]


def is_dask(X: Any) -> bool:
    """Return True if X is a Dask array or data frame."""
    return type(X).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(X, "dask")


def for_collections(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method of `TSKMeans`: for a Dask collection X, call the function of this module of the same name."""

    @wraps(method)
    def chosen(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        return (globals()[method.__name__] if is_dask(X) else method)(self, X, *arguments, **options)

    return chosen


def fit(estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:  # noqa: ARG001
    """Fit an estimator to a Dask collection X on the workers of the current client.

    `labels_` becomes a Dask array with the row chunks of X; the workers hold it. With ``device="cuda"``, each worker
    computes on its GPU, the first that it sees. Otherwise, an X of at most 8 MiB is fitted in this process.

    Raises
    ------
    ValueError
        If there is no client, X has several chunks of columns, or a parameter is not supported for Dask collections.
    NoDeviceError
        If a worker has no GPU that ``device="cuda"`` could use, or its kernels do not serve so many clusters.
    ClusterError
        If rows are lost again and again, or the scheduler or a worker is silent for a minute.
    """
    import dask.array as da

    from tsapps.apps.kmeans.distributed.crew import cut_rows, specs_of
    from tsapps.apps.kmeans.distributed.dask_crew import DaskCrew, current_client, shares_of
    from tsapps.apps.kmeans.distributed.partitioned_engine import PartitionedEngine, source_of

    check_parameters(estimator)
    _check_options(estimator)
    array = _array_of(X)
    _set_features(estimator, X, array.shape[1])
    dtype = compute_dtype(array.dtype, on_gpu=True)
    n, d = array.shape
    weights = _computed(sample_weight)
    estimator.faults_, estimator._by_scikit_learn = 0, False
    device = "cuda" if estimator.device == "cuda" else "cpu"
    if n * d * dtype.itemsize <= SMALL and device == "cpu":
        estimator.fit(_waited_for(array.compute, "X"), sample_weight=weights)
        _set_features(estimator, X, array.shape[1])
        estimator.labels_ = da.from_array(estimator.labels_, chunks=(array.chunks[0],))
        return estimator
    client, checkpoint = current_client(), checkpoint_of(estimator)
    checked = check_sample_weight(weights, n)
    weights = None if checked is None else to_host(checked).astype(dtype)
    spherical = estimator.metric == "cosine"
    parts = cut_rows(n, d, dtype, shares_of(client, device))
    blocks = client.compute(array.to_delayed().ravel().tolist())
    specs = specs_of(parts, dtype, spherical=spherical, devices=[device])
    crew = DaskCrew(client, blocks, array.chunks[0], parts, specs, weights)
    source = source_of((n, d), array.dtype, dtype, spherical=spherical)
    best = estimator._fit_with(PartitionedEngine(source, dtype, weights, crew), checkpoint)
    estimator.cluster_centers_ = best.centers.copy()
    labels = crew.futures("labels", best.labels.state)
    pieces = [da.from_delayed(one, (len(part),), np.int32) for one, part in zip(labels, parts, strict=True)]
    estimator.labels_ = da.concatenate(pieces).rechunk((array.chunks[0],))
    return estimator


def _set_features(estimator: Any, X: Any, d: int) -> None:
    """Set the number of features, and their names if X is a data frame with names that are strings."""
    estimator.n_features_in_ = d
    vars(estimator).pop("feature_names_in_", None)
    names = list(getattr(X, "columns", ()))
    if names and all(isinstance(name, str) for name in names):
        estimator.feature_names_in_ = np.asarray(names, object)


def _check_options(estimator: Any) -> None:
    """Raise ValueError for parameters that are invalid, or that fits of Dask collections do not support."""
    check_engine(estimator.engine)
    check_metric(estimator.metric)
    check_precision(estimator.precision)
    if estimator.protect:
        raise ValueError("protect=True runs in one process, got a Dask collection: use an array")
    if callable(estimator.init):
        raise ValueError(
            "a callable init needs the whole of X, got a Dask collection: use a name such as 'k-means++', or an array"
        )
    if estimator.device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"device={estimator.device!r}: each worker of Dask computes on its CPU, or with device='cuda' on its GPU"
        )
    if estimator.engine == "cublas":
        raise ValueError("engine='cublas': workers of Dask do not use cuBLAS; use engine='auto'")
    if estimator.precision != "exact" and estimator.device == "cuda":
        raise ValueError(f"precision={estimator.precision!r}: workers of Dask certify labels; use precision='exact'")


def _array_of(X: Any) -> Any:
    """Return a Dask collection as a Dask array of shape (n, d) with known chunks, which are not cut between columns.

    Unknown numbers of rows are computed, in a pass over X.
    """
    lengths = "the numbers of rows of X"
    array = _waited_for(lambda: X.to_dask_array(lengths=True), lengths) if hasattr(X, "to_dask_array") else X
    check_real(array.dtype, "X")
    if array.ndim != 2:
        raise ValueError(f"X has shape {array.shape}; expected a matrix of shape (n_samples, n_features)")
    if np.isnan(array.shape[0]):
        array = _waited_for(array.compute_chunk_sizes, lengths)
    if array.numblocks[1] != 1:
        raise ValueError(
            f"X has {array.numblocks[1]} chunks of columns; expected one: rechunk it, for example by "
            "X.rechunk({0: 'auto', 1: -1})"
        )
    return array


def _waited_for(compute: Callable[[], Any], what: str) -> Any:
    """Return what a call computes; on a cluster, with the deadline of `dask_crew.watched`."""
    from distributed import get_client

    from tsapps.apps.kmeans.distributed.dask_crew import watched

    try:
        client = get_client()
    except ValueError:
        return compute()
    return watched(client, compute, what)


def _computed(sample_weight: Any) -> Any:
    """Return sample weights in this process."""
    return _waited_for(sample_weight.compute, "sample_weight") if is_dask(sample_weight) else sample_weight


def _light(estimator: Any) -> Any:
    """Return a copy of an estimator without its labels, which tasks that predict do not need."""
    light = copy.copy(estimator)
    light.labels_ = np.zeros(0, np.int32)
    vars(light).pop("feature_names_in_", None)  # blocks have no names
    return light


def _rows_of(estimator: Any, X: Any) -> Any:
    """Return a Dask collection with the features of a fitted estimator as a Dask array."""
    check_is_fitted(estimator)
    array, names = _array_of(X), getattr(estimator, "feature_names_in_", None)
    if names is not None and hasattr(X, "columns") and list(X.columns) != list(names):
        raise ValueError(
            f"X has the columns {list(X.columns)}; expected {list(names)}: the feature names should match those of fit"
        )
    if array.shape[1] != estimator.n_features_in_:
        raise ValueError(f"X has {array.shape[1]} features, but the fit had {estimator.n_features_in_}")
    return array


def predict(estimator: Any, X: Any) -> Any:
    """Return the labels of the rows of X, a lazy Dask array with its row chunks."""
    array = _rows_of(estimator, X)
    return array.map_blocks(_predicted, _light(estimator), dtype=np.int32, drop_axis=1, meta=np.zeros(0, np.int32))


def _predicted(block: Any, estimator: Any) -> Any:
    return estimator.predict(block) if len(block) else np.zeros(0, np.int32)


def transform(estimator: Any, X: Any) -> Any:
    """Return the distances of the rows of X to the centers, a lazy Dask array with its row chunks."""
    array = _rows_of(estimator, X)
    dtype = np.result_type(array.dtype, np.float32) if array.dtype.kind == "f" else np.dtype(np.float64)
    k = estimator.n_clusters
    given = {"dtype": dtype, "chunks": (array.chunks[0], (k,)), "meta": np.zeros((0, 0), dtype)}
    return array.map_blocks(_transformed, _light(estimator), dtype, **given)


def _transformed(block: Any, estimator: Any, dtype: np.dtype) -> Any:
    if not len(block):
        return np.zeros((0, estimator.n_clusters), dtype)
    return estimator.transform(block).astype(dtype, copy=False)


def score(estimator: Any, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: ARG001
    """Return the negative inertia of X about the centers, computed chunk by chunk."""
    import dask

    array = _rows_of(estimator, X)
    ends, light = np.cumsum(array.chunks[0]), _light(estimator)
    weights = check_sample_weight(_computed(sample_weight), array.shape[0])
    scores = [
        dask.delayed(_score)(block, light, None if weights is None else weights[end - size : end])
        for block, size, end in zip(array.to_delayed().ravel(), array.chunks[0], ends, strict=True)
    ]
    return float(sum(dask.compute(*scores)))


def _score(block: Any, estimator: Any, weights: Any) -> float:
    return estimator.score(block, sample_weight=weights) if len(block) else 0.0
