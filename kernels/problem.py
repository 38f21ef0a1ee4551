"""What is to be multiplied: shapes, dtypes and how the operands lie in memory. No arrays, no devices."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["ITEMSIZE", "NARROW", "Layout", "Lies", "Problem", "Shape"]

#: Bytes of an element, by the name of its dtype.
ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

#: How a result lies, in the words of `Problem`.
Lies = Literal["packed", "rows", "aligned columns", "columns", "any"]
#: TSM2R: m and k large, w small. TSM2L: only m large. TSMTTSM: only k, the dimension that is summed over, large.
Shape = Literal["tsm2r", "tsm2l", "tsmttsm", "other"]


@dataclass(frozen=True)
class Layout:
    """How one operand lies in memory.

    Attributes
    ----------
    along_depth : bool
        Whether its contiguous lines run along the dimension that is summed over: a row-major A, a column-major B.
    leading : int
        Elements from one line to the next.
    alignment : int
        Bytes; the greatest of 16, 8, 4, 2 that divides the address of every line.
    base_alignment : int
        Likewise of the first element alone.
    """

    along_depth: bool
    leading: int
    alignment: int
    base_alignment: int

    def size(self, outer: int, depth: int) -> int:
        """Return the elements from the first to the last of an operand of these sizes."""
        lines, length = (outer, depth) if self.along_depth else (depth, outer)
        return (lines - 1) * self.leading + length


@dataclass(frozen=True)
class Problem:
    """C (m × w) = A (m × k) · B (k × w), with w ≤ m.

    Attributes
    ----------
    m, k, w : int
    dtype : {"float64", "float32", "float16", "bfloat16"}
    a, b : Layout
    gram : bool
        Whether B is Aᵀ in the same memory.
    c : {"packed", "rows", "aligned columns", "columns", "any"}
        How C lies: row-major without gaps from a multiple of 16 bytes on; row-major, every row from a multiple of 8
        bytes on, or of two elements if those are more; with contiguous columns, each from a multiple of 16 bytes on, or
        not; or with any strides.
    """

    m: int
    k: int
    w: int
    dtype: str
    a: Layout
    b: Layout
    gram: bool = False
    c: Lies = "any"

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def shape(self) -> Shape:
        """Which of the three shapes this is; the narrow side is at most `NARROW`."""
        if self.w > NARROW:
            return "other"
        if self.m <= NARROW:
            return "tsmttsm"
        return "tsm2l" if self.k <= NARROW else "tsm2r"

    @property
    def c_by_rows(self) -> bool:
        """Whether C is row-major, or neither row- nor column-major."""
        return self.c not in ("aligned columns", "columns")

    @property
    def bytes(self) -> int:
        """Bytes of every operand and of the result, once."""
        operands = self.m * self.k + (0 if self.gram else self.k * self.w)
        return (operands + self.m * self.w) * self.itemsize

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.k * self.w


#: The widest product that is called narrow.
NARROW = 64
