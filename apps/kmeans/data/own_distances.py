"""Launch of own_distances (passes.cuh): the distance of every row to the center of its label."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import is_vectorizable, label_argument, pass_kernel, pointer, types_of
from tsapps.apps.kmeans.data.plan import PASS_THREADS, row_groups, vector_of
from tsapps.kernels.runtime.machine import Launch, Machine

__all__ = ["bind_distances"]

# Number of rows that a group of lanes processes (ROWS_TOGETHER).
_TOGETHER = 4


def bind_distances(
    machine: Machine, X: Any, shift: Any, centers: Any, labels: Any, distances: Any, stopped: Any | None = None
) -> Launch:
    """Return the launch that computes ‖x − shift − c‖² of each row x of X and the center c of its label.

    Parameters
    ----------
    machine : Machine
    X : array of shape (n, d)
        Row-major, in any dtype.
    shift, centers : array of shape (d,) and (k, d)
        In the working type.
    labels : array of shape (n,), int32 or int8
    distances : array of shape (n,)
        The result, in the working type.
    stopped : array of shape (1,), optional
        If given, the launch does nothing unless empty clusters are to be relocated (stopped.cuh).
    """
    rows, d = X.shape
    wide = vector_of(X.itemsize)
    vectors = all(is_vectorizable(array, wide) for array in (X, shift, centers))
    lanes, grid = row_groups(-(-rows // _TOGETHER), d // wide if vectors else d)
    types = f"{types_of(X, distances.dtype)}, {str(vectors).lower()}{label_argument(labels)}"
    given = X, shift, centers, labels, np.int64(rows), np.int32(d), lanes, distances, pointer(stopped)
    return machine.bind(pass_kernel(machine, f"own_distances<{types}>"), grid, (PASS_THREADS,), given)
