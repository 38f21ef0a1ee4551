"""One mini-batch step: labels of a batch, and centers moved towards the means of their samples.

A center c with count N, whose samples in the batch have weight w and weighted sum s, moves to (N·c + s) / (N + w). So
its learning rate is 1 over the weight that it has seen.

References
----------
Sculley, "Web-scale k-means clustering", WWW 2010.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from sklearn.cluster._kmeans import _labels_inertia, _mini_batch_step
from sklearn.utils import check_array
from sklearn.utils.extmath import row_norms

from tsapps.apps.kmeans.data.frame import FittedCenters, Frame, frame_about, ldexp
from tsapps.apps.kmeans.data.rows import ArrayRows, Rows
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.initial_centers import initial_centers
from tsapps.apps.kmeans.prediction import assign
from tsapps.kernels.arrays import to_host
from tsapps.kernels.blas.threads import one_blas_thread

__all__ = ["BatchSteps", "EngineSteps", "ScikitLearnSteps", "reassign_centers"]

# Maximum product of rows and clusters for which scikit-learn draws the initial centers of a batch on a GPU: they take
# up to a second on one core. Of a few rows per cluster, candidates of k-means++ often lower the potential equally, so
# that other rounding would draw others.
_MOST_DRAWN = 1 << 22


class BatchSteps(Protocol):
    """The arithmetic of a mini-batch fit; weights, (m,), are in host memory, and None means that each is 1."""

    def initial(self, batch: ArrayRows, weights: np.ndarray | None, random_state: np.random.RandomState) -> np.ndarray:
        """Return initial centers, (k, d), chosen from the rows of a batch if the model's `init` is a name."""

    def inertia(self, batch: Any, weights: np.ndarray | None, centers: np.ndarray) -> float:
        """Return Σ w·‖x − c‖² over the rows x of a batch and their nearest centers c."""

    def update(
        self,
        batch: Any,
        weights: np.ndarray | None,
        centers: np.ndarray,
        counts: np.ndarray,
        random_state: np.random.RandomState,
        *,
        reassign: bool,
    ) -> tuple[np.ndarray, float]:
        """Return new centers, (k, d), and the `inertia` of the given ones; update the counts, (k,), in place.

        With `reassign`, centers of low counts become rows of the batch; see `reassign_centers`.
        """


class ScikitLearnSteps:
    """Mini-batch steps by scikit-learn's compiled code.

    Parameters
    ----------
    model : MiniBatchKMeans
    dtype : {float32, float64}
        The working type.
    """

    def __init__(self, model: Any, dtype: np.dtype) -> None:
        self._model, self._dtype = model, dtype

    def initial(self, batch: ArrayRows, weights: np.ndarray | None, random_state: np.random.RandomState) -> np.ndarray:
        """Return initial centers; see `BatchSteps`."""
        X, weights = self._given(batch, weights)
        init, norms = self._model.init, row_norms(X, squared=True)
        if not isinstance(init, str) and not callable(init):
            init = check_array(init, dtype=self._dtype)
            self._model._validate_center_shape(X, init)
        given = {"x_squared_norms": norms, "init": init, "random_state": random_state, "sample_weight": weights}
        return np.array(self._model._init_centroids(X, **given), self._dtype, order="C")

    def inertia(self, batch: ArrayRows, weights: np.ndarray | None, centers: np.ndarray) -> float:
        """Return the inertia; see `BatchSteps`."""
        with one_blas_thread():
            return float(_labels_inertia(*self._given(batch, weights), centers, n_threads=self._model._n_threads)[1])

    def update(
        self,
        batch: ArrayRows,
        weights: np.ndarray | None,
        centers: np.ndarray,
        counts: np.ndarray,
        random_state: np.random.RandomState,
        *,
        reassign: bool,
    ) -> tuple[np.ndarray, float]:
        """Return new centers and the inertia; see `BatchSteps`."""
        model, following = self._model, np.empty_like(centers)
        with one_blas_thread():
            inertia = _mini_batch_step(
                *self._given(batch, weights),
                centers,
                following,
                counts,
                random_state,
                random_reassign=reassign,
                reassignment_ratio=model.reassignment_ratio,
                verbose=model.verbose,
                n_threads=model._n_threads,
            )
        return following, inertia

    def _given(self, batch: ArrayRows, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        X = to_host(batch.array).astype(self._dtype, order="C", copy=False)
        return X, np.ones(len(X), self._dtype) if weights is None else weights.astype(self._dtype, copy=False)


class EngineSteps:
    """Mini-batch steps by the engine of a device: labels and sums of a batch there, new centers on the host.

    Parameters
    ----------
    model : MiniBatchKMeans
    open_batch : callable
        Opens a batch, its weights and an exponent on the device, as `open_engine` does.
    dtype : {float32, float64}
        The working type.
    """

    def __init__(self, model: Any, open_batch: Callable[..., Engine], dtype: np.dtype) -> None:
        self._model, self._open, self._dtype = model, open_batch, dtype
        self._frame: Frame | None = None

    def initial(self, batch: ArrayRows, weights: np.ndarray | None, random_state: np.random.RandomState) -> np.ndarray:
        """Return initial centers; see `BatchSteps`."""
        model = self._model
        if isinstance(model.init, str) and batch.shape[0] * model.n_clusters <= _MOST_DRAWN:
            return ScikitLearnSteps(model, self._dtype).initial(batch, weights, random_state)
        with self._open(batch, sample_weight=weights) as engine:
            if isinstance(model.init, str):  # a callable receives the rows as they are
                engine.center(np.zeros(engine.data.n_features), model.n_clusters)
            frame = Frame(engine.data.host_mean())
            centers = initial_centers(engine, model.n_clusters, model.init, random_state, frame)
        return frame.restored(centers).astype(self._dtype)

    def inertia(self, batch: Rows, weights: np.ndarray | None, centers: np.ndarray) -> float:
        """Return the inertia; see `BatchSteps`."""
        fitted = self._fitted(centers)
        with self._open(batch, sample_weight=weights, exponent=fitted.frame.exponent) as engine:
            placed, step, _ = assign(engine, fitted)
            return float(ldexp(engine.data.inertia(placed, step.labels), 2 * fitted.frame.exponent))

    def update(
        self,
        batch: Rows,
        weights: np.ndarray | None,
        centers: np.ndarray,
        counts: np.ndarray,
        random_state: np.random.RandomState,
        *,
        reassign: bool,
    ) -> tuple[np.ndarray, float]:
        """Return new centers and the inertia; see `BatchSteps`."""
        model, fitted = self._model, self._fitted(centers)
        exponent = fitted.frame.exponent
        with self._open(batch, sample_weight=weights, exponent=exponent) as engine:
            placed, step, found = assign(engine, fitted, update=True)
            inertia = float(ldexp(engine.data.inertia(placed, step.labels), 2 * exponent))
            of_batch = found.weights[:, np.newaxis]
            after = counts[:, np.newaxis] + of_batch
            # Σ w·(x − c), so that a center without samples in the batch keeps its bits.
            shift = (found.sums - of_batch * placed) / np.where(after > 0, after, 1)
            following = (centers + ldexp(shift, exponent)).astype(self._dtype)
            counts[:] = after[:, 0]
            if reassign:
                reassign_centers(batch, following, counts, random_state, model.reassignment_ratio, model.verbose)
        return following, inertia

    def _fitted(self, centers: np.ndarray) -> FittedCenters:
        """Return centers in one frame for all steps."""
        if self._frame is None:
            self._frame = frame_about(centers, self._dtype)
        return FittedCenters(self._frame, self._frame.centered(centers), centers)


def reassign_centers(
    batch: Rows,
    centers: np.ndarray,
    counts: np.ndarray,
    random_state: np.random.RandomState,
    ratio: float,
    verbose: int,
) -> None:
    """Replace centers of low counts by random rows of a batch, in place, with scikit-learn's draws.

    Parameters
    ----------
    batch : Rows of shape (m, d), on the current device
    centers : numpy.ndarray of shape (k, d)
    counts : numpy.ndarray of shape (k,)
        Weights that the centers have seen; those of replaced centers become the lowest of the others.
    random_state : numpy.random.RandomState
    ratio : float
        A count is low if it is less than `ratio` times the largest. At most m / 2 centers are replaced, those of the
        lowest counts.
    verbose : int
        If positive, print how many centers are replaced.
    """
    low, most = counts < ratio * counts.max(), int(0.5 * batch.shape[0])
    if low.sum() > 0.5 * batch.shape[0]:
        low[np.argsort(counts)[most:]] = False
    if not low.any():
        return
    rows = random_state.choice(batch.shape[0], replace=False, size=low.sum())
    if verbose:
        print(f"[MiniBatchKMeans] Reassigning {low.sum()} cluster centers.")
    centers[low] = to_host(batch.rows(rows))
    counts[low] = counts[~low].min()
