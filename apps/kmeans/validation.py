"""Validation of X for an estimator, as scikit-learn does it, without its conversions where engines need none."""

from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.utils.validation import validate_data

from tsapps.apps.kmeans import scikit_learn
from tsapps.apps.kmeans.data.rows import Rows, is_plain
from tsapps.apps.kmeans.frame_columns import columns_named
from tsapps.apps.kmeans.open_engine import resident
from tsapps.kernels.arrays import is_sparse

__all__ = ["validated", "validated_on_host"]


def validated(model: KMeans, X: Any, *, reset: bool) -> Any:
    """Validate the features of X as scikit-learn does; convert lists and frames to arrays."""
    ready = isinstance(X, Rows) or is_plain(X) or (is_sparse(X) and resident(X) is not None)
    ready = ready and not isinstance(X, np.matrix)  # scikit-learn rejects matrices
    if reset and ready and scikit_learn.set_n_features(model, X):
        return X
    checks: dict[str, Any] = {"skip_check_array": True}
    if not ready:
        checks = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
    with columns_named(X):
        return validate_data(model, X, reset=reset, **checks)


def validated_on_host(model: KMeans, X: Any) -> Any:
    """Validate X as scikit-learn's `predict` does; return a NumPy array or a CSR matrix."""
    checks: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "order": "C"}
    # For arrays, `Passes` checks that the values are finite.
    with columns_named(X):
        X = scikit_learn.narrow_indices(scikit_learn.as_host(X))
        return validate_data(model, X, reset=False, ensure_all_finite=is_sparse(X), **checks)
