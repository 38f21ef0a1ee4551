"""Validation of X and of parameters, as scikit-learn does it, without its conversions where engines need none."""

from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.utils._param_validation import validate_parameter_constraints
from sklearn.utils.validation import validate_data

from tsapps.apps.kmeans import scikit_learn
from tsapps.apps.kmeans.data.rows import Rows, is_plain
from tsapps.apps.kmeans.frame_columns import columns_named
from tsapps.apps.kmeans.open_engine import resident
from tsapps.kernels.arrays import is_sparse, kind_of

__all__ = ["check_parameters", "set_n_features", "validated", "validated_on_host"]


def check_parameters(model: KMeans) -> None:
    """Validate the parameters of a model as scikit-learn does, but equal numbers and names only once: it takes 0.2 ms.

    Raises
    ------
    ValueError
        If a parameter is invalid.
    """
    given = model.get_params(deep=False)
    if type(model.init) is np.ndarray:
        given["init"] = "k-means++"  # every array is as valid
    kind: Any = type(model)  # mypy does not accept `type[Any]` as hashable
    plain = all(value is None or type(value) in (bool, int, float, str) for value in given.values())
    if plain and kind._validate_params is KMeans._validate_params:
        _check_parameters(kind, tuple((name, value, type(value)) for name, value in given.items()))
    else:
        model._validate_params()


@lru_cache(maxsize=64)
def _check_parameters(kind: type[KMeans], parameters: tuple[tuple[str, Any, type], ...]) -> None:
    """Validate parameters of estimators of class `kind`; each is (name, value, type of the value)."""
    given = {name: value for name, value, _ in parameters}
    validate_parameter_constraints(kind._parameter_constraints, given, caller_name=kind.__name__)


def set_n_features(model: KMeans, X: Any) -> bool:
    """Set `n_features_in_` to the number of columns of X as `validate_data` does, which takes longer than an iteration.

    Returns False, without a change, if X is not a two-dimensional array.
    """
    shape: Any = getattr(X, "shape", ())
    if kind_of(X) is None or len(shape) != 2:
        return False
    model.n_features_in_ = shape[1]
    vars(model).pop("feature_names_in_", None)  # arrays have no feature names
    return True


def validated(model: KMeans, X: Any, *, reset: bool) -> Any:
    """Validate the features of X as scikit-learn does; convert lists and frames to arrays."""
    ready = isinstance(X, Rows) or is_plain(X) or (is_sparse(X) and resident(X) is not None)
    ready = ready and not isinstance(X, np.matrix)  # scikit-learn rejects matrices
    if reset and ready and set_n_features(model, X):
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
