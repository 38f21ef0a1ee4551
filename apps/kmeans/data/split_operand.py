"""Rows of X that a kernel splits into two float16 parts when it reads them (assign/split_rows.cuh): few features."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import SPLIT_ROWS, ResidentPlan
from tsapps.apps.kmeans.data.half_copy import Placement
from tsapps.apps.kmeans.data.load import is_aligned, is_vectorizable, load_kernels, types_of
from tsapps.apps.kmeans.data.plan import SPLIT, half_copy_scale, norm_limit_of
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Machine

__all__ = ["SplitOperand"]

# Number of threads per block of split_norms.
_THREADS = 256


class SplitOperand:
    """X as the left operand of a product that splits rows (split_rows.cuh); and norms that bound rounding errors.

    Parameters
    ----------
    X : array of shape (n, d)
        Row-major, on the GPU; d is the number of features of `plan`.
    shift : array of shape (d,)
        The point that is subtracted from each row, in the working type.
    dtype : {float32, float64}
        The working type.
    rms : float
        The root mean square of the elements of X − shift.
    plan : ResidentPlan
    machine : Machine

    Attributes
    ----------
    norms : array of shape (n,), float32
        See data/split_copy.cuh.
    rounding : numpy.float32
        Bound ρ of the rounding error of a row relative to its norm.
    placement : Placement
        The layout of float16 centers for products with these rows.
    types : str
        The C++ types of X and of the computation, as template arguments.
    aligned : bool
        Whether lanes load all their features of a row together (kAligned).
    """

    def __init__(
        self, X: Any, shift: np.ndarray, dtype: np.dtype, rms: float, plan: ResidentPlan, machine: Machine
    ) -> None:
        n, d = X.shape
        scale, limit = np.float32(half_copy_scale(rms)), np.float32(norm_limit_of(d, panels=True))
        self.plan, self.rounding = plan, np.float32(SPLIT)
        self.placement = Placement(16 * plan.row_panels, plan.row_panels, scale, limit, each=plan.each)
        self.types = types_of(X, dtype)
        self.aligned = d == 4 * plan.each and plan.each != 3 and is_vectorizable(X, plan.each)
        shifts = np.zeros(4 * plan.each, dtype)
        shifts[:d] = -shift.astype(dtype) * dtype.type(scale)
        self._shifts, self.norms = machine.on_gpu(shifts), machine.xp.empty(n, np.float32)
        self._rows = X
        (kernel,) = load_kernels(machine, "data/split_copy.cuh", f"split_norms<{self.types}, {d}, {is_aligned(X)}>")
        arguments = X, np.int64(n), self._shifts, scale, self.rounding, self.norms
        kernel((-(-n // _THREADS),), (_THREADS,), arguments)

    def argument(self, rows: slice) -> Any:
        """Return the argument that describes rows of X to the product, a `SPLIT_ROWS`."""
        X = self._rows[rows]
        return structure(SPLIT_ROWS, X=X, shifts=self._shifts, n=len(X), scale=self.placement.scale)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the norms."""
        return int(self.norms.nbytes)
