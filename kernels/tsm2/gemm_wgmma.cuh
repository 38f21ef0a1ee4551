// Warp-specialized tall-and-skinny GEMM by wgmma on Hopper (sm_90a): C (m × n) = A (m × k) · B (k × n), n at most 64.
// For products that keep the tensor cores as busy as the memory: TSM2R with many columns, TSM2L with k from 33 to 64,
// and TSMTTSM with many rows.
//
//              k                  n        Work units, operands, stream-K fixup and epilogues are as in gemm_mma.cuh.
//      ┌────┬────┬────┐        ┌────┐      The roles within a block differ:
//      │unit│unit│    │ tile  k│unit│
//      ├────┼────┼────┤        ├────┤      *Producers*, one or two warpgroups, copy A and B of later units to a
//    m │    │    │    │   ×    │unit│      pipeline of stages, and split the current unit's B into the parts that
//      └────┴────┴────┘        └────┘      consumers read. *Consumers* are kWarpsM / 4 · kWarpsK warpgroups. Each has
//                                          kMatrices · 64 rows of the tile and one of kWarpsK parts of every unit's
//                                          depth: it loads and splits its words of A, and multiplies them by B.
//
// Producers and consumers synchronize by named barriers. Parts of B are double-buffered, so each barrier exists twice,
// for even and odd units: `landed` (the copies are complete) and, per consumer, `full` (the parts are ready) and
// `empty` (the products are done: parts and stage are free).
//
// With kKeepB, B is copied and split once, before the first unit. Stages then hold only A, a unit is a whole tile, and
// units are assigned to blocks round-robin, as in gemm_mma.cuh.
//
// A consumer divides a unit into *jobs*: products of one 64-row matrix of A over part of the depth. While the tensor
// cores run one job, the warpgroup loads A for the next job and adds the sums of the previous job to those of the tile.
//
// Why it is fast: wgmma reads B once per 64 rows of A, mma.sync once per 16 or 32 rows. The tensor cores always have a
// job queued. Doubles use mma.sync, faster than in gemm_mma.cuh: no consumer waits at a block-wide barrier. Tall tiles
// need few reads of B from the level-2 cache. setmaxnreg moves registers from producers to consumers.
#pragma once
#include "kernels/tsm2/stream_k_fixup.cuh"
#include "kernels/tsm2/epilogue_staging.cuh"
#include "kernels/tsm2/weighted_row_sums.cuh"
#include "kernels/tsm2/wgmma_producer.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/warp_specialization.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace tsm2 {

template <typename Plan, typename Epilogue>
class GemmWgmma : WgmmaBlock<Plan, adds_rows<Epilogue>> {
 public:
  // Accumulators of a lane: those of C, followed by those of A's weighted row sums.
  static constexpr bool kAddsRows = adds_rows<Epilogue>;
  static_assert(!opens<Epilogue>, "this kernel does not support epilogues with open() and close()");
  using Block = WgmmaBlock<Plan, kAddsRows>;
  using typename Block::A, typename Block::B, typename Block::T, typename Block::Unit, typename Block::Register;
  using typename Block::Depths;
  using Sum = typename Unit::Sum;
  using Block::kGroup, Block::kGroups, Block::kRowGroups, Block::kSplits, Block::kConsumers, Block::kThreads;
  using Block::kGroupPairs, Block::kJobPairs, Block::kJobs, Block::kLoadsAhead, Block::kStage, Block::kPipelineBytes;
  using Block::kParts, Block::full, Block::empty, Block::next, Block::kFull, Block::kEmpty;
  using Block::kProducers, Block::kMatrices, Block::kColumns, Block::kColumnBlocks, Block::kGroupDepth;

  // Shared memory, in bytes: that of WgmmaBlock, the epilogue's scratch, and the sums of the second split.
  static constexpr int kSumBlocks = kColumnBlocks + kAddsRows, kRegisters = 4 * kMatrices * kSumBlocks;
  using Staging = EpilogueStaging<Sum, kAddsRows ? 8 * kSumBlocks : kColumns, 1>;
  static constexpr int kStagingBytes = Staging::template kBytes<Epilogue>;
  static constexpr int kLanes = kRowGroups * kGroup, kAllStagingBytes = kLanes / 32 * kStagingBytes;
  static constexpr int kTileSums = kLanes * kRegisters;  // sums of a tile in `partial`
  static constexpr int kSplitSumBytes = (kSplits - 1) * kTileSums * (int)sizeof(Sum);
  static constexpr int kSharedBytes = Block::kShared + kAllStagingBytes + kSplitSumBytes;

  __device__ GemmWgmma(unsigned char* shared, const typename A::Source& a, const typename B::Source& b,
                       const Work& work, Sum* partial, unsigned* arrived, const Epilogue& epilogue)
      : shared_(shared), producer_(shared, a, b, work, weights_of(epilogue)), work_(work),
        partition_(Partition::of<Plan>(work)), partial_(partial), arrived_(arrived), epilogue_(epilogue),
        group_(threadIdx.x / kGroup) {}

  __device__ __forceinline__ void run() {
    // With kKeepB, tiles are assigned to blocks round-robin, as in gemm_mma.cuh.
    const long long begin = Plan::kKeepB ? blockIdx.x : partition_.begin(blockIdx.x);
    const long long all = Plan::kKeepB ? (partition_.units - begin + gridDim.x - 1) / gridDim.x
                                       : partition_.begin(blockIdx.x + 1) - begin;
    if (all <= 0) return;
    const int units = (int)all;
    // The branches of producers come first: otherwise the compiler spills registers of the kernel for doubles.
    if (kProducers == 1 && group_ == kGroups) {
      ptx::fewer_registers<Block::kProducerRegisters>();
      producer_.template run<true, true>(begin, units);
    } else if (group_ == kGroups) {
      ptx::fewer_registers<Block::kProducerRegisters>();
      producer_.template run<true, false>(begin, units);
    } else if (group_ > kGroups) {
      ptx::fewer_registers<Block::kProducerRegisters>();
      producer_.template run<false, true>(begin, units);
    } else {
      ptx::more_registers<Block::kConsumerRegisters>();
      multiply(begin, units);
    }
  }

 private:
  using Parts = typename Unit::Parts;

  __device__ __forceinline__ void multiply(long long begin, int units) {
    WorkIterator<Plan> tile(work_, begin);
    int stage = 0;
    for (int unit = 0; unit < units; Plan::kKeepB ? (void)tile.next() : tile.next_tile()) {
      const int first = unit, left = units - unit;
      const int last = unit + (tile.units_left() < left ? tile.units_left() : left);
      Sum sums[kMatrices][kSumBlocks][4] = {};
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
            load_job(words[0], 0, a_tile, sums);
          }
#pragma unroll
          for (int job = 0; job < kJobs; ++job) {
            begin_job(words[job % 2], job, unit % 2, alone[job % 2], sums);
            if (job > 0) end_job<1>(job - 1, alone, sums);
            if (job + 1 < kJobs) {
              load_job(words[(job + 1) % 2], job + 1, a_tile, sums);
            } else if (kLoadsAhead && unit + 1 < last) {
              ptx::barrier_sync(full((unit + 1) % 2, group_), kFull);
              load_job(words[0], 0, shared_ + stage * kStage, sums);
            }
          }
          end_job<0>(kJobs - 1, alone, sums);
          if (unit + 2 < units) ptx::barrier_arrive(empty(unit % 2, group_), kEmpty);
        }
      }
      finish(*tile, begin + first, begin + last, sums);
    }
  }

  // For doubles: adds the product of the tiles of A and B in one stage to `sums`.
  __device__ __forceinline__ void add_unit(const unsigned char* a_tile, int place,
                                           Sum (&sums)[kMatrices][kSumBlocks][4]) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < kGroupPairs; ++pair) {
      Parts a[kMatrices][4];
#pragma unroll
      for (int i = 0; i < kMatrices; ++i) load_pair(a[i], a_tile, i, pair, sums[i]);
      const Register* b = Block::matrix(shared_, place, split() * kGroupPairs + pair, 0);
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
        const Parts words[2] = {b[64 * j + lane], b[64 * j + 32 + lane]};
#pragma unroll
        for (int i = 0; i < kMatrices; ++i) Unit::multiply(0, sums[i][j], a[i], words);
      }
    }
  }

  // The tensor cores truncate as they add. If elements have more than one part, each job therefore has its own
  // accumulators (fragments.cuh).
  static constexpr bool kAlone = Unit::kParts > 1;

  using Words = Register[Unit::kParts][kJobPairs][4];

  // Loads a job's words of A and splits them.
  __device__ __forceinline__ void load_job(Words& a, int job, const unsigned char* a_tile,
                                           Sum (&sums)[kMatrices][kSumBlocks][4]) const {
#pragma unroll
    for (int pair = 0; pair < kJobPairs; ++pair) {
      Parts words[4];
      load_pair(words, a_tile, job % kMatrices, job / kMatrices * kJobPairs + pair, sums[job % kMatrices]);
#pragma unroll
      for (int part = 0; part < Unit::kParts; ++part)
#pragma unroll
        for (int word = 0; word < 4; ++word) a[part][pair][word] = Unit::bits(words[word], part);
    }
  }

  __device__ __forceinline__ void begin_job(Words& a, int job, int place, Sum (&alone)[kColumnBlocks][4],
                                            Sum (&sums)[kMatrices][kSumBlocks][4]) const {
    ptx::wgmma_fence(a);
#pragma unroll
    for (int step = 0; step < Unit::kSteps; ++step)
#pragma unroll
      for (int pair = 0; pair < kJobPairs; ++pair) {
        const Register(&left)[4] = a[Unit::left(step)][pair];
        const int at = split() * kGroupPairs + job / kMatrices * kJobPairs + pair;
        const Register* right = Block::matrix(shared_, place, at, Unit::right(step));
        if (kAlone && step == 0 && pair == 0)
          ptx::wgmma<true, T>(alone, left, right);
        else
          ptx::wgmma<false, T>(kAlone ? alone : of_c(sums[job % kMatrices]), left, right);
      }
    ptx::wgmma_commit();
  }

  // Waits for all but the `pending` latest jobs. With kAlone, adds the sums of `job`, the last complete job, to `sums`.
  template <int pending>
  __device__ __forceinline__ void end_job(int job, Sum (&alone)[2][kColumnBlocks][4],
                                          Sum (&sums)[kMatrices][kSumBlocks][4]) const {
    if constexpr (kAlone) {
      Sum(&done)[kColumnBlocks][4] = alone[job % 2];
      ptx::wgmma_wait<pending>(done);
#pragma unroll
      for (int j = 0; j < 4 * kColumnBlocks; ++j) sums[job % kMatrices][j / 4][j % 4] += done[j / 4][j % 4];
    } else if constexpr (pending == 0) {
#pragma unroll
      for (int i = 0; i < kMatrices; ++i) ptx::wgmma_wait<0>(of_c(sums[i]));
    } else {
      ptx::wgmma_wait<pending>();
    }
  }

  using SumsOfC = Sum[kColumnBlocks][4];
  static __device__ __forceinline__ SumsOfC& of_c(Sum (&sums)[kSumBlocks][4]) {
    return reinterpret_cast<SumsOfC&>(sums);
  }

  static __device__ __forceinline__ const Sum* weights_of(const Epilogue& epilogue) {
    if constexpr (kAddsRows) return epilogue.row_weights;
    return nullptr;
  }

  // Loads pair `pair` of the words of A in this warpgroup's part of the depth, for this warp's rows of matrix `matrix`.
  __device__ __forceinline__ void load_pair(Parts (&to)[4], const unsigned char* a_tile, int matrix, int pair,
                                            Sum (&sums)[kSumBlocks][4]) const {
    constexpr bool kBeyond = Plan::kTileM % (64 * kRowGroups * kMatrices) != 0;
    typename A::Word words[4];
    A::template words<Depths, 2, kBeyond>(words, a_tile, first_row(matrix), 0, split() * kGroupDepth, 2 * pair);
    if constexpr (kAddsRows) {
      const unsigned char* at = Plan::kKeepB ? shared_ + Block::kKeptWeightsAt : a_tile + Block::kWeightsAt;
      const auto* weights = reinterpret_cast<const Sum*>(at) + split() * kGroupDepth;
      add_rows<Depths, T>(sums[kColumnBlocks], words, weights, 2 * pair);
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) to[word] = Unit::parts(words[word]);
  }

  // The index, within the tile, of the first of this warp's 16 rows of 64-row matrix `matrix`.
  __device__ int first_row(int matrix) const {
    return 64 * (group_ % kRowGroups * kMatrices + matrix) + 16 * (threadIdx.x % kGroup / 32);
  }

  // Finishes this block's part of a tile, units `begin` to `end` − 1: reduces over splits and blocks, then runs the
  // epilogue.
  __device__ __forceinline__ void finish(const Place& at, long long begin, long long end,
                                         Sum (&sums)[kMatrices][kSumBlocks][4]) {
    if (kSplits > 1) add_splits(sums);
    const StreamKFixup<GemmWgmma, Sum, kTileSums> others(*this, partition_, partial_, arrived_);
    if (end - begin < partition_.tile_units && !others.add(begin - at.depth / Plan::kDepth, sums)) return;
    if (split() != 0) return;
    const int columns = work_.n - at.column < kColumns ? (int)(work_.n - at.column) : kColumns;
#pragma unroll
    for (int i = 0; i < kMatrices; ++i) {
      const long long row = at.row + first_row(i);
      const int in_tile = Plan::kTileM - first_row(i) < 16 ? Plan::kTileM - first_row(i) : 16;
      const int rows = work_.m - row < in_tile ? (int)(work_.m - row) : in_tile;
      const Sum(&one)[1][kSumBlocks][4] = reinterpret_cast<const Sum(&)[1][kSumBlocks][4]>(sums[i]);
      Staging::run(epilogue_, shared_ + Block::kShared + threadIdx.x / 32 * kStagingBytes, row, rows, at.column,
                   columns, one);
    }
  }

  // The members that StreamKFixup requires of its team, which is all consumers of this block.
  template <typename, typename, int>
  friend class StreamKFixup;
  __device__ int split() const { return kSplits > 1 ? group_ / kRowGroups : 0; }
  __device__ __forceinline__ void add_splits(Sum (&sums)[kMatrices][kSumBlocks][4]) {
    Sum* second = reinterpret_cast<Sum*>(shared_ + Block::kShared + kAllStagingBytes) + threadIdx.x % kLanes;
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
  __device__ void sync() const { ptx::barrier_sync(Block::kConsumersBarrier, kConsumers); }

  unsigned char* shared_;
  const WgmmaProducer<Plan, kAddsRows> producer_;
  const Work& work_;
  const Partition partition_;
  Sum* partial_;
  unsigned* arrived_;
  const Epilogue& epilogue_;
  const int group_;
};

// `partial` and `arrived` are the buffers of StreamKFixup.
template <typename Plan, typename Epilogue>
__global__ void __launch_bounds__(GemmWgmma<Plan, Epilogue>::kThreads, Plan::kBlocksAMultiprocessor)
    gemm_wgmma(const typename Plan::A::Source a, const typename Plan::B::Source b, const Work work,
               typename GemmWgmma<Plan, Epilogue>::Sum* partial, unsigned* arrived, const Epilogue epilogue) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  GemmWgmma<Plan, Epilogue>(simt::dynamic_shared<unsigned char>(), a, b, work, partial, arrived, epilogue).run();
}

}  // namespace tsm2
