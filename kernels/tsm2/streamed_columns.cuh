// S (m × n) = A (m × k) · Bᵀ (k × n) + a row of n numbers, in float16 with float32 sums, never stored: an epilogue takes
// it out of the registers, 128 columns after 128 columns. Hopper (sm_90a). For an n so large that the tensor cores are the
// limit. The row of numbers is the first slab of B (slabs.cuh), by which sums begin.
//
//               k                     n            A and B lie in slabs (slabs.cuh). A block has 64 · kGroups rows of A
//          ┌─────────┐         ┌────┬────┬────┐    in shared memory while all of B streams by: in *chunks* of kSlabs
//  64 · kG │  stays  │   ×   k │    │ →  │ →  │    slabs, which kGroups warpgroups multiply, 64 rows each.
//          └─────────┘         └────┴────┴────┘
//                               streams by, 128
//
// One more warpgroup copies, by one thread, into a ring of A and one of B; mbarriers say what is there and what is free. If
// the ring of A has no room for a block's rows, A streams by too, once for every 128 columns.
//
// Why it is fast: while one half of the warpgroups have their epilogues of 128 columns, the tensor cores work for the other
// half. They take turns, as products that are begun are worked on together: else all would end at a time, and then all
// have their epilogues. The slower the epilogue beside the products, the more warpgroups that takes; registers allow four.
// Products read 6 KB of shared memory for 64 clocks of the tensor cores, of 8 KB that could be read: what more is read by
// the multiprocessor has to be little, so that even the row of numbers comes with the products. Many rows a block keep down
// what is read of the level-2 cache, n · k for each block's rows.
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
//   fetch(Fetched&, row)                 as soon as the rows from `row` on are begun; they may be past the last
//   begin(Rows&, Fetched)                before the first columns of these rows are taken
//   take(Rows&, column tile, sums)       128 columns: the fragments (ptx.cuh) of 16 rows, a warp's
//   end(Rows&, row)                      after the last
//
// All threads of a multiplying warp take part in the last four, and all of the block in open and close.
template <int kSlabs, int kGroups, int kStagesA, int kStagesB, typename Epilogue>
class StreamedColumns {
 public:
  static constexpr int kMultipliers = 128 * kGroups, kThreads = kMultipliers + 128;
  // Registers of a thread: as all begin with; of those who copy; and of the others, who get the rest.
  static constexpr int kEqual = 65536 / kThreads / 8 * 8, kCopying = 40;
  static constexpr int kMultiplying = (kEqual * kThreads - kCopying * 128) / kMultipliers / 8 * 8;
  static constexpr int kSlabA = kSlabRows / 8 * kSlabGroup, kSlabB = kSlabColumns / 8 * kSlabGroup;
  static constexpr int kChunkA = kSlabs * kSlabA, kStageA = kGroups * kChunkA, kChunkB = kSlabs * kSlabB;
  // A stage has room for B's first slab too.
  static constexpr int kStageB = kSlabB + kChunkB, kRings = kStagesA * kStageA + kStagesB * kStageB;
  // And the slab of A that multiplies it.
  static constexpr int kRing = kRings + kSlabA;
  static constexpr int kBarriers = 2 * (kStagesA + kStagesB) + kGroups;
  static constexpr int kSharedBytes = kRing + kBarriers * (int)sizeof(ptx::Mbarrier);
  static_assert(kStagesB >= 2, "a chunk is multiplied while the next is copied");

  // A has `row_tiles` tiles, B `column_tiles`; both have kSlabs · `chunks` slabs, B one more.
  __device__ StreamedColumns(unsigned char* shared, const ptx::Half* A, const ptx::Half* B, int row_tiles,
                             int column_tiles, int chunks, const Epilogue& epilogue)
      : ring_a_(shared), ring_b_(shared + kStagesA * kStageA),
        full_a_(reinterpret_cast<ptx::Mbarrier*>(shared + kRing)), empty_a_(full_a_ + kStagesA),
        full_b_(empty_a_ + kStagesA), empty_b_(full_b_ + kStagesB), turn_(empty_b_ + kStagesB),
        A_(reinterpret_cast<const unsigned char*>(A)), B_(reinterpret_cast<const unsigned char*>(B)),
        constants_(shared + kRings), epilogue_(epilogue), row_tiles_(row_tiles), column_tiles_(column_tiles),
        chunks_(chunks), turns_((row_tiles - (int)blockIdx.x * kGroups + (int)gridDim.x * kGroups - 1) / ((int)gridDim.x * kGroups)),
        stays_(chunks <= kStagesA), in_turn_(chunks <= kStagesA && chunks <= kStagesB) {}

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStagesA; ++i) {
        ptx::mbarrier_init(full_a_ + i, 1);
        ptx::mbarrier_init(empty_a_ + i, kMultipliers / 32);
      }
      for (int i = 0; i < kStagesB; ++i) {
        ptx::mbarrier_init(full_b_ + i, 1);
        ptx::mbarrier_init(empty_b_ + i, kMultipliers / 32);
      }
      for (int i = 0; i < kGroups; ++i) ptx::mbarrier_init(turn_ + i, 4);
      ptx::mbarrier_init_fence();
    }
    auto* constants = reinterpret_cast<ptx::Half*>(constants_);
    for (int i = threadIdx.x; i < kSlabRows * kSlabDepth; i += kThreads) {
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

  // The first of this block's tiles in a turn.
  __device__ __forceinline__ int tile_of(int turn) const { return (turn * (int)gridDim.x + (int)blockIdx.x) * kGroups; }

  __device__ __forceinline__ void copy() const {
    Place<kStagesA> a;
    Place<kStagesB> b;
    for (int turn = 0; turn < turns_; ++turn) {
#pragma unroll 1
      for (int column = 0; column < column_tiles_; ++column) {
#pragma unroll 1
        for (int chunk = 0; chunk < chunks_; ++chunk) {
          if (column == 0 || !stays_) {
            copy_a(a, tile_of(turn), chunk);
            a.next();
          }
          copy_b(b, column, chunk);
          b.next();
        }
      }
    }
  }

  __device__ __forceinline__ void copy_a(const Place<kStagesA>& to, int tile, int chunk) const {
    ptx::mbarrier_wait(empty_a_ + to.stage, to.parity ^ 1);
    ptx::mbarrier_arrive_expect(full_a_ + to.stage, kStageA);
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      // Past the last, it is read again.
      const long long from = tile + group < row_tiles_ ? tile + group : row_tiles_ - 1;
      unsigned char* stage = ring_a_ + to.stage * kStageA + group * kChunkA;
      ptx::bulk_copy(stage, A_ + (from * chunks_ + chunk) * kChunkA, kChunkA, full_a_ + to.stage);
    }
  }

  __device__ __forceinline__ void copy_b(const Place<kStagesB>& to, int column, int chunk) const {
    const int more = chunk == 0 ? kSlabB : 0;
    const long long from = column * (chunks_ * (long long)kChunkB + kSlabB) + chunk * kChunkB + kSlabB - more;
    ptx::mbarrier_wait(empty_b_ + to.stage, to.parity ^ 1);
    ptx::mbarrier_arrive_expect(full_b_ + to.stage, kChunkB + more);
    ptx::bulk_copy(ring_b_ + to.stage * kStageB + kSlabB - more, B_ + from, kChunkB + more, full_b_ + to.stage);
  }

  __device__ __forceinline__ void multiply() const {
    // The same in all lanes, and the compiler may know it.
    const int group = simt::shuffle((int)threadIdx.x / 128, 0);
    Place<kStagesA> a;
    Place<kStagesB> b;
    // One half begins, as if the other had been before it; of an odd number, one after the other.
    constexpr int kHalf = kGroups % 2 ? 1 : kGroups / 2;
    unsigned parity = group < kHalf;
    for (int turn = 0; turn < turns_; ++turn) {
      const long long row = (long long)(tile_of(turn) + group) * kSlabRows;
      typename Epilogue::Fetched fetched;
      typename Epilogue::Rows rows;
      epilogue_.fetch(fetched, row);
      const Place<kStagesA> first = a;
#pragma unroll 1
      for (int column = 0; column < column_tiles_; ++column) {
        float sums[16][4];
        if (stays_) a = first;
        const bool comes = column == 0 || !stays_, goes = column == column_tiles_ - 1 || !stays_;
        // A warpgroup ahead of the others holds all chunks of a tile.
        if (in_turn_) ptx::mbarrier_wait(turn_ + group, parity), parity ^= 1;
        for (int chunk = 0; chunk < chunks_; ++chunk) {
          if (comes) ptx::mbarrier_wait(full_a_ + a.stage, a.parity);
          ptx::mbarrier_wait(full_b_ + b.stage, b.parity);
          const auto of_a = ptx::matrix_at(ring_a_ + a.stage * kStageA + group * kChunkA);
          const auto of_b = ptx::matrix_at(ring_b_ + b.stage * kStageB);
          ptx::wgmma_fence(sums);
          if (chunk == 0) ptx::wgmma<true>(sums, ptx::matrix_at(constants_), of_b);
#pragma unroll
          for (int slab = 0; slab < kSlabs; ++slab) {
            const auto after = ptx::matrix_after(of_b, (slab + 1) * kSlabB);
            ptx::wgmma<false>(sums, ptx::matrix_after(of_a, slab * kSlabA), after);
          }
          ptx::wgmma_commit();
          // The chunk before is done, and then the last.
          if (chunk > 0) {
            ptx::wgmma_wait<1>();
            give_back(a.stage == 0 ? kStagesA - 1 : a.stage - 1, b.stage == 0 ? kStagesB - 1 : b.stage - 1, goes);
          }
          if (chunk + 1 < chunks_) a.next(), b.next();
        }
        ptx::wgmma_wait<0>(sums);
        if (in_turn_ && threadIdx.x % 32 == 0) ptx::mbarrier_arrive(turn_ + (group + kHalf) % kGroups);
        give_back(a.stage, b.stage, goes);
        a.next(), b.next();
        if (column == 0) epilogue_.begin(rows, fetched);
        epilogue_.take(rows, column, sums);
      }
      epilogue_.end(rows, row);
    }
  }

  __device__ __forceinline__ void give_back(int a, int b, bool goes) const {
    if (threadIdx.x % 32 != 0) return;
    ptx::mbarrier_arrive(empty_b_ + b);
    if (goes) ptx::mbarrier_arrive(empty_a_ + a);
  }

  unsigned char *const ring_a_, *const ring_b_;
  ptx::Mbarrier *const full_a_, *const empty_a_, *const full_b_, *const empty_b_, *const turn_;
  const unsigned char *const A_, *const B_;
  unsigned char* const constants_;
  const Epilogue& epilogue_;
  const int row_tiles_, column_tiles_, chunks_, turns_;
  const bool stays_, in_turn_;
};

// `row_tiles` and `column_tiles` are at least 1.
template <int kSlabs, int kGroups, int kStagesA, int kStagesB, typename Epilogue>
__global__ void __launch_bounds__(128 * kGroups + 128, 1)
    streamed_columns(const ptx::Half* A, const ptx::Half* B, int row_tiles, int column_tiles, int chunks,
                     const Epilogue epilogue) {
  if (epilogue.idle()) return;
  using Kernel = StreamedColumns<kSlabs, kGroups, kStagesA, kStagesB, Epilogue>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Kernel(shared, A, B, row_tiles, column_tiles, chunks, epilogue).run();
}

}  // namespace tsm2
