// C (m × n) = A (m × k) · B (k × n) with n small: TSM2R (m and k large), TSM2L (m large, k small) and TSMTTSM (m small,
// k large: AᵀD). One kernel, instantiated by a plan.
//
//              k                    n        Both operands stream through a pipeline of stages in shared memory
//      ┌────┬────┬────┐          ┌────┐      (operand.cuh), and warps multiply what a stage holds with the tensor cores
//      │unit│unit│    │ tile    k│unit│      (fragments.cuh).
//      ├────┼────┼────┤          ├────┤
//    m │    │    │    │     ×    │unit│      A *tile* is kTileM rows of C by kTileN columns. A *unit* is the part of a tile
//      └────┴────┴────┘          └────┘      that one stage adds: `kDepth` of the sum over k.
//
// The units of all tiles, tile by tile, are dealt to the blocks in equal, contiguous shares: a block may have a part of
// a tile (TSMTTSM), or the end of one and the beginning of the next (TSM2R). So every multiprocessor has the same work,
// and the memory is kept busy to the end.
//
// Within a tile, kWarpsM × kWarpsN × kWarpsK warps share rows, columns and depth. Blocks may share a tile
// (stream_k_fixup.cuh).
//
// Of a k that fits one stage, B stays in shared memory and tiles are dealt in turn (TSM2L). There a block is kTeams
// warps, each with tiles and a pipeline of its own: they wait for no barrier, and while one stores, others load and
// multiply.
//
// Why it is fast: each operand is read once, with up to kStages − 1 stages on their way, more bytes than latency times
// bandwidth needs; the tensor cores leave the arithmetic hidden behind the reads, and threads free to move data.
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
  using Block::kArrivesAt, Block::kOver, Block::kKeptWeightsAt, Block::kTileSums, Block::kSharedBytes;
  using Block::kColumnBlocks, Block::kAddsRows, Block::kSumBlocks, Block::kRegisters, Block::kStreamsB;
  using Block::kPairs, Block::kTileColumnBlocks, Block::kParts, Block::kAllParts, Block::kArrivesBeside;
  using Block::kPreparesB, Block::kWeightsAt, Block::kStage, Block::kPipelineBytes, Block::kPipelinesBytes;
  using Block::kTeam, Block::kWarps, Block::kThreads, Block::kRows, Block::kColumns, Block::kEights, Block::kBlocks;
  using typename Block::A, typename Block::B, typename Block::T, typename Block::Unit, typename Block::Sum,
      typename Block::Depths, typename Block::Weights, typename Block::Over;

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
    // Tiles that are one unit each are dealt in turn: at any time all blocks read and write near each other, which the
    // memory does faster; and to all blocks before a block's next team, so that few tiles make all of them work.
    const long long teams = (long long)gridDim.x * Plan::kTeams;
    const long long begin = Plan::kKeepB ? team_ * (long long)gridDim.x + blockIdx.x : partition_.begin(blockIdx.x);
    const long long end =
        Plan::kKeepB ? begin + (partition_.units - begin + teams - 1) / teams : partition_.begin(blockIdx.x + 1);
    if (begin >= end && !kArrivesBeside) return;
    WorkIterator<Plan> now(work_, begin);
    TileLoader<Plan, 32 * kTeam, kThreads, kStreamsB> reader(a_, b_, work_, begin, threadIdx.x % (32 * kTeam),
                                                             threadIdx.x);
    long long fetched = begin;
    int free = 0;  // stage
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
      // This unit's stage has landed (or the next one's), and the whole team is done with the last one's.
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

 private:
  using Parts = typename Unit::Parts;
  struct alignas(sizeof(Parts) == 12 ? 8 : 2 * sizeof(Parts)) PartsOfTwo {
    Parts at[2];
  };

  // Makes the parts of a B that is kept, which arrives in this thread's group of copies before the `pending` latest.
  template <int pending>
  __device__ __forceinline__ void share_kept_b() const {
    ptx::cp_async_wait<pending>();
    __syncthreads();
    prepare(shared_ + kArrivesAt, parts(0));
    __syncthreads();
  }

  // Where the parts of a unit's B lie: words q and q + 1 of column block j, lane by lane, at (q / 2 · blocks + j) · 32.
  __device__ PartsOfTwo* parts(long long unit) const {
    return reinterpret_cast<PartsOfTwo*>(shared_ + kPipelinesBytes + (kStreamsB && unit % 2 ? kParts : 0));
  }

  // Takes a tile of B apart, once for all warps.
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

  // Adds what a stage holds.
  __device__ __forceinline__ void multiply(const unsigned char* a_tile, const unsigned char* b_tile,
                                           const PartsOfTwo* b_parts, Sum (&sums)[kBlocks][kSumBlocks][4]) const {
    const int row = warp_m_ * kRows, column = warp_n_ * kColumns, depth = warp_k_ * (Plan::kDepth / Plan::kWarpsK);
    // Sums of a stretch, unless the tensor cores round as they add or their truncation does not matter.
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
      // Four column blocks at a time: enough products that none waits for the one before it in the same sums.
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

  // Ends this block's part of a tile, the units from `begin` to `end`.
  __device__ __forceinline__ void finish(const Place& at, long long begin, long long end,
                                         Sum (&sums)[kBlocks][kSumBlocks][4]) {
    if (Plan::kWarpsK > 1) add_splits(sums);
    // Of a B that is kept, a unit is a whole tile.
    const bool shared = !Plan::kKeepB && end - begin < partition_.tile_units;
    const StreamKFixup<GemmMma, Sum, kTileSums> others(*this, partition_, partial_, arrived_);
    if (shared && !others.add(end - 1 - at.depth / Plan::kDepth, sums)) return;
    if (warp_k_ != 0) return;
    const Place first = {at.row + warp_m_ * kRows, at.column + warp_n_ * kColumns, 0};
    const int rows = work_.m - first.row < kRows ? (int)(work_.m - first.row) : kRows;
    const int columns = work_.n - first.column < kColumns ? (int)(work_.n - first.column) : kColumns;
    unsigned char* scratch = shared_ + kPipelinesBytes + kAllParts + threadIdx.x / 32 * kOver;
    Over::run(epilogue_, scratch, first.row, rows, first.column, columns, sums);
  }

  // This block's threads as a team of StreamKFixup.
  template <typename, typename, int>
  friend class StreamKFixup;
  static constexpr int kSplits = Plan::kWarpsK;
  __device__ int split() const { return warp_k_; }
  __device__ void sync() const { __syncthreads(); }

  // Sums over the warps that share rows and columns, into those with warp_k_ 0: the upper half hands over to the lower.
  __device__ __forceinline__ void add_splits(Sum (&sums)[kBlocks][kSumBlocks][4]) {
    Sum* handed_over = reinterpret_cast<Sum*>(shared_ + kPipelinesBytes + kAllParts);
    constexpr int kLanes = Plan::kWarpsM * Plan::kWarpsN * 32;
    const int thread = threadIdx.x % kLanes;
    for (int half = Plan::kWarpsK / 2; half > 0; half /= 2) {
      __syncthreads();
      Sum* mine = handed_over + warp_k_ % half * (kLanes * kRegisters) + thread;
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

// partial and arrived are those of StreamKFixup, and not used where no tile is shared.
template <typename Plan, typename Epilogue>
__global__ void __launch_bounds__(GemmMma<Plan, Epilogue>::kThreads, Plan::kBlocksAMultiprocessor)
    gemm_mma(const typename Plan::A::Source a, const typename Plan::B::Source b, const Work work,
             typename GemmMma<Plan, Epilogue>::Sum* partial, unsigned* arrived, const Epilogue epilogue) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  // Told of no rows, it returns at once; a return here would cost registers.
  const Work here{is_idle(epilogue) ? 0 : work.m, work.n, work.k};
  if constexpr (opens<Epilogue>) epilogue.open();
  GemmMma<Plan, Epilogue>(simt::dynamic_shared<unsigned char>(), a, b, here, partial, arrived, epilogue).run();
  if constexpr (opens<Epilogue>) epilogue.close();
}

}  // namespace tsm2
