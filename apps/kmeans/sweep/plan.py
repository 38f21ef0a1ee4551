"""Plan of fits of several numbers of clusters in common launches (pure); structures shared with C++."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_BYTES,
    ARGMIN,
    MOST_CLUSTERS,
    capacity,
    columns_of,
    half_copy_problem,
)
from tsapps.apps.kmeans.data.plan import padded
from tsapps.kernels.gemm import blocks_of
from tsapps.kernels.gpu_specs import GpuSpec
from tsapps.kernels.plan.candidates import RESERVED
from tsapps.kernels.plan.mma import OWN_EPILOGUE, MmaPlan, instantiate
from tsapps.kernels.problem import Problem

__all__ = [
    "ALL_FITS",
    "FITS_TO_ADD",
    "FITS_TO_LABEL",
    "FITS_TO_RESCORE",
    "MOST_FITS",
    "AllRowsPlan",
    "FitsPlan",
    "all_rows_plan",
    "fits_plan",
    "groups_of",
]

#: Maximum number of fits in a launch (kMostFits).
MOST_FITS = 32
_FIT_TO_RESCORE = np.dtype([("centers", "u8"), ("entries", "u8"), ("k", "i4"), ("padding", "i4")])
_FIT_TO_ADD = np.dtype(
    [(name, "u8") for name in ("entries", "labels", "sums", "n_reassigned")] + [("k", "i4"), ("padding", "i4")]
)
#: The C++ classes `FitsToLabel`, `FitsToRescore`, `FitsToAdd` and `AllFits`, as NumPy structures.
FITS_TO_LABEL = np.dtype(
    [
        ("first", ARGMIN),
        *((name, "i4", MOST_FITS) for name in ("k", "first_block")),
        *((name, "i4") for name in ("count", "tiles_apart")),
    ]
)
FITS_TO_RESCORE = np.dtype(
    [("at", _FIT_TO_RESCORE, MOST_FITS)]
    + [(name, "u8") for name in ("stopped", "counts", "capacity")]
    + [(name, "i4") for name in ("count", "lists")]
)
FITS_TO_ADD = np.dtype(
    [("at", _FIT_TO_ADD, MOST_FITS)]
    + [(name, "u8") for name in ("stopped", "counts", "capacity")]
    + [(name, "i4") for name in ("count", "lists", "columns", "log2_lanes")]
)
ALL_FITS = np.dtype(
    [*((name, "u8") for name in ("labels", "sums")), ("labels_apart", "i8"), ("first_cluster", "i4", MOST_FITS)]
    + [(name, "i4") for name in ("count", "clusters", "columns", "log2_lanes")]
)
# The largest number of features for which a pipeline stage holds whole rows.
_MOST_FEATURES = 256
# Columns of a product are rounded up to a multiple of this number, so that few kernels are compiled.
_COLUMNS = 64
# The largest number of registers of a tile's fragments that a warp holds (kHolds in assign.cuh).
_MOST_HELD = 64
# Rows of a tile.
_ROWS = 32
# Registers per thread of label_fits besides fragments and sums, as compiled for compute capability 9.0.
_OTHER_REGISTERS = 56
# The largest number of clusters of a fit that is paired with another (kMostPairBlocks in candidate_bits.cuh).
_MOST_PAIRED = 24
# Static shared memory of a block (`Shared` in assign.cuh): bytes, bytes per fit, and per 8 columns.
_STATIC, _STATIC_OF_FIT, _STATIC_OF_COLUMNS = 384, 40, 64
# Shared memory of a block of add_all_rows (first_sums.cuh) in bytes: possible sizes of its sums; its places of rows.
_BYTES_OF_SUMS, _BYTES_OF_PLACES = (120 * 1024, 56 * 1024), 16 * 32 * 2 * (MOST_FITS + 4)
# Bytes of a label.
_LABEL_BYTES = 4


@dataclass(frozen=True)
class FitsPlan:
    """Plan of the launches of an iteration of several fits.

    Attributes
    ----------
    numbers : tuple of int
        The number of clusters of each fit.
    product : MmaPlan
        The product with the centers of all fits side by side (assign.cuh).
    problem : Problem
        The sizes of this product.
    lists : int
        Number of lists of ambiguous rows of each fit: one for each block of the product.
    capacity : int
        Maximum number of entries of a list.
    """

    numbers: tuple[int, ...]
    product: MmaPlan
    problem: Problem
    lists: int
    capacity: int

    @property
    def columns(self) -> list[int]:
        """Number of columns of each fit, a multiple of 8."""
        return [columns_of(k) for k in self.numbers]

    @property
    def list_bytes(self) -> int:
        """Bytes of the lists of ambiguous rows of all fits."""
        return len(self.numbers) * self.lists * self.capacity * AMBIGUOUS_BYTES

    @property
    def stride(self) -> int:
        """Distance of the labels of one fit from those of the next: whole tiles."""
        return -(-self.problem.m // self.product.tile_m) * self.product.tile_m

    @property
    def kernel(self) -> str:
        """The name of the kernel, with template arguments."""
        return f"kmeans::label_fits<Plan, {max(self.columns) // 8}, {_blocks_of_two(self.numbers)}>"

    @property
    def source(self) -> str:
        """The source of the kernel."""
        return f'#include "apps/kmeans/sweep/assign.cuh"\n{self.product.struct()}\n'


@dataclass(frozen=True)
class AllRowsPlan:
    """Plan of the launch that adds all rows to the sums of several fits (first_sums.cuh).

    Attributes
    ----------
    sums : int
        Number of sums per limb that fit in a block's shared memory (kSums).
    columns : int
        Number of columns of the sums of all clusters that a block adds up.
    grid : tuple of int
        (blocks with different rows, blocks with different columns).
    shared_bytes : int
        Dynamic shared memory of a block in bytes.
    """

    sums: int
    columns: int
    grid: tuple[int, int]
    shared_bytes: int


def all_rows_plan(d: int, clusters: int, digits: int, gpu: GpuSpec) -> AllRowsPlan:
    """Plan the sums of rows of d features, by clusters of all fits, with `digits` limbs."""
    *larger, least = _BYTES_OF_SUMS
    size = next((one for one in larger if one + _BYTES_OF_PLACES <= gpu.shared_memory_per_block), least)
    sums = size // (4 * digits)
    parts = -(-(d + 1) // (sums // (clusters + 1)))  # a cluster that no fit has pads the places of a row
    rows = max(1, gpu.multiprocessors // parts)
    return AllRowsPlan(sums, -(-(d + 1) // parts), (rows, parts), 4 * digits * sums + _BYTES_OF_PLACES)


def fits_plan(n: int, d: int, numbers: Sequence[int], gpu: GpuSpec) -> FitsPlan | None:
    """Plan fits of n rows of d features; None if the kernels do not support them together.

    Parameters
    ----------
    n, d : int
    numbers : sequence of int
        The number of clusters of each fit.
    gpu : GpuSpec
    """
    if d > _MOST_FEATURES or len(numbers) > MOST_FITS or max(numbers) > MOST_CLUSTERS:
        return None
    width, columns = padded(d), sum(columns_of(k) for k in numbers)
    problem = half_copy_problem(n, d, columns)
    tile_n, widest = -(-columns // _COLUMNS) * _COLUMNS, max(columns_of(max(numbers)), 8 * _blocks_of_two(numbers))
    fragments = 8 * -(-width // 16)  # registers of a tile, if a warp holds it
    holds = fragments <= _MOST_HELD
    registers = _OTHER_REGISTERS + (fragments if holds else 8) + widest
    for teams in (20, 16, 12, 8) if holds else (8, 4):
        stages = 1 if holds else 2
        plan = MmaPlan("float16", _ROWS, tile_n, width, teams=teams, stages=stages, keep_b=True, interval=0)
        made = replace(instantiate(plan, problem), store=OWN_EPILOGUE)
        shared = made.shared_bytes + _STATIC + MOST_FITS * _STATIC_OF_FIT + tile_n // 8 * _STATIC_OF_COLUMNS
        memory = shared <= gpu.shared_memory_per_block and shared + RESERVED <= gpu.shared_memory
        if memory and registers <= 65_536 // made.threads and made.threads <= gpu.max_threads:
            lists = blocks_of(made, problem, gpu.multiprocessors)
            return FitsPlan(tuple(numbers), made, problem, lists, capacity(made, n, lists))
    return None


def _blocks_of_two(numbers: Sequence[int]) -> int:
    """Return the largest number of blocks of columns of two paired fits (kMostOfTwo in assign.cuh)."""
    return -(-min(_MOST_PAIRED, max(numbers)) // 4)


def groups_of(n: int, d: int, numbers: Sequence[int], gpu: GpuSpec, free_bytes: int) -> Iterator[FitsPlan]:
    """Yield plans for groups of fits, of at least two each, in the order of `numbers`; some fits may be in none.

    `free_bytes` limits the memory for the lists of a group, and for the labels of all fits, which stay.
    """
    free_bytes -= len(numbers) * n * _LABEL_BYTES

    def together(group: Sequence[int]) -> FitsPlan | None:
        plan = fits_plan(n, d, group, gpu)
        return plan if plan is not None and plan.list_bytes <= free_bytes else None

    left = list(numbers)
    while len(left) > 1:
        # Most often, all fit into one group.
        plans = (together(left[:size]) for size in range(len(left), 1, -1))
        plan = next((one for one in plans if one is not None), None)
        if plan is not None:
            yield plan
        left = left[1 if plan is None else len(plan.numbers) :]
