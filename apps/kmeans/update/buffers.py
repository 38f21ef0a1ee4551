"""Device buffers of Lloyd iterations, allocated once for all iterations, so that launches are bound to them once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans.assign.plan import TILE_BOUND
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.half_copy import Placement
from tsapps.apps.kmeans.update.fixed_point import Integers
from tsapps.apps.kmeans.update.plan import MOST_RELOCATED

__all__ = ["ColumnOrderBuffers", "IterationBuffers", "Layout"]


@dataclass(frozen=True)
class Layout:
    """Layout of the centers, lists and labels in `IterationBuffers`.

    Attributes
    ----------
    placement : Placement
        Layout and scale of the float16 centers.
    columns : int
        The number of GEMM columns per part is rounded up to a multiple of this number.
    parts : int
        Number of float16 parts of a center; each part has one column of the GEMM.
    lists : int
        Number of lists of ambiguous rows, which `update_centers` empties.
    labels : {"int32", "int8"}
        Dtype of the labels. Int8 labels are padded to whole 32-bit words.
    error_coefficients : tuple of float, optional
        Factors of ‖c‖ and of ‖c − ĉ‖ in the error coefficient of each center c; ĉ is the center in float16. None if
        centers have no error coefficients of their own.
    """

    placement: Placement
    columns: int
    parts: int = 1
    lists: int = 0
    labels: str = "int32"
    error_coefficients: tuple[float, float] | None = None

    def columns_of(self, k: int) -> int:
        """Return the number of GEMM columns for one part of each of k centers."""
        return -(-k // self.columns) * self.columns


@dataclass(frozen=True)
class ColumnOrderBuffers:
    """Order of the columns of float16 centers in panels, and score error bounds of column tiles.

    Attributes
    ----------
    norms : tuple of two arrays of shape (k,), int32
        Bits of the float32 norms of the centers of the previous and of the current iteration; they alternate.
    columns : array of shape (k,), int32, optional
        Column of each center. None if columns are not sorted: then column j is that of center j. The other arrays are
        None too.
    centers : array of shape (columns,), int32, optional
        Center of each column.
    tile_bounds : array of TILE_BOUND, optional
        One element per column tile.
    """

    norms: tuple[Any, Any]
    columns: Any
    centers: Any
    tile_bounds: Any

    @classmethod
    def allocated(cls, xp: Any, k: int, layout: Layout, *, sorts: bool) -> ColumnOrderBuffers:
        """Allocate the arrays for k centers. `sorts` says whether columns are sorted."""
        n_columns, norms = layout.columns_of(k), tuple(xp.empty((2, -(-k // 4) * 4), np.int32)[:, :k])  # whole vectors
        if not sorts:
            return cls(norms, None, None, None)
        return cls(
            norms=norms,
            columns=xp.empty(k, np.int32),
            centers=xp.zeros(n_columns, np.int32),
            tile_bounds=xp.empty(n_columns // layout.columns * TILE_BOUND.itemsize, np.uint8),
        )


@dataclass(frozen=True)
class IterationBuffers:
    """Arrays that the launches of an iteration read and write, and the argument that describes X.

    Attributes
    ----------
    rows : NumPy structure
        The argument that describes X to the kernels, a `ROWS`.
    labels : array of shape (n,), int32 or int8
        The label of each row.
    centers : tuple of two arrays of shape (k, d)
        The centers of the current and of the next iteration. The two arrays swap roles after each iteration.
    centers_half : array of shape (parts · columns, width), float16
        The centers as the tensor cores read them.
    offsets : array of shape (columns,), float32
        Bias −‖c‖²/2 of each center. With error coefficients, the array has twice the length; they follow the biases.
    center_stats : array of shape (6,), float32
        A `CenterStats`: maxima over the centers that enter the score error bound.
    found : array of shape (k, 4), float64
        A `CenterFound` of update/column_order.cuh per center.
    sums : array of shape (k, d + 1), int64
        Fixed-point cluster sums of these rows; the last column has the weights.
    scales : array of shape (d + 1,)
        Fixed-point scale of each column of the sums, float32 for two limbs or float64 for three.
    units : array of shape (d + 1,), float64
        Reciprocals of the scales.
    n_reassigned : array of shape (1,), uint32
        Number of reassigned rows of these rows; zero before an iteration.
    own, total : array of shape (k·(d + 1) + 1,), int64
        `sums` and `n_reassigned` in one array, and the same of all rows of X. If these rows are all, it is the same
        array; otherwise an all-reduce of the shards' `own` gives `total`.
    arrived : array of shape (1,), uint32
        Number of blocks that have finished their part of a kernel, by which the last block is found; zero before an
        iteration.
    stopped : array of shape (1,), uint32
        If it is not zero, the launches of later iterations do nothing (stopped.cuh). It is zero before the first
        iteration.
    empty : array of shape (MOST_RELOCATED,), int32
        The empty clusters, of which `stopped` has the number.
    counts : array of shape (lists,), uint32
        Lengths of the lists of ambiguous rows, which `update_centers` empties.
    """

    rows: Any
    labels: Any
    centers: tuple[Any, Any]
    centers_half: Any
    offsets: Any
    center_stats: Any
    found: Any
    sums: Any
    scales: Any
    units: Any
    n_reassigned: Any
    arrived: Any
    stopped: Any
    empty: Any
    counts: Any
    own: Any
    total: Any

    @property
    def total_sums(self) -> Any:
        """The fixed-point cluster sums of all rows of X, (k, d + 1)."""
        return self.total[:-1].reshape(self.sums.shape)

    @property
    def total_reassigned(self) -> Any:
        """The number of reassigned rows of all rows of X, (1,), uint32."""
        return _low_word(self.total)

    @classmethod
    def allocated(cls, data: DeviceData, k: int, layout: Layout, sums: Integers) -> IterationBuffers:
        """Allocate the buffers for k clusters; `sums` is the fixed-point format of the cluster sums."""
        (n, d), n_columns, placement = data.source.shape, layout.columns_of(k), layout.placement
        # In panels, the first panel holds the biases (core_matrix_layout.cuh), unless lanes have columns for them.
        width = placement.padded + (16 if placement.panels and not placement.each else 0)
        xp = data.xp
        arrived, stopped = xp.zeros((2, 1), np.uint32)
        own = xp.zeros(k * (d + 1) + 1, np.int64)
        return cls(
            rows=data.rows_argument(),
            labels=xp.empty(n if layout.labels == "int32" else -(-n // 4) * 4, layout.labels),
            centers=tuple(xp.empty((2, k, d), data.dtype)),
            centers_half=xp.zeros((layout.parts * n_columns, width), np.float16),
            # Error coefficients follow the biases.
            offsets=xp.empty(n_columns * (1 if layout.error_coefficients is None else 2), np.float32),
            center_stats=xp.empty(6, np.float32),
            found=xp.empty((k, 4)),
            sums=own[:-1].reshape(k, d + 1),
            scales=data.machine.on_gpu(sums.scales_of_kernels),
            units=data.machine.on_gpu(1 / sums.scales),
            n_reassigned=_low_word(own),
            arrived=arrived,
            stopped=stopped,
            empty=xp.empty(MOST_RELOCATED, np.int32),
            counts=xp.empty(layout.lists, np.uint32),
            own=own,
            total=xp.zeros_like(own) if data.n_total > n else own,
        )


def _low_word(sums: Any) -> Any:
    """Return the low 32 bits of the last number of an int64 array, (1,), uint32; the machines are little-endian."""
    return sums[-1:].view(np.uint32)[:1]
