"""Initial centers of a fit: drawn from the data, given as an array, or returned by a callable."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.frame import Frame
from tsapps.apps.kmeans.data.rows import as_numbers, unit
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.init.chosen import Chosen
from tsapps.apps.kmeans.init.oversampling import kmeans_parallel
from tsapps.apps.kmeans.init.plusplus import kmeans_plusplus, random_samples
from tsapps.kernels.arrays import to_host

__all__ = ["Init", "draw_centers", "initial_centers"]

#: The `init` parameter: a name, an array of shape (k, d), or a function of (X, k, random_state).
Init = Any


def draw_centers(
    engine: Engine, name: str, n_clusters: int, random_state: np.random.RandomState, chosen: Chosen | None = None
) -> np.ndarray:
    """Draw initial centers, (n_clusters, d), by method `name`: "k-means++", "k-means||" or "random".

    The centers are centered and scaled as the engine's samples are (see `Frame`).
    """
    if name == "k-means++":
        return kmeans_plusplus(engine.data, n_clusters, random_state, engine.draw_plus_plus, chosen)
    if name == "k-means||":
        return kmeans_parallel(engine.data, n_clusters, random_state, engine.oversampling(n_clusters), chosen)
    return random_samples(engine.data, n_clusters, random_state)


def initial_centers(
    engine: Engine,
    n_clusters: int,
    init: Init,
    random_state: np.random.RandomState,
    frame: Frame,
    chosen: Chosen | None = None,
) -> np.ndarray:
    """Return the initial centers of a fit, centered and scaled as the engine's samples are (see `Frame`).

    Parameters
    ----------
    engine : Engine
    n_clusters : int
    init : {"k-means++", "k-means||", "random"}, array of shape (n_clusters, d), or callable
        A given array is in the coordinates of the caller's X. A callable receives the centered and scaled X, and
        returns centers in the coordinates of this array.
    random_state : numpy.random.RandomState
    frame : Frame
        Centers and scales a given array.
    chosen : callable, optional
        See `Chosen`; "random" and centers that are given report nothing.

    Returns
    -------
    numpy.ndarray of shape (n_clusters, d)
        In the dtype of the computation. For the cosine metric, each center has norm 1.

    Raises
    ------
    ValueError
        If given or returned centers have the wrong shape or dtype, are not finite, or, for the cosine metric, are zero.
    """
    if isinstance(init, str):
        return draw_centers(engine, init, n_clusters, random_state, chosen)
    data = engine.data
    if callable(init):
        centers = init(data.centered(), n_clusters, random_state=random_state)
        centers = to_host(as_numbers(centers, "the array returned by init"))
    else:
        centers = to_host(as_numbers(init, "init"))
    centers = np.asarray(centers, data.dtype)
    if centers.shape != (n_clusters, data.n_features):
        raise ValueError(
            f"the initial centers have shape {centers.shape}; "
            f"expected (n_clusters, n_features) = ({n_clusters}, {data.n_features})"
        )
    if not np.isfinite(centers).all():
        row, column = np.argwhere(~np.isfinite(centers))[0]
        raise ValueError(f"initial center {row}, feature {column} is {centers[row, column]}; expected finite numbers")
    if data.spherical:
        if not centers.any(axis=1).all():
            index = int(np.flatnonzero(~centers.any(axis=1))[0])
            raise ValueError(
                f"initial center {index} is zero, and has no direction: metric='cosine' needs nonzero centers"
            )
        return unit(np.ascontiguousarray(centers))
    # A copy: the caller's array is never written.
    return centers.copy() if callable(init) else frame.centered(centers)
