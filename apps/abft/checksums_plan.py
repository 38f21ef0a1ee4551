"""How checksums.cuh goes through a matrix, from its sizes alone."""

from dataclasses import dataclass
from math import ceil

import numpy as np

from tsapps.apps.abft.exact import SUMS
from tsapps.apps.abft.layout import ROWS, WORD, Layout
from tsapps.apps.abft.weighted import columns_shape, rows_shape, sums_dtype
from tsapps.kernels.plan import ELEMENT
from tsapps.kernels.problem import ITEMSIZE

__all__ = ["ALIGNMENT", "TASK", "ChecksumsPlan", "Deal", "elements_plan", "words_plan"]

#: Bulk copies are of so many bytes, from such addresses.
ALIGNMENT = 16
# Bytes of a strip; warps that share one; columns of products; the ring (kStrip, kWarps, kProducts, kPitch, kRows,
# kStages); parts that sums of rows have.
_STRIP, _WARPS, _PRODUCTS, _PITCH, _RING_ROWS, _STAGES = 1024, 8, 8, 1056, 32, 5
_PARTS = {"float64": 2, "float32": 3}
_MOST_UNITS, _MOST_WEIGHTS = 2**30, 2
# Pieces that a unit is dealt in: no more than it has stages.
_PIECES = (1, 2, 4, 8, 16)
# What a multiprocessor could read while its warps hand over a piece: about a microsecond.
_HAND_OVER_BYTES = 1 << 15

#: `Task` of checksum_ring.cuh.
TASK = np.dtype(
    [
        *((name, "u8") for name in ("data", "exact", "row_sums", "column_sums", "of_pieces", "counts")),
        *((name, "i8") for name in ("rows", "row_bytes", "last_bytes")),
        *((name, "i4") for name in ("items", "whole", "piece_bits", "units_across", "strips")),
    ],
    align=True,
)


@dataclass(frozen=True)
class Deal:
    """How units are dealt out to blocks, in their order.

    Attributes
    ----------
    units : int
    whole : int
        The first of them, which are dealt as they are.
    pieces : int
        That each of the others is dealt in.
    """

    units: int
    whole: int
    pieces: int

    @property
    def parted(self) -> int:
        """Units that are dealt in pieces."""
        return self.units - self.whole

    @property
    def items(self) -> int:
        """What is dealt, in all."""
        return self.whole + self.parted * self.pieces


@dataclass(frozen=True)
class ChecksumsPlan:
    """What the kernel is told, and what it writes.

    Attributes
    ----------
    dtype : str
        Of the elements; "float32" where only words are added up.
    exact : bool
        Whether words are added up.
    weights : int
        Weighted sums of each row and column: none, 1 or 2.
    rows, row_bytes, last_bytes : int
        Rows of words or of elements; bytes of one, and of the last.
    """

    dtype: str
    exact: bool
    weights: int
    rows: int
    row_bytes: int
    last_bytes: int

    @property
    def stripes(self) -> int:
        """Stripes of 512 rows."""
        return -(-self.rows // ROWS)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEMSIZE[self.dtype]

    @property
    def strips(self) -> int:
        """Strips of a unit: those of the 512 columns that have a row sum."""
        return max(1, ROWS * self.itemsize // _STRIP) if self.weights else 1

    @property
    def units_across(self) -> int:
        """Units of a stripe."""
        return -(-self.row_bytes // (self.strips * _STRIP))

    @property
    def units(self) -> int:
        """Units of work in all, which blocks share."""
        return self.stripes * self.units_across

    @property
    def sums(self) -> np.dtype:
        """What weighted sums are added up and stored in."""
        return sums_dtype(self.dtype)

    @property
    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The shape of every tensor that is written, by its name."""
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
        """Threads of a block (kThreads)."""
        return 128 + 32 * _WARPS * (self.exact + (self.weights > 0))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory (kSharedBytes)."""
        table = ROWS * _PRODUCTS * 8 if self.exact else 0
        of_warps = _STAGES * _PARTS[self.sums.name] * _WARPS * _RING_ROWS if self.weights else 0
        sums = (of_warps + self.weights * ROWS) * self.sums.itemsize
        return table + sums + _STAGES * (_RING_ROWS * _PITCH + 16 + 3 * 8)

    @property
    def left_bytes(self) -> int:
        """What a piece leaves of each strip: sums of words and of columns (kLeft of every warp)."""
        words = SUMS * _STRIP // WORD * 8 if self.exact else 0
        return words + self.weights * _STRIP // self.itemsize * self.sums.itemsize

    def deal(self, blocks: int) -> Deal:
        """Return how units are dealt out to so many blocks, so that all end at about the same time.

        Blocks take units as they come, so that the last one ends up to a unit's time after the first. If the last
        half of a unit a block, or more, is dealt in pieces, those fill the gaps, and it is a piece's time. Each piece
        costs what it hands over; so the number of pieces is that by which the least time is lost. Where no block has
        more than one unit, pieces spread a small matrix over more blocks.

        Parameters
        ----------
        blocks : int
            As many as run at once.
        """
        unit = self.strips * _STRIP * min(self.rows, ROWS)
        whole = 0
        if self.units > blocks:
            whole = self.units - blocks // 2
            # If some blocks have a whole unit more than others, pieces are to last for the others until then.
            more = whole % blocks
            whole -= more if more < blocks - blocks // 2 else 0

        def time(pieces: int) -> float:
            """By what a block reads in it."""
            one = unit / pieces + (_HAND_OVER_BYTES + 2 * self.strips * self.left_bytes if pieces > 1 else 0)
            of_each = (self.units - whole) * pieces / blocks
            return whole * unit / blocks + one * (of_each + 0.5 if whole else ceil(of_each))

        pieces = min(_PIECES, key=time)
        return Deal(self.units, whole if pieces > 1 else self.units, pieces)

    def scratch_bytes(self, deal: Deal) -> int:
        """Return the scratch memory that pieces need."""
        return (deal.items - deal.whole) * self.strips * self.left_bytes

    def counts(self, deal: Deal) -> int:
        """Return how many counts the kernel needs, of 32 bits."""
        return 1 + deal.parted * _WARPS * (self.exact + (self.weights > 0))

    def task(self, data: int, tensors: dict[str, int], deal: Deal, of_pieces: int, counts: int) -> np.ndarray:
        """Return the kernel's argument, of the addresses of data, tensors, scratch memory and zeroed counts."""
        task = np.zeros((), TASK)
        task["data"], task["of_pieces"], task["counts"] = data, of_pieces, counts
        task["exact"] = tensors.get("exact", 0)
        task["row_sums"], task["column_sums"] = tensors.get("rows", 0), tensors.get("columns", 0)
        for name in ("rows", "row_bytes", "last_bytes", "units_across", "strips"):
            task[name] = getattr(self, name)
        task["items"], task["whole"], task["piece_bits"] = deal.items, deal.whole, deal.pieces.bit_length() - 1
        return task


def _served(plan: ChecksumsPlan) -> ChecksumsPlan | None:
    """Return a plan if its rows are whole pieces of what is copied, and its units can be numbered."""
    whole = plan.row_bytes % ALIGNMENT == 0 and plan.last_bytes % ALIGNMENT == 0
    return plan if whole and plan.units <= _MOST_UNITS else None


def words_plan(of: Layout) -> ChecksumsPlan | None:
    """Return how the exact sums of bytes are added up; None where the kernel does not serve them."""
    row_bytes = of.width * WORD
    rows = -(-of.n_bytes // row_bytes)
    return _served(ChecksumsPlan("float32", True, 0, rows, row_bytes, of.n_bytes - (rows - 1) * row_bytes))


def elements_plan(m: int, n: int, dtype: str, weights: int, block: int, of: Layout | None) -> ChecksumsPlan | None:
    """Return how the weighted sums of a matrix are added up; None where the kernel does not serve them.

    Parameters
    ----------
    m, n : int
    dtype : str
        The name of the elements' type.
    weights, block : int
    of : Layout or None
        How its words are dealt out: if a row of words is one of elements, their sums are added up in the same pass.
    """
    if dtype not in ELEMENT or weights > _MOST_WEIGHTS or block != ROWS:
        return None
    plan = ChecksumsPlan(dtype, False, weights, m, 0, 0)
    row_bytes = n * plan.itemsize
    exact = of is not None and of.width * WORD == row_bytes
    return _served(ChecksumsPlan(dtype, exact, weights, m, row_bytes, row_bytes))
