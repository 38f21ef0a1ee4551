"""Inertia Σ w·‖x − c‖² of rows on a GPU: launches of inertia.cuh and sum_terms.cuh."""

from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import load_kernels, pointer
from tsapps.apps.kmeans.data.plan import CENTER_THREADS
from tsapps.apps.kmeans.inertia.plan import THREADS, RunningSums, inertia_plan
from tsapps.kernels.arrays import address
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Machine

__all__ = ["partial_inertia", "sum_terms", "total_inertia"]

_SOURCE = Path(__file__).with_name("inertia.cuh")


def partial_inertia(
    machine: Machine,
    rows: Any,
    shift: Any,
    centers: Any,
    labels: Any,
    weights: Any | None,
    *,
    n_total: int | None = None,
    kept: RunningSums | None = None,
    total: Any | None = None,
) -> Any:
    """Compute Σ w·‖x − shift − c‖² over each chunk of rows x, where c is the center of the row's label.

    Parameters
    ----------
    machine : Machine
    rows : array of shape (n, d)
        Row-major, of any real dtype; begins at the first row of a chunk.
    shift : array of shape (d,)
        Point to subtract from each row, in the working dtype.
    centers : array of shape (k, d)
        In the working dtype.
    labels : array of shape (n,), int32
    weights : array of shape (n,), optional
        In the working dtype.
    n_total : int, optional
        Number of rows of X, of which these are consecutive rows; by default n.
    kept : RunningSums, optional
        Running cluster sums of these rows. If given, the same pass over the rows also runs the Freivalds check.
    total : array of shape (), float64, optional
        Where the same launch writes the sum of the results, as `total_inertia` computes it.

    Returns
    -------
    array of shape (chunks,), float64
        One sum for each `inertia_chunk` rows, on the device of the rows; the last chunk may have fewer.
    """
    (n, d), k = rows.shape, len(centers)
    sizes = n, d, k, rows.itemsize, centers.itemsize
    aligned, digits = address(rows) % 16 == 0, None if kept is None else kept.digits
    plan = inertia_plan(*sizes, aligned=aligned, device=machine.gpu, digits=digits, n_total=n_total)
    name = plan.kernel(ELEMENT[rows.dtype.name], ELEMENT[centers.dtype.name], weighted=weights is not None)
    (kernel,) = machine.kernels(_SOURCE, name)
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    sums, arrived = machine.xp.empty(plan.chunks), machine.xp.zeros(1, np.uint32)
    counts = np.int64(n), *(np.int32(count) for count in (k, d, plan.log2_lanes, plan.chunk, plan.chunks))
    arguments = (rows, shift, centers, labels, pointer(weights), *counts, sums, arrived, pointer(total))
    compared = () if kept is None else (kept.argument,)
    grid = (plan.blocks(machine.gpu.multiprocessors),)
    kernel(grid, (plan.threads,), (*arguments, *compared), shared_mem=plan.shared_bytes)
    return sums


def total_inertia(machine: Machine, sums: Any) -> Any:
    """Return the sum, shape (), of the results of `partial_inertia` for all chunks of X in order, shape (chunks,).

    It has the same bits as the `total` of a launch for the whole of X.
    """
    (kernel,) = load_kernels(machine, "inertia/inertia.cuh", "add_chunks")
    total = machine.xp.empty(())
    kernel((1,), (THREADS,), (sums, np.int32(len(sums)), total))
    return total


def sum_terms(machine: Machine, sums: Any, units: Any, centers: Any) -> Any:
    """Compute the terms of `inertia_from_terms` from running cluster sums.

    Parameters
    ----------
    machine : Machine
    sums : array of shape (k, d + 1), int64
        Fixed-point cluster sums; the last column has the numbers of rows.
    units : array of shape (d + 1,), float64
        Value of the integer 1 in each column of the sums.
    centers : array of shape (k, d), float32 or float64

    Returns
    -------
    array of shape (k, 4), float64
        On the device of the sums.
    """
    k, d = centers.shape
    (kernel,) = load_kernels(machine, "inertia/sum_terms.cuh", f"sum_terms<{ELEMENT[centers.dtype.name]}>")
    terms = machine.xp.empty((k, 4))
    kernel((k,), (CENTER_THREADS,), (sums, units, centers, np.int32(d), terms))
    return terms
