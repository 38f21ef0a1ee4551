"""Pages on fitted estimators."""

import os
from typing import Any

import numpy as np

from tsapps.kernels.arrays import to_host
from tsapps.kernels.system.atomic_write import replacing

__all__ = ["Reporting"]


class Reporting:
    """Adds `report` to an estimator like `KMeans`."""

    def report(self: Any, X: Any, path: str | os.PathLike[str]) -> None:
        """Write a page on the fitted clustering: one HTML file that needs no network.

        It shows the sizes of clusters, silhouettes, a projection on two axes, and the columns that tell clusters apart.

        Parameters
        ----------
        X : array, frame, sparse matrix or `tsapps.open_matrix` matrix of shape (n, d)
            The data of the fit.
        path : path-like
            The file to write; an existing one is replaced, whole or not at all.

        Raises
        ------
        ValueError
            If X does not have the rows and columns of the fit.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        OSError
            If the file cannot be written.
        """
        from sklearn import __version__
        from sklearn.utils.validation import check_is_fitted

        from tsapps.apps.kmeans.data.rows import as_rows
        from tsapps.apps.kmeans.report.facts import facts_of
        from tsapps.apps.kmeans.report.page import page_of

        check_is_fitted(self)
        rows, centers, labels = as_rows(X), to_host(self.cluster_centers_), to_host(self.labels_)
        if rows.shape != (len(labels), centers.shape[1]):
            raise ValueError(f"X has shape {rows.shape}; expected that of the fit, ({len(labels)}, {centers.shape[1]})")
        facts = facts_of(rows, centers, labels, metric=self.metric, seed=0)
        names = getattr(self, "feature_names_in_", None)
        summary = {
            "n": len(labels),
            "d": centers.shape[1],
            "k": len(centers),
            "inertia": float(self.inertia_),
            "iterations": int(self.n_iter_),
            "versions": {"numpy": np.__version__, "scikit-learn": __version__},
        }
        page = page_of(summary, facts, centers, None if names is None else list(names))
        with replacing(path) as file:
            file.write(page.encode())
