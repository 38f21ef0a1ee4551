"""Preparation of a fit: the moments of X, its scale, and what identifies both for a checkpoint."""

from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.kmeans.checkpoint_files import digest
from tsapps.apps.kmeans.data.blocks import Data
from tsapps.apps.kmeans.data.frame import Frame, ScaledRows, exponent_of, is_in_range
from tsapps.apps.kmeans.data.rows import ArrayRows, unscaled
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.kernels.arrays import to_host

__all__ = ["Moments", "facts_of", "scaled_into_range"]


class Moments(NamedTuple):
    """Mean of X, (d,), and mean variance of its features; and both as `Data.moments` returns them."""

    mean: np.ndarray
    variance: float
    exact: tuple[np.ndarray, float]


def scaled_into_range(engine: Engine) -> tuple[Engine, Moments, int]:
    """Scale X by a power of two if squared distances would overflow or underflow; see `Frame`.

    Returns
    -------
    engine : Engine
        The given engine, or an engine over the scaled rows x · 2^−exponent.
    moments : Moments
        The moments of the returned engine's rows.
    exponent : int
        0 if the rows are not scaled.
    """
    with engine:
        moments = _moments(engine.data)
        exponent = 0 if engine.data.spherical else _exponent(engine.data, moments.variance)
    if exponent:
        engine = engine.over(ScaledRows(engine.data.source, exponent, engine.data.dtype))
        with engine:
            moments = _moments(engine.data)
    return engine, moments, exponent


def facts_of(engine: Engine, n_clusters: int, frame: Frame, moments: Moments) -> dict[str, dict[str, Any]]:
    """Return what determines the bits of a fit besides its parameters; see `Checkpoint.begin`.

    The values of X are identified by their mean and variance, whose bits do not depend on how rows are cut into blocks
    and shards. They are all read before a fit anyway.
    """
    data, source = engine.data, unscaled(engine.data.source)
    weights = data.sample_weight
    mean, variance = moments.exact
    step = engine.selection(n_clusters)[0]
    exact = "certified labels" if engine.certifies else "tf32 labels"
    return {
        "data": {
            "name": source.name,
            "shape": list(source.shape),
            "type": str(source.dtype),
            "values": digest(np.append(mean.astype(np.float64), variance)),
            "sample_weight": None if weights is None else digest(np.ascontiguousarray(to_host(weights))),
        },
        "computation": {
            "dtype": str(data.dtype),
            "exponent": frame.exponent,
            "arithmetic": step if step in ("host", "cublas") else f"fixed-point sums, {exact}",
            "mean": frame.mean.astype(np.float64).tolist(),
        },
    }


def _exponent(data: Data, variance: float) -> int:
    """Return an exponent for which squared distances of x · 2^−exponent neither overflow nor underflow; 0 for most X.

    `variance` is infinite if it has overflowed.
    """
    square = data.n_features * variance
    if is_in_range(data.dtype, square, data.n_samples * square):
        return 0
    extent, size = data.extents(data.rows(np.array([0]))[0])
    # Scaling up must not overflow values that are far from zero compared with their spread.
    most = np.finfo(data.dtype).maxexp - 2 - int(np.frexp(size)[1])
    return max(exponent_of(extent), -most)


def _moments(data: Data) -> Moments:
    """Return the moments of X."""
    found, source = data.moments(), data.source
    if not isinstance(source, ArrayRows) or not data.is_small:
        return Moments(*found, found)
    # For small arrays, use scikit-learn's rounding; see `SMALL` in data/blocks.py.
    rounded = data.rounded_moments()
    if rounded is not None:
        return Moments(*rounded, found)
    X = source.on_host.astype(data.dtype, order="C", copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = X.mean(axis=0, keepdims=True)
        return Moments(mean[0], float(np.mean(np.var(X, axis=0, mean=mean))), found)
