"""`Prediction`: labels, distances and scores about the centers of a fitted estimator."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from tsapps.apps.kmeans.data.frame import FittedCenters, frame_about, ldexp
from tsapps.apps.kmeans.data.rows import Rows
from tsapps.apps.kmeans.distributed.collections import for_collections
from tsapps.apps.kmeans.engines.engine import Engine
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.open_engine import check_sample_weight
from tsapps.apps.kmeans.results import Assignment
from tsapps.apps.kmeans.scikit_learn import Passes, as_host
from tsapps.apps.kmeans.validation import validated, validated_on_host
from tsapps.kernels.arrays import as_array, like, to_host
from tsapps.kernels.blas.threads import is_forked
from tsapps.kernels.devices import Choice

__all__ = ["Prediction", "assign"]


def assign(engine: Engine, fitted: FittedCenters, *, update: bool = False) -> tuple[np.ndarray, Step, Assignment]:
    """Label every sample of an engine, whose device is the current one, with the nearest center.

    Parameters
    ----------
    engine : Engine
    fitted : FittedCenters
    update : bool
        Whether to compute the weighted sum and the weight of each cluster.

    Returns
    -------
    centers : numpy.ndarray of shape (k, d)
        The centers minus the point that the engine subtracts from the samples.
    step : Step
        Its `labels` are those of the samples.
    found : Assignment
    """
    centers = engine.place(fitted.centered, fitted.frame.mean)
    step = engine.step_for(len(centers))
    return centers, step, step.assign(centers, update=update)


class Prediction(TransformerMixin):  # scikit-learn's `set_output` wraps the methods of such classes only
    """Adds `predict`, `transform`, `fit_transform` and `score` to an estimator like `KMeans`.

    Attributes
    ----------
    cluster_centers_ : array of shape (k, d)
    _by_scikit_learn : bool
        Whether scikit-learn's code fitted, and therefore labels arrays in memory on the CPU.
    _fitted_centers : FittedCenters or None
        The centers as `fit` computed with them.
    """

    cluster_centers_: Any
    _by_scikit_learn: bool
    _fitted_centers: FittedCenters | None

    @abstractmethod
    def _choice(self, X: Any) -> Choice:
        """Choose the device for X."""

    @abstractmethod
    def _open(self, X: Any, sample_weight: Any = None, exponent: int = 0) -> Engine:
        """Open X on its device; see `open_engine`."""

    @for_collections
    def predict(self, X: Any) -> Any:
        """Return the index of the nearest center for every sample.

        Parameters
        ----------
        X : array, frame, sparse matrix or `tsapps.open_matrix` matrix of shape (n, d)

        Returns
        -------
        array of shape (n,), int32
            Labels, an array of the same kind as X; on a tie, the lowest index.
        """
        check_is_fitted(self)
        fitted = self._current_centers()
        if self._runs_scikit_learn(X):
            return like(Passes(self, fitted.frame, fitted.centered).labels(validated_on_host(self, X)), X)
        with self._open(validated(self, X, reset=False), exponent=fitted.frame.exponent) as engine:
            return like(assign(engine, fitted)[1].labels, X)

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Cluster the samples of X, and return their distances to the centers; see `fit` and `transform`."""
        return self.fit(X, y, sample_weight).transform(X)

    @for_collections
    def transform(self, X: Any) -> Any:
        """Return the distance of every sample to every center.

        Parameters
        ----------
        X : array, frame, sparse matrix or `tsapps.open_matrix` matrix of shape (n, d)

        Returns
        -------
        array of shape (n, k)
            Distances, an array of the same kind as X. For the cosine metric, a distance is 1 − cos(x, c).
        """
        check_is_fitted(self)
        fitted = self._current_centers()
        # Distances to the rounded centers in `cluster_centers_`, so that each of these has distance 0 to itself.
        frame, exponent = fitted.frame, fitted.frame.exponent
        centers = frame.centered(fitted.restored)
        if self._runs_scikit_learn(X):
            distances = Passes(self, frame, centers).distances(validated_on_host(self, X))
        else:
            with self._open(validated(self, X, reset=False), exponent=exponent) as engine:
                distances = engine.data.distances(engine.place(centers, frame.mean))
        distances = ldexp(distances, exponent)
        # scikit-learn builds the frames of `set_output` from host memory.
        return to_host(distances) if self._gives_frames() else like(distances, X)

    @for_collections
    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:  # noqa: ARG002 (scikit-learn's API)
        """Return the negative inertia of X about the centers.

        Parameters
        ----------
        X : array, frame, sparse matrix or `tsapps.open_matrix` matrix of shape (n, d)
        y : ignored
        sample_weight : array of shape (n,), optional
            Non-negative weights; 1 by default.

        Returns
        -------
        float
        """
        check_is_fitted(self)
        fitted = self._current_centers()
        if self._runs_scikit_learn(X):
            X = validated_on_host(self, X)
            weights = check_sample_weight(as_host(sample_weight, "sample_weight"), X.shape[0])
            inertia = Passes(self, fitted.frame, fitted.centered).inertia(X, weights)
        else:
            X = validated(self, X, reset=False)
            with self._open(X, sample_weight, exponent=fitted.frame.exponent) as engine:
                centers, step, _ = assign(engine, fitted)
                inertia = engine.data.inertia(centers, step.labels)
        return -float(ldexp(inertia, 2 * fitted.frame.exponent))

    def _runs_scikit_learn(self, X: Any) -> bool:
        """Return True if scikit-learn's code shall process X.

        Conditions: X is in memory, the device is the CPU, `fit` used scikit-learn, and the process is not forked.
        """
        on_cpu = not self._choice(X).is_gpu
        return self._by_scikit_learn and on_cpu and not isinstance(X, Rows) and not is_forked()

    def _current_centers(self) -> FittedCenters:
        """Return the centers of the fit, or those that the caller has assigned to `cluster_centers_` since."""
        centers, fitted = to_host(as_array(self.cluster_centers_)), getattr(self, "_fitted_centers", None)
        if fitted is None:
            frame = frame_about(centers, centers.dtype)
            return FittedCenters(frame, frame.centered(centers), centers)
        return FittedCenters(fitted.frame, fitted.centers(centers), centers)

    def _gives_frames(self) -> bool:
        chosen = getattr(self, "_sklearn_output_config", {})
        return chosen.get("transform", get_config()["transform_output"]) != "default"
