"""Memory of the iterations of a step on a GPU: allocated once, so that launches are bound once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.half_copy import Placement
from tsapps.apps.kmeans.update.fixed_point import NARROW, Integers

__all__ = ["IterationBuffers", "Layout"]


@dataclass(frozen=True)
class Layout:
    """The sizes of a step's buffers.

    Attributes
    ----------
    placement : Placement
        How centers are placed for the product.
    columns : int
        Columns of the product are whole multiples of this.
    parts : int
        Parts of a center, each of which has a column.
    lists : int
        Lists of ambiguous rows, which the update of the centers empties.
    labels : {"int32", "int8"}
        The type that labels are kept in; of int8, whole words.
    error_coefficients : tuple of float, optional
        Where every center has an error coefficient: what that is of its norm, and of what float16 loses of it.
    """

    placement: Placement
    columns: int
    parts: int = 1
    lists: int = 0
    labels: str = "int32"
    error_coefficients: tuple[float, float] | None = None

    def columns_of(self, k: int) -> int:
        """Return the columns of a part of k centers."""
        return -(-k // self.columns) * self.columns


@dataclass(frozen=True)
class IterationBuffers:
    """Arrays that the launches of an iteration read and write, and the description of X that they are given.

    Attributes
    ----------
    rows : NumPy structure
        X as kernels read it, a `ROWS`.
    labels : (n,), int32 or int8
    centers : two of (k, d)
        The centers of an iteration and of the next, in turn.
    centers_half : (parts · columns, width), float16
        The centers as the product on tensor cores reads them.
    offsets : (columns,), or twice as many with error coefficients
        −‖c‖²/2 of every center.
    center_stats : (4,)
        The largest norm of a center, and what follows from it.
    found : (k, 4)
        The square norm, its rounding error and the drift of every center.
    sums : (k, d + 1), int64
        The fixed-point sums and weights of the clusters.
    scales, units : (d + 1,)
        The scale of an element of the sums, and its reciprocal.
    n_reassigned, arrived, stopped : (1,), uint32
        The number of labels that changed, the blocks that arrived, and whether to stop: zero before an iteration.
    counts : (lists,), uint32
        The lengths of lists that the update of the centers empties.
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
    counts: Any

    @classmethod
    def allocated(cls, data: DeviceData, k: int, layout: Layout, sums: Integers) -> IterationBuffers:
        """Allocate the buffers of a step for k clusters."""
        (n, d), n_columns, placement = data.source.shape, layout.columns_of(k), layout.placement
        scales = np.array(sums.scales)
        # Where centers lie in panels, the first of them has their offsets.
        width = placement.padded + (16 if placement.panels else 0)
        xp = data.xp
        n_reassigned, arrived, stopped = xp.zeros((3, 1), np.uint32)
        return cls(
            rows=data.rows_argument,
            labels=xp.empty(n if layout.labels == "int32" else -(-n // 4) * 4, layout.labels),
            centers=tuple(xp.empty((2, k, d), data.dtype)),
            centers_half=xp.zeros((layout.parts * n_columns, width), np.float16),
            # Error coefficients are behind offsets.
            offsets=xp.empty(n_columns * (1 if layout.error_coefficients is None else 2), np.float32),
            center_stats=xp.empty(4, np.float32),
            found=xp.empty((k, 4)),
            sums=xp.empty((k, d + 1), np.int64),
            scales=xp.asarray(scales, np.float32 if sums.digits == NARROW else np.float64),
            units=xp.asarray(1 / scales),
            n_reassigned=n_reassigned,
            arrived=arrived,
            stopped=stopped,
            counts=xp.empty(layout.lists, np.uint32),
        )
