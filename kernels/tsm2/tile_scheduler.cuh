// Stream-K tile scheduler: splits the work units of a product (gemm_mma.cuh) among the blocks, and iterates over a
// block's units.
#pragma once
#include "kernels/device/simt.cuh"

namespace tsm2 {

// The sizes of a product C (m × n) = A (m × k) · B (k × n).
struct Work {
  long long m, n, k;
};

// The partition of all work units into equal, contiguous shares: the share of block b begins at ⌊units · b /
// gridDim.x⌋.
struct Partition {
  long long units, tile_units;  // number of work units: of the product, per tile
  long long each;               // units / gridDim.x, rounded down
  unsigned rest;                // units % gridDim.x
  float blocks_a_unit;

  template <typename Plan>
  static __device__ Partition of(const Work& work) {
    const long long depths = (work.k + Plan::kDepth - 1) / Plan::kDepth;
    const long long tiles = (work.m + Plan::kTileM - 1) / Plan::kTileM * ((work.n + Plan::kTileN - 1) / Plan::kTileN);
    const long long units = depths * tiles, each = units / gridDim.x;
    return {units, depths, each, (unsigned)(units - each * gridDim.x), (float)gridDim.x / (float)units};
  }
  // Returns the first unit of a block. The grid has fewer than 2¹⁶ blocks, so that block * rest fits in 32 bits.
  __device__ long long begin(unsigned block) const { return block * each + block * rest / gridDim.x; }
  // Returns the block whose share contains `unit`. Estimates the block in float and corrects the estimate, because a
  // 64-bit division is a function call, for which the compiler saves registers.
  __device__ unsigned block_of(long long unit) const {
    unsigned block = (unsigned)((float)unit * blocks_a_unit);
    while (begin(block) > unit) --block;
    while (begin(block + 1) <= unit) ++block;
    return block;
  }
};

// The position of a work unit: the first row and column of its tile of C, and its first depth index.
struct Place {
  long long row, column, depth;
};

// Iterates over the work units of a block in order.
template <typename Plan>
class WorkIterator {
 public:
  __device__ WorkIterator(const Work& work, long long unit) : work_(work) {
    const long long depths = (work.k + Plan::kDepth - 1) / Plan::kDepth;
    const long long tile = unit / depths, tiles = (work.m + Plan::kTileM - 1) / Plan::kTileM;
    at_ = {tile % tiles * Plan::kTileM, tile / tiles * Plan::kTileN, (unit - tile * depths) * Plan::kDepth};
  }
  __device__ const Place& operator*() const { return at_; }
  // Returns true if the current unit is the last unit of its tile.
  __device__ bool ends_tile() const { return at_.depth + Plan::kDepth >= work_.k; }
  // Advances to the next unit. Returns true if this next unit belongs to another tile.
  __device__ bool next() {
    if (Plan::kKeepB) {
      at_.row += (long long)Plan::kTileM * gridDim.x * Plan::kTeams;
      return true;
    }
    at_.depth += Plan::kDepth;
    const bool ended = at_.depth >= work_.k;
    if (ended) next_tile();
    return ended;
  }
  // Returns the number of units from the current unit to the last unit of its tile, both included.
  __device__ int units_left() const { return (int)((work_.k - at_.depth + Plan::kDepth - 1) / Plan::kDepth); }
  // Advances to the first unit of the next tile.
  __device__ void next_tile() {
    at_.depth = 0;
    at_.row += Plan::kTileM;
    if (at_.row < work_.m) return;
    at_.row = 0;
    at_.column += Plan::kTileN;
  }

 private:
  const Work& work_;
  Place at_;
};

}  // namespace tsm2
