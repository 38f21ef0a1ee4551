"""Tiles of rows and labels through the ring in shared memory of tile_pipeline.cuh, its own source run on the CPU."""

import itertools
from functools import cache

import numpy as np
import pytest
from host_cuda import harness

WARPS = 2
#: Bytes of an element, features, rows of a tile, stages, bytes that are read together.
RINGS = [
    (4, 1, 128, 3, 16),
    (4, 3, 32, 2, 16),
    (4, 4, 128, 4, 16),
    (4, 4, 96, 2, 16),
    (4, 4, 256, 2, 16),
    (4, 3, 160, 3, 16),
    (4, 8, 64, 3, 16),
    (4, 12, 64, 2, 16),
    (4, 16, 64, 2, 16),
    (4, 32, 32, 2, 64),
    (2, 3, 64, 3, 16),
    (2, 5, 32, 4, 16),
    (2, 8, 128, 2, 16),
    (2, 16, 64, 3, 16),
]
TYPES = {2: "unsigned short", 4: "float"}

COMMON = """
#include "apps/kmeans/small_d/tile_pipeline.cuh"
template <typename T, int kFeatures, int kTile, int kStages, int kTogether>
__global__ void through(const T* X, const kmeans::Label* labels, long long n, T* rows_to, kmeans::Label* labels_to) {
  kmeans::TilePipeline<T, kFeatures, kTile, kStages, kTogether> pipeline(X, labels, n,
                                                                         simt::dynamic_shared<unsigned char>());
  const unsigned together = blockDim.x / 32 * kTile;
  unsigned first = threadIdx.x / 32 * kTile;
  for (int stage = 0; stage + 1 < kStages; ++stage) pipeline.ask(first + stage * together);
  for (; first < n; first += together) {
    pipeline.wait();
    pipeline.ask(first + (kStages - 1) * together);
    for (int row = threadIdx.x % 32; row < kTile; row += 32) {
      labels_to[first + row] = pipeline.labels()[row];
      for (int i = 0; i < kFeatures; ++i) {
        const int byte = i * (int)sizeof(T) ^ pipeline.swizzle(row);
        rows_to[(first + row) * kFeatures + i] = *reinterpret_cast<const T*>(pipeline.row(row) + byte);
      }
    }
  }
}
"""


def source(which):
    size, *numbers = RINGS[which]
    pipeline = ", ".join([TYPES[size], *map(str, numbers)])
    return f"""
extern "C" void through_{which}(const void* X, const signed char* labels, long long n, void* rows_to,
                                signed char* labels_to) {{
  using T = {TYPES[size]};
  cuda_host::launch(dim3(1), {32 * WARPS}, {WARPS} * kmeans::TilePipeline<{pipeline}>::kBytes, [=] {{
    through<{pipeline}>(static_cast<const T*>(X), labels, n, static_cast<T*>(rows_to), labels_to);
  }});
}}
extern "C" void swizzles_{which}(long long rows, int* to) {{
  for (int row = 0; row < rows; ++row) to[row] = kmeans::TilePipeline<{pipeline}>::swizzle(row);
}}"""


@cache
def library():
    return harness.build(COMMON + "".join(map(source, range(len(RINGS)))))


@pytest.mark.parametrize("copies", ["early", "late"])
@pytest.mark.parametrize("which", range(len(RINGS)), ids=map(str, RINGS))
def test_rows_come_as_they_were(which, copies, rng):
    size, features, tile, stages, _ = RINGS[which]
    dtype = {2: np.uint16, 4: np.float32}[size]
    turns = WARPS * tile
    sizes = [1, 7, tile - 1, tile, tile + 1, turns, turns + 5, 3 * turns + tile // 2, (stages + 2) * turns + 31]
    with harness.schedule(seed=which, copies=copies):
        for n in sizes:
            X = rng.integers(0, 2**15, (n, features)).astype(dtype)
            labels = rng.integers(-1, 64, n).astype(np.int8)
            room = -(-n // tile) * tile
            rows_to, labels_to = np.ones((room, features), dtype), np.ones(room, np.int8)
            library().call(f"through_{which}", X, labels, n, rows_to, labels_to)
            assert (rows_to[:n] == X).all()
            assert (labels_to[:n] == labels).all()
            assert not rows_to[n:].any()
            assert not labels_to[n:].any()


def test_every_size_of_the_last_tile(rng):
    which = RINGS.index((2, 3, 64, 3, 16))
    for n in range(1, 2 * 64 * WARPS):
        X, labels = rng.integers(0, 2**15, (n, 3)).astype(np.uint16), rng.integers(-1, 64, n).astype(np.int8)
        room = -(-n // 64) * 64
        rows_to, labels_to = np.ones((room, 3), np.uint16), np.ones(room, np.int8)
        library().call(f"through_{which}", X, labels, n, rows_to, labels_to)
        assert (rows_to[:n] == X).all()
        assert (labels_to[:n] == labels).all()
        assert not rows_to[n:].any()


@pytest.mark.parametrize(
    "which", [i for i, pipeline in enumerate(RINGS) if pipeline[0] * pipeline[1] % pipeline[4] == 0]
)
def test_rows_that_are_read_together_have_banks_of_their_own(which):
    size, features, tile, _, together = RINGS[which]
    row = size * features
    swizzles = np.zeros(tile, np.int32)
    library().call(f"swizzles_{which}", tile, swizzles)
    lanes = 128 // together
    for first, unit in itertools.product(range(0, tile, lanes), range(row // together)):
        rows = np.arange(first, first + lanes)
        places = rows * row + (unit * together ^ swizzles[rows])
        assert len(set(places % 128 // together)) == lanes
