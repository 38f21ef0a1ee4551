"""Loading of K-means kernels; and their template and launch arguments for a given array."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.plan import vector_of
from tsapps.kernels.arrays import address
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Machine

__all__ = ["is_aligned", "is_vectorizable", "label_argument", "load_kernels", "pass_kernel", "pointer", "types_of"]

_FOLDER = Path(__file__).parents[1]


@cache
def _path(file: str) -> Path:
    """Return the path of a file of apps/kmeans; always the same object, whose hash is computed only once."""
    return _FOLDER / file


def load_kernels(machine: Machine, file: str, *names: str, namespace: str = "kmeans") -> list[Any]:
    """Compile kernels of one file together, and return them.

    Parameters
    ----------
    machine : Machine
    file : str
        The .cuh file, relative to apps/kmeans.
    *names : str
        Names of kernels with template arguments, without the namespace.
    namespace : str
        C++ namespace of the kernels.
    """
    return machine.kernels(_path(file), *(f"{namespace}::{name}" for name in names))


def pass_kernel(machine: Machine, name: str) -> Any:
    """Return a kernel of data/passes.cuh; `name` includes the template arguments."""
    (kernel,) = machine.kernels(_path("data/passes.cuh"), name)
    return kernel


def types_of(X: Any, dtype: Any) -> str:
    """Return the C++ types of X and of the working type as template arguments."""
    return _types_of(X.dtype, dtype)


@cache
def _types_of(*dtypes: np.dtype) -> str:
    return ", ".join(ELEMENT[dtype.name] for dtype in dtypes)  # `name` takes NumPy 3 µs


def label_argument(labels: Any) -> str:
    """Return the last template argument of kernels that read labels of any type, with a comma; none for int32."""
    return "" if labels.dtype == np.int32 else ", signed char"


def is_aligned(X: Any) -> str:
    """Return the template argument kAligned for X (n, d).

    "true" if rows are aligned to vectors of `vector_of` elements and consist of whole vectors, otherwise "false".
    """
    vector = vector_of(X.itemsize)
    return str(X.shape[1] % vector == 0 and address(X) % (vector * X.itemsize) == 0).lower()


def pointer(array: Any | None) -> Any:
    """Return an array as a kernel argument; a null pointer for None."""
    return np.uint64(0) if array is None else array


def is_vectorizable(array: Any, wide: int) -> bool:
    """Return True if an array is contiguous, and each of its rows consists of aligned vectors of `wide` elements."""
    here = address(array) % (wide * array.itemsize) == 0
    return here and array.shape[-1] % wide == 0 and array.flags.c_contiguous
