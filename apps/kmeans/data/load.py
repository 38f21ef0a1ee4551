"""Kernels of this package, and arguments of theirs that depend on an array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.plan import vector_of
from tsapps.kernels.arrays import address
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Machine

__all__ = ["is_aligned", "load_kernels", "pointer", "types_of"]

_FOLDER = Path(__file__).parents[1]


def load_kernels(machine: Machine, file: str, *names: str) -> list[Any]:
    """Return kernels of a file of this package, compiled together, on a machine."""
    return machine.kernels(_FOLDER / file, *(f"kmeans::{name}" for name in names))


def types_of(X: Any, dtype: Any) -> str:
    """Return the types of X and of what K-means works in, as template arguments."""
    return f"{ELEMENT[X.dtype.name]}, {ELEMENT[dtype.name]}"


def is_aligned(X: Any) -> str:
    """Tell, as a template argument, whether every row of X begins with a whole vector, and is whole ones."""
    vector = vector_of(X.itemsize)
    return str(X.shape[1] % vector == 0 and address(X) % (vector * X.itemsize) == 0).lower()


def pointer(array: Any | None) -> Any:
    """Return the argument that a kernel takes for an array that may be absent."""
    return np.intp(0) if array is None else array
