"""The half-precision copy of X, which tensor-core iterations read instead of X.

A kernel of half_copy.cuh makes it; or, if rows are split into two parts, a kernel of split_copy.cuh.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.data.load import load_kernels
from tsapps.apps.kmeans.data.plan import (
    EXACT,
    ROUNDING,
    SPLIT,
    UNCERTIFIED,
    half_copy_scale,
    log2_lanes,
    norm_limit_of,
    padded,
    vector_of,
)
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.runtime.machine import Machine

__all__ = ["HalfCopy", "Placement"]

# Number of threads per block; number of blocks per multiprocessor in the grid, a multiple of the number of blocks that
# a multiprocessor holds at once (2 or 3).
_THREADS, _BLOCKS = 256, 6


class Placement(NamedTuple):
    """Layout of the float16 centers that update/centers.cuh prepares for products with a half-precision copy.

    Attributes
    ----------
    padded : int
        Number of elements per float16 row, including zeros at its end.
    panels : int
        Number of panels of 16 columns per row; 0 for a row-major layout.
    scale : numpy.float32
        The scale of the half-precision copy.
    norm_limit : numpy.float32
        Distant centers may be missing from the scores of rows whose norm exceeds this limit (`norm_limit_of`).
    split : int
        The number of features if rows and centers are split into two parts (split_copy.cuh); otherwise 0.
    each : int
        The number of features per lane if the columns are those of lane_columns.cuh; otherwise 0.
    """

    padded: int
    panels: int
    scale: np.float32
    norm_limit: np.float32
    split: int = 0
    each: int = 0


class HalfCopy:
    """The float16 copy of (X − shift) · scale, and one float32 norm per row, which bounds the row's rounding error.

    Its memory is not initialized: `copy` copies rows.

    Parameters
    ----------
    n : int
        Number of rows of X.
    x_dtype : numpy.dtype
        The type of X.
    aligned : bool
        Whether all rows of X are aligned to vectors, and consist of whole vectors; see `is_vectorizable`.
    shift : array of shape (d,)
        The point that is subtracted from each row.
    dtype : {float32, float64}
        The working type.
    rms : float
        The root mean square of the elements of X − shift.
    panels : int
        Number of panels of 16 columns per row, in tiles of 64 rows (core_matrix_layout.cuh). If 0, the copy is
        row-major, with rows padded to a multiple of 16 bytes.
    machine : Machine
    certifies : bool
        If True, the norms yield proven error bounds, which certify labels. If False, most norms are scaled down by
        `UNCERTIFIED`, so that few rows are rescored.
    split : bool
        Whether rows are split into two parts, which need three times as many columns; only in panels.
    """

    def __init__(
        self,
        n: int,
        x_dtype: np.dtype,
        aligned: bool,
        shift: Any,
        dtype: np.dtype,
        rms: float,
        panels: int,
        machine: Machine,
        *,
        certifies: bool,
        split: bool = False,
    ) -> None:
        d = len(shift)
        self._multiprocessors, self._shift, self._certifies = machine.gpu.multiprocessors, shift, certifies
        self._split = d if split else 0
        self._norm_limit = norm_limit_of(d, panels=panels > 0)
        self.panels, self.padded = panels, 16 * panels or padded(d)
        self._lanes = np.int32(log2_lanes(self.padded // vector_of(x_dtype.itemsize)))
        self.scale = np.float32(half_copy_scale(rms))
        n_rows = -(-n // StreamPlan.ROWS) * StreamPlan.ROWS if panels else n
        self.rows, self.norms = machine.xp.empty((n_rows, self.padded), np.float16), machine.xp.empty(n, np.float32)
        # ρ of half_copy.cuh and split_copy.cuh: the bound of a row's rounding error relative to the row's norm.
        exact = x_dtype.itemsize == 2 and not bool(shift.any())
        self.rounding = np.float32(SPLIT if split else EXACT if exact else ROUNDING)

        types = f"{ELEMENT[x_dtype.name]}, {ELEMENT[dtype.name]}"
        file, name = "data/half_copy.cuh", f"make_half_copy<{types}, {str(aligned).lower()}>"
        if split:
            file, name = "data/split_copy.cuh", f"make_split_copy<{types}, {d}, {panels}, {str(aligned).lower()}>"
        (self._kernel,) = load_kernels(machine, file, name)

    def copy(self, X: Any, first: int = 0) -> None:
        """Copy rows of X, row-major and on the GPU, to those from `first` on, a multiple of 64."""
        n, d = X.shape
        norms = self.norms[first : first + n]
        copied = self.scale, self.rounding, self.rows[first:], norms
        if self._split:
            self._kernel((-(-n // _THREADS),), (_THREADS,), (X, np.int64(n), self._shift, *copied))
        else:
            sizes = np.int64(d), np.int64(n), np.int32(d), np.int32(self.padded), np.int32(self.panels)
            arguments = X, *sizes, self._shift, self._lanes, *copied
            self._kernel((self._multiprocessors * _BLOCKS,), (_THREADS,), arguments)
        if not self._certifies:
            # Norms beyond the limit are not scaled down: the scores of such rows may lack distant centers, so these
            # rows must be rescored.
            norms[norms <= self._norm_limit] *= np.float32(UNCERTIFIED)

    @property
    def is_split(self) -> bool:
        """True if rows are split into two parts."""
        return self._split > 0

    @property
    def nbytes(self) -> int:
        """Size in bytes of the float16 rows and the norms."""
        return int(self.rows.nbytes + self.norms.nbytes)

    @property
    def placement(self) -> Placement:
        """The layout of float16 centers for products with this copy."""
        return Placement(self.padded, self.panels, self.scale, np.float32(self._norm_limit), self._split)
