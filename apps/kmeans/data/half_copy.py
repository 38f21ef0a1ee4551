"""X's copy in float16, which iterations on tensor cores read; see half_copy.cuh."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.data.load import is_aligned, load_kernels, types_of
from tsapps.apps.kmeans.data.plan import (
    EXACT,
    ROUNDING,
    UNCERTIFIED,
    half_copy_scale,
    log2_lanes,
    norm_limit_of,
    padded,
    vector_of,
)
from tsapps.kernels.runtime.machine import Machine

__all__ = ["HalfCopy", "Placement"]

# Blocks a multiprocessor: whole multiples of those that are resident.
_THREADS, _BLOCKS = 256, 6


class Placement(NamedTuple):
    """How centers.cuh places centers: elements of a row in float16, its panels, the scale, and few rows' least norm."""

    padded: int
    panels: int
    scale: np.float32
    norm_limit: np.float32


class HalfCopy:
    """The copy of X in float16, scaled, and the norms of its rows.

    Parameters
    ----------
    X : array of shape (n, d)
    shift : array of shape (d,)
        The point that is subtracted from each row.
    dtype : {float32, float64}
        The type that K-means works in.
    middle : float
        The root of the mean square of all elements of X − shift.
    panels : int
        Panels of 16 columns a row, in tiles of 64 rows (core_matrix_layout.cuh); if 0, rows of `padded` elements.
    machine : Machine
    certifies : bool
        Whether norms are bounds, so that labels are certified by them.
    """

    def __init__(
        self, X: Any, shift: Any, dtype: np.dtype, middle: float, panels: int, machine: Machine, *, certifies: bool
    ) -> None:
        n, d = X.shape
        self._features = d
        self.panels, self.padded = panels, 16 * panels or padded(d)
        self.scale = np.float32(half_copy_scale(middle))
        n_rows = -(-n // StreamPlan.ROWS) * StreamPlan.ROWS if panels else n
        self.rows, self.norms = machine.xp.empty((n_rows, self.padded), np.float16), machine.xp.empty(n, np.float32)
        # The part of a row's norm that float16 may lose, but for few rows.
        exact = X.itemsize == 2 and not bool(shift.any())
        self.rounding = np.float32(EXACT if exact else ROUNDING)
        sizes = np.int64(d), np.int64(n), np.int32(d), np.int32(self.padded), np.int32(panels)
        lanes = np.int32(log2_lanes(self.padded // vector_of(X.itemsize)))
        name = f"make_half_copy<{types_of(X, dtype)}, {is_aligned(X)}>"
        (kernel,) = load_kernels(machine, "data/half_copy.cuh", name)
        arguments = (X, *sizes, shift, self.scale, self.rounding, lanes, self.rows, self.norms)
        kernel((machine.gpu.multiprocessors * _BLOCKS,), (_THREADS,), arguments)
        if not certifies:
            # But of few rows, for which centers far away may have been left out.
            self.norms[self.norms <= norm_limit_of(d)] *= np.float32(UNCERTIFIED)

    @property
    def nbytes(self) -> int:
        """The bytes of the copy and the norms."""
        return int(self.rows.nbytes + self.norms.nbytes)

    @property
    def placement(self) -> Placement:
        """How centers are placed for a product with this."""
        return Placement(self.padded, self.panels, self.scale, np.float32(norm_limit_of(self._features)))
