"""Plans of the kernels of scores (sums_by_cluster.cuh, distances_by_cluster.cuh, row_scores.cuh, spreads.cuh).

From sizes alone.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "CLUSTERINGS",
    "DISTANCE_ERROR",
    "STEPS",
    "TEMPLATE_PITCHES",
    "THREADS",
    "RowScoresPlan",
    "SpreadsPlan",
    "SumsPlan",
    "points_together",
    "possible_tiles",
    "row_scores_plan",
    "spreads_plan",
    "sums_plan",
]

#: Threads of a block (kScoreThreads).
THREADS = 256
#: The C++ class `Clusterings` of scores/clusterings.cuh, as a NumPy structure.
CLUSTERINGS = np.dtype([("labels", "u8"), ("starts", "u8"), ("count", "i4"), ("padding", "i4")])
# kBlockPoints, kTileRows and kColumnsTogether.
_POINTS, _ROWS, _COLUMNS_TOGETHER = 128, 32, 32
_WARPS = THREADS // 32
# Possible values of kTiles. The last takes all registers of a thread, so that it is less from compute capability 12 on,
# and for features, whose products have sums of their own besides.
_TILES = (8, 16, 28)
#: Pitches that a kernel has as a template argument, which saves it a few percent of its instructions: that of 64
#: features, and that of kBlockPoints, which features have if they are the points.
TEMPLATE_PITCHES = (68, 132)
# Blocks of spreads.cuh on a multiprocessor, by kParts.
_PARTS = {0: 3, 1: 4, 2: 4}
#: Possible values of kSteps: distances_by_cluster.cuh takes up to 16 · kSteps features, more than whose fragments would
#: not fit the registers of a thread. For up to _DIRECT features, direct differences take fewer instructions.
STEPS = (2, 4)
_DIRECT = 8
#: Largest relative error of a distance from products on tensor cores; others are computed from direct differences.
DISTANCE_ERROR = 2.0**-15
# Possible values of kFeatures; and the blocks of a multiprocessor, by launch bounds.
_FEATURES = {4: 4, 16: 4, 64: 2}
# A number of ranges of rows is good enough if multiprocessors are idle for 1 − _EVEN of the time at most, and is the
# smallest such number of at most _MOST_WAVES waves of blocks: partial sums of each range take memory.
_EVEN, _MOST_WAVES = 0.98, 4
# Approximate maximum size in bytes of the partial sums of distances, if the sample has many rows.
_PARTIAL_BYTES = 1 << 28


@dataclass(frozen=True)
class SumsPlan:
    """Template arguments and launch of sums_by_cluster.cuh, or of distances_by_cluster.cuh.

    Attributes
    ----------
    distances : bool
        kDistances.
    steps : int
        kSteps of distances_by_cluster.cuh; 0 for sums_by_cluster.cuh, which computes direct differences.
    tiles : int
        kTiles: a block has 8 · kTiles columns.
    chunk, pitch : int
        Features in shared memory at a time, and floats from a row there to the next.
    grid : tuple of int
        Groups of points, groups of columns, and ranges of rows.
    range_tiles : int
        Tiles of rows of a range.
    shared_bytes : int
    """

    distances: bool
    steps: int
    tiles: int
    chunk: int
    pitch: int
    grid: tuple[int, int, int]
    range_tiles: int
    shared_bytes: int

    @property
    def kernel(self) -> str:
        """The name of the kernel."""
        return "distances_by_cluster" if self.steps else "sums_by_cluster"

    @property
    def arguments(self) -> str:
        """The template arguments after the type of X."""
        if self.steps:
            return f"{self.tiles}, {self.steps}"
        pitch = self.pitch if self.pitch in TEMPLATE_PITCHES else 0
        return f"{str(self.distances).lower()}, {self.tiles}, {pitch}"

    @property
    def partial_sums(self) -> int:
        """Number of the partial sums."""
        return int(np.prod(self.grid)) * _sums_of_block(self.tiles)


def _sums_of_block(tiles: int) -> int:
    return _POINTS * 8 * tiles


def _pitch_of(columns: int) -> int:
    """Return 4 times the smallest odd number from which on there is room for some columns."""
    return 4 * (-(-columns // 4) | 1)


def possible_tiles(device: GpuSpec, *, distances: bool) -> tuple[int, ...]:
    """Return the values of kTiles for a GPU, ascending."""
    if not distances:
        return _TILES[:-1]
    return _TILES if float(device.compute_capability) < 12 else (*_TILES[:-1], 24)


def _tiles_of(columns: int, possible: tuple[int, ...]) -> tuple[int, int]:
    """Return kTiles and the number of groups of columns: the fewest groups, as each computes all values."""
    groups = -(-columns // (8 * possible[-1]))
    return next(tiles for tiles in possible if 8 * tiles * groups >= columns), groups


def points_together(columns: int, *, device: GpuSpec) -> int:
    """Return the number of points whose partial sums of one range of rows fit the memory that these may take."""
    tiles, groups = _tiles_of(columns, possible_tiles(device, distances=True))
    return _POINTS * max(1, _PARTIAL_BYTES // (8 * groups * _sums_of_block(tiles)))


@cache
def sums_plan(
    n: int, d: int, points: int, columns: int, clusterings: int, *, distances: bool, device: GpuSpec
) -> SumsPlan:
    """Plan sums by cluster of the values of points.

    Distances of 9 to 64 features come from products on tensor cores, if shared memory suffices; others do not.

    Parameters
    ----------
    n, d : int
    points : int
        Rows of the sample; d + 1 for features.
    columns : int
        Clusters of all clusterings together.
    clusterings : int
    distances : bool
        Whether the values are distances from a sample, or features.
    device : GpuSpec
    """
    possible = possible_tiles(device, distances=distances)
    steps = next((one for one in STEPS if 16 * one >= d), 0) if distances and d > _DIRECT else 0
    fitting = tuple(
        one for one in possible if steps and _product_bytes(steps, one, clusterings) <= device.shared_memory_per_block
    )
    if fitting:
        tiles, groups = _tiles_of(columns, fitting)
        grid, range_tiles = _grid_of(n, points, groups, device)
        shared = _product_bytes(steps, tiles, clusterings)
        return SumsPlan(True, steps, tiles, 16 * steps, 16 * steps + 4, grid, range_tiles, shared)
    tiles, groups = _tiles_of(columns, possible)
    one_hot = _one_hot_bytes(tiles, clusterings)
    rows = (_POINTS if distances else 0) + 2 * _ROWS
    most = (device.shared_memory_per_block - one_hot) // (4 * rows) // 4 * 4
    wanted = -(-d // 4) * 4 if distances else _POINTS
    chunk = wanted if _pitch_of(wanted) <= most else (most // 4 - 1) // 2 * 8 + 4  # 4 · odd, which is its own pitch
    pitch = _pitch_of(chunk)
    grid, range_tiles = _grid_of(n, points, groups, device)
    return SumsPlan(distances, 0, tiles, chunk, pitch, grid, range_tiles, 4 * rows * pitch + one_hot)


def _one_hot_bytes(tiles: int, clusterings: int) -> int:
    """Return the size of three tiles of fragments of labels, and of the clusterings."""
    return 3 * _ROWS // 16 * tiles * 32 * 8 + 16 * clusterings


def _product_bytes(steps: int, tiles: int, clusterings: int) -> int:
    """Return the size of the shared memory of distances_by_cluster.cuh."""
    depth = 16 * steps
    split = _ROWS * (2 * 2 * (depth + 8) + 3 * 4)  # two parts of float16, and three numbers
    return 4 * (_POINTS + 2 * _ROWS) * (depth + 4) + 4 * depth + 2 * split + _one_hot_bytes(tiles, clusterings)


def _grid_of(n: int, points: int, groups: int, device: GpuSpec) -> tuple[tuple[int, int, int], int]:
    """Return the grid for some groups of columns, and the tiles of a range."""
    point_groups, all_tiles = -(-points // _POINTS), -(-n // _ROWS)
    ranges = min(_ranges(point_groups * groups, device.multiprocessors), all_tiles)
    range_tiles = -(-all_tiles // ranges)
    return (point_groups, groups, -(-all_tiles // range_tiles)), range_tiles


def _ranges(blocks: int, multiprocessors: int) -> int:
    """Return the number of ranges of rows; each takes `blocks` blocks of equal work, one per multiprocessor."""
    most = max(1, _MOST_WAVES * multiprocessors // blocks)

    def busy(ranges: int) -> float:
        return blocks * ranges / (-(-blocks * ranges // multiprocessors) * multiprocessors)

    return max(range(1, most + 1), key=lambda ranges: (min(busy(ranges), _EVEN), -ranges))


@dataclass(frozen=True)
class RowScoresPlan:
    """Template argument and launch of row_scores.cuh."""

    features: int
    blocks: int
    shared_bytes: int


def row_scores_plan(n: int, d: int, clusterings: int, *, device: GpuSpec) -> RowScoresPlan:
    """Plan simplified silhouettes.

    Raises
    ------
    ValueError
        If the clusterings are too many for the shared memory of a block.
    """
    features = next((one for one in _FEATURES if one >= d), max(_FEATURES))
    numbers = 2 * ((_WARPS * clusterings + 1) // 2 * 2) + _COLUMNS_TOGETHER * features
    numbers += THREADS * (min(features, 32) + 1) + (_COLUMNS_TOGETHER * THREADS if d > features else 0)
    if 4 * numbers > device.shared_memory_per_block:
        raise ValueError(f"got {clusterings} clusterings: too many for one launch, score some of them at a time")
    return RowScoresPlan(features, min(-(-n // THREADS), _FEATURES[features] * device.multiprocessors), 4 * numbers)


@dataclass(frozen=True)
class SpreadsPlan:
    """Template argument and launch of spreads.cuh.

    Attributes
    ----------
    parts : int
        kParts, 0 for means of many features.
    pitch : int
        Numbers from a mean to the next.
    blocks, shared_bytes : int
    scratch : int
        Number of sums in global memory; 0 if shared memory has them.
    """

    parts: int
    pitch: int
    blocks: int
    shared_bytes: int
    scratch: int


def spreads_plan(n: int, d: int, columns: int, clusterings: int, *, device: GpuSpec) -> SpreadsPlan:
    """Plan sums of distances of rows from the means of their clusters."""
    of_block, tiles, width = _WARPS * (columns + clusterings), -(-n // (4 * _WARPS)), -(-d // 32)
    parts, shared = width if width in _PARTS else 0, 16 * clusterings
    fits = shared + 8 * of_block <= min(device.shared_memory // _PARTS[parts], device.shared_memory_per_block) - 1024
    blocks = min(tiles, (_PARTS[parts] if fits else 1) * device.multiprocessors)
    if fits:
        return SpreadsPlan(parts, 32 * width, blocks, shared + 8 * of_block, 0)
    return SpreadsPlan(parts, 32 * width, blocks, shared, blocks * of_block)
