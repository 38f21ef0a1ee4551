"""Plans of at_rest/gpu/encode.cuh, from sizes alone: work units, threads and shared memory."""

from dataclasses import dataclass

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import SUMS
from tsapps.apps.abft.at_rest.float_code import columns_shape, rows_shape, sums_dtype
from tsapps.apps.abft.at_rest.interleave import ROWS, WORD, Layout
from tsapps.kernels.plan.mma import ELEMENT
from tsapps.kernels.problem import ITEMSIZE

__all__ = ["ALIGNMENT", "TASK", "ChecksumsPlan", "elements_plan", "words_plan"]

#: Size and alignment of a copy in bytes.
ALIGNMENT = 16
# A *strip* is 1024 bytes of each row of a stripe: the part of the matrix that a block copies and sums at a time.
# kStrip, kWarps, kProducts, kPitch, kRows and kStages of the kernel: bytes of a strip, warps that sum it, columns of
# products; bytes per row, rows, and number of the pipeline stages.
_STRIP, _WARPS, _PRODUCTS, _PITCH, _PIPELINE_ROWS, _STAGES = 1024, 8, 8, 1056, 32, 5
# Parts of a row sum (kParts), by the type of the sums.
_PARTS = {"float64": 2, "float32": 3}
_MOST_UNITS, _MOST_WEIGHTS = 2**30, 2

#: `Task` of at_rest/gpu/tile_pipeline.cuh.
TASK = np.dtype(
    [
        *((name, "u8") for name in ("data", "exact", "row_sums", "column_sums")),
        *((name, "i8") for name in ("rows", "row_bytes", "last_bytes")),
        *((name, "i4") for name in ("units", "units_across", "strips")),
        ("next", "u8"),
    ],
    align=True,
)


@dataclass(frozen=True)
class ChecksumsPlan:
    """Template arguments, sizes and result shapes of one pass of the kernel.

    Attributes
    ----------
    dtype : str
        The elements' type; "float32" for a pass over words only.
    exact : bool
        Whether the pass computes sums of words.
    weights : int
        Weighted sums per row and column: 0, 1 or 2.
    rows, row_bytes, last_bytes : int
        Number of rows of words or of elements; bytes of a row, and of the last row, which may be shorter.
    """

    dtype: str
    exact: bool
    weights: int
    rows: int
    row_bytes: int
    last_bytes: int

    @property
    def stripes(self) -> int:
        """Number of stripes of 512 rows."""
        return -(-self.rows // ROWS)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def strips(self) -> int:
        """Strips of 1024 bytes per work unit: with weighted sums, those of the 512 columns that a row sum covers."""
        return max(1, ROWS * self.itemsize // _STRIP) if self.weights else 1

    @property
    def units_across(self) -> int:
        """Work units per stripe."""
        return -(-self.row_bytes // (self.strips * _STRIP))

    @property
    def units(self) -> int:
        """Work units of the matrix."""
        return self.stripes * self.units_across

    @property
    def sums(self) -> np.dtype:
        """The type of weighted sums."""
        return sums_dtype(self.dtype)

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The shapes of the result's tensors, by name."""
        shapes = {"exact": (self.stripes, SUMS, self.row_bytes // WORD)} if self.exact else {}
        if self.weights:
            shape = self.rows, self.row_bytes // self.itemsize
            shapes["rows"] = rows_shape(shape, self.weights, ROWS)
            shapes["columns"] = columns_shape(shape, self.weights, ROWS)
        return shapes

    @property
    def kernel(self) -> str:
        """The name expression of the kernel."""
        return f"abft::add_checksums<{ELEMENT[self.dtype]}, {str(self.exact).lower()}, {self.weights}>"

    @property
    def threads(self) -> int:
        """Threads per block (kThreads)."""
        return 128 + 32 * _WARPS * (self.exact + (self.weights > 0))

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory (kSharedBytes)."""
        table = ROWS * _PRODUCTS * 8 if self.exact else 0
        of_warps = _STAGES * _PARTS[self.sums.name] * _WARPS * _PIPELINE_ROWS if self.weights else 0
        sums = (of_warps + self.weights * ROWS) * self.sums.itemsize
        return table + sums + _STAGES * (_PIPELINE_ROWS * _PITCH + 3 * 8 + 4)

    def task(self, data: int, tensors: dict[str, int], following: int) -> np.ndarray:
        """Return the kernel's argument: addresses of the data, of the result tensors and of the work-unit counter."""
        task = np.zeros((), TASK)
        task["data"], task["exact"], task["next"] = data, tensors.get("exact", 0), following
        task["row_sums"], task["column_sums"] = tensors.get("rows", 0), tensors.get("columns", 0)
        for name in ("rows", "row_bytes", "last_bytes", "units", "units_across", "strips"):
            task[name] = getattr(self, name)
        return task


def _served(plan: ChecksumsPlan) -> ChecksumsPlan | None:
    """Return the plan if rows are multiples of 16 bytes and the number of work units is supported; otherwise None."""
    whole = plan.row_bytes % ALIGNMENT == 0 and plan.last_bytes % ALIGNMENT == 0
    return plan if whole and plan.units <= _MOST_UNITS else None


def words_plan(of: Layout) -> ChecksumsPlan | None:
    """Return the plan of the exact sums; None if the kernel does not support them."""
    row_bytes = of.width * WORD
    rows = -(-of.n_bytes // row_bytes)
    return _served(ChecksumsPlan("float32", True, 0, rows, row_bytes, of.n_bytes - (rows - 1) * row_bytes))


def elements_plan(m: int, n: int, dtype: str, weights: int, block: int, of: Layout | None) -> ChecksumsPlan | None:
    """Return the plan of the weighted sums of a matrix; None if the kernel does not support them.

    Parameters
    ----------
    m, n : int
    dtype : str
        The name of the elements' type.
    weights, block : int
    of : Layout or None
        The interleaving of the matrix's words, or None if no exact sums are needed. If a row of words is a row of
        elements, the pass also computes the exact sums.
    """
    if dtype not in ELEMENT or weights > _MOST_WEIGHTS or block != ROWS:
        return None
    plan = ChecksumsPlan(dtype, False, weights, m, 0, 0)
    row_bytes = n * plan.itemsize
    exact = of is not None and of.width * WORD == row_bytes
    return _served(ChecksumsPlan(dtype, exact, weights, m, row_bytes, row_bytes))
