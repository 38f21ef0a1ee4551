"""K-means on the CPU and on GPUs: the estimators `TSKMeans`, `TSBalancedKMeans` and `TSMiniBatchKMeans`.

`kmeans_batched` clusters many problems of one shape.

Public names are imported on first use, so that the command line runs without importing scikit-learn, which takes a
second.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsapps.apps.kmeans.balanced.estimator import TSBalancedKMeans
    from tsapps.apps.kmeans.batched.api import BatchedClustering, kmeans_batched
    from tsapps.apps.kmeans.distributed.crew import ClusterError
    from tsapps.apps.kmeans.distributed.rank import RankClustering, fit_rank
    from tsapps.apps.kmeans.engines.compile_kernels import compile_kernels
    from tsapps.apps.kmeans.estimator import TSKMeans
    from tsapps.apps.kmeans.minibatch.estimator import TSMiniBatchKMeans
    from tsapps.apps.kmeans.number_of_clusters import KChoice, choose_k
    from tsapps.apps.kmeans.protect.checks import FaultError

__all__ = [
    "BatchedClustering",
    "ClusterError",
    "FaultError",
    "KChoice",
    "RankClustering",
    "TSBalancedKMeans",
    "TSKMeans",
    "TSMiniBatchKMeans",
    "choose_k",
    "compile_kernels",
    "fit_rank",
    "kmeans_batched",
]

# The module that defines each public name.
_MODULES = {
    "BatchedClustering": "tsapps.apps.kmeans.batched.api",
    "ClusterError": "tsapps.apps.kmeans.distributed.crew",
    "FaultError": "tsapps.apps.kmeans.protect.checks",
    "KChoice": "tsapps.apps.kmeans.number_of_clusters",
    "RankClustering": "tsapps.apps.kmeans.distributed.rank",
    "TSBalancedKMeans": "tsapps.apps.kmeans.balanced.estimator",
    "TSKMeans": "tsapps.apps.kmeans.estimator",
    "TSMiniBatchKMeans": "tsapps.apps.kmeans.minibatch.estimator",
    "choose_k": "tsapps.apps.kmeans.number_of_clusters",
    "compile_kernels": "tsapps.apps.kmeans.engines.compile_kernels",
    "fit_rank": "tsapps.apps.kmeans.distributed.rank",
    "kmeans_batched": "tsapps.apps.kmeans.batched.api",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        globals()[name] = value = getattr(import_module(_MODULES[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
