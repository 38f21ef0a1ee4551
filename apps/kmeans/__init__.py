"""Exact K-means: `TSKMeans`, the loop, the seeding, and one engine a device; and many problems at once.

The public names are imported when they are first used: the command line needs the loop, and not scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsapps.apps.kmeans.batched.api import BatchedClustering, kmeans_batched
    from tsapps.apps.kmeans.estimator import TSKMeans

__all__ = ["BatchedClustering", "TSKMeans", "kmeans_batched"]

_HOMES = {
    "BatchedClustering": "tsapps.apps.kmeans.batched.api",
    "TSKMeans": "tsapps.apps.kmeans.estimator",
    "kmeans_batched": "tsapps.apps.kmeans.batched.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        globals()[name] = value = getattr(import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
