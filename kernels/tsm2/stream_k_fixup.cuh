// Stream-K fixup: adds the partial sums of a tile whose work units are split among several blocks (Partition in
// tile_scheduler.cuh). Each block writes its sums to `partial`. The blocks of a tile form groups of 16 blocks. In each
// group, the last block to arrive adds the sums of the group. Among these last blocks, the last to arrive adds the sums
// of all groups. Groups limit the number of sums that one block reads. The order of additions is fixed, so the result
// has the same bits on every run.
#pragma once
#include "kernels/tsm2/epilogue_staging.cuh"
#include "kernels/tsm2/tile_scheduler.cuh"

namespace tsm2 {

// kTileSums: the number of sums of a tile. `Team` represents the threads of a block that hold these sums:
//
//   kSplits        number of splits, groups of warps that hold sums of the same elements of C over different depths
//   split()        the split of this thread
//   add_splits(s)  adds the sums of all splits to those of split 0
//   sync()         a barrier of the team
template <typename Team, typename Sum, int kTileSums>
class StreamKFixup {
 public:
  // `partial` has space for 2 · gridDim.x · kTileSums sums; `arrived` has 3 · gridDim.x counters, which are zero.
  __device__ StreamKFixup(Team& team, const Partition& partition, Sum* partial, unsigned* arrived)
      : team_(team), partition_(partition), partial_(partial), arrived_(arrived) {}

  // Adds the sums of all blocks that have units of one tile. `tile` is the index of the first unit of this tile.
  // Returns true in exactly one of these blocks: split 0 of that block's team then holds the complete sums.
  template <int kBlocks, int kColumnBlocks>
  __device__ __forceinline__ bool add(long long tile, Sum (&sums)[kBlocks][kColumnBlocks][4]) const {
    const int first = (int)partition_.block_of(tile);
    const int blocks = (int)partition_.block_of(tile + partition_.tile_units - 1) - first + 1;
    const int mine = blockIdx.x - first, group = mine / kGroup, groups = (blocks + kGroup - 1) / kGroup;
    // A block has two slots in `partial`: one for a tile that it begins, one for a tile that another block began.
    auto place = [&](int i) { return partial_ + (2LL * (first + i) + (i == 0)) * kTileSums; };
    put(place(mine), sums);
    const int members = blocks - group * kGroup < kGroup ? blocks - group * kGroup : kGroup;
    if (!last_to_arrive(2 * (first + group * kGroup) + (group == 0), members)) return false;
    gather(place, group * kGroup, 1, members, sums);
    if (groups == 1) return true;
    put(place(group * kGroup), sums);
    if (!last_to_arrive(2 * gridDim.x + first, groups)) return false;
    gather(place, 0, kGroup, groups, sums);
    return true;
  }

 private:
  static constexpr int kGroup = 16;

  __device__ bool last_to_arrive(int count, int expected) const {
    return simt::last_to_arrive(&arrived_[count], expected, [&] { team_.sync(); });
  }

  template <int kBlocks, int kColumnBlocks>
  __device__ __forceinline__ void put(Sum* to, Sum (&sums)[kBlocks][kColumnBlocks][4]) const {
    constexpr int kRegisters = 4 * kBlocks * kColumnBlocks, kLanes = kTileSums / kRegisters;
    if (team_.split() != 0) return;
    Sum* mine = to + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) __stcg(&mine[i * kLanes], sum_at(sums, i));
  }

  // Adds the partial sums of `count` blocks: each split adds the sums of every kSplits-th block, then add_splits adds
  // the sums of the splits.
  template <typename Place, int kBlocks, int kColumnBlocks>
  __device__ __forceinline__ void gather(Place place, int first, int step, int count,
                                         Sum (&sums)[kBlocks][kColumnBlocks][4]) const {
    constexpr int kRegisters = 4 * kBlocks * kColumnBlocks, kLanes = kTileSums / kRegisters;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) sum_at(sums, i) = 0;
    // Reads the sums of as many blocks at once as fit in 64 registers, because each read takes about a microsecond.
    constexpr int kFit = 64 / (kRegisters * (int)(sizeof(Sum) / 4)), kMost = kGroup / Team::kSplits;
    constexpr int kAtOnce = kFit < 1 ? 1 : kFit < kMost ? kFit : kMost;
#pragma unroll 1
    for (int begin = team_.split(); begin < count; begin += kAtOnce * Team::kSplits) {
      Sum some[kAtOnce][kRegisters];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int one = begin + j * Team::kSplits;
        const Sum* from = place(first + one * step) + threadIdx.x % kLanes;
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) some[j][i] = one < count ? __ldcg(&from[i * kLanes]) : Sum(0);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) sum_at(sums, i) += some[j][i];
    }
    if constexpr (Team::kSplits > 1) team_.add_splits(sums);
  }

  Team& team_;
  const Partition& partition_;
  Sum* partial_;
  unsigned* arrived_;
};

}  // namespace tsm2
