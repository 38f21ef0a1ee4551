"""X's copy in float16, which iterations of the fused engine read; and how kernels of this package are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cupy
import numpy as np

from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_BYTES,
    AMBIGUOUS_LARGE_K_BYTES,
    EXACT,
    PLACE_BYTES,
    REASSIGNMENT_BYTES,
    ROUNDING,
    UNPROVED,
    half_copy_scale,
    log2_lanes,
    norm_limit_of,
    padded,
    vector_of,
)
from tsapps.kernels.jit.kernel import function
from tsapps.kernels.plan.mma import ELEMENT

if TYPE_CHECKING:
    from tsapps.apps.kmeans.engines.fused import FusedEngine

__all__ = ["HalfCopy", "Placement", "aligned", "load_kernels", "types_of"]

_FOLDER = Path(__file__).parents[1]
# Blocks a multiprocessor: whole multiples of those that are resident.
_THREADS, _BLOCKS = 256, 6


def load_kernels(engine: FusedEngine, file: str, *names: str) -> list[Any]:
    """Return kernels of a file of this package, compiled together, for the engine's GPU."""
    full = tuple(f"kmeans::{name}" for name in names)
    return [function(_FOLDER / file, full, name, engine.gpu_index) for name in full]


def types_of(engine: FusedEngine) -> str:
    """Return the types of X and of what K-means works in, as template arguments."""
    return f"{ELEMENT[engine.rows_on_gpu.dtype.name]}, {ELEMENT[engine.dtype.name]}"


def aligned(engine: FusedEngine) -> str:
    """Tell, as a template argument, whether every row of X begins with a whole vector, and is whole ones."""
    X = engine.rows_on_gpu
    vector = vector_of(X.itemsize)
    return str(engine.n_features % vector == 0 and X.data.ptr % (vector * X.itemsize) == 0).lower()


class Placement(NamedTuple):
    """How centers.cuh places centers: elements of a row in float16, its panels, the scale, and few rows' least norm."""

    padded: int
    panels: int
    scale: np.float32
    norm_limit: np.float32


class HalfCopy:
    """The copy of X in float16, scaled, and the norms of its rows; see data/half_copy.cuh.

    `panels` of 16 columns a row, in tiles of 64 rows (core_matrix_layout.cuh); if 0, rows of `padded` elements.
    """

    def __init__(self, engine: FusedEngine, panels: int) -> None:
        n, d = engine.source.shape
        self._features = d
        self.panels, self.padded = panels, 16 * panels or padded(d)
        _, middle = engine.spread()
        self.scale = np.float32(half_copy_scale(middle))
        self.rows = cupy.empty((-(-n // StreamPlan.ROWS) * StreamPlan.ROWS if panels else n, self.padded), np.float16)
        self.norms = cupy.empty(n, np.float32)
        X = engine.rows_on_gpu
        # What of a row float16 may lose beside its norm, but for few rows.
        exact = X.itemsize == 2 and not bool(engine.shift.any())
        self.rounding = np.float32(EXACT if exact else ROUNDING)
        sizes = np.int64(d), np.int64(n), np.int32(d), np.int32(self.padded), np.int32(panels)
        lanes = np.int32(log2_lanes(self.padded // vector_of(X.itemsize)))
        (kernel,) = load_kernels(engine, "data/half_copy.cuh", f"make_half_copy<{types_of(engine)}, {aligned(engine)}>")
        arguments = (X, *sizes, engine.shift, self.scale, self.rounding, lanes, self.rows, self.norms)
        kernel((engine.gpu.multiprocessors * _BLOCKS,), (_THREADS,), arguments)
        if not engine.certifies:
            # But of few rows, for which centers far away may have been left out.
            self.norms[self.norms <= norm_limit_of(d)] *= np.float32(UNPROVED)

    @property
    def placement(self) -> Placement:
        """How centers are placed for a product with this."""
        return Placement(self.padded, self.panels, self.scale, np.float32(norm_limit_of(self._features)))

    @staticmethod
    def size(n: int, d: int, k: int, panels: int) -> int:
        """Return about the bytes of a shadow, of an iteration's lists, and of what there is of every center."""
        lists = REASSIGNMENT_BYTES + AMBIGUOUS_LARGE_K_BYTES if panels else 2 * (AMBIGUOUS_BYTES + PLACE_BYTES)
        width = 16 * panels or padded(d)
        return n * (2 * width + 4 + lists) + k * (2 * width + 3 * 8 * (d + 1))
