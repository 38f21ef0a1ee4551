// The units of work of a product, in the order in which a block goes through them (gemm_mma.cuh).
#pragma once
#include "kernels/device/simt.cuh"

namespace tsm2 {

// The sizes of a product.
struct Work {
  long long m, n, k;
};

// How the units of all tiles are dealt to the blocks: in equal, contiguous shares, block b from ⌊units · b / gridDim.x⌋
// on.
struct Partition {
  long long units, tile_units;
  long long each;  // units / gridDim.x, rounded down
  unsigned rest;   // what that leaves
  float blocks_a_unit;

  template <typename Plan>
  static __device__ Partition of(const Work& work) {
    const long long depths = (work.k + Plan::kDepth - 1) / Plan::kDepth;
    const long long tiles = (work.m + Plan::kTileM - 1) / Plan::kTileM * ((work.n + Plan::kTileN - 1) / Plan::kTileN);
    const long long units = depths * tiles, each = units / gridDim.x;
    return {units, depths, each, (unsigned)(units - each * gridDim.x), (float)gridDim.x / (float)units};
  }
  // The first unit of a block; the grid has less than 2¹⁶.
  __device__ long long begin(unsigned block) const { return block * each + block * rest / gridDim.x; }
  // The block that has a unit. Guessed first: a division of 64 bits is a call, before which registers are put away.
  __device__ unsigned block_of(long long unit) const {
    unsigned block = (unsigned)((float)unit * blocks_a_unit);
    while (begin(block) > unit) --block;
    while (begin(block + 1) <= unit) ++block;
    return block;
  }
};

// A tile of C and a place in its depth.
struct Place {
  long long row, column, depth;
};

// Goes through the units of a block in order.
template <typename Plan>
class WorkIterator {
 public:
  __device__ WorkIterator(const Work& work, long long unit) : work_(work) {
    const long long depths = (work.k + Plan::kDepth - 1) / Plan::kDepth;
    const long long tile = unit / depths, tiles = (work.m + Plan::kTileM - 1) / Plan::kTileM;
    at_ = {tile % tiles * Plan::kTileM, tile / tiles * Plan::kTileN, (unit - tile * depths) * Plan::kDepth};
  }
  __device__ const Place& operator*() const { return at_; }
  // Whether this unit is the last one of its tile.
  __device__ bool ends_tile() const { return at_.depth + Plan::kDepth >= work_.k; }
  // True where this comes to another tile.
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
  // How many units of this tile there are from this one on.
  __device__ int units_left() const { return (int)((work_.k - at_.depth + Plan::kDepth - 1) / Plan::kDepth); }
  // To the first unit of the next tile.
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
