"""Description of a matrix product: sizes, dtype and memory layouts, without arrays or devices."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["ITEMSIZE", "NARROW", "Layout", "Lies", "Problem", "Shape"]

#: Bytes per element, by the name of the dtype.
ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}

#: The memory layout of a result; `Problem` defines the values.
Lies = Literal["packed", "rows", "aligned columns", "columns", "any"]
#: TSM2R: m and k large, w small. TSM2L: only m large. TSMTTSM: only k, the dimension of the sum, large.
Shape = Literal["tsm2r", "tsm2l", "tsmttsm", "other"]


@dataclass(frozen=True)
class Layout:
    """The memory layout of one operand.

    Attributes
    ----------
    along_depth : bool
        Whether its contiguous lines run along the depth, the dimension of the sum: a row-major A, a column-major B.
    leading : int
        Elements from the start of one line to the start of the next.
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
        """Return the elements from the first to the last, gaps included, of an operand of size `outer` × `depth`."""
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
        The memory layout of C:

        - packed: row-major without gaps, aligned to 16 bytes;
        - rows: row-major, each row aligned to 8 bytes or to two elements, whichever is more;
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
        """The shape class; a narrow dimension is at most `NARROW`."""
        if self.w > NARROW:
            return "other"
        if self.m <= NARROW:
            return "tsmttsm"
        return "tsm2l" if self.k <= NARROW else "tsm2r"

    @property
    def c_by_rows(self) -> bool:
        """Whether C has no contiguous columns: it is row-major or has other strides."""
        return self.c not in ("aligned columns", "columns")

    @property
    def bytes(self) -> int:
        """Bytes of all operands and the result, each counted once."""
        operands = self.m * self.k + (0 if self.gram else self.k * self.w)
        return (operands + self.m * self.w) * self.itemsize

    @property
    def flops(self) -> int:
        """The number of multiplications and additions."""
        return 2 * self.m * self.k * self.w


#: The largest dimension that counts as narrow.
NARROW = 64
