"""tsapps: exact K-means and checksums on one tall-and-skinny matrix product.

The public API. Names are imported on first use, so that ``import tsapps`` and ``tsapps --help`` are fast.

TSKMeans
    scikit-learn's ``KMeans``, on the CPU and on NVIDIA GPUs.
TSMiniBatchKMeans
    scikit-learn's ``MiniBatchKMeans``, also for files of any size and on a GPU.
TSBalancedKMeans
    K-means whose clusters have limited sizes.
choose_k
    The number of clusters: fits for several numbers, with silhouettes and other scores.
kmeans_batched
    Many K-means problems of one shape at once.
abft
    Checksums that detect and repair corrupted elements, in arrays and in files of any size.
matmul, gram
    Tall-and-skinny products A · B and Aᵀ · A of NumPy, CuPy or torch arrays.
open_matrix
    Opens any supported file or array as a matrix: a shape, a dtype, and blocks of rows.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"
__all__ = [
    "TSBalancedKMeans",
    "TSKMeans",
    "TSMiniBatchKMeans",
    "abft",
    "choose_k",
    "gram",
    "kmeans_batched",
    "matmul",
    "open_matrix",
]

_HOMES = {
    "TSBalancedKMeans": "tsapps.apps.kmeans",
    "TSKMeans": "tsapps.apps.kmeans",
    "TSMiniBatchKMeans": "tsapps.apps.kmeans",
    "abft": "tsapps.abft",  # a module, not a name in it
    "choose_k": "tsapps.apps.kmeans",
    "gram": "tsapps.kernels.matmul",
    "kmeans_batched": "tsapps.apps.kmeans",
    "matmul": "tsapps.kernels.matmul",
    "open_matrix": "tsapps.matrix",
}

# Replaces typing.TYPE_CHECKING: importing typing takes longer than the rest of this module, and would delay the
# installation of the signal handlers (`signals.install`).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tsapps import abft
    from tsapps.apps.kmeans import TSBalancedKMeans, TSKMeans, TSMiniBatchKMeans, choose_k, kmeans_batched
    from tsapps.kernels.matmul import gram, matmul
    from tsapps.matrix import open_matrix


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = import_module(_HOMES[name])
        value = home if name == "abft" else getattr(home, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'tsapps' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
