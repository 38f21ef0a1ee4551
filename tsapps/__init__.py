"""tsapps: applications on one fast tall-and-skinny matrix product.

The public face, imported lazily so that ``import tsapps`` and ``tsapps --help`` cost nothing.

TSKMeans
    scikit-learn's ``KMeans``, on the CPU and on NVIDIA GPUs.
kmeans_batched
    Many K-means problems of one shape at once.
abft
    Checksums that find and repair numbers that went wrong, in arrays and in files of any size.
matmul, gram
    Tall-and-skinny products A · B and Aᵀ · A, of NumPy, CuPy or torch arrays.
open_matrix
    Any supported file or array as a shape, a dtype and blocks of rows.
"""

from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"
__all__ = ["TSKMeans", "abft", "gram", "kmeans_batched", "matmul", "open_matrix"]

_HOMES = {
    "TSKMeans": "tsapps.apps.kmeans",
    "abft": "tsapps.apps.abft",  # a module itself
    "gram": "tsapps.kernels.matmul",
    "kmeans_batched": "tsapps.apps.kmeans",
    "matmul": "tsapps.kernels.matmul",
    "open_matrix": "tsapps.matrix",
}

# Not typing's own, whose import takes longer than the rest: the command line is to hear signals before that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tsapps.apps import abft
    from tsapps.apps.kmeans import TSKMeans, kmeans_batched
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
