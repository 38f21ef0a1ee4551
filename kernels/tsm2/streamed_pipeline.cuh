// Shared-memory pipelines of gemm_wgmma_streamed.cuh: stages of A and B, and the copies that fill them.
//
//   column tile of B    0 1 2 3 4 5 6 7 0 1 2 3 4 5 6 7 0 1 …    Four warpgroups and eight column tiles: each
//   warpgroup 0         ├─ rows ──────┤ ├─ rows ──────┤ ├─       warpgroup starts two column tiles after the previous
//   warpgroup 1             ├─ rows ──────┤ ├─ rows ──────┤      one. While one changes its row tile, three multiply.
//   …                                                            Memory for a fifth row tile lets copies run ahead.
//
// One thread issues all copies, to a pipeline for A and a pipeline for B; mbarriers mark full and empty stages. If the
// row tiles do not fit in shared memory (kStays is false), A is copied in chunks too, again for every column tile. Row
// tile, column tile, chunk and turn: see gemm_wgmma_streamed.cuh.
//
// Why it is fast: bulk copies load whole chunks that are contiguous in global memory. Threads wait for a copy only when
// they need the copied data. The warpgroups never all wait for new row tiles at the same time.
#pragma once
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"
#include "kernels/tsm2/streamed_turns.cuh"

namespace tsm2 {

// A row tile of A has kPanels · kChunks panels; a column tile of B has one more panel, the first. kStagesA: with
// kStays, the number of row tiles of A in shared memory, from kGroups to 2 · kGroups; else the number of chunks of A in
// shared memory per warpgroup. kStagesB: the number of chunks of B in shared memory. With kLevels, the products also
// add a number per row of A (core_matrix_layout.cuh). Products: the products that the launch computes
// (streamed_turns.cuh).
template <int kColumns, int kPanels, int kChunks, int kGroups, int kStagesA, int kStagesB, bool kStays, bool kLevels,
          typename Products>
class StreamedPipelines {
 public:
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 128;
  static constexpr int kPanelA = kPanelRows / 8 * kPanelGroup, kPanelB = kColumns / 8 * kPanelGroup;
  // A *piece* of A is one chunk of one row tile, kPiece bytes; shared memory holds kPieces pieces.
  static constexpr int kPiece = kPanels * kPanelA, kPieces = kStagesA * (kStays ? kChunks : kGroups);
  // Every stage of B has space for B's first panel too.
  static constexpr int kChunkB = kPanels * kPanelB, kStageB = kPanelB + kChunkB;
  static constexpr int kPipelinesBytes = kPieces * kPiece + kStagesB * kStageB;
  // After the pipelines, shared memory holds the panel that multiplies B's first panel: one panel per warpgroup with
  // kLevels, else one for all warpgroups.
  static constexpr int kPipelineBytes = kPipelinesBytes + (kLevels ? kGroups : 1) * kPanelA;
  // With kStays, the barriers of a piece are selected by its warpgroup, its turn (even or odd) and its chunk. They are
  // not selected by the address of the piece, because different warpgroups use the same memory one after another.
  static constexpr int kAwaited = kStays ? 2 * kGroups * kChunks : kPieces;
  static constexpr int kBarriers = 2 * (kAwaited + kStagesB);
  static constexpr int kSharedBytes = kPipelineBytes + kBarriers * (int)sizeof(ptx::Mbarrier);
  // Minimum number of turns for which a block staggers its warpgroups. Staggering costs time at the end of the block,
  // which is small compared with that of many turns.
  static constexpr int kManyTurns = 16;
  static_assert(kStagesB >= 2, "a chunk is multiplied while the next is copied");
  static_assert(!kStays || (kGroups <= kStagesA && kStagesA <= 2 * kGroups), "one to two row tiles per warpgroup");

  // A position in a pipeline: the stage, and the parity of the phase that fills it.
  template <int kStages>
  struct Place {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  };

  // A piece: its index in the pipeline of A, the index of its barriers, and the parity of the phase that fills it.
  struct Piece {
    int at, barrier;
    unsigned parity;
  };

  // Locates the pieces of a warpgroup, in the order of its turns, column tiles and chunks.
  class Pieces {
   public:
    __device__ explicit Pieces(int group) : group_(group), tile_(group) {}

    __device__ __forceinline__ Piece of(int turn, int chunk) const {
      if (!kStays) return {stage_.stage * kGroups + group_, stage_.stage * kGroups + group_, stage_.parity};
      return {tile_ * kChunks + chunk, (2 * group_ + turn % 2) * kChunks + chunk, (unsigned)turn / 2 % 2};
    }
    __device__ __forceinline__ void next_chunk() {
      if (!kStays) stage_.next();
    }
    __device__ __forceinline__ void next_turn() {
      if (kStays && (tile_ += kGroups) >= kStagesA) tile_ -= kStagesA;
    }

   private:
    const int group_;
    int tile_;
    Place<kStagesA> stage_;
  };

  // B has `column_tiles` column tiles.
  __device__ StreamedPipelines(unsigned char* shared, const ptx::Half* A, const ptx::Half* B, const Products& products,
                               int column_tiles)
      : buffer_a(shared), buffer_b(shared + kPieces * kPiece), constants(shared + kPipelinesBytes),
        full_a(reinterpret_cast<ptx::Mbarrier*>(shared + kPipelineBytes)), empty_a(full_a + kAwaited),
        full_b(empty_a + kAwaited), empty_b(full_b + kStagesB), column_tiles(column_tiles), first_turn(products),
        turns(first_turn.count()), A_(reinterpret_cast<const unsigned char*>(A)),
        B_(reinterpret_cast<const unsigned char*>(B)), apart_(kStays && first_turn.kOneB && turns >= kManyTurns) {}

  // Initializes barriers and constants. All threads of the block call it; a barrier must follow.
  __device__ __forceinline__ void set_up() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kAwaited; ++i) {
        ptx::mbarrier_init(full_a + i, 1);
        ptx::mbarrier_init(empty_a + i, 4);
      }
      for (int i = 0; i < kStagesB; ++i) {
        ptx::mbarrier_init(full_b + i, 1);
        ptx::mbarrier_init(empty_b + i, kConsumers / 32);
      }
      ptx::mbarrier_init_fence();
    }
    auto* of_a = reinterpret_cast<ptx::Half*>(constants);
    for (int i = threadIdx.x; i < (kPipelineBytes - kPipelinesBytes) / (int)sizeof(ptx::Half); i += kThreads) {
      const int column = i % kPanelDepth;
      const float value = column < kParts ? kPartScale[column] : 0.0f;
      of_a[panel_offset(i / kPanelDepth, column, 1, kPanelRows)] = ptx::to_half(value);
    }
    ptx::async_fence();
  }

  // Issues all copies of the block. One thread calls it.
  __device__ __forceinline__ void copy() const {
    Place<kStagesA> a;
    Place<kStagesB> b;
    const int steps = turns * column_tiles + start_of(kGroups - 1);
    Turns<Products, kGroups> turn_of_a = first_turn, turn_of_b = first_turn;
    int column = 0, turn = 0, begun = 0;  // begun: number of warpgroups whose row tile of this turn is being copied
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (kStays) {
#pragma unroll 1
        for (; turn < turns && step == turn * column_tiles + start_of(begun); a.next()) {
          copy_tile(a.stage, turn, begun, turn_of_a.copied_tile(begun));
          if (++begun == kGroups) begun = 0, ++turn, turn_of_a.next();
        }
      }
#pragma unroll 1
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if (!kStays) {
#pragma unroll 1
          for (int group = 0; group < kGroups; ++group) {
            const int piece = a.stage * kGroups + group;
            ptx::mbarrier_wait(empty_a + piece, a.parity ^ 1);
            copy_a({piece, piece, 0}, turn_of_b.copied_tile(group), chunk);
          }
          a.next();
        }
        copy_b(b, turn_of_b.product(), column, chunk);
        b.next();
      }
      if (++column == column_tiles) column = 0, turn_of_b.next();
    }
  }

  // The number of column tiles that pass before a warpgroup starts.
  __device__ __forceinline__ int start_of(int group) const { return apart_ ? group * column_tiles / kGroups : 0; }

  // The pipelines of A and of B, and the panels that multiply B's first panel.
  unsigned char *const buffer_a, *const buffer_b, *const constants;
  ptx::Mbarrier *const full_a, *const empty_a, *const full_b, *const empty_b;
  const int column_tiles;
  // The first turn of this block, and the number of its turns.
  const Turns<Products, kGroups> first_turn;
  const int turns;

 private:
  // Copies a row tile for a warpgroup in a turn. Waits first until the row tile that was in the same memory, kStagesA
  // row tiles earlier, has been multiplied.
  __device__ __forceinline__ void copy_tile(int stage, int turn, int group, int tile) const {
    int turn_before = turn - kStagesA / kGroups, group_before = group - kStagesA % kGroups;
    if (group_before < 0) group_before += kGroups, --turn_before;
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (turn_before >= 0) {
        const int before = (2 * group_before + turn_before % 2) * kChunks + chunk;
        ptx::mbarrier_wait(empty_a + before, (unsigned)turn_before / 2 % 2);
      }
      copy_a({stage * kChunks + chunk, (2 * group + turn % 2) * kChunks + chunk, 0}, tile, chunk);
    }
  }

  __device__ __forceinline__ void copy_a(const Piece& to, int tile, int chunk) const {
    const long long from = (long long)tile * kChunks + chunk;
    ptx::mbarrier_arrive_expect(full_a + to.barrier, kPiece);
    ptx::bulk_copy(buffer_a + to.at * kPiece, A_ + from * kPiece, kPiece, full_a + to.barrier);
  }

  __device__ __forceinline__ void copy_b(const Place<kStagesB>& to, int product, int column, int chunk) const {
    const int more = chunk == 0 ? kPanelB : 0;
    const long long tile = (long long)product * column_tiles + column;
    const long long from = tile * (kChunks * (long long)kChunkB + kPanelB) + chunk * kChunkB + kPanelB - more;
    ptx::mbarrier_wait(empty_b + to.stage, to.parity ^ 1);
    ptx::mbarrier_arrive_expect(full_b + to.stage, kChunkB + more);
    ptx::bulk_copy(buffer_b + to.stage * kStageB + kPanelB - more, B_ + from, kChunkB + more, full_b + to.stage);
  }

  const unsigned char *const A_, *const B_;
  const bool apart_;
};

}  // namespace tsm2
