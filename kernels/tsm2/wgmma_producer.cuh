// Producer warpgroups of gemm_wgmma.cuh: copy A and B to shared memory and split B into its parts (fragments.cuh).
#pragma once
#include "kernels/tsm2/tile_loader.cuh"
#include "kernels/tsm2/wgmma_block.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/warp_specialization.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace tsm2 {

template <typename Plan, bool kAddsRows>
class WgmmaProducer {
 public:
  using Block = WgmmaBlock<Plan, kAddsRows>;
  using A = typename Block::A;
  using B = typename Block::B;
  using Unit = typename Block::Unit;
  using Sum = typename Unit::Sum;

  // `weights` is the epilogue's row_weights (epilogue.cuh), used only with kAddsRows.
  __device__ WgmmaProducer(unsigned char* shared, const typename A::Source& a, const typename B::Source& b,
                           const Work& work, const Sum* weights)
      : shared_(shared), a_(a), b_(b), work_(work), weights_(weights) {}

  // With kCopies, copies `units` work units to shared memory, from unit `begin` on, in the order of WorkIterator. With
  // kPrepares, splits the B of each unit into its parts. A single producer warpgroup does both; of two producer
  // warpgroups, each does one.
  template <bool kCopies, bool kPrepares>
  __device__ __forceinline__ void run(long long begin, int units) const {
    const int thread = threadIdx.x % Block::kGroup;
    if constexpr (Plan::kKeepB) keep_b(thread);
    TileLoader<Plan, Block::kGroup, Block::kGroup, Block::kStreamsB> reader(a_, b_, work_, begin, thread, thread);
    int fetched = 0, free = 0, now = 0;  // units copied; the next stage to fill; the stage to split
    auto fetch = [&] {
      unsigned char* stage = shared_ + free * Block::kStage;
      if (kAddsRows && !Plan::kKeepB && fetched < units) {
        Block::Weights::template copy<Block::kGroup>(stage + Block::kWeightsAt, weights_ + reader.depth(), thread);
      }
      if (fetched < units) reader.copy(stage);
      ++fetched;
      free = Block::next(free);
      ptx::cp_async_commit();
    };
    if (kCopies) {
      for (int i = 0; i < Plan::kStages - 2; ++i) fetch();
    }
    for (int unit = 0; unit < units; ++unit) {
      const int place = unit % 2;
      if (unit >= 2) {
        for (int group = 0; group < Block::kGroups; ++group)
          ptx::barrier_sync(Block::empty(place, group), Block::kEmpty);
      }
      if (kCopies) ptx::cp_async_wait<Plan::kStages - 3>();
      if (kPrepares) {
        if (!Plan::kKeepB) {
          ptx::barrier_sync(Block::landed(place), Block::kProducers * Block::kGroup);
          split_tf32(shared_ + now * Block::kStage + (Plan::kGram ? 0 : A::kBytes), place, thread);
          now = Block::next(now);
          ptx::async_fence();
        }
        for (int group = 0; group < Block::kGroups; ++group)
          ptx::barrier_arrive(Block::full(place, group), Block::kFull);
      } else {
        ptx::barrier_arrive(Block::landed(place), Block::kProducers * Block::kGroup);
      }
      if (kCopies) fetch();
    }
  }

 private:
  using Parts = typename Unit::Parts;

  // With kKeepB: copies all of B and splits it, and copies the weights of A's row sums.
  __device__ __forceinline__ void keep_b(int thread) const {
    typename B::template Reader<Block::kGroup> b(b_, thread);
    b.move_to(0, 0);
    b.copy(shared_);
    if constexpr (kAddsRows)
      Block::Weights::template copy<Block::kGroup>(shared_ + Block::kKeptWeightsAt, weights_, thread);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::barrier_sync(Block::landed(0), Block::kGroup);
    split_tf32(shared_, 0, thread);
    ptx::async_fence();
    ptx::barrier_sync(Block::landed(0), Block::kGroup);
  }

  // Splits the B of one unit into its parts.
  __device__ __forceinline__ void split_tf32(const unsigned char* b_tile, int place, int thread) const {
    constexpr int kTwos = (Block::kColumnBlocks + 1) / 2, kAll = Block::kPairs * kTwos, kWarps = Block::kGroup / 32;
#pragma unroll 2
    for (int round = 0; round < (kAll + kWarps - 1) / kWarps; ++round) {
      const int i = thread / 32 + round * kWarps;
      if (kAll % kWarps != 0 && i >= kAll) break;
      const int pair = i / kTwos, j = i % kTwos * 2;
      typename B::Word words[4];
      const int depth = pair / Block::kGroupPairs * Block::kGroupDepth;
      const int word_of_pair = 2 * (pair % Block::kGroupPairs);
      B::template words<typename Block::Depths, Block::kColumnBlocks>(words, b_tile, 0, j, depth, word_of_pair);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        if (j + word % 2 >= Block::kColumnBlocks) continue;
        const Parts parts = Unit::parts(words[word]);
#pragma unroll
        for (int part = 0; part < Unit::kParts; ++part) {
          typename Block::Register* to = Block::matrix(shared_, place, pair, part);
          to[64 * (j + word % 2) + 32 * (word / 2) + thread % 32] = Unit::bits(parts, part);
        }
      }
    }
  }

  unsigned char* shared_;
  const typename A::Source& a_;
  const typename B::Source& b_;
  const Work& work_;
  const Sum* weights_;
};

}  // namespace tsm2
