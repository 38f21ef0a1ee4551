// Tall-and-skinny GEMM by mma.sync: C (m × n) = A (m × k) · B (k × n) with n small. One kernel, which a plan
// instantiates, serves TSM2R (m and k large), TSM2L (m large, k small) and TSMTTSM (k large, m small: AᵀD).
//
//              k                    n
//      ┌────┬────┬────┐          ┌────┐      A and B stream through a multistage pipeline in shared memory
//      │unit│unit│    │ tile    k│unit│      (operand.cuh). Warps multiply a stage on the tensor cores (fragments.cuh).
//      ├────┼────┼────┤          ├────┤
//    m │    │    │    │     ×    │unit│      A *tile* is kTileM × kTileN elements of C. A *work unit* is what one
//      └────┴────┴────┘          └────┘      stage adds to a tile: kDepth terms of the sums over k.
//
// Stream-K schedule: the work units of all tiles, tile by tile, are divided into equal, contiguous shares, one per
// block. A share may be part of a tile (TSMTTSM), or the end of one tile and the beginning of the next (TSM2R). All
// multiprocessors get the same work, so that all of them read memory until the kernel ends.
//
// The rows, columns and depth of a tile are split among kWarpsM × kWarpsN × kWarpsK warps. Blocks with work units of
// the same tile combine their sums in stream_k_fixup.cuh.
//
// If one stage holds all of k (TSM2L, kKeepB), a block loads B once and keeps it in shared memory, and tiles are
// assigned to blocks round-robin. A *team* is the group of warps that processes one tile: all warps of the block, or a
// single warp. In the second case, each of the block's kTeams teams has separate tiles and a separate pipeline. Teams
// of one warp need no block-wide barrier, so one warp can store while others load and multiply.
//
// Why it is fast: each operand is read once. Copies to kStages − 1 stages are in flight, more bytes than latency ×
// bandwidth of the memory. The tensor cores multiply while these copies run, and leave the threads free to move data.
#pragma once
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/tsm2/mma_block.cuh"
#include "kernels/tsm2/stream_k_fixup.cuh"
#include "kernels/tsm2/tile_loader.cuh"

namespace tsm2 {

template <typename Plan, typename Epilogue>
class GemmMma : MmaBlock<Plan, Epilogue> {
 public:
  using Block = MmaBlock<Plan, Epilogue>;
  using Block::kArrivesAt, Block::kStagingBytes, Block::kKeptWeightsAt, Block::kTileSums, Block::kSharedBytes;
  using Block::kColumnBlocks, Block::kAddsRows, Block::kSumBlocks, Block::kRegisters, Block::kStreamsB;
  using Block::kPairs, Block::kTileColumnBlocks, Block::kParts, Block::kAllParts, Block::kArrivesBeside;
  using Block::kPreparesB, Block::kWeightsAt, Block::kStage, Block::kPipelineBytes, Block::kPipelinesBytes;
  using Block::kTeam, Block::kWarps, Block::kThreads, Block::kRows, Block::kColumns, Block::kEights, Block::kBlocks;
  using typename Block::A, typename Block::B, typename Block::T, typename Block::Unit, typename Block::Sum,
      typename Block::Depths, typename Block::Weights, typename Block::Staging;

  __device__ GemmMma(unsigned char* shared, const typename A::Source& a, const typename B::Source& b, const Work& work,
                     Sum* partial, unsigned* arrived, const Epilogue& epilogue)
      : shared_(shared), a_(a), b_(b), work_(work), partition_(Partition::of<Plan>(work)), partial_(partial),
        arrived_(arrived), epilogue_(epilogue) {
    const int warp = threadIdx.x / 32 % kTeam;
    team_ = threadIdx.x / 32 / kTeam;
    pipeline_ = shared_ + team_ * kPipelineBytes;
    warp_m_ = warp % Plan::kWarpsM;
    warp_n_ = warp / Plan::kWarpsM % Plan::kWarpsN;
    warp_k_ = warp / (Plan::kWarpsM * Plan::kWarpsN);
  }

  __device__ __forceinline__ void run() {
    static_assert(!Plan::kKeepB || B::kBytes <= kPipelinesBytes, "B is first copied to the memory of the pipelines");
    if (may_idle<Epilogue> && work_.m == 0) return;
    if (Plan::kKeepB) {
      typename B::template Reader<kThreads> b(b_, threadIdx.x);
      b.move_to(0, 0);
      b.copy(shared_ + kArrivesAt);
      if constexpr (kAddsRows)
        Weights::template copy<kThreads>(shared_ + kKeptWeightsAt, epilogue_.row_weights, threadIdx.x);
      ptx::cp_async_commit();
      if (!kArrivesBeside) share_kept_b<0>();
    }
    // With kKeepB, each tile is one work unit, and tiles go to teams round-robin. All blocks then access neighboring
    // addresses. The first teams of all blocks get tiles first, so that even a few tiles occupy all blocks.
    const long long teams = (long long)gridDim.x * Plan::kTeams;
    const long long begin = Plan::kKeepB ? team_ * (long long)gridDim.x + blockIdx.x : partition_.begin(blockIdx.x);
    const long long end =
        Plan::kKeepB ? begin + (partition_.units - begin + teams - 1) / teams : partition_.begin(blockIdx.x + 1);
    if (begin >= end && !kArrivesBeside) return;
    WorkIterator<Plan> now(work_, begin);
    TileLoader<Plan, 32 * kTeam, kThreads, kStreamsB> reader(a_, b_, work_, begin, threadIdx.x % (32 * kTeam),
                                                             threadIdx.x);
    long long fetched = begin;
    int free = 0;  // the next stage to fill
    auto fetch = [&] {
      if (fetched < end) {
        if constexpr (kAddsRows && !Plan::kKeepB) {
          const Sum* weights = epilogue_.row_weights + reader.depth();
          Weights::template copy<kThreads>(pipeline_ + free * kStage + kWeightsAt, weights, threadIdx.x);
        }
        reader.copy(pipeline_ + free * kStage);
      }
      ++fetched;
      free = free + 1 == Plan::kStages ? 0 : free + 1;
      ptx::cp_async_commit();
    };
    for (int i = 0; i < Plan::kStages - 1; ++i) fetch();
    if (kArrivesBeside) share_kept_b<Plan::kStages - 1>();
    constexpr bool kPreparesNext = kPreparesB && kStreamsB;
    if (kPreparesNext) {
      ptx::cp_async_wait<Plan::kStages - 2>();
      __syncthreads();
      prepare(shared_ + A::kBytes, parts(0));
    }

    Sum sums[kBlocks][kSumBlocks][4] = {};
    long long tile_begin = begin;
    int slot = 0;
    for (long long unit = begin; unit < end; ++unit) {
      ptx::cp_async_wait<Plan::kStages - (kPreparesNext ? 3 : 2)>();
      // After the barrier, the stage of this unit is complete, and with kPreparesNext also the stage of the next unit.
      // All warps of the team have finished the previous unit.
      if (Plan::kTeams > 1) {
        simt::sync_warp();
      } else {
        __syncthreads();
      }
      fetch();
      const unsigned char* stage = pipeline_ + slot * kStage;
      slot = slot + 1 == Plan::kStages ? 0 : slot + 1;
      if (kPreparesNext && unit + 1 < end) prepare(pipeline_ + slot * kStage + A::kBytes, parts(unit + 1 - begin));
      multiply(stage, Plan::kGram ? stage : stage + A::kBytes, parts(unit - begin), sums);
      if (now.ends_tile() || unit + 1 == end) {
        finish(*now, tile_begin, unit + 1, sums);
        tile_begin = unit + 1;
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) sum_at(sums, i) = 0;
      }
      now.next();
    }
  }

 protected:
  using Parts = typename Unit::Parts;
  struct alignas(sizeof(Parts) == 12 ? 8 : 2 * sizeof(Parts)) PartsOfTwo {
    Parts at[2];
  };

  // With kKeepB: waits for the copies of B, then splits B into its parts (fragments.cuh). The `pending` latest groups
  // of copies of this thread do not copy B and may still be in flight.
  template <int pending>
  __device__ __forceinline__ void share_kept_b() const {
    ptx::cp_async_wait<pending>();
    __syncthreads();
    prepare(shared_ + kArrivesAt, parts(0));
    __syncthreads();
  }

  // The parts of a unit's B in shared memory. Entry (q / 2 · kTileColumnBlocks + j) · 32 + l has the parts of words q
  // and q + 1 of column block j for lane l.
  __device__ PartsOfTwo* parts(long long unit) const {
    return reinterpret_cast<PartsOfTwo*>(shared_ + kPipelinesBytes + (kStreamsB && unit % 2 ? kParts : 0));
  }

  // Splits a tile of B into its parts (fragments.cuh). All warps of the block divide the words among themselves.
  __device__ __forceinline__ void prepare(const unsigned char* b_tile, PartsOfTwo* to) const {
    const int lane = threadIdx.x % 32;
    constexpr int kTwos = (kTileColumnBlocks + 1) / 2;
    for (int i = threadIdx.x / 32; i < kPairs * kTwos; i += kWarps) {
      const int pair = i / kTwos, j = i % kTwos * 2;
      typename B::Word words[4];
      B::template words<Depths, kTileColumnBlocks>(words, b_tile, 0, j, 0, 2 * pair);
      PartsOfTwo* at = to + (pair * kTileColumnBlocks + j) * 32 + lane;
      at[0] = {{Unit::parts(words[0]), Unit::parts(words[2])}};
      if (j + 1 < kTileColumnBlocks) at[32] = {{Unit::parts(words[1]), Unit::parts(words[3])}};
    }
  }

  // Adds the product of the tiles of A and B in one stage to `sums`.
  __device__ __forceinline__ void multiply(const unsigned char* a_tile, const unsigned char* b_tile,
                                           const PartsOfTwo* b_parts, Sum (&sums)[kBlocks][kSumBlocks][4]) const {
    const int row = warp_m_ * kRows, column = warp_n_ * kColumns, depth = warp_k_ * (Plan::kDepth / Plan::kWarpsK);
    // Sums of one accumulation interval (fragments.cuh). There are no intervals if the tensor cores round, or if
    // kInterval is 0 because their truncation does not matter.
    constexpr bool kIntervals = !Unit::kRounds && Plan::kInterval > 0;
    Sum interval[kBlocks][kColumnBlocks][4] = {};
#pragma unroll
    for (int q = 0; q < Depths::kWords; q += 2) {
      Parts a[kBlocks][4];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        typename A::Word words[4];
        A::template words<Depths, kEights>(words, a_tile, row, 2 * i, depth, q);
        if constexpr (kAddsRows) {
          const auto* weights =
              reinterpret_cast<const Sum*>(Plan::kKeepB ? shared_ + kKeptWeightsAt : a_tile + kWeightsAt);
          add_rows<Depths, T>(sums[i][kColumnBlocks], words, weights + depth, q);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) a[i][j] = Unit::parts(words[j]);
      }
      // Four column blocks at a time give enough independent products to hide the latency of a product.
#pragma unroll
      for (int first = 0; first < kColumnBlocks; first += 4) {
        constexpr int kTogether = 4;
        Parts b[kTogether][2];
#pragma unroll
        for (int i = 0; i < kTogether && first + i < kColumnBlocks; i += kPreparesB ? 1 : 2) {
          const int j = first + i;
          if constexpr (kPreparesB) {
            const PartsOfTwo two = b_parts[(q / 2 * kTileColumnBlocks + column / 8 + j) * 32 + (int)threadIdx.x % 32];
            b[i][0] = two.at[0], b[i][1] = two.at[1];
          } else {
            typename B::Word words[4];
            B::template words<Depths, kColumnBlocks>(words, b_tile, column, j, depth, q);
#pragma unroll
            for (int word = 0; word < 4; ++word) b[i + word % 2][word / 2] = Unit::parts(words[word]);
          }
        }
#pragma unroll
        for (int step = 0; step < Unit::kSteps; ++step)
#pragma unroll
          for (int j = first; j < first + kTogether && j < kColumnBlocks; ++j)
#pragma unroll
            for (int i = 0; i < kBlocks; ++i) {
              Unit::multiply(step, kIntervals ? interval[i][j] : sums[i][j], a[i], b[j - first]);
            }
      }
      if (kIntervals && ((q + 2) % (kIntervals ? Plan::kInterval : 1) == 0 || q + 2 >= Depths::kWords)) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i)
#pragma unroll
          for (int j = 0; j < 4 * kColumnBlocks; ++j) {
            sums[i][j / 4][j % 4] += interval[i][j / 4][j % 4];
            interval[i][j / 4][j % 4] = 0;
          }
      }
    }
  }

  // Finishes this block's part of a tile, units `begin` to `end` − 1: reduces over warps and blocks, then runs the
  // epilogue.
  __device__ __forceinline__ void finish(const Place& at, long long begin, long long end,
                                         Sum (&sums)[kBlocks][kSumBlocks][4]) {
    if (Plan::kWarpsK > 1) add_splits(sums);
    // With kKeepB, a unit is a whole tile.
    const bool shared = !Plan::kKeepB && end - begin < partition_.tile_units;
    const StreamKFixup<GemmMma, Sum, kTileSums> others(*this, partition_, partial_, arrived_);
    if (shared && !others.add(end - 1 - at.depth / Plan::kDepth, sums)) return;
    if (warp_k_ != 0) return;
    const Place first = {at.row + warp_m_ * kRows, at.column + warp_n_ * kColumns, 0};
    const int rows = work_.m - first.row < kRows ? (int)(work_.m - first.row) : kRows;
    const int columns = work_.n - first.column < kColumns ? (int)(work_.n - first.column) : kColumns;
    unsigned char* scratch = shared_ + kPipelinesBytes + kAllParts + threadIdx.x / 32 * kStagingBytes;
    Staging::run(epilogue_, scratch, first.row, rows, first.column, columns, sums);
  }

  // The members that StreamKFixup requires of its team, which is all threads of this block.
  template <typename, typename, int>
  friend class StreamKFixup;
  static constexpr int kSplits = Plan::kWarpsK;
  __device__ int split() const { return warp_k_; }
  __device__ void sync() const { __syncthreads(); }

  // Adds the sums of all warps with the same rows and columns to those of the warp with warp_k_ 0. Each round halves
  // the number of warps: the upper half passes its sums to the lower half through shared memory.
  __device__ __forceinline__ void add_splits(Sum (&sums)[kBlocks][kSumBlocks][4]) {
    Sum* upper_sums = reinterpret_cast<Sum*>(shared_ + kPipelinesBytes + kAllParts);
    constexpr int kLanes = Plan::kWarpsM * Plan::kWarpsN * 32;
    const int thread = threadIdx.x % kLanes;
    for (int half = Plan::kWarpsK / 2; half > 0; half /= 2) {
      __syncthreads();
      Sum* mine = upper_sums + warp_k_ % half * (kLanes * kRegisters) + thread;
      if (warp_k_ >= half && warp_k_ < 2 * half) {
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) mine[i * kLanes] = sum_at(sums, i);
      }
      __syncthreads();
      if (warp_k_ < half) {
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) sum_at(sums, i) += mine[i * kLanes];
      }
    }
    __syncthreads();
  }

  unsigned char* shared_;
  const typename A::Source& a_;
  const typename B::Source& b_;
  const Work& work_;
  const Partition partition_;
  Sum* partial_;
  unsigned* arrived_;
  const Epilogue& epilogue_;
  unsigned char* pipeline_;
  int team_, warp_m_, warp_n_, warp_k_;
};

// `partial` and `arrived` are the buffers of StreamKFixup; unused if no tile is split among blocks.
template <typename Plan, typename Epilogue>
__global__ void __launch_bounds__(GemmMma<Plan, Epilogue>::kThreads, Plan::kBlocksAMultiprocessor)
    gemm_mma(const typename Plan::A::Source a, const typename Plan::B::Source b, const Work work,
             typename GemmMma<Plan, Epilogue>::Sum* partial, unsigned* arrived, const Epilogue epilogue) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  // If the epilogue is idle, zero rows make run() return at once. A return statement here would take more registers.
  const Work here{is_idle(epilogue) ? 0 : work.m, work.n, work.k};
  if constexpr (opens<Epilogue>) epilogue.open();
  GemmMma<Plan, Epilogue>(simt::dynamic_shared<unsigned char>(), a, b, here, partial, arrived, epilogue).run();
  if constexpr (opens<Epilogue>) epilogue.close();
}

}  // namespace tsm2
