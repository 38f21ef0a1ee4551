// S (m × n) = A (m × k) · Bᵀ (k × n) + a row of n numbers, in float16 with float32 sums, never stored: an epilogue takes
// it out of the registers, some columns after the other. Hopper (sm_90a). For an n so large that the tensor cores are the
// limit. The row of numbers is the first slab of B (slabs.cuh), by which sums begin.
//
//               k                     n            A and B lie in slabs (slabs.cuh). kGroups warpgroups have 64 rows of A
//          ┌─────────┐         ┌────┬────┬────┐    each, a *tile*, while all of B streams by, over and over: kColumns columns,
//  64 · kG │  stays  │   ×   k │    │ →  │ →  │    in *chunks* of kSlabs slabs, which all warpgroups multiply.
//          └─────────┘         └────┴────┴────┘
//                               streams by, kColumns
//
//   columns of B    0 1 2 3 4 5 6 7 0 1 2 3 4 5 6 7 0 1 …        four warpgroups and eight column tiles: each begins its rows
//   warpgroup 0     ├─ rows ──────┤ ├─ rows ──────┤ ├─           where B has gone on by a quarter. So while one ends with some
//   warpgroup 1         ├─ rows ──────┤ ├─ rows ──────┤          rows and begins with others, three multiply; and one tile
//   …                                                            more than there are warpgroups has room, to be copied early.
//
// One more warpgroup copies, by one thread, into a ring of A and one of B; mbarriers say what is there and what is free. If
// the ring of A has no room for the tiles (kStays), A streams by too, once for every column tile.
//
// Why it is fast: while one half of the warpgroups have their epilogues of a column tile, the tensor cores work for the other
// half. They take turns, as products that are begun are worked on together: else all would end at a time, and then all
// have their epilogues. The slower the epilogue beside the products, the more warpgroups that takes; registers allow four.
// Products read 6 KB of shared memory for 64 clocks of the tensor cores, of 8 KB that could be read: what more is read by
// the multiprocessor has to be little, so that even the row of numbers comes with the products. Many rows a block keep down
// what is read of the level-2 cache, n · k for each block's rows; where A streams by, it is the less the more columns are
// multiplied at a time.
#pragma once
#include "kernels/bulk.cuh"
#include "kernels/tsm2/simt.cuh"
#include "kernels/tsm2/slabs.cuh"
#include "kernels/warpgroup.cuh"

namespace tsm2 {

// An Epilogue has what a thread keeps of its rows, `Rows`, what it reads of them beforehand, `Fetched`, and
//
//   idle()                               whether there is nothing to do at all
//   open(), close()                      before and after all else, with a barrier of the block between
//   fetch(Fetched&, row)                 some time before rows from `row` on are begun; they may be past the last
//   begin(Rows&, Fetched, levels)        before the first columns of these rows are multiplied; if kLevels, what is added to
//                                        all sums of this thread's two rows
//   take(Rows&, column tile, sums)       kColumns columns: the fragments (ptx.cuh) of 16 rows, a warp's
//   end(Rows&, row)                      after the last
//
// All threads of a multiplying warp take part in the last four, and all of the block in open and close. Column tiles come in
// turn, from any on.
//
// A and B have kSlabs · kChunks slabs, B one more. kStagesA are tiles of A, if kStays, kGroups to 2 · kGroups; or chunks.
template <int kColumns, int kSlabs, int kChunks, int kGroups, int kStagesA, int kStagesB, bool kStays, typename Epilogue>
class StreamedColumns {
 public:
  static constexpr int kMultipliers = 128 * kGroups, kThreads = kMultipliers + 128;
  // Registers of a thread: as all begin with; of those who copy; and of the others, who get the rest.
  static constexpr int kEqual = 65536 / kThreads / 8 * 8, kCopying = 40;
  static constexpr int kMultiplying = (kEqual * kThreads - kCopying * 128) / kMultipliers / 8 * 8;
  static constexpr int kSlabA = kSlabRows / 8 * kSlabGroup, kSlabB = kColumns / 8 * kSlabGroup;
  // Of A, a chunk of one tile; and how many there are.
  static constexpr int kPiece = kSlabs * kSlabA, kPieces = kStagesA * (kStays ? kChunks : kGroups);
  // A stage of B has room for its first slab too.
  static constexpr int kChunkB = kSlabs * kSlabB, kStageB = kSlabB + kChunkB;
  static constexpr int kRings = kPieces * kPiece + kStagesB * kStageB;
  // And the slab of A that multiplies it: every warpgroup's own, if it has levels.
  static constexpr int kRing = kRings + (Epilogue::kLevels ? kGroups : 1) * kSlabA;
  // Where A stays, a piece is waited for by its warpgroup, turn, even or odd, and chunk: what lay there before was another's.
  static constexpr int kAwaited = kStays ? 2 * kGroups * kChunks : kPieces;
  static constexpr int kBarriers = 2 * (kAwaited + kStagesB) + kGroups;
  static constexpr int kSharedBytes = kRing + kBarriers * (int)sizeof(ptx::Mbarrier);
  // Turns of a block from which on it is little that warpgroups end one after the other.
  static constexpr int kManyTurns = 16;
  // A warpgroup ahead of the others holds all chunks of a column tile.
  static constexpr bool kInTurn = kStays && kChunks <= kStagesB;
  static_assert(kStagesB >= 2, "a chunk is multiplied while the next is copied");
  static_assert(!kStays || (kGroups <= kStagesA && kStagesA <= 2 * kGroups), "a tile each, and another at most");

  // A has `row_tiles` tiles, B `column_tiles`.
  __device__ StreamedColumns(unsigned char* shared, const ptx::Half* A, const ptx::Half* B, int row_tiles,
                             int column_tiles, const Epilogue& epilogue)
      : ring_a_(shared), ring_b_(shared + kPieces * kPiece),
        full_a_(reinterpret_cast<ptx::Mbarrier*>(shared + kRing)), empty_a_(full_a_ + kAwaited),
        full_b_(empty_a_ + kAwaited), empty_b_(full_b_ + kStagesB), turn_(empty_b_ + kStagesB),
        A_(reinterpret_cast<const unsigned char*>(A)), B_(reinterpret_cast<const unsigned char*>(B)),
        constants_(shared + kRings), epilogue_(epilogue), row_tiles_(row_tiles), column_tiles_(column_tiles),
        turns_((row_tiles - (int)blockIdx.x * kGroups + (int)gridDim.x * kGroups - 1) / ((int)gridDim.x * kGroups)),
        apart_(kStays && turns_ >= kManyTurns) {}

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kAwaited; ++i) {
        ptx::mbarrier_init(full_a_ + i, 1);
        ptx::mbarrier_init(empty_a_ + i, 4);
      }
      for (int i = 0; i < kStagesB; ++i) {
        ptx::mbarrier_init(full_b_ + i, 1);
        ptx::mbarrier_init(empty_b_ + i, kMultipliers / 32);
      }
      for (int i = 0; i < kGroups; ++i) ptx::mbarrier_init(turn_ + i, 4);
      ptx::mbarrier_init_fence();
    }
    auto* constants = reinterpret_cast<ptx::Half*>(constants_);
    for (int i = threadIdx.x; i < (kRing - kRings) / (int)sizeof(ptx::Half); i += kThreads) {
      const int column = i % kSlabDepth;
      const float value = column < kParts ? kPartScale[column] : 0.0f;
      constants[slab_offset(i / kSlabDepth, column, 1, kSlabRows)] = ptx::to_half(value);
    }
    ptx::async_fence();
    epilogue_.open();
    __syncthreads();
    if (threadIdx.x >= kMultipliers) {
      ptx::fewer_registers<kCopying>();
      if (threadIdx.x == kMultipliers) copy();
    } else {
      ptx::more_registers<kMultiplying>();
      multiply();
    }
    __syncthreads();
    epilogue_.close();
  }

 private:
  // Where a ring is, and the parity of the phase in which this stage is filled.
  template <int kStages>
  struct Place {
    int stage = 0;
    unsigned parity = 0;
    __device__ __forceinline__ void next() {
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  };

  // A chunk of a tile of A: which piece of the ring, which barriers, and the parity of the phase in which it is filled.
  struct Piece {
    int at, barrier;
    unsigned parity;
  };

  // Where the pieces of a warpgroup are, in the order of its turns, column tiles and chunks.
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

  // The tile that a warpgroup has in a turn; and the column tiles that have gone by when it begins with its first.
  __device__ __forceinline__ int tile_of(int turn, int group) const {
    return (turn * (int)gridDim.x + (int)blockIdx.x) * kGroups + group;
  }
  __device__ __forceinline__ long long first_row_of(int turn, int group) const {
    return (long long)tile_of(turn, group) * kSlabRows;
  }
  __device__ __forceinline__ int start_of(int group) const { return apart_ ? group * column_tiles_ / kGroups : 0; }

  __device__ __forceinline__ void copy() const {
    Place<kStagesA> a;
    Place<kStagesB> b;
    const int steps = turns_ * column_tiles_ + start_of(kGroups - 1);
    int column = 0, turn = 0, begun = 0;  // warpgroups whose rows of this turn have been asked for
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (kStays) {
#pragma unroll 1
        for (; turn < turns_ && step == turn * column_tiles_ + start_of(begun); a.next()) {
          copy_tile(a.stage, turn, begun);
          if (++begun == kGroups) begun = 0, ++turn;
        }
      }
#pragma unroll 1
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        if (!kStays) {
#pragma unroll 1
          for (int group = 0; group < kGroups; ++group) {
            const int piece = a.stage * kGroups + group;
            ptx::mbarrier_wait(empty_a_ + piece, a.parity ^ 1);
            copy_a({piece, piece, 0}, tile_of(step / column_tiles_, group), chunk);
          }
          a.next();
        }
        copy_b(b, column, chunk);
        b.next();
      }
      if (++column == column_tiles_) column = 0;
    }
  }

  // Of a warpgroup in a turn, once what is there has been given back: kStagesA tiles before.
  __device__ __forceinline__ void copy_tile(int stage, int turn, int group) const {
    int turn_before = turn - kStagesA / kGroups, group_before = group - kStagesA % kGroups;
    if (group_before < 0) group_before += kGroups, --turn_before;
#pragma unroll 1
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (turn_before >= 0) {
        const int before = (2 * group_before + turn_before % 2) * kChunks + chunk;
        ptx::mbarrier_wait(empty_a_ + before, (unsigned)turn_before / 2 % 2);
      }
      copy_a({stage * kChunks + chunk, (2 * group + turn % 2) * kChunks + chunk, 0}, tile_of(turn, group), chunk);
    }
  }

  __device__ __forceinline__ void copy_a(const Piece& to, int tile, int chunk) const {
    // Past the last, it is read again.
    const long long from = tile < row_tiles_ ? tile : row_tiles_ - 1;
    ptx::mbarrier_arrive_expect(full_a_ + to.barrier, kPiece);
    ptx::bulk_copy(ring_a_ + to.at * kPiece, A_ + (from * kChunks + chunk) * kPiece, kPiece, full_a_ + to.barrier);
  }

  __device__ __forceinline__ void copy_b(const Place<kStagesB>& to, int column, int chunk) const {
    const int more = chunk == 0 ? kSlabB : 0;
    const long long from = column * (kChunks * (long long)kChunkB + kSlabB) + chunk * kChunkB + kSlabB - more;
    ptx::mbarrier_wait(empty_b_ + to.stage, to.parity ^ 1);
    ptx::mbarrier_arrive_expect(full_b_ + to.stage, kChunkB + more);
    ptx::bulk_copy(ring_b_ + to.stage * kStageB + kSlabB - more, B_ + from, kChunkB + more, full_b_ + to.stage);
  }

  __device__ __forceinline__ void multiply() const {
    // The same in all lanes, and the compiler may know it.
    const int group = simt::shuffle((int)threadIdx.x / 128, 0);
    Pieces a(group);
    Place<kStagesB> b;
    unsigned parity = group < kHalf;
    int column_tile = start_of(group);
    unsigned char* const constants = constants_ + (Epilogue::kLevels ? group * kSlabA : 0);
    typename Epilogue::Fetched fetched;
    epilogue_.fetch(fetched, first_row_of(0, group));
    let_pass(group, column_tile, b, parity);
    for (int turn = 0; turn < turns_; ++turn, a.next_turn()) {
      typename Epilogue::Rows rows;
      float levels[2];
      epilogue_.begin(rows, fetched, levels);
      if (Epilogue::kLevels) set_levels(constants, group, levels);
#pragma unroll 1
      for (int column = 0; column < column_tiles_; ++column) {
        float sums[kColumns / 8][4];
        const bool comes = !kStays || column == 0, goes = !kStays || column == column_tiles_ - 1;
        if (kInTurn) ptx::mbarrier_wait(turn_ + group, parity), parity ^= 1;
        int before_a = 0, before_b = 0;
#pragma unroll 1
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const Piece piece = a.of(turn, chunk);
          if (comes) ptx::mbarrier_wait(full_a_ + piece.barrier, piece.parity);
          ptx::mbarrier_wait(full_b_ + b.stage, b.parity);
          const auto of_a = ptx::matrix_at(ring_a_ + piece.at * kPiece);
          const auto of_b = ptx::matrix_at(ring_b_ + b.stage * kStageB);
          ptx::wgmma_fence(sums);
          if (chunk == 0) ptx::wgmma<true>(sums, ptx::matrix_at(constants), of_b);
#pragma unroll
          for (int slab = 0; slab < kSlabs; ++slab) {
            const auto after = ptx::matrix_after(of_b, (slab + 1) * kSlabB);
            ptx::wgmma<false>(sums, ptx::matrix_after(of_a, slab * kSlabA), after);
          }
          ptx::wgmma_commit();
          // The chunk before is done, and then the last.
          if (chunk > 0) {
            ptx::wgmma_wait<1>();
            give_back(before_a, before_b, goes);
          }
          before_a = piece.barrier, before_b = b.stage;
          a.next_chunk(), b.next();
        }
        ptx::wgmma_wait<0>(sums);
        if (kInTurn) hand_over(group);
        give_back(before_a, before_b, goes);
        epilogue_.take(rows, column_tile, sums);
        if (++column_tile == column_tiles_) column_tile = 0;
      }
      epilogue_.fetch(fetched, first_row_of(turn + 1, group));
      epilogue_.end(rows, first_row_of(turn, group));
    }
    let_pass(group, start_of(kGroups - 1) - start_of(group), b, parity);
  }

  // Numbers that the products of this thread's rows begin with, for the warpgroup to multiply.
  __device__ __forceinline__ void set_levels(unsigned char* constants, int group, const float (&levels)[2]) const {
    ptx::barrier_sync(1 + group, 128);  // what was there has been multiplied
    const int r = threadIdx.x % 4;
    if (r < 2) {
      ptx::Half parts[kParts];
      parts_of(r == 0 ? levels[0] : levels[1], parts);
      const int row = (int)threadIdx.x % 128 / 32 * 16 + (int)threadIdx.x % 32 / 4 + 8 * r;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        reinterpret_cast<ptx::Half*>(constants)[slab_offset(row, kParts + i, 1, kSlabRows)] = parts[i];
      }
    }
    ptx::async_fence();
    ptx::barrier_sync(1 + group, 128);
  }

  // Column tiles of which a warpgroup multiplies nothing.
  __device__ __forceinline__ void let_pass(int group, int steps, Place<kStagesB>& b, unsigned& parity) const {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (kInTurn) ptx::mbarrier_wait(turn_ + group, parity), parity ^= 1;
      for (int chunk = 0; chunk < kChunks; ++chunk, b.next()) {
        ptx::mbarrier_wait(full_b_ + b.stage, b.parity);
        give_back(0, b.stage, false);
      }
      if (kInTurn) hand_over(group);
    }
  }

  // Lets those who are next begin their products.
  __device__ __forceinline__ void hand_over(int group) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(turn_ + (group + kHalf) % kGroups);
  }

  __device__ __forceinline__ void give_back(int a, int b, bool goes) const {
    if (threadIdx.x % 32 != 0) return;
    ptx::mbarrier_arrive(empty_b_ + b);
    if (goes) ptx::mbarrier_arrive(empty_a_ + a);
  }

  // One half begins, as if the other had been before it; of an odd number, one after the other.
  static constexpr int kHalf = kGroups % 2 ? 1 : kGroups / 2;

  unsigned char *const ring_a_, *const ring_b_;
  ptx::Mbarrier *const full_a_, *const empty_a_, *const full_b_, *const empty_b_, *const turn_;
  const unsigned char *const A_, *const B_;
  unsigned char* const constants_;
  const Epilogue& epilogue_;
  const int row_tiles_, column_tiles_, turns_;
  const bool apart_;
};

// `row_tiles` and `column_tiles` are at least 1.
template <int kColumns, int kSlabs, int kChunks, int kGroups, int kStagesA, int kStagesB, bool kStays, typename Epilogue>
__global__ void __launch_bounds__(128 * kGroups + 128, 1)
    streamed_columns(const ptx::Half* A, const ptx::Half* B, int row_tiles, int column_tiles, const Epilogue epilogue) {
  if (epilogue.idle()) return;
  using Kernel = StreamedColumns<kColumns, kSlabs, kChunks, kGroups, kStagesA, kStagesB, kStays, Epilogue>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Kernel(shared, A, B, row_tiles, column_tiles, epilogue).run();
}

}  // namespace tsm2
