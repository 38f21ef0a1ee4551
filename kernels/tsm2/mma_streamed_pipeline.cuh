// Shared-memory pipelines of gemm_mma_streamed.cuh, filled by the warps that multiply.
//
//   step              0 1 2 3 4 5 …          A step is a chunk of a column tile of B. While a warp multiplies that of
//   stage (of three)  0 1 2 0 1 2 …          step s, it copies its share of that of step s + kAhead. The stage for it
//   copied ahead      2 3 4 5 6 7 …          must have been multiplied by all warps, kStages − kAhead steps before s.
//
// kBulk: one thread copies whole steps by bulk copies, which need sm_90. Otherwise all threads copy 16 bytes at a time.
//
// mbarriers mark full and empty stages; a warp that is behind in its epilogue holds up others only when they are
// kStages − kAhead steps ahead of it. If the row tiles of A do not fit in shared memory (kBuffersA is 0), a stage has
// the chunk of each of them, too; A is then read again for every column tile. Otherwise each warp copies the rows that
// it multiplies, for this turn and, with two buffers, for the next, and waits for no other warp.
//
// If A stays, and all of B fits in the stages, a column tile of one chunk in each, B is copied once for all turns.
//
// Why it is fast: no warp only copies, which would take the registers of one that multiplies. Copies are contiguous in
// global memory.
#pragma once
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"
#include "kernels/tsm2/streamed_turns.cuh"

namespace tsm2 {

// Number of row tiles that a warpgroup multiplies together; registers of a thread limit it.
constexpr int kMmaTogether = 2;

// Constants as in streamed_pipeline.cuh, but kGroups is the number of warpgroups. kBuffersA: 0, 1 or 2, see above.
template <int kColumns, int kPanels, int kChunks, int kGroups, int kBuffersA, int kStages, bool kBulk,
          typename Products>
class MmaStreamedPipelines {
 public:
  static constexpr bool kStays = kBuffersA > 0;
  static constexpr int kBuffers = kStays ? kBuffersA : 1;  // of the code for row tiles that stay
  static constexpr int kThreads = 128 * kGroups, kTiles = kMmaTogether * kGroups;
  static constexpr int kPanelA = kPanelRows / 8 * kPanelGroup, kPanelB = kColumns / 8 * kPanelGroup;
  static constexpr int kPiece = kPanels * kPanelA, kRowTile = kChunks * kPiece, kChunkB = kPanels * kPanelB;
  // A stage: space for B's first panel, a chunk of B and, if A streams, a piece of every row tile.
  static constexpr int kPiecesAt = kPanelB + kChunkB, kStage = kPiecesAt + (kStays ? 0 : kTiles * kPiece);
  static constexpr int kStagesAt = kBuffersA * kTiles * kRowTile, kBarriersAt = kStagesAt + kStages * kStage;
  static constexpr int kWarps = kThreads / 32, kBarriers = 2 * kStages + kBuffersA * kWarps;
  static constexpr int kSharedBytes = kBarriersAt + kBarriers * (int)sizeof(ptx::Mbarrier);
  static constexpr int kAhead = (kStages + 1) / 2;
  static_assert(kStages >= 2 && kBuffersA <= 2, "a chunk is multiplied while the next is copied");

  // B has `column_tiles` column tiles.
  __device__ MmaStreamedPipelines(unsigned char* shared, const ptx::Half* A, const ptx::Half* B,
                                  const Products& products, int column_tiles)
      : column_tiles(column_tiles), first_turn(products), turns(first_turn.count()), shared_(simt::kept_shared(shared)),
        full_(reinterpret_cast<ptx::Mbarrier*>(shared_ + kBarriersAt)), empty_(full_ + kStages),
        full_a_(empty_ + kStages), A_(reinterpret_cast<const unsigned char*>(A)),
        B_(reinterpret_cast<const unsigned char*>(B)),
        once_(kStays && kChunks == 1 && first_turn.kOneB && column_tiles <= kStages), copied_turn_(first_turn),
        rows_turn_(first_turn) {}

  // Initializes the barriers. All threads of the block call it; a barrier must follow.
  __device__ __forceinline__ void set_up() const {
    if (threadIdx.x != 0) return;
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(full_ + i, kBulk ? 1 : kThreads);
      ptx::mbarrier_init(empty_ + i, kThreads);
    }
    for (int i = 0; i < kBuffersA * kWarps; ++i) ptx::mbarrier_init(full_a_ + i, 32);
    ptx::mbarrier_init_fence();
  }

  // Copies this thread's share of the steps before those that `next_stage` copies, and of its warp's first rows.
  __device__ __forceinline__ void begin(int group) {
    if (turns == 0) return;
    if (kStays) copy_rows(group);
#pragma unroll 1
    for (int step = 0; step < kAhead; ++step) copy_next(step, 0);
  }

  // Copies the share of a later step, and waits for this step; returns its stage.
  __device__ __forceinline__ const unsigned char* next_stage() {
    const bool wraps = stage_ + kAhead >= kStages;
    copy_next(stage_ + kAhead - (wraps ? kStages : 0), parity_ ^ wraps);
    ptx::mbarrier_wait(full_ + stage_, once_ ? 0 : parity_);
    return shared_ + kStagesAt + stage_ * kStage;
  }

  // Releases the stage of this step, which this thread has read, and goes to the next.
  __device__ __forceinline__ void release() {
    if (!once_) {
      if constexpr (kBulk) ptx::async_fence();  // of this thread's loads, before copies
      ptx::mbarrier_arrive(empty_ + stage_);
    }
    if (++stage_ == (once_ ? column_tiles : kStages)) stage_ = 0, parity_ ^= 1;
  }

  // Waits for this warp's rows of a turn, which stay; returns the address of the first row tile.
  __device__ __forceinline__ const unsigned char* begin_turn(int group, int turn) {
    const int buffer = turn % kBuffers;
    if (kBuffersA == 2) copy_rows(group);  // of the next turn
    ptx::mbarrier_wait(full_a_ + threadIdx.x / 32 * kBuffers + buffer, (unsigned)turn / kBuffers % 2);
    return shared_ + (group * kBuffers + buffer) * kMmaTogether * kRowTile;
  }

  // Ends the products of a turn: all lanes have read this warp's rows.
  __device__ __forceinline__ void end_turn(int group) {
    simt::sync_warp();
    if (kBuffersA == 1) copy_rows(group);
  }

  const int column_tiles;
  // The first turn of this block, and the number of its turns.
  const Turns<Products, kTiles> first_turn;
  const int turns;

 private:
  // Copies the next step that is not copied yet, if there is one, to a stage, or this thread's share of it. `parity`:
  // of the phase that the copies complete.
  __device__ __forceinline__ void copy_next(int to, unsigned parity) {
    if (copied_turns_ == (once_ ? 1 : turns)) return;
    if (!kBulk || threadIdx.x == 0) {
      ptx::mbarrier_wait(empty_ + to, parity ^ 1);  // which a barrier's first phase does not delay
      copy_step(shared_ + kStagesAt + to * kStage, full_ + to);
    }
    if (++copied_chunk_ == kChunks) {
      copied_chunk_ = 0;
      if (++copied_column_ == column_tiles) copied_column_ = 0, ++copied_turns_, copied_turn_.next();
    }
  }

  __device__ __forceinline__ void copy_step(unsigned char* stage, ptx::Mbarrier* full) const {
    const long long tile = (long long)copied_turn_.product() * column_tiles + copied_column_;
    const unsigned char* const column_tile = B_ + tile * (kPanelB + kChunks * kChunkB);
    const bool begins = kChunks == 1 || copied_chunk_ == 0;
    if constexpr (kBulk) {
      ptx::mbarrier_arrive_expect(full, kChunkB + (begins ? kPanelB : 0) + (kStays ? 0 : kTiles * kPiece));
    }
    if constexpr (kChunks == 1) {
      copy<kPanelB + kChunkB>(stage, column_tile, full);
    } else {
      if (begins) copy<kPanelB>(stage, column_tile, full);
      copy<kChunkB>(stage + kPanelB, column_tile + kPanelB + copied_chunk_ * kChunkB, full);
    }
    if (!kStays) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const long long row_tile = copied_turn_.copied_tile(i);
        copy<kPiece>(stage + kPiecesAt + i * kPiece, A_ + row_tile * kRowTile + copied_chunk_ * kPiece, full);
      }
    }
    if constexpr (!kBulk) ptx::cp_async_arrive(full);
  }

  // Copies this lane's share of its warp's rows of the next turn: 16 rows of each row tile.
  __device__ __forceinline__ void copy_rows(int group) {
    if (copied_rows_ == turns) return;
    const int buffer = copied_rows_++ % kBuffers, mine = (int)threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = 0; i < kMmaTogether; ++i) {
      unsigned char* const to = shared_ + ((group * kBuffers + buffer) * kMmaTogether + i) * kRowTile + mine;
      const unsigned char* const from = A_ + rows_turn_.copied_tile(group * kMmaTogether + i) * (long long)kRowTile;
#pragma unroll 8
      for (int at = 0; at < kRowTile; at += kPanelA) ptx::cp_async<16>(to + at, from + mine + at);
    }
    ptx::cp_async_arrive(full_a_ + threadIdx.x / 32 * kBuffers + buffer);
    rows_turn_.next();
  }

  // Copies kBytes bytes, or this thread's share of them. A warp copies successive bytes, so that the distances of a
  // lane's copies are small enough for the instructions to have them.
  template <int kBytes>
  static __device__ __forceinline__ void copy(unsigned char* to, const unsigned char* from, ptx::Mbarrier* full) {
    if constexpr (kBulk) {
      ptx::bulk_copy(to, from, kBytes, full);
    } else {
      constexpr int kOfWarp = (kBytes + 16 * kThreads - 1) / (16 * kThreads) * 512;
      const int mine = (int)threadIdx.x / 32 * kOfWarp + (int)threadIdx.x % 32 * 16;
      copy_every_512<kOfWarp, kBytes % (16 * kThreads) == 0>(to + mine, from + mine, kBytes - mine);
    }
  }

  // Copies 16 of every 512 bytes, kBytes in all; if not kAll, those that begin before `end`.
  template <int kBytes, bool kAll, int kAt = 0>
  static __device__ __forceinline__ void copy_every_512(unsigned char* to, const unsigned char* from, int end) {
    if (kAll || kAt < end) ptx::cp_async_at<kAt>(to, from);
    if constexpr (kAt + 512 < kBytes) copy_every_512<kBytes, kAll, kAt + 512>(to, from, end);
  }

  unsigned char* const shared_;
  ptx::Mbarrier *const full_, *const empty_, *const full_a_;
  const unsigned char *const A_, *const B_;
  const bool once_;  // B is copied once
  // The stage of this step, and the parity of the phase that fills it.
  int stage_ = 0;
  unsigned parity_ = 0;
  // The next step to copy: its chunk, column tile and turn, and the number of turns before it. And the next turn whose
  // rows are copied.
  int copied_chunk_ = 0, copied_column_ = 0, copied_turns_ = 0, copied_rows_ = 0;
  Turns<Products, kTiles> copied_turn_, rows_turn_;
};

}  // namespace tsm2
