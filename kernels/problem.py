"""Description of a matrix product: sizes, dtype and memory layouts, without arrays or devices."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["ITEMSIZE", "NARROW", "Layout", "Lies", "Problem", "Shape"]

#: Bytes per element, by the name of the dtype.
ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

#: The memory layout of a result; `Problem` defines the values.
Lies = Literal["packed", "rows", "aligned columns", "columns", "any"]
#: The shape class of C (m × w) = A (m × k) · B (k × w). tsm2r: m and k are large, w is small. tsm2l: only m is large.
#: tsmttsm: only k is large. other: w is not small.
Shape = Literal["tsm2r", "tsm2l", "tsmttsm", "other"]


@dataclass(frozen=True)
class Layout:
    """The memory layout of one operand.

    Attributes
    ----------
    along_depth : bool
        True if the contiguous lines of the operand run along the depth, the dimension that the product sums over. So a
        row-major A and a column-major B have True.
    leading : int
        Distance in elements from the start of one line to the start of the next.
    alignment : int
        In bytes: the greatest of 16, 8, 4, 2 that divides the address of every line.
    base_alignment : int
        In bytes: the greatest of 16, 8, 4, 2 that divides the address of the first element.
    """

    along_depth: bool
    leading: int
    alignment: int
    base_alignment: int

    def size(self, outer: int, depth: int) -> int:
        """Return the number of elements from the first to the last, including gaps, of an `outer` × `depth` operand."""
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
        True if B is Aᵀ, the same matrix in the same memory.
    c : {"packed", "rows", "aligned columns", "columns", "any"}
        The memory layout of C:

        - packed: row-major without gaps, aligned to 16 bytes;
        - rows: row-major, each row aligned to 8 bytes and to two elements;
        - aligned columns: contiguous columns, each aligned to 16 bytes;
        - columns: contiguous columns of any alignment;
        - any: any strides.
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
        """Bytes per element."""
        return ITEMSIZE[self.dtype]

    @property
    def shape(self) -> Shape:
        """The shape class of the product; a dimension is small if it is at most `NARROW`."""
        if self.w > NARROW:
            return "other"
        if self.m <= NARROW:
            return "tsmttsm"
        return "tsm2l" if self.k <= NARROW else "tsm2r"

    @property
    def c_by_rows(self) -> bool:
        """True if the columns of C are not contiguous: C is row-major or has arbitrary strides."""
        return self.c not in ("aligned columns", "columns")

    @property
    def bytes(self) -> int:
        """Number of bytes of the operands and the result, each counted once."""
        operands = self.m * self.k + (0 if self.gram else self.k * self.w)
        return (operands + self.m * self.w) * self.itemsize

    @property
    def flops(self) -> int:
        """The number of multiplications and additions."""
        return 2 * self.m * self.k * self.w


#: The largest dimension that counts as small.
NARROW = 64
