"""What cases of golden results are made of: names, dtypes, and where data lies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["DTYPES", "SEED", "Case", "Place", "host", "numpy_type"]

SEED = 42
DTYPES = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Place:
    """Where cases run: a device, and a folder for files."""

    device: str
    folder: Path

    def put(self, array: Any) -> Any:
        """Return an array, or a sparse matrix, where the device has it."""
        if self.device == "cpu":
            return array
        import cupy

        if isinstance(array, np.ndarray):
            return cupy.asarray(array)
        from cupyx.scipy.sparse import csr_matrix

        return csr_matrix(array)

    def matrix(self, array: np.ndarray) -> Any:
        """Return an array as `open_matrix` reads it: from an .npy file, or in memory where it is bfloat16."""
        from tsapps import open_matrix

        if array.dtype.name == "bfloat16":
            return open_matrix(array)
        path = self.folder / "data.npy"
        np.save(path, array)
        return open_matrix(path)


@dataclass(frozen=True)
class Case:
    """A name, and what makes results by their names."""

    name: str
    run: Callable[[Place], Mapping[str, Any]]


def numpy_type(dtype: str) -> np.dtype:
    """Return the NumPy dtype of a name; bfloat16 is ml_dtypes'."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def host(value: Any) -> np.ndarray:
    """Return a result as a NumPy array."""
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    return value.get() if type(value).__module__.startswith("cupy") else np.asarray(value)
