// C (m × n) = A (m × k) · B (k × n) by warpgroups, on Hopper (sm_90a): TSM2R of many columns and TSMTTSM of many rows,
// where the tensor cores have as much to do as the memory. n is at most 64.
//
//              k                  n        The units of work, the operands, sums that blocks share and epilogues are those
//      ┌────┬────┬────┐        ┌────┐      of tall_skinny.cuh. What differs is who does what in a block, by warpgroups:
//      │unit│unit│    │ tile  k│unit│
//      ├────┼────┼────┤        ├────┤      *loaders* copy A and B of the units to come into a ring of stages, and take
//    m │    │    │    │   ×    │unit│        this unit's B apart into what multipliers read; two of them part that work;
//      └────┴────┴────┘        └────┘      *multipliers*, kWarpsM / 4 times kWarpsK, each kMatrices · 64 rows of the tile
//                                            and a part of every unit's depth, load their words of A, take them apart,
//                                            and multiply.
//
// They wait for each other at barriers, two of each kind, for even units and for odd ones, as there are two places for
// the parts of B: `landed` (copied), and for every multiplier `full` (the parts are made) and `empty` (multiplied: the
// unit's parts and its stage are free).
//
// A unit is several *jobs*: the products of a matrix of 64 rows with some of the depth. While the tensor cores work on one,
// the warpgroup loads the next job's words of A and adds up the sums of the last.
//
// Why it is fast: wgmma reads B once for 64 rows of A, where mma.sync reads it for every 16 or 32, and the tensor cores
// always have a job waiting. There is no wgmma of doubles; they gain that no multiplier waits for a barrier of the whole
// block. Tall tiles keep what is read of B from the level-2 cache, w · k for every tile, a fraction of A. setmaxnreg gives
// the loaders' registers to the multipliers.
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

  // The first kGroups warpgroups multiply.
  static constexpr int kRowGroups = Plan::kWarpsM / 4, kSplits = Plan::kWarpsK, kGroups = kRowGroups * kSplits;
  static constexpr int kGroup = 128, kLoaders = Plan::kLoaders;
  static constexpr int kMultipliers = kGroups * kGroup, kThreads = kMultipliers + kLoaders * kGroup;
  static constexpr int kMatrices = (Plan::kTileM + 64 * kRowGroups - 1) / (64 * kRowGroups), kColumns = Plan::kTileN;
  static constexpr int kColumnBlocks = (kColumns + 7) / 8, kRegisters = 4 * kMatrices * kColumnBlocks;
  static_assert(Plan::kWarpsM % 4 == 0 && kGroups <= 3 && Plan::kWarpsN == 1 && kSplits <= 2 && kColumns <= 64,
                "at most 64 columns, and barriers for three warpgroups");
  static constexpr int kGroupDepth = Plan::kDepth / kSplits;
  using Depths = Depth<kGroupDepth, A::kPerWord, Plan::kStride>;
  static_assert(Plan::kDepth % kSplits == 0 && Depths::kWords % 2 == 0, "an instruction takes two words a lane");
  static constexpr int kGroupPairs = Depths::kWords / 2, kPairs = kGroupPairs * kSplits;
  // Jobs of a warpgroup in a unit: kJobPairs pairs of words of one matrix each. Two sets of registers take turns; of an
  // even number of jobs, the next unit's first is loaded before this one's last ends.
  static constexpr int kJobPairs = Plan::kJobPairs, kJobs = kGroupPairs / kJobPairs * kMatrices;
  static constexpr bool kLoadsAhead = kJobs % 2 == 0;
  static_assert(sizeof(T) == 8 || kGroupPairs % kJobPairs == 0, "a unit is whole jobs");

  // Shared memory, in bytes: the ring, two units' B as parts, what the epilogue needs, and the sums of the second split.
  static constexpr int kStage = A::kBytes + (Plan::kGram ? 0 : B::kBytes), kRing = Plan::kStages * kStage;
  static_assert(Plan::kStages >= 3, "a stage that is read, one that is taken apart, and one that is on its way");
  using Register = typename Unit::Register;
  static constexpr int kMatrixBytes = 64 * (int)sizeof(Register) * kColumnBlocks;
  static constexpr int kParts = kPairs * Unit::kParts * kMatrixBytes;
  using Over = HandOver<Sum, kColumns, 1>;
  static constexpr int kOver = Over::template kBytes<Epilogue>;
  static constexpr int kLanes = kRowGroups * kGroup, kAllOver = kLanes / 32 * kOver;
  static constexpr int kTileSums = kLanes * kRegisters;  // in `partial`
  static constexpr int kHandedOver = (kSplits - 1) * kTileSums * (int)sizeof(Sum);
  static constexpr int kSharedBytes = kRing + 2 * kParts + kAllOver + kHandedOver;

  __device__ WarpgroupProduct(unsigned char* shared, const typename A::Source& a, const typename B::Source& b,
                              const Work& work, Sum* partial, unsigned* arrived, const Epilogue& epilogue)
      : shared_(shared), a_(a), b_(b), work_(work), shares_(Shares::of<Plan>(work)), partial_(partial),
        arrived_(arrived), epilogue_(epilogue), group_(threadIdx.x / kGroup) {}

  // Registers of a thread: as all begin with, of 512 for a thread of every warpgroup of a multiprocessor; of a loader;
  // and of a multiplier, which gets the rest.
  static constexpr int kEqual = 512 / Plan::kBlocksAMultiprocessor / (kGroups + kLoaders) / 8 * 8;
  static constexpr int kLoading = kLoaders == 1 ? 88 : 64;
  static constexpr int kMost = ((kGroups + kLoaders) * kEqual - kLoaders * kLoading) / kGroups / 8 * 8;
  static constexpr int kMultiplying = kMost < 240 ? kMost : 240;
  static_assert(kLoading <= kEqual && kEqual <= kMultiplying, "some warpgroups give, the others take");

  __device__ __forceinline__ void run() {
    const long long begin = shares_.begin(blockIdx.x), end = shares_.begin(blockIdx.x + 1);
    if (begin >= end) return;
    const int units = (int)(end - begin);
    if (kLoaders == 1 && group_ == kGroups) {
      ptx::fewer_registers<kLoading>();
      load<true, true>(begin, units);
    } else if (group_ == kGroups) {
      ptx::fewer_registers<kLoading>();
      load<true, false>(begin, units);
    } else if (group_ > kGroups) {
      ptx::fewer_registers<kLoading>();
      load<false, true>(begin, units);
    } else {
      ptx::more_registers<kMultiplying>();
      multiply(begin, units);
    }
  }

 private:
  using Parts = typename Unit::Parts;
  // Barriers, by place of the parts, and the threads that two of them are for; and one of all multipliers.
  static __device__ int landed(int place) { return 1 + place; }
  static __device__ int full(int place, int group) { return 3 + 2 * group + place; }
  static __device__ int empty(int place, int group) { return 3 + 2 * kGroups + 2 * group + place; }
  static constexpr int kFull = 2 * kGroup, kEmpty = kGroup + kLoaders * kGroup, kOfMultipliers = 3 + 4 * kGroups;

  // Where part `part` of words 2·pair and 2·pair + 1 of B lies: 64 registers a column block, word by word, lane by lane.
  __device__ Register* matrix(int place, int pair, int part) const {
    return reinterpret_cast<Register*>(shared_ + kRing + place * kParts + (pair * Unit::kParts + part) * kMatrixBytes);
  }

  static __device__ int next(int stage) { return stage + 1 == Plan::kStages ? 0 : stage + 1; }

  // --- Loaders --------------------------------------------------------------------------------------------------------

  template <bool kCopies, bool kPrepares>
  __device__ __forceinline__ void load(long long begin, int units) const {
    const int thread = threadIdx.x % kGroup;
    Cursor<Plan> ahead(work_, begin);
    typename A::template Reader<kGroup> a(a_, thread);
    typename B::template Reader<kGroup> b(b_, thread);
    bool moves = true;
    int fetched = 0, free = 0, now = 0;  // units; stages
    auto fetch = [&] {
      if (fetched < units) {
        unsigned char* stage = shared_ + free * kStage;
        if (moves) {
          a.move_to((*ahead).row, (*ahead).depth);
          if (!Plan::kGram) b.move_to((*ahead).column, (*ahead).depth);
        }
        a.copy(stage);
        if (!Plan::kGram) b.copy(stage + A::kBytes);
        moves = ahead.advance();
        a.advance();
        if (!Plan::kGram) b.advance();
      }
      ++fetched;
      free = next(free);
      ptx::cp_async_commit();
    };
    if (kCopies) {
      for (int i = 0; i < Plan::kStages - 2; ++i) fetch();
    }
    for (int unit = 0; unit < units; ++unit) {
      const int place = unit % 2;
      if (unit >= 2) {
        for (int group = 0; group < kGroups; ++group) ptx::barrier_sync(empty(place, group), kEmpty);
      }
      if (kCopies) ptx::cp_async_wait<Plan::kStages - 3>();
      if (kPrepares) {
        ptx::barrier_sync(landed(place), kLoaders * kGroup);
        take_apart(shared_ + now * kStage + (Plan::kGram ? 0 : A::kBytes), place, thread);
        now = next(now);
        ptx::async_fence();
        for (int group = 0; group < kGroups; ++group) ptx::barrier_arrive(full(place, group), kFull);
      } else {
        ptx::barrier_arrive(landed(place), kLoaders * kGroup);
      }
      if (kCopies) fetch();
    }
  }

  // Takes a unit's B apart.
  __device__ __forceinline__ void take_apart(const unsigned char* b_tile, int place, int thread) const {
    constexpr int kTwos = (kColumnBlocks + 1) / 2, kAll = kPairs * kTwos, kWarps = kGroup / 32;
#pragma unroll 2
    for (int round = 0; round < (kAll + kWarps - 1) / kWarps; ++round) {
      const int i = thread / 32 + round * kWarps;
      if (kAll % kWarps != 0 && i >= kAll) break;
      const int pair = i / kTwos, j = i % kTwos * 2;
      typename B::Word words[4];
      const int depth = pair / kGroupPairs * kGroupDepth;
      B::template words<Depths, kColumnBlocks>(words, b_tile, 0, j, depth, 2 * (pair % kGroupPairs));
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

  __device__ __forceinline__ void multiply(long long begin, int units) {
    Cursor<Plan> tile(work_, begin);
    int stage = 0;
    for (int unit = 0; unit < units; tile.next_tile()) {
      const int first = unit, left = units - unit;
      const int last = unit + (tile.units_left() < left ? tile.units_left() : left);
      Sum sums[kMatrices][kColumnBlocks][4] = {};
      if constexpr (sizeof(T) == 8) {
        for (; unit < last; ++unit) {
          ptx::barrier_sync(full(unit % 2, group_), kFull);
          add_unit(shared_ + stage * kStage, unit % 2, sums);
          if (unit + 2 < units) ptx::barrier_arrive(empty(unit % 2, group_), kEmpty);
          stage = next(stage);
        }
      } else {
        Words words[2];
        Sum alone[2][kColumnBlocks][4];
        for (; unit < last; ++unit) {
          const unsigned char* a_tile = shared_ + stage * kStage;
          stage = next(stage);
          if (!kLoadsAhead || unit == first) {
            ptx::barrier_sync(full(unit % 2, group_), kFull);
            load_job(words[0], 0, a_tile);
          }
#pragma unroll
          for (int job = 0; job < kJobs; ++job) {
            begin_job(words[job % 2], job, unit % 2, alone[job % 2], sums);
            if (job > 0) end_job<1>(job - 1, alone, sums);
            if (job + 1 < kJobs) {
              load_job(words[(job + 1) % 2], job + 1, a_tile);
            } else if (kLoadsAhead && unit + 1 < last) {
              ptx::barrier_sync(full((unit + 1) % 2, group_), kFull);
              load_job(words[0], 0, shared_ + stage * kStage);
            }
          }
          end_job<0>(kJobs - 1, alone, sums);
          if (unit + 2 < units) ptx::barrier_arrive(empty(unit % 2, group_), kEmpty);
        }
      }
      finish(*tile, begin + first, begin + last, sums);
    }
  }

  // Adds what a stage holds, of doubles.
  __device__ __forceinline__ void add_unit(const unsigned char* a_tile, int place,
                                           Sum (&sums)[kMatrices][kColumnBlocks][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < kGroupPairs; ++pair) {
      Parts a[kMatrices][4];
#pragma unroll
      for (int i = 0; i < kMatrices; ++i) load_pair(a[i], a_tile, i, pair);
      const Register* b = matrix(place, split() * kGroupPairs + pair, 0);
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
        const Parts words[2] = {b[64 * j + lane], b[64 * j + 32 + lane]};
#pragma unroll
        for (int i = 0; i < kMatrices; ++i) Unit::multiply(0, sums[i][j], a[i], words);
      }
    }
  }

  // The tensor cores truncate as they add: with more than one part, they add up one job alone (fragments.cuh).
  static constexpr bool kAlone = Unit::kParts > 1;

  using Words = Register[Unit::kParts][kJobPairs][4];

  // Loads a job's words of A and takes them apart.
  __device__ __forceinline__ void load_job(Words& a, int job, const unsigned char* a_tile) const {
#pragma unroll
    for (int pair = 0; pair < kJobPairs; ++pair) {
      Parts words[4];
      load_pair(words, a_tile, job % kMatrices, job / kMatrices * kJobPairs + pair);
#pragma unroll
      for (int part = 0; part < Unit::kParts; ++part)
#pragma unroll
        for (int word = 0; word < 4; ++word) a[part][pair][word] = Unit::bits(words[word], part);
    }
  }

  __device__ __forceinline__ void begin_job(Words& a, int job, int place, Sum (&alone)[kColumnBlocks][4],
                                            Sum (&sums)[kMatrices][kColumnBlocks][4]) const {
    ptx::wgmma_fence(a);
#pragma unroll
    for (int step = 0; step < Unit::kSteps; ++step)
#pragma unroll
      for (int pair = 0; pair < kJobPairs; ++pair) {
        const Register(&left)[4] = a[Unit::left(step)][pair];
        const int at = split() * kGroupPairs + job / kMatrices * kJobPairs + pair;
        const Register* right = matrix(place, at, Unit::right(step));
        if (kAlone && step == 0 && pair == 0) ptx::wgmma<true, T>(alone, left, right);
        else ptx::wgmma<false, T>(kAlone ? alone : sums[job % kMatrices], left, right);
      }
    ptx::wgmma_commit();
  }

  // Waits for all jobs but the `pending` latest, of which `job` is the last.
  template <int pending>
  __device__ __forceinline__ void end_job(int job, Sum (&alone)[2][kColumnBlocks][4],
                                          Sum (&sums)[kMatrices][kColumnBlocks][4]) const {
    if constexpr (kAlone) {
      Sum(&done)[kColumnBlocks][4] = alone[job % 2];
      ptx::wgmma_wait<pending>(done);
#pragma unroll
      for (int j = 0; j < 4 * kColumnBlocks; ++j) sums[job % kMatrices][j / 4][j % 4] += done[j / 4][j % 4];
    } else if constexpr (pending == 0) {
#pragma unroll
      for (int i = 0; i < kMatrices; ++i) ptx::wgmma_wait<0>(sums[i]);
    } else {
      ptx::wgmma_wait<pending>();
    }
  }

  // Of this warp's rows of a matrix, two words: those of pair `pair` of this warpgroup's depth.
  __device__ __forceinline__ void load_pair(Parts (&to)[4], const unsigned char* a_tile, int matrix, int pair) const {
    constexpr bool kBeyond = Plan::kTileM % (64 * kRowGroups * kMatrices) != 0;
    typename A::Word words[4];
    A::template words<Depths, 2, kBeyond>(words, a_tile, first_row(matrix), 0, split() * kGroupDepth, 2 * pair);
#pragma unroll
    for (int word = 0; word < 4; ++word) to[word] = Unit::parts(words[word]);
  }

  // The first row, in the tile, of this warp's sixteen of a matrix.
  __device__ int first_row(int matrix) const {
    return 64 * (group_ % kRowGroups * kMatrices + matrix) + 16 * (threadIdx.x % kGroup / 32);
  }

  // Ends this block's part of a tile, the units from `begin` to `end`.
  __device__ __forceinline__ void finish(const Place& at, long long begin, long long end,
                                         Sum (&sums)[kMatrices][kColumnBlocks][4]) {
    if (kSplits > 1) add_splits(sums);
    const BlockSums<WarpgroupProduct, Sum, kTileSums> others(*this, shares_, partial_, arrived_);
    if (end - begin < shares_.tile_units && !others.add(begin - at.depth / Plan::kDepth, sums)) return;
    if (split() != 0) return;
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
  __device__ int split() const { return kSplits > 1 ? group_ / kRowGroups : 0; }
  __device__ __forceinline__ void add_splits(Sum (&sums)[kMatrices][kColumnBlocks][4]) {
    Sum* second = reinterpret_cast<Sum*>(shared_ + kRing + 2 * kParts + kAllOver) + threadIdx.x % kLanes;
    sync();
    if (split() == 1) {
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) second[i * kLanes] = sum_at(sums, i);
    }
    sync();
    if (split() == 0) {
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) sum_at(sums, i) += second[i * kLanes];
    }
  }
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
