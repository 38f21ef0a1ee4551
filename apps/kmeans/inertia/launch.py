"""Inertia Σ w·‖x − c‖² of rows on a GPU: launches of inertia.cuh and sum_terms.cuh."""

from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import load_kernels, pointer
from tsapps.apps.kmeans.data.plan import CENTER_THREADS
from tsapps.apps.kmeans.inertia.plan import RunningSums, inertia_plan
from tsapps.kernels.arrays import address
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Machine

__all__ = ["add_inertia", "sum_terms"]

_SOURCE = Path(__file__).with_name("inertia.cuh")


def add_inertia(
    machine: Machine, rows: Any, shift: Any, centers: Any, labels: Any, weights: Any | None, kept: RunningSums | None
) -> Any:
    """Compute the inertia Σ w·‖x − shift − c‖² of rows x, where c is the center of the row's label.

    Parameters
    ----------
    machine : Machine
    rows : array of shape (n, d)
        Row-major, of any real dtype.
    shift : array of shape (d,)
        Point to subtract from each row, in the working dtype.
    centers : array of shape (k, d)
        In the working dtype.
    labels : array of shape (n,), int32
    weights : array of shape (n,), optional
        In the working dtype.
    kept : RunningSums, optional
        Running cluster sums of these rows. If given, the same pass over the rows also runs the Freivalds check.

    Returns
    -------
    array of shape (), float64
        The inertia, on the device of the rows.
    """
    (n, d), k = rows.shape, len(centers)
    sizes = n, d, k, rows.itemsize, centers.itemsize
    aligned, digits = address(rows) % 16 == 0, None if kept is None else kept.digits
    plan = inertia_plan(*sizes, aligned=aligned, device=machine.gpu, digits=digits)
    name = plan.kernel(ELEMENT[rows.dtype.name], ELEMENT[centers.dtype.name], weighted=weights is not None)
    (kernel,) = machine.kernels(_SOURCE, name)
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    xp = machine.xp
    sums, arrived, total = xp.empty(plan.slices), xp.zeros(1, np.uint32), xp.empty(())
    counts = np.int64(n), np.int32(k), np.int32(d), np.int32(plan.log2_lanes), np.int32(plan.slices)
    arguments = (rows, shift, centers, labels, pointer(weights), *counts, sums, arrived, total)
    compared = () if kept is None else (kept.argument,)
    grid = (plan.blocks(machine.gpu.multiprocessors),)
    kernel(grid, (plan.threads,), (*arguments, *compared), shared_mem=plan.shared_bytes)
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
