"""Plans of the kernels without tensor cores: template parameters, and the products that each kernel supports. Pure."""

from dataclasses import dataclass
from math import gcd, lcm
from typing import ClassVar

from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.mma import ELEMENT, SUM, KernelPlan, MmaPlan
from tsapps.kernels.problem import ITEMSIZE, Problem

__all__ = [
    "AnyPlan",
    "ColumnsPlan",
    "RowsPlan",
    "SimtPlan",
    "SmallTsmttsmPlan",
    "SplitPlan",
    "WidePlan",
    "simt_plans",
    "small_tsmttsm_plan",
    "split_plan",
]


@dataclass(frozen=True)
class SimtPlan(KernelPlan):
    """Template parameters of a kernel in tsm2/simt."""

    @property
    def _template_arguments(self) -> tuple[int | str, ...]:
        """The template arguments that follow the element type and the accumulator type."""
        raise NotImplementedError

    def kernel(self) -> str:
        """Return the C++ name expression of the kernel instance."""
        given = ELEMENT[self.dtype], SUM[self.dtype], *self._template_arguments
        arguments = (str(one).lower() if isinstance(one, bool) else str(one) for one in given)
        return f"{self.function}<{', '.join(arguments)}>"


@dataclass(frozen=True)
class _Tsm2lPlan(SimtPlan):
    k: int
    w: int


@dataclass(frozen=True)
class RowsPlan(_Tsm2lPlan):
    """Template parameters of simt/tsm2l_rows.cuh.

    Attributes
    ----------
    dtype : str
    k, w : int
    rows : int
        Number of rows of A in a piece. A piece is the contiguous rows that a thread loads together.
    ahead : int
        Number of pieces that a thread loads before it multiplies the first of them.
    threads : int
        Threads per block.
    """

    kernel_name: ClassVar[str] = "tsm2l_rows"
    header: ClassVar[str] = "kernels/tsm2/simt/tsm2l_rows.cuh"

    rows: int
    ahead: int = 1
    threads: int = 128

    @property
    def _template_arguments(self) -> tuple[int | str, ...]:
        return self.k, self.w, self.rows, self.ahead, self.threads


@dataclass(frozen=True)
class WidePlan(_Tsm2lPlan):
    """Template parameters of simt/tsm2l_wide.cuh.

    Attributes
    ----------
    dtype : str
    k, w : int
    ahead : int
        Number of rows of A that a thread loads before it multiplies the first of them; twice as many if a 16-byte
        vector can span two rows of C.
    """

    kernel_name: ClassVar[str] = "tsm2l_wide"
    header: ClassVar[str] = "kernels/tsm2/simt/tsm2l_wide.cuh"

    ahead: int

    @property
    def threads(self) -> int:
        """Threads per block: the most, up to 256, whose 16-byte vectors of C (one per thread) are whole rows of C."""
        vectors = self.w // gcd(self.w, 16 // ITEMSIZE[self.dtype])
        return 256 // vectors * vectors

    @property
    def rows(self) -> int:
        """Number of rows of C that a block computes at a time, one 16-byte vector per thread."""
        return self.threads * (16 // ITEMSIZE[self.dtype]) // self.w

    @property
    def _template_arguments(self) -> tuple[int | str, ...]:
        return self.k, self.w, self.ahead, self.threads


@dataclass(frozen=True)
class ColumnsPlan(_Tsm2lPlan):
    """Template parameters of simt/tsm2l_columns.cuh.

    Attributes
    ----------
    dtype : str
    k, w : int
    ahead : int
        Number of columns of A that a thread loads at a time if k > w. (If k ≤ w, a thread loads all columns at once.)
    threads : int
        Threads per block.
    streams : bool
        True if stores of C carry the hint that C is not read soon, so that C does not displace other cached data.
    """

    kernel_name: ClassVar[str] = "tsm2l_columns"
    header: ClassVar[str] = "kernels/tsm2/simt/tsm2l_columns.cuh"

    ahead: int = 8
    threads: int = 128
    streams: bool = False

    @property
    def _template_arguments(self) -> tuple[int | str, ...]:
        return self.k, self.w, self.ahead, self.threads, self.streams


@dataclass(frozen=True)
class SplitPlan(SimtPlan):
    """Template and launch parameters of simt/tsm2r_columns.cuh.

    Attributes
    ----------
    dtype : str
    width : int
        Number of columns of C that a block computes.
    unroll : int
        Number of columns of A that a thread loads at a time.
    threads : int
        Threads per block.
    blocks : int
        Number of blocks that a multiprocessor should hold at once; limits the registers per thread.
    vector : bool
        True if a thread loads 16 bytes of A at a time, False if it loads single elements.
    splits, per_split : int
        Number of parts into which the sum over k is split; number of columns of A in each part.
    """

    kernel_name: ClassVar[str] = "tsm2r_columns"
    header: ClassVar[str] = "kernels/tsm2/simt/tsm2r_columns.cuh"

    width: int
    unroll: int
    threads: int
    blocks: int
    vector: bool
    splits: int
    per_split: int

    @property
    def _template_arguments(self) -> tuple[int | str, ...]:
        store = f"tsm2::StoreElement<{ELEMENT[self.dtype]}, {SUM[self.dtype]}>"
        return self.width, self.unroll, self.threads, self.blocks, self.vector, store


# By (bytes per element, width): (unroll, threads, blocks per multiprocessor). For four and eight bytes, these are the
# fastest of 106 instances on an H200 at m = k = 10,240 and 30,720. Exception: (8, 8), where registers would spill with
# five blocks. The compiler limits the registers per thread so that this number of blocks fits on a multiprocessor.
# Tests check that. For larger widths, too few registers remain, and tensor cores are faster.
SPLIT_INSTANCES = {
    (2, 1): (8, 128, 5),
    (2, 2): (8, 128, 4),
    (2, 4): (4, 128, 5),
    (4, 1): (8, 128, 5),
    (4, 2): (8, 128, 4),
    (4, 4): (4, 128, 6),
    (8, 1): (4, 256, 4),
    (8, 2): (4, 256, 3),
    (8, 4): (4, 128, 6),
    (8, 8): (4, 128, 4),
}
# The largest width in SPLIT_INSTANCES, by bytes per element.
_WIDEST_SPLIT = {2: 4, 4: 4, 8: 8}
# _TILE: number of rows of B in a tile; a split consists of whole tiles. _LEAST_TILES: minimum number of tiles per
# split, because each split costs one write and one read of its partial sums.
_TILE, _LEAST_TILES = 64, 4


def split_plan(problem: Problem, multiprocessors: int) -> SplitPlan:
    """Return the plan of simt/tsm2r_columns.cuh for a product with a column-major A.

    The number of splits is limited so that the GPU holds all blocks at once. A second, partly filled wave of blocks
    cost up to 10 % at m = k = 10,240.
    """
    size = problem.itemsize
    width = min(one for itemsize, one in SPLIT_INSTANCES if itemsize == size and problem.w <= one)
    unroll, threads, blocks = SPLIT_INSTANCES[size, width]
    tiles = -(-problem.m // (threads * 16 // size)) * -(-problem.w // width)
    splits = max(1, min(multiprocessors * blocks // tiles, problem.k // (_TILE * _LEAST_TILES), 65_535))
    per_split = -(-problem.k // splits // _TILE) * _TILE
    vector = problem.a.alignment == 16
    # Loads of single elements need more registers. With `resident` 1, the compiler can use as many registers as it
    # needs, which is faster than a higher occupancy.
    resident = blocks if vector else 1
    return SplitPlan(problem.dtype, width, unroll, threads, resident, vector, -(-problem.k // per_split), per_split)


@dataclass(frozen=True)
class SmallTsmttsmPlan(SimtPlan):
    """Template parameters of simt/tsmttsm_small.cuh.

    Attributes
    ----------
    dtype : str
    m, w : int
    along : bool
        True if the lines of A and B run along the depth, False if they run across it.
    depth : int
        Number of k indices that one piece sums over. A piece is the data of A and B that a thread loads together.
    threads : int
        Threads per block.
    """

    kernel_name: ClassVar[str] = "tsmttsm_few"
    header: ClassVar[str] = "kernels/tsm2/simt/tsmttsm_small.cuh"

    m: int
    w: int
    along: bool
    depth: int
    threads: int = 256

    @property
    def _template_arguments(self) -> tuple[int | str, ...]:
        return self.m, self.w, self.along, self.depth, self.threads


def small_tsmttsm_plan(problem: Problem) -> SmallTsmttsmPlan | None:
    """Return the plan of simt/tsmttsm_small.cuh, or None if that kernel does not support the problem."""
    a, b, m, w, size = problem.a, problem.b, problem.m, problem.w, problem.itemsize
    if problem.shape != "tsmttsm" or m * w > _MOST_SUMS[size] or a.along_depth != b.along_depth:
        return None
    vector = 16 // size
    if a.along_depth:
        aligned, depth = min(a.alignment, b.alignment) == 16, vector
    else:
        packed = a.leading == m and b.leading == w
        aligned = packed and min(a.base_alignment, b.base_alignment) == 16
        depth = lcm(vector // gcd(vector, m), vector // gcd(vector, w))
    if not aligned or depth * (m + w) > _MOST_VECTORS * vector:
        return None
    return SmallTsmttsmPlan(problem.dtype, m, w, a.along_depth, depth)


#: A plan of any kernel, or an algorithm of cublasLt.
AnyPlan = MmaPlan | SimtPlan | LibraryAlgorithm


def simt_plans(problem: Problem, multiprocessors: int) -> list[AnyPlan]:
    """Return the plans of the kernels without tensor cores, the most promising first; empty if none applies."""
    small = small_tsmttsm_plan(problem)
    if small is not None:
        return [small]
    a, k, w, size = problem.a, problem.k, problem.w, problem.itemsize
    across = not a.along_depth and a.alignment == 16
    if problem.shape == "tsm2r" and across and w <= _WIDEST_SPLIT[size]:
        return [split_plan(problem, multiprocessors)]
    if problem.shape != "tsm2l":
        return []
    kept = 16 // size * (2 if size == 8 else 1)  # registers of a 16-byte vector converted to the accumulator type
    if a.along_depth and a.leading == k and a.base_alignment == 16 and problem.c == "packed":
        if k * w > _MOST_OF_B:
            wide = k <= _MOST_OF_WIDE and w * size >= 16 and k * kept <= _MOST_OF_B
            return [WidePlan(problem.dtype, k, w, ahead) for ahead in (1, 4)] if wide else []
        least = 16 // gcd(16, k * size)
        rows = (2 * least, least) if 2 * least * max(k, w) * size <= 32 else (least, 2 * least)
        return [RowsPlan(problem.dtype, k, w, one) for one in rows if one * k * size <= 128]
    if across and problem.c == "aligned columns" and min(k, w) * kept <= _MOST_KEPT:
        threads = (128, 512) if min(k, w) * kept <= _KEPT_BY_MANY else (128,)
        return [ColumnsPlan(problem.dtype, k, w, threads=one, streams=it) for one in threads for it in (False, True)]
    return []


# _MOST_OF_B: maximum k · w of tsm2l_rows, and maximum registers per thread for B in tsm2l_wide. _MOST_OF_WIDE: maximum
# k of tsm2l_wide.
_MOST_OF_B, _MOST_OF_WIDE = 64, 8
# Maximum registers per thread of tsm2l_columns for its rows of A or C, with 128 and with 512 threads per block.
_MOST_KEPT, _KEPT_BY_MANY = 132, 64
# Limits of tsmttsm_small: maximum m · w, the number of sums per thread, by bytes per element; maximum number of 16-byte
# vectors in a piece.
_MOST_SUMS, _MOST_VECTORS = {8: 32, 4: 64, 2: 64}, 20
