"""How checksums.cuh goes through a matrix, from its sizes alone."""

from dataclasses import dataclass

import numpy as np

from tsapps.kernels.plan import ELEMENT

__all__ = ["TASK", "ChecksumsPlan", "checksums_plan"]

#: Rows of a stripe; bytes of a strip and of a warp's part of it (kStripe, kStrip, kWarpBytes).
STRIPE, STRIP, WARP_BYTES = 512, 1024, 128
# Of the exact code, and of a ring of stages (kSums, kProducts, kPitch, kRows, kStages).
_SUMS, _PRODUCTS, _PITCH, _ROWS, _STAGES = 5, 8, 1056, 32, 5
# Bulk copies are of so many bytes, from such addresses.
ALIGNMENT = 16
_MOST_UNITS = 2**31 - 1
# What is added up of each element's type, and the parts that sums of rows have (Widened).
_SUM = {"float64": "float64", "float32": "float64", "float16": "float32", "bfloat16": "float32"}
_PARTS = {"float64": 2, "float32": 3}

#: `Task` of checksums.cuh.
TASK = np.dtype(
    [
        *((name, "u8") for name in ("data", "exact", "row_sums", "column_sums")),
        *((name, "i8") for name in ("rows", "row_bytes", "last_bytes", "matrix_rows", "segment_stride")),
        *((name, "i4") for name in ("units", "units_across", "fold", "strips", "segment_warps", "unused")),
        ("next", "u8"),
    ]
)


@dataclass(frozen=True)
class ChecksumsPlan:
    """What the kernel is told of a matrix, and what it writes.

    Attributes
    ----------
    dtype : str
        Of the elements; float32 where only words are added up.
    exact : bool
        Whether words are added up.
    weights : int
        Weighted sums of each row and column: none, 1 or 2.
    rows, row_bytes, last_bytes : int
        Of the folded matrix: rows, bytes of one, and of the last.
    matrix_rows, columns : int
        Of the matrix itself.
    fold : int
        Rows of the matrix that are one of the folded matrix.
    segment_bytes : int
        Bytes of a row that have a sum of their own.
    """

    dtype: str
    exact: bool
    weights: int
    rows: int
    row_bytes: int
    last_bytes: int
    matrix_rows: int
    columns: int
    fold: int
    segment_bytes: int

    @property
    def stripes(self) -> int:
        """Stripes of 512 folded rows."""
        return -(-self.rows // STRIPE)

    @property
    def strips(self) -> int:
        """Strips of a unit."""
        return max(1, self.segment_bytes // STRIP)

    @property
    def units_across(self) -> int:
        """Units of a stripe."""
        return -(-self.row_bytes // (self.strips * STRIP))

    @property
    def units(self) -> int:
        """Units of work in all, which blocks share."""
        return self.stripes * self.units_across

    @property
    def sums(self) -> np.dtype:
        """What weighted sums are added up and stored in."""
        return np.dtype(_SUM[self.dtype])

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The shape of every tensor that is written, by its name."""
        shapes = {"exact": (self.stripes, _SUMS, self.row_bytes // 4)} if self.exact else {}
        if self.weights:
            segments = -(-self.columns // self.segment_columns) if self.fold == 1 else 1
            shapes["rows"] = segments, self.weights, self.matrix_rows
            shapes["columns"] = self.stripes, self.weights, self.fold * self.columns
        return shapes

    @property
    def segment_columns(self) -> int:
        """Columns of the matrix that have a row sum of their own."""
        return self.segment_bytes // np.dtype(self.element).itemsize

    @property
    def element(self) -> str:
        """A NumPy type of the elements' size."""
        return "uint16" if self.dtype == "bfloat16" else self.dtype

    @property
    def kernel(self) -> str:
        """The name expression of the kernel."""
        return f"abft::add_checksums<{ELEMENT[self.dtype]}, {str(self.exact).lower()}, {self.weights}>"

    @property
    def threads(self) -> int:
        """Threads of a block (kThreads)."""
        return 128 + 256 * (self.exact + (self.weights > 0))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory (kSharedBytes)."""
        table = STRIPE * _PRODUCTS * 8 if self.exact else 0
        of_warps = _STAGES * _PARTS[self.sums.name] * STRIP // WARP_BYTES * _ROWS if self.weights else 0
        sums = (of_warps + self.weights * STRIPE) * self.sums.itemsize
        return _STAGES * _ROWS * _PITCH + table + sums + _STAGES * (4 * 8 + 4)

    def task(self, data: int, tensors: dict[str, int], following: int) -> np.ndarray:
        """Return the kernel's argument, of the addresses of the data, of the tensors and of a count of units."""
        task = np.zeros((), TASK)
        task["data"], task["exact"] = data, tensors.get("exact", 0)
        task["row_sums"], task["column_sums"] = tensors.get("rows", 0), tensors.get("columns", 0)
        for name in ("rows", "row_bytes", "last_bytes", "matrix_rows", "units", "units_across", "fold", "strips"):
            task[name] = getattr(self, name)
        task["next"] = following
        task["segment_stride"] = self.weights * self.matrix_rows if self.fold == 1 else 1
        task["segment_warps"] = self.segment_bytes // WARP_BYTES
        return task


def checksums_plan(
    m: int, n: int, dtype: str, itemsize: int, fold: int, *, exact: bool, weights: int, block: int
) -> ChecksumsPlan | None:
    """Return how the kernel goes through a matrix without gaps; None where it does not serve it.

    Parameters
    ----------
    m, n : int
    dtype : str
        The name of the elements' type.
    itemsize : int
        Bytes of an element.
    fold : int
        Rows that are one of the folded matrix.
    exact : bool
        Whether words are added up; of any dtype.
    weights, block : int
        Weighted sums of each row and column, 0 for none, and the columns and rows that have them.
    """
    row, rows = n * itemsize, -(-m // fold)
    row_bytes, last_bytes = fold * row, (m - (rows - 1) * fold) * row
    segment = STRIP
    if weights:
        if dtype not in _SUM or weights > 2 or block != STRIPE:
            return None
        segment = block * itemsize if fold == 1 else row
        if fold > 1 and (n > block or segment % WARP_BYTES or (segment % STRIP and STRIP % segment)):
            return None
    if row_bytes % ALIGNMENT or last_bytes % ALIGNMENT:
        return None
    of = dtype if weights else "float32"
    plan = ChecksumsPlan(of, exact, weights, rows, row_bytes, last_bytes, m, n, fold, segment)
    return plan if plan.units <= _MOST_UNITS else None
