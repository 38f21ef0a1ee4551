"""Plans of the tensor-core kernels, and their instances for a problem's layouts. Pure."""

from dataclasses import dataclass, replace
from math import gcd
from pathlib import PurePosixPath
from typing import ClassVar, TypeVar

from tsapps.kernels.plan.bank_conflicts import STRIDES, turns
from tsapps.kernels.problem import ITEMSIZE, Problem

__all__ = [
    "ELEMENT",
    "OWN_EPILOGUE",
    "STORE_HEADER",
    "SUM",
    "KernelPlan",
    "LibraryAlgorithm",
    "MmaPlan",
    "WgmmaPlan",
    "instantiate",
]

#: What an element is called in C++, and what it is summed in.
ELEMENT = {"float64": "double", "float32": "float", "float16": "ptx::Half", "bfloat16": "ptx::Bfloat16"}
SUM = {"float64": "double", "float32": "float", "float16": "float", "bfloat16": "float"}
#: The header of the epilogues that store C; what stands for the epilogue of an application in a plan.
STORE_HEADER, OWN_EPILOGUE = "kernels/tsm2/store.cuh", "own"
# Bytes that the level-2 cache prefetches at a time, and up to which it is told to keep a B that many tiles read.
_PREFETCHED, _STAYING = 256, 16 << 20
# Registers of a thread of gemm_wgmma.cuh that loads, by how many warpgroups do.
_LOADING = {1: 88, 2: 64}


@dataclass(frozen=True)
class KernelPlan:
    """How a kernel of ours is instantiated for a dtype: in C++ it is named as its file is.

    Attributes
    ----------
    kernel_name : str
        The kernel in tables of tuned configurations.
    header : str
        Its file.
    dtype : str
    """

    kernel_name: ClassVar[str]
    header: ClassVar[str]

    dtype: str

    @property
    def function(self) -> str:
        """The kernel's name in C++."""
        return f"tsm2::{PurePosixPath(self.header).stem}"

    @property
    def sum_dtype(self) -> str:
        """The dtype that products are summed in."""
        return "float64" if SUM[self.dtype] == "double" else "float32"


@dataclass(frozen=True)
class MmaPlan(KernelPlan):
    """How gemm_mma.cuh is instantiated; the names are those of its comments.

    Attributes
    ----------
    tile_m, tile_n, depth : int
        Rows and columns of C in a tile; what a stage adds of the sum over k.
    warps_m, warps_n, warps_k : int
        Warps that share rows, columns and depth of a tile: a team.
    teams : int
        A block.
    stages : int
        Of the ring.
    blocks : int
        A multiprocessor.
    keep_b : bool
        Whether all of B stays in shared memory.
    prepare_b : bool
        Whether the warps share the work of taking each stage's B apart.
    products : {3, 6}
        tf32 products of one of float32.
    stretch : int
        Words a lane that are summed in the tensor cores before a rounded addition; 0 is never.
    fold : int
        Lines of packed operands that are taken as one.
    store : {"Store", "StorePairs", "StoreColumns", "StoreLines", "StoreFolded", OWN_EPILOGUE}
        The epilogue, of store.cuh for each kind of C; an application's own takes no shared memory.
    row_sums : bool
        Whether an app's own epilogue takes sums of A's rows, too (weighted_row_sums.cuh); of plans with `warps_n` 1.
    """

    kernel_name: ClassVar[str] = "tall_skinny"
    header: ClassVar[str] = "kernels/tsm2/gemm_mma.cuh"

    tile_m: int
    tile_n: int
    depth: int
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    teams: int = 1
    stages: int = 4
    blocks: int = 1
    keep_b: bool = False
    prepare_b: bool = False
    gram: bool = False
    products: int = 3
    interval: int = 8
    fold: int = 1
    stride: int = 1
    a_along: bool = True
    b_along: bool = False
    a_unit: int = 16
    b_unit: int = 16
    a_packed: bool = False
    b_packed: bool = False
    a_prefetches: bool = False
    b_prefetches: bool = False
    b_stays: bool = False
    store: str = "Store"
    row_sums: bool = False

    @property
    def shares_parts(self) -> bool:
        """Whether B is taken apart once for all warps."""
        return self.keep_b or self.prepare_b

    @property
    def warps(self) -> int:
        """Warps a team."""
        return self.warps_m * self.warps_n * self.warps_k

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps * self.teams

    def struct(self) -> str:
        """Return the plan as the C++ class that the kernel is instantiated with."""
        element = ELEMENT[self.dtype]

        def operand(along: bool, outer: int, unit: int, *properties: bool) -> str:
            packed, prefetches, stays = (str(one).lower() for one in properties)
            return (
                f"tsm2::Operand<{element}, {str(along).lower()}, {outer}, {self.depth}, {unit}, "
                f"{packed}, {prefetches}, {stays}, {self.stride}>"
            )

        a = operand(self.a_along, self.tile_m, self.a_unit, self.a_packed, self.a_prefetches, False)
        b = operand(self.b_along, self.tile_n, self.b_unit, self.b_packed, self.b_prefetches, self.b_stays)
        booleans = {"kKeepB": self.keep_b, "kPrepareB": self.prepare_b, "kGram": self.gram}
        return "\n".join(
            [
                "struct Plan {",
                f"  using Element = {element};",
                f"  using A = {a};",
                f"  using B = {b};",
                *(f"  static constexpr int {name} = {value};" for name, value in self._integers.items()),
                *(f"  static constexpr bool {name} = {str(value).lower()};" for name, value in booleans.items()),
                "};",
            ]
        )

    @property
    def _integers(self) -> dict[str, int]:
        return {
            "kTileM": self.tile_m,
            "kTileN": self.tile_n,
            "kDepth": self.depth,
            "kWarpsM": self.warps_m,
            "kWarpsN": self.warps_n,
            "kWarpsK": self.warps_k,
            "kTeams": self.teams,
            "kStages": self.stages,
            "kBlocksAMultiprocessor": self.blocks,
            "kProducts": self.products,
            "kInterval": self.interval,
            "kStride": self.stride,
        }

    def epilogue(self) -> str:
        """Return the epilogue that stores C."""
        element, total = ELEMENT[self.dtype], SUM[self.dtype]
        sizes: tuple[int, ...] = ()
        if self.store == "StoreFolded":
            sizes = self.fold, self.tile_m // self.fold, self.tile_n // self.fold
        elif self.store == "Store":
            sizes = (self.tile_n // self.warps_n,)
        return f"tsm2::{self.store}<{', '.join([element, total, *map(str, sizes)])}>"

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block; the kernel's own arithmetic."""
        pipeline_bytes = self._pipeline_bytes + ((1 + self._streams_b) * self._parts if self.shares_parts else 0)
        row_blocks, column_blocks = self._row_blocks, -(-self.tile_n // self.warps_n // 8) + self.row_sums
        sums = self.warps_m * self.warps_n * self.teams * self._handed_over(row_blocks)
        handed_over = self.warps // 2 * 32 * 4 * row_blocks * column_blocks * self._sum_bytes
        return (
            pipeline_bytes + max(sums, handed_over if self.warps_k > 1 else 0) + (self._weights if self.keep_b else 0)
        )

    @property
    def _sum_bytes(self) -> int:
        return ITEMSIZE[self.sum_dtype]

    @property
    def _row_blocks(self) -> int:
        """Blocks of 16 rows that a warp has."""
        return -(-self.tile_m // self.warps_m // 16)

    @property
    def _pipeline_bytes(self) -> int:
        """Bytes of all stages."""

        def tile(outer: int) -> int:
            return -(-outer * self.depth * ITEMSIZE[self.dtype] // 128) * 128

        stage = tile(self.tile_m) + (tile(self.tile_n) if self._streams_b else 0)
        return self.teams * self.stages * (stage + (0 if self.keep_b else self._weights))

    @property
    def _weights(self) -> int:
        """Bytes of the weights of rows that a stage has, or that stay (RowWeights)."""
        return -(-(self.depth + 8) * self._sum_bytes // 128) * 128 if self.row_sums else 0

    @property
    def _streams_b(self) -> bool:
        return not (self.keep_b or self.gram)

    @property
    def _parts(self) -> int:
        """Bytes of a unit's B as parts."""
        part = {"float64": 8, "float32": 4 * (self.products // 3 + 1)}.get(self.dtype, 4)
        return -(-self._words // 2) * -(-self.tile_n // 8) * 32 * 2 * part

    def _handed_over(self, row_blocks: int) -> int:
        """Return the bytes of the sums that a warp of so many blocks of 16 rows hands to the epilogue at once."""
        if self.store == "StoreLines":
            size = ITEMSIZE[self.dtype]
            return 16 * (16 * min(row_blocks, 8 // size) * size + 16)
        if self.store not in ("Store", "StoreFolded"):
            return 0
        columns = self.tile_n // self.warps_n
        blocks = -(-columns // 8)
        gapless = columns <= 8 or (self._sum_bytes == 8 and columns % 16 != 0)
        pitch = columns if gapless else 8 * (blocks + (blocks + 1) % 2)
        together = min(max(1, 4096 // (16 * pitch * self._sum_bytes)), row_blocks)
        return -(-16 * together * pitch * self._sum_bytes // 16) * 16

    @property
    def _words(self) -> int:
        """Words of a fragment that a lane goes through in a stage."""
        total = -(-self.depth // self.warps_k // (2 if ITEMSIZE[self.dtype] == 2 else 1))
        in_blocks = total // (4 * self.stride) * self.stride
        return in_blocks + -(-(total - 4 * in_blocks) // 4)

    @property
    def tile_sums(self) -> int:
        """Sums of one tile in the workspace."""
        rows, columns = self.tile_m // self.warps_m, self.tile_n // self.warps_n
        return self.warps_m * self.warps_n * 32 * 4 * -(-rows // 16) * (-(-columns // 8) + self.row_sums)

    def units(self, m: int, k: int, w: int) -> int:
        """Return how many units a product of this size has."""
        return -(-m // self.tile_m) * -(-w // self.tile_n) * -(-k // self.depth)


@dataclass(frozen=True)
class WgmmaPlan(MmaPlan):
    """How gemm_wgmma.cuh is instantiated: `warps_m` · `warps_k` warps multiply.

    Attributes
    ----------
    loaders : {1, 2}
        Warpgroups that load.
    job_pairs : {1, 2, 4}
        Pairs of words that are multiplied together.
    """

    loaders: int = 2
    job_pairs: int = 2

    kernel_name: ClassVar[str] = "tall_skinny_warpgroups"
    header: ClassVar[str] = "kernels/tsm2/gemm_wgmma.cuh"
    shares_parts: ClassVar[bool] = True

    @property
    def threads(self) -> int:
        """Threads a block."""
        return 32 * self.warps + 128 * self.loaders

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block; the kernel's own arithmetic."""
        handed_over = (self.warps_k - 1) * self.tile_sums * self._sum_bytes
        parts = (1 if self.keep_b else 2) * self.warps_k * self._parts + (self._weights if self.keep_b else 0)
        return self._pipeline_bytes + parts + self.warps_m * self._handed_over(1) + handed_over

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers of a thread: as it begins, of a loader, of a multiplier, as in the kernel."""
        groups, loading = self.warps // 4, _LOADING[self.loaders]
        equal = 512 // self.blocks // (groups + self.loaders) // 8 * 8
        return equal, loading, min(240, ((groups + self.loaders) * equal - self.loaders * loading) // groups // 8 * 8)

    @property
    def _integers(self) -> dict[str, int]:
        return super()._integers | {"kProducers": self.loaders, "kJobPairs": self.job_pairs}

    @property
    def has_whole_jobs(self) -> bool:
        """Whether a unit is whole instructions and, but for float64, whole jobs; the kernel's own conditions."""
        pairs, rest = divmod(self._words, 2)
        return rest == 0 and (self.dtype == "float64" or pairs % self.job_pairs == 0)


@dataclass(frozen=True)
class LibraryAlgorithm:
    """An algorithm of cublasLt.

    Attributes
    ----------
    rank : int
        Among those that its heuristics offer, from 1 on; where they are fewer, the last is taken.
    own_orders : bool
        Whether it is told of row-major matrices as such; else of the same product of column-major ones.
    """

    kernel_name: ClassVar[str] = "cublaslt"

    rank: int = 1
    own_orders: bool = False


_AnyPlan = TypeVar("_AnyPlan", bound=MmaPlan)


def instantiate(plan: _AnyPlan, problem: Problem) -> _AnyPlan:
    """Fill in what follows from the operands' layouts: units of copy, packing, caching, the stride of depths.

    Raises
    ------
    ValueError
        If an operand's lines are not even aligned to an element of it.
    """
    size, fold = problem.itemsize, plan.fold
    sides = ((problem.a, plan.tile_m, problem.m * fold), (problem.b, plan.tile_n, problem.w * fold))
    filled = []
    for layout, outer, extent in sides:
        length, whole = (plan.depth, problem.k) if layout.along_depth else (outer, extent)
        lines = outer if layout.along_depth else plan.depth
        line_bytes, leading = length * size, layout.leading * fold
        alignment = layout.alignment if fold == 1 else gcd(layout.base_alignment, leading * size)
        unit = gcd(alignment, line_bytes, 16)
        # Whole lines without a gap are one piece, whatever their length.
        packed = unit < 16 and leading == length == whole and lines * line_bytes % 16 == 0
        if packed:
            unit = layout.base_alignment
        if unit < size:
            raise ValueError(f"an operand of {problem.dtype} lies at a multiple of {unit} bytes only")
        prefetches = layout.along_depth and line_bytes < _PREFETCHED and whole > length
        filled.append((layout.along_depth, unit, packed, prefetches))
    (a_along, a_unit, a_packed, a_prefetches), (b_along, b_unit, b_packed, b_prefetches) = filled
    streamed = not (plan.keep_b or plan.gram)
    b_stays = streamed and problem.m > plan.tile_m and problem.k * problem.w * size <= _STAYING
    # B is read by every warp of a tile's rows, unless its parts are made once.
    reads_of_b = 0 if plan.keep_b else plan.tile_n * (1 if plan.shares_parts else plan.warps_m)

    def cost(stride: int) -> float:
        of_a = turns(size, a_along, plan.tile_m, plan.depth, a_packed, stride) * plan.tile_m * plan.warps_n
        return of_a + turns(size, b_along, plan.tile_n, plan.depth, b_packed, stride) * reads_of_b

    return replace(
        plan,
        stride=min(STRIDES, key=cost),
        a_along=a_along,
        b_along=b_along,
        a_unit=a_unit,
        b_unit=b_unit,
        a_packed=a_packed,
        b_packed=b_packed,
        a_prefetches=a_prefetches,
        b_prefetches=b_prefetches,
        b_stays=b_stays,
        store=_store(plan, problem),
    )


def _store(plan: MmaPlan, problem: Problem) -> str:
    """Return the epilogue for the problem's C."""
    if plan.fold > 1:
        return "StoreFolded"
    if problem.c in ("aligned columns", "columns"):
        return "StoreLines" if plan.keep_b else "StoreColumns"
    blocks = 16 if problem.itemsize == 2 else 8
    whole = problem.w % blocks == 0 and plan.tile_n // plan.warps_n % blocks == 0
    return "StorePairs" if whole and problem.c in ("packed", "rows") else "Store"
