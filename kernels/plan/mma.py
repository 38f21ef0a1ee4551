"""Plans of the tensor-core kernels: template parameters, shared memory, and instantiation for a problem. Pure."""

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
    "MmaPlan",
    "WgmmaPlan",
    "instantiate",
]

#: The C++ types of an element and of its accumulator, by dtype.
ELEMENT = {"float64": "double", "float32": "float", "float16": "ptx::Half", "bfloat16": "ptx::Bfloat16"}
SUM = {"float64": "double", "float32": "float", "float16": "float", "bfloat16": "float"}
#: STORE_HEADER: the header of the epilogues that store C. OWN_EPILOGUE: the value of `MmaPlan.store` if an application
#: supplies the epilogue.
STORE_HEADER, OWN_EPILOGUE = "kernels/tsm2/store.cuh", "own"
# _PREFETCHED: bytes that the level-2 cache prefetches at a time. _STAYING: maximum bytes of B for which loads carry the
# hint that the level-2 cache evicts B last.
_PREFETCHED, _STAYING = 256, 16 << 20
# Registers per thread of a producer warpgroup in gemm_wgmma.cuh, by the number of producer warpgroups.
_PRODUCER_REGISTERS = {1: 88, 2: 64}


@dataclass(frozen=True)
class KernelPlan:
    """Template parameters of a kernel; the C++ function has the name of its header.

    Attributes
    ----------
    kernel_name : str
        The name of the kernel in tuning tables.
    header : str
        The file of the kernel.
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
        """The accumulator dtype."""
        return "float64" if SUM[self.dtype] == "double" else "float32"


@dataclass(frozen=True)
class MmaPlan(KernelPlan):
    """Template parameters of gemm_mma.cuh, whose header explains the terms.

    Attributes
    ----------
    tile_m, tile_n, depth : int
        Number of rows and of columns of C in a tile; number of k indices that one stage holds.
    warps_m, warps_n, warps_k : int
        The numbers of warps among which the rows, the columns and the depth of a tile are split.
    teams : int
        Teams per block. A team is a group of `warps` warps that computes separate tiles with a separate pipeline.
    stages : int
        Stages of the pipeline.
    blocks : int
        Blocks per multiprocessor.
    keep_b : bool
        True if a block loads all of B once and keeps it in shared memory.
    prepare_b : bool
        True if the warps of a team together split the B of each stage into tf32 parts. If False, each warp splits the
        elements of B that it reads.
    gram : bool
        True if B is Aᵀ, so that a stage holds only A.
    products : {3, 6}
        tf32 products per float32 product.
    interval : int
        Number of words per lane that the tensor cores accumulate before a rounded addition; 0 means all words.
    fold : int
        Number of lines of packed operands that the kernel treats as one line (`candidates.foldable`).
    stride : int
        kStride in operand.cuh: distance in words between the words of neighboring lanes, chosen against bank conflicts.
    a_along, b_along, a_unit, b_unit, a_packed, b_packed, a_prefetches, b_prefetches, b_stays
        Template parameters of the class `Operand` in operand.cuh.
    store : {"Store", "StorePairs", "StoreColumns", "StoreLines", "StoreFolded", OWN_EPILOGUE}
        The epilogue that stores C; store.cuh describes the layout of C for each epilogue. `OWN_EPILOGUE` is an epilogue
        of an application, which uses no shared memory.
    row_sums : bool
        True if the kernel passes weighted sums of A's rows to the application's epilogue (weighted_row_sums.cuh). This
        requires that `warps_n` is 1.
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
        """True if B is split into tf32 parts once for all warps."""
        return self.keep_b or self.prepare_b

    @property
    def warps(self) -> int:
        """Warps per team."""
        return self.warps_m * self.warps_n * self.warps_k

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps * self.teams

    def struct(self) -> str:
        """Return the definition of the C++ class `Plan`, the template argument of the kernel."""
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
        """Return the C++ name of the epilogue that stores C, with template arguments."""
        element, total = ELEMENT[self.dtype], SUM[self.dtype]
        sizes: tuple[int, ...] = ()
        if self.store == "StoreFolded":
            sizes = self.fold, self.tile_m // self.fold, self.tile_n // self.fold
        elif self.store == "Store":
            sizes = (self.tile_n // self.warps_n,)
        return f"tsm2::{self.store}<{', '.join([element, total, *map(str, sizes)])}>"

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block, computed as in the kernel."""
        pipeline_bytes = self._pipeline_bytes + ((1 + self._streams_b) * self._parts if self.shares_parts else 0)
        row_blocks, column_blocks = self._row_blocks, -(-self.tile_n // self.warps_n // 8) + self.row_sums
        sums = self.warps_m * self.warps_n * self.teams * self._staging_bytes(row_blocks)
        split_sums = self.warps // 2 * 32 * 4 * row_blocks * column_blocks * self._sum_bytes
        return pipeline_bytes + max(sums, split_sums if self.warps_k > 1 else 0) + (self._weights if self.keep_b else 0)

    @property
    def _sum_bytes(self) -> int:
        return ITEMSIZE[self.sum_dtype]

    @property
    def _row_blocks(self) -> int:
        """Blocks of 16 rows per warp."""
        return -(-self.tile_m // self.warps_m // 16)

    @property
    def _pipeline_bytes(self) -> int:
        """Bytes of the stages of all teams."""

        def tile(outer: int) -> int:
            return -(-outer * self.depth * ITEMSIZE[self.dtype] // 128) * 128

        stage = tile(self.tile_m) + (tile(self.tile_n) if self._streams_b else 0)
        return self.teams * self.stages * (stage + (0 if self.keep_b else self._weights))

    @property
    def _weights(self) -> int:
        """Bytes of the row weights of a stage or, with `keep_b`, of all row weights (class RowWeights)."""
        return -(-(self.depth + 8) * self._sum_bytes // 128) * 128 if self.row_sums else 0

    @property
    def _streams_b(self) -> bool:
        return not (self.keep_b or self.gram)

    @property
    def _parts(self) -> int:
        """Bytes of the parts (fragments.cuh) into which the B of one work unit is split."""
        part = {"float64": 8, "float32": 4 * (self.products // 3 + 1)}.get(self.dtype, 4)
        return -(-self._words // 2) * -(-self.tile_n // 8) * 32 * 2 * part

    def _staging_bytes(self, row_blocks: int) -> int:
        """Return the bytes per warp in which EpilogueStaging passes `row_blocks` blocks of 16 rows to the epilogue."""
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
        """Number of fragment words that a lane reads per stage and outer index (kWords in operand.cuh)."""
        total = -(-self.depth // self.warps_k // (2 if ITEMSIZE[self.dtype] == 2 else 1))
        in_blocks = total // (4 * self.stride) * self.stride
        return in_blocks + -(-(total - 4 * in_blocks) // 4)

    @property
    def tile_sums(self) -> int:
        """The number of partial sums of one tile in the workspace."""
        rows, columns = self.tile_m // self.warps_m, self.tile_n // self.warps_n
        return self.warps_m * self.warps_n * 32 * 4 * -(-rows // 16) * (-(-columns // 8) + self.row_sums)

    def units(self, m: int, k: int, w: int) -> int:
        """Return the number of work units (one stage of one tile) of a product of this size."""
        return -(-m // self.tile_m) * -(-w // self.tile_n) * -(-k // self.depth)


@dataclass(frozen=True)
class WgmmaPlan(MmaPlan):
    """Template parameters of gemm_wgmma.cuh, whose header explains the terms; `warps` counts consumer warps only.

    Attributes
    ----------
    loaders : {1, 2}
        Number of producer warpgroups.
    job_pairs : {1, 2, 4}
        Number of pairs of fragment words per job.
    """

    loaders: int = 2
    job_pairs: int = 2

    kernel_name: ClassVar[str] = "tall_skinny_warpgroups"
    header: ClassVar[str] = "kernels/tsm2/gemm_wgmma.cuh"
    shares_parts: ClassVar[bool] = True

    @property
    def threads(self) -> int:
        """Threads per block."""
        return 32 * self.warps + 128 * self.loaders

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory per block, computed as in the kernel."""
        split_sums = (self.warps_k - 1) * self.tile_sums * self._sum_bytes
        parts = (1 if self.keep_b else 2) * self.warps_k * self._parts + (self._weights if self.keep_b else 0)
        return self._pipeline_bytes + parts + self.warps_m * self._staging_bytes(1) + split_sums

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers per thread (at launch, of a producer, of a consumer), computed as in the kernel."""
        groups, of_producer = self.warps // 4, _PRODUCER_REGISTERS[self.loaders]
        at_launch = 512 // self.blocks // (groups + self.loaders) // 8 * 8
        of_consumer = ((groups + self.loaders) * at_launch - self.loaders * of_producer) // groups // 8 * 8
        return at_launch, of_producer, min(240, of_consumer)

    @property
    def _integers(self) -> dict[str, int]:
        return super()._integers | {"kProducers": self.loaders, "kJobPairs": self.job_pairs}

    @property
    def has_whole_jobs(self) -> bool:
        """True if a work unit is whole instructions and, except in float64, whole jobs. The kernel requires this."""
        pairs, rest = divmod(self._words, 2)
        return rest == 0 and (self.dtype == "float64" or pairs % self.job_pairs == 0)


_AnyPlan = TypeVar("_AnyPlan", bound=MmaPlan)


def instantiate(plan: _AnyPlan, problem: Problem) -> _AnyPlan:
    """Return the plan with all parameters that follow from the problem's layouts, from `stride` to `store`.

    Raises
    ------
    ValueError
        If a line of an operand does not begin at a multiple of the element size.
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
        # A tile of whole lines without gaps is one contiguous piece of memory, so its lines need not be aligned.
        packed = unit < 16 and leading == length == whole and lines * line_bytes % 16 == 0
        if packed:
            unit = layout.base_alignment
        if unit < size:
            raise ValueError(f"an operand is aligned to {unit} bytes; expected {size}, the size of {problem.dtype}")
        prefetches = layout.along_depth and line_bytes < _PREFETCHED and whole > length
        filled.append((layout.along_depth, unit, packed, prefetches))
    (a_along, a_unit, a_packed, a_prefetches), (b_along, b_unit, b_packed, b_prefetches) = filled
    streamed = not (plan.keep_b or plan.gram)
    b_stays = streamed and problem.m > plan.tile_m and problem.k * problem.w * size <= _STAYING
    # Each of the `warps_m` groups of warps reads B, unless B is split into parts once for all warps. With keep_b, B is
    # read too rarely to count.
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
    """Return the value of `MmaPlan.store` for the layout of C."""
    if plan.fold > 1:
        return "StoreFolded"
    if problem.c in ("aligned columns", "columns"):
        return "StoreLines" if plan.keep_b else "StoreColumns"
    blocks = 16 if problem.itemsize == 2 else 8
    whole = problem.w % blocks == 0 and plan.tile_n // plan.warps_n % blocks == 0
    return "StorePairs" if whole and problem.c in ("packed", "rows") else "Store"
