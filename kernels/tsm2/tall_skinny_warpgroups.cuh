// C (m × n) = A (m × k) · B (k × n) by warpgroups, on Hopper (sm_90a): TSM2R of many columns and TSMTTSM of many rows,
// where the tensor cores have as much to do as the memory. n is at most 64.
//
//              k                  n        The units of work, the operands, sums that blocks share and epilogues are those
//      ┌────┬────┬────┐        ┌────┐      of tall_skinny.cuh. What differs is who does what in a block:
//      │unit│unit│    │ tile  k│unit│
//      ├────┼────┼────┤        ├────┤      *loaders*, one warpgroup, copy A and B of the units to come into a ring of
//    m │    │    │    │   ×    │unit│        stages, and take this unit's B apart into what multipliers read;
//      └────┴────┴────┘        └────┘      *multipliers*, kWarpsM / 4 warpgroups, each with kMatrices · 64 rows of the tile,
//                                            load their words of A, take them apart, and multiply.
//
// Two places for the parts of B go back and forth between them, each with two barriers a multiplying warpgroup: `full` (the
// loaders arrive, the warpgroup waits) and `empty` (the other way round). A stage is free again when its unit's parts are.
//
// Why it is fast: wgmma reads B once for 64 rows of A, where mma.sync reads it for every 16 or 32, and the tensor cores work
// on one warpgroup's products while the others load, take apart and add up. There is no wgmma of doubles; they gain that
// no multiplier waits for a barrier of the whole block. Tall tiles keep what is read of B from the level-2 cache, w · k for
// every tile, a fraction of A. setmaxnreg gives the loaders' registers to the multipliers.
#pragma once
#include "kernels/tsm2/block_sums.cuh"
#include "kernels/tsm2/hand_over.cuh"
#include "kernels/tsm2/operand.cuh"
#include "kernels/tsm2/units.cuh"
#include "kernels/warpgroup.cuh"

namespace tsm2 {

template <typename Plan, typename Epilogue>
class WarpgroupProduct {
 public:
  using A = typename Plan::A;
  using B = typename Plan::B;
  using T = typename Plan::Element;
  using Unit = Tensor<T, Plan::kProducts>;
  using Sum = typename Unit::Sum;

  static constexpr int kGroups = Plan::kWarpsM / 4, kGroup = 128;
  static constexpr int kMultipliers = kGroups * kGroup, kThreads = kMultipliers + kGroup;
  static constexpr int kMatrices = (Plan::kTileM + 64 * kGroups - 1) / (64 * kGroups), kColumns = Plan::kTileN;
  static constexpr int kColumnBlocks = (kColumns + 7) / 8, kRegisters = 4 * kMatrices * kColumnBlocks;
  static_assert(Plan::kWarpsM % 4 == 0 && kGroups <= 3 && Plan::kWarpsN == 1 && Plan::kWarpsK == 1 && kColumns <= 64,
                "at most 64 columns, and barriers for three warpgroups");
  using Depths = Depth<Plan::kDepth, A::kPerWord, Plan::kStride>;
  static constexpr int kPairs = Depths::kWords / 2;
  static_assert(Depths::kWords % 2 == 0, "an instruction takes two words a lane");

  // Shared memory, in bytes: the ring, two units' B as parts, and what the epilogue needs.
  static constexpr int kStage = A::kBytes + (Plan::kGram ? 0 : B::kBytes), kRing = Plan::kStages * kStage;
  static_assert(Plan::kStages >= 3, "this unit's stage, the next one's, and one that is on its way");
  using Register = typename Unit::Register;
  static constexpr int kMatrixBytes = 64 * (int)sizeof(Register) * kColumnBlocks;
  static constexpr int kParts = kPairs * Unit::kParts * kMatrixBytes;
  using Over = HandOver<Sum, kColumns, 1>;
  static constexpr int kOver = Over::template kBytes<Epilogue>;
  static constexpr int kSharedBytes = kRing + 2 * kParts + kMultipliers / 32 * kOver;
  static constexpr int kTileSums = kMultipliers * kRegisters;  // in `partial`

  __device__ WarpgroupProduct(unsigned char* shared, const typename A::Source& a, const typename B::Source& b,
                              const Work& work, Sum* partial, unsigned* arrived, const Epilogue& epilogue)
      : shared_(shared), a_(a), b_(b), work_(work), shares_(Shares::of<Plan>(work)), partial_(partial),
        arrived_(arrived), epilogue_(epilogue), group_(threadIdx.x / kGroup) {}

  // Registers of a thread: as all begin with, of 512 for a thread of every warpgroup of a multiprocessor; of a loader; and
  // of a multiplier, which gets the rest.
  static constexpr int kEqual = 512 / Plan::kBlocksAMultiprocessor / (kGroups + 1) / 8 * 8;
  static constexpr int kLoading = kGroups == 3 && kRegisters < 64 ? 80 : 56;
  static constexpr int kMost = ((kGroups + 1) * kEqual - kLoading) / kGroups / 8 * 8, kMultiplying = kMost < 240 ? kMost : 240;
  static_assert(kLoading <= kEqual && kEqual <= kMultiplying, "one warpgroup gives, the others take");

  __device__ __forceinline__ void run() {
    const long long begin = shares_.begin(blockIdx.x), end = shares_.begin(blockIdx.x + 1);
    if (begin >= end) return;
    if (group_ == kGroups) {
      ptx::fewer_registers<kLoading>();
      load(begin, end);
    } else {
      ptx::more_registers<kMultiplying>();
      multiply(begin, end);
    }
  }

 private:
  using Parts = typename Unit::Parts;
  // Barriers between the loaders and a warpgroup, by place of the parts; of all loaders; of all multipliers.
  static __device__ int full(int place, int group) { return 1 + 2 * group + place; }
  static __device__ int empty(int place, int group) { return 1 + 2 * kGroups + 2 * group + place; }
  static constexpr int kOfLoaders = 1 + 4 * kGroups, kOfMultipliers = kOfLoaders + 1;

  // Where part `part` of words 2·pair and 2·pair + 1 of B lies: 64 registers a column block, word by word, lane by lane.
  __device__ Register* matrix(int place, int pair, int part) const {
    return reinterpret_cast<Register*>(shared_ + kRing + place * kParts + (pair * Unit::kParts + part) * kMatrixBytes);
  }

  // --- Loaders --------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void load(long long begin, long long end) {
    const int thread = threadIdx.x % kGroup;
    Cursor<Plan> ahead(work_, begin);
    long long fetched = begin;
    int free = 0, now = 0;  // stages
    auto fetch = [&] {
      if (fetched < end) {
        unsigned char* stage = shared_ + free * kStage;
        A::template copy<kGroup>(stage, a_, (*ahead).row, (*ahead).depth, thread);
        if (!Plan::kGram) B::template copy<kGroup>(stage + A::kBytes, b_, (*ahead).column, (*ahead).depth, thread);
        ahead.advance();
      }
      free = free + 1 == Plan::kStages ? 0 : free + 1;
      ++fetched;
      ptx::cp_async_commit();
    };
    for (int i = 0; i < Plan::kStages - 2; ++i) fetch();
    for (long long unit = begin; unit < end; ++unit) {
      const int place = (int)((unit - begin) % 2);
      if (unit >= begin + 2) {
        for (int group = 0; group < kGroups; ++group) ptx::barrier_sync(empty(place, group), 2 * kGroup);
      }
      fetch();
      ptx::cp_async_wait<Plan::kStages - 2>();
      ptx::barrier_sync(kOfLoaders, kGroup);  // what the other loaders copied of this unit has landed too
      prepare(shared_ + now * kStage + (Plan::kGram ? 0 : A::kBytes), place, thread);
      now = now + 1 == Plan::kStages ? 0 : now + 1;
      ptx::async_fence();
      for (int group = 0; group < kGroups; ++group) ptx::barrier_arrive(full(place, group), 2 * kGroup);
    }
  }

  // Takes a unit's B apart.
  __device__ __forceinline__ void prepare(const unsigned char* b_tile, int place, int thread) const {
    constexpr int kTwos = (kColumnBlocks + 1) / 2, kAll = kPairs * kTwos, kWarps = kGroup / 32;
#pragma unroll
    for (int round = 0; round < (kAll + kWarps - 1) / kWarps; ++round) {
      const int i = thread / 32 + round * kWarps;
      if (kAll % kWarps != 0 && i >= kAll) break;
      const int pair = i / kTwos, j = i % kTwos * 2;
      typename B::Word words[4];
      B::template words<Depths, kColumnBlocks>(words, b_tile, 0, j, 0, 2 * pair);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        if (j + word % 2 >= kColumnBlocks) continue;
        const Parts parts = Unit::parts(words[word]);
#pragma unroll
        for (int part = 0; part < Unit::kParts; ++part) {
          matrix(place, pair, part)[64 * (j + word % 2) + 32 * (word / 2) + thread % 32] = Unit::bits(parts, part);
        }
      }
    }
  }

  // --- Multipliers ----------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void multiply(long long begin, long long end) {
    Cursor<Plan> now(work_, begin);
    Sum sums[kMatrices][kColumnBlocks][4] = {};
    long long tile_begin = begin;
    int stage = 0;
    for (long long unit = begin; unit < end; ++unit) {
      const int place = (int)((unit - begin) % 2);
      ptx::barrier_sync(full(place, group_), 2 * kGroup);
      add_unit(shared_ + stage * kStage, place, sums);
      if (unit + 2 < end) ptx::barrier_arrive(empty(place, group_), 2 * kGroup);
      stage = stage + 1 == Plan::kStages ? 0 : stage + 1;
      if (now.ends_tile() || unit + 1 == end) {
        finish(*now, tile_begin, unit + 1, sums);
        tile_begin = unit + 1;
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) sum_at(sums, i) = 0;
      }
      now.advance();
    }
  }

  // Adds what a stage holds.
  __device__ __forceinline__ void add_unit(const unsigned char* a_tile, int place,
                                           Sum (&sums)[kMatrices][kColumnBlocks][4]) const {
    if constexpr (sizeof(T) == 8) {
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        Parts a[kMatrices][4];
#pragma unroll
        for (int i = 0; i < kMatrices; ++i) load_pair(a[i], a_tile, i, pair);
        const Register* b = matrix(place, pair, 0);
#pragma unroll
        for (int j = 0; j < kColumnBlocks; ++j) {
          const Parts words[2] = {b[64 * j + lane], b[64 * j + 32 + lane]};
#pragma unroll
          for (int i = 0; i < kMatrices; ++i) Unit::multiply(0, sums[i][j], a[i], words);
        }
      }
    } else {
      Sum alone[kMatrices][kColumnBlocks][4];
#pragma unroll
      for (int i = 0; i < kMatrices; ++i) {
        Register a[Unit::kParts][kPairs][4];
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
          Parts words[4];
          load_pair(words, a_tile, i, pair);
#pragma unroll
          for (int part = 0; part < Unit::kParts; ++part)
#pragma unroll
            for (int word = 0; word < 4; ++word) a[part][pair][word] = Unit::bits(words[word], part);
        }
        begin_products(a, place, kAlone ? alone[i] : sums[i]);
      }
      wait_and_add<0>(alone, sums);
    }
  }

  // Words 2·pair and 2·pair + 1 of this warp's rows of a matrix.
  __device__ __forceinline__ void load_pair(Parts (&to)[4], const unsigned char* a_tile, int matrix, int pair) const {
    constexpr bool kBeyond = Plan::kTileM % (64 * kGroups * kMatrices) != 0;
    typename A::Word words[4];
    A::template words<Depths, 2, kBeyond>(words, a_tile, first_row(matrix), 0, 0, 2 * pair);
#pragma unroll
    for (int word = 0; word < 4; ++word) to[word] = Unit::parts(words[word]);
  }

  // The tensor cores truncate as they add: with more than one part, they add up one unit alone (fragments.cuh).
  static constexpr bool kAlone = Unit::kParts > 1;

  // All products of a unit with 64 rows of A.
  __device__ __forceinline__ void begin_products(Register (&a)[Unit::kParts][kPairs][4], int place,
                                                 Sum (&sums)[kColumnBlocks][4]) const {
    ptx::wgmma_fence(a);
#pragma unroll
    for (int step = 0; step < Unit::kSteps; ++step)
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const Register(&left)[4] = a[Unit::left(step)][pair];
        const Register* right = matrix(place, pair, Unit::right(step));
        if (kAlone && step == 0 && pair == 0) ptx::wgmma<true, T>(sums, left, right);
        else ptx::wgmma<false, T>(sums, left, right);
      }
    ptx::wgmma_commit();
  }

  // The products of matrix i, and those of the ones after it.
  template <int i>
  __device__ __forceinline__ void wait_and_add(Sum (&alone)[kMatrices][kColumnBlocks][4],
                                               Sum (&sums)[kMatrices][kColumnBlocks][4]) const {
    if constexpr (i < kMatrices) {
      ptx::wgmma_wait<kMatrices - 1 - i>(kAlone ? alone[i] : sums[i]);
      if constexpr (kAlone) {
#pragma unroll
        for (int j = 0; j < 4 * kColumnBlocks; ++j) sums[i][j / 4][j % 4] += alone[i][j / 4][j % 4];
      }
      wait_and_add<i + 1>(alone, sums);
    }
  }

  // The first row, in the tile, of this warp's sixteen of a matrix.
  __device__ int first_row(int matrix) const {
    return 64 * (group_ * kMatrices + matrix) + 16 * (threadIdx.x % kGroup / 32);
  }

  // Ends this block's part of a tile, the units from `begin` to `end`.
  __device__ __forceinline__ void finish(const Place& at, long long begin, long long end,
                                         Sum (&sums)[kMatrices][kColumnBlocks][4]) {
    const BlockSums<WarpgroupProduct, Sum, kTileSums> others(*this, shares_, partial_, arrived_);
    if (end - begin < shares_.tile_units && !others.add(end - 1 - at.depth / Plan::kDepth, sums)) return;
    const int columns = work_.n - at.column < kColumns ? (int)(work_.n - at.column) : kColumns;
#pragma unroll
    for (int i = 0; i < kMatrices; ++i) {
      const long long row = at.row + first_row(i);
      const int in_tile = Plan::kTileM - first_row(i) < 16 ? Plan::kTileM - first_row(i) : 16;
      const int rows = work_.m - row < in_tile ? (int)(work_.m - row) : in_tile;
      const Sum(&one)[1][kColumnBlocks][4] = reinterpret_cast<const Sum(&)[1][kColumnBlocks][4]>(sums[i]);
      Over::run(epilogue_, shared_ + kRing + 2 * kParts + threadIdx.x / 32 * kOver, row, rows, at.column, columns, one);
    }
  }

  // The multipliers as a team of BlockSums.
  template <typename, typename, int>
  friend class BlockSums;
  static constexpr int kSplits = 1;
  __device__ int split() const { return 0; }
  __device__ void sync() const { ptx::barrier_sync(kOfMultipliers, kMultipliers); }

  unsigned char* shared_;
  const typename A::Source& a_;
  const typename B::Source& b_;
  const Work& work_;
  const Shares shares_;
  Sum* partial_;
  unsigned* arrived_;
  const Epilogue& epilogue_;
  const int group_;
};

// partial and arrived are those of BlockSums.
template <typename Plan, typename Epilogue>
__global__ void __launch_bounds__(WarpgroupProduct<Plan, Epilogue>::kThreads, Plan::kBlocksAMultiprocessor)
    tall_skinny_warpgroups(const typename Plan::A::Source a, const typename Plan::B::Source b, const Work work,
                     typename WarpgroupProduct<Plan, Epilogue>::Sum* partial, unsigned* arrived, const Epilogue epilogue) {
  WarpgroupProduct<Plan, Epilogue>(simt::dynamic_shared<unsigned char>(), a, b, work, partial, arrived, epilogue).run();
}

}  // namespace tsm2
