// S (m × n) = A (m × k) · Bᵀ (k × n) + a row of n numbers, in float16 with float32 sums, never stored: an epilogue
// takes it out of the registers, some columns after the other. Hopper (sm_90a). For an n so large that the tensor cores
// are the limit. The row of numbers is the first panel of B (core_matrix_layout.cuh), by which sums begin.
//
//               k                     n            A and B lie in panels (core_matrix_layout.cuh). kGroups warpgroups
//                                     have 64 rows of A
//          ┌─────────┐         ┌────┬────┬────┐    each, a *tile*, while all of B streams by, over and over: kColumns columns,
//  64 · kG │  stays  │   ×   k │    │ →  │ →  │    in *chunks* of kPanels panels, which all warpgroups multiply.
//          └─────────┘         └────┴────┴────┘
//                               streams by, kColumns
//
// One more warpgroup copies (streamed_pipeline.cuh). Where A stays, a warpgroup begins with its rows where B has gone
// on by a part, so that not all end at a time.
//
// Why it is fast: while one half of the warpgroups have their epilogues of a column tile, the tensor cores work for the
// other half. They take turns, as products that are begun are worked on together: else all would end at a time, and
// then all have their epilogues. The slower the epilogue beside the products, the more warpgroups that takes; registers
// allow four. Products read 6 KB of shared memory for 64 clocks of the tensor cores, of 8 KB that could be read: what
// more is read by the multiprocessor has to be little, so that even the row of numbers comes with the products. Many
// rows a block keep down what is read of the level-2 cache, n · k for each block's rows; where A streams by, it is the
// less the more columns are multiplied at a time.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/tsm2/streamed_pipeline.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/ptx/warp_specialization.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace tsm2 {

// An Epilogue has what a thread keeps of its rows, `Rows`, what it reads of them beforehand, `Fetched`, and
//
//   idle()                               whether there is nothing to do at all
//   open(), close()                      before and after all else, with a barrier of the block between
//   fetch(Fetched&, row)                 some time before rows from `row` on are begun; they may be past the last
//   begin(Rows&, Fetched, levels)        before the first columns of these rows are multiplied; if kLevels, what is
//                                        added to
//                                        all sums of this thread's two rows
//   take(Rows&, column tile, sums)       kColumns columns: the fragments (ptx/mma.cuh) of 16 rows, a warp's
//   end(Rows&, row)                      after the last
//
// All threads of a multiplying warp take part in the last four, and all of the block in open and close. Column tiles
// come in turn, from any on. The numbers are those of streamed_pipeline.cuh.
template <int kColumns, int kPanels, int kChunks, int kGroups, int kStagesA, int kStagesB, bool kStays,
          typename Epilogue>
class GemmWgmmaStreamed {
  using Pipelines =
      StreamedPipelines<kColumns, kPanels, kChunks, kGroups, kStagesA, kStagesB, kStays, Epilogue::kLevels>;
  using PlaceOfB = typename Pipelines::template Place<kStagesB>;

 public:
  static constexpr int kConsumers = Pipelines::kConsumers, kThreads = Pipelines::kThreads,
                       kSharedBytes = Pipelines::kSharedBytes;
  // Registers of a thread: as all begin with; of those who copy; and of the others, who get the rest.
  static constexpr int kEqual = 65536 / kThreads / 8 * 8, kCopying = 40;
  static constexpr int kConsumerRegisters = (kEqual * kThreads - kCopying * 128) / kConsumers / 8 * 8;
  // A warpgroup ahead of the others holds all chunks of a column tile.
  static constexpr bool kInTurn = kStays && kChunks <= kStagesB;

  // A has `row_tiles` tiles, B `column_tiles`.
  __device__ GemmWgmmaStreamed(unsigned char* shared, const ptx::Half* A, const ptx::Half* B, int row_tiles,
                               int column_tiles, const Epilogue& epilogue)
      : pipelines_(shared, A, B, row_tiles, column_tiles), epilogue_(epilogue) {}

  __device__ __forceinline__ void run() const {
    pipelines_.set_up();
    epilogue_.open();
    __syncthreads();
    if (threadIdx.x >= kConsumers) {
      ptx::fewer_registers<kCopying>();
      if (threadIdx.x == kConsumers) pipelines_.copy();
    } else {
      ptx::more_registers<kConsumerRegisters>();
      multiply();
    }
    __syncthreads();
    epilogue_.close();
  }

 private:
  __device__ __forceinline__ long long first_row_of(int turn, int group) const {
    return (long long)pipelines_.tile_of(turn, group) * kPanelRows;
  }

  __device__ __forceinline__ void multiply() const {
    // The same in all lanes, and the compiler may know it.
    const int group = simt::shuffle((int)threadIdx.x / 128, 0);
    typename Pipelines::Pieces a(group);
    PlaceOfB b;
    unsigned parity = group < kHalf;
    int column_tile = pipelines_.start_of(group);
    unsigned char* const constants = pipelines_.constants + (Epilogue::kLevels ? group * Pipelines::kPanelA : 0);
    typename Epilogue::Fetched fetched;
    epilogue_.fetch(fetched, first_row_of(0, group));
    let_pass(group, column_tile, b, parity);
    for (int turn = 0; turn < pipelines_.turns; ++turn, a.next_turn()) {
      typename Epilogue::Rows rows;
      float levels[2];
      epilogue_.begin(rows, fetched, levels);
      if (Epilogue::kLevels) set_levels(constants, group, levels);
#pragma unroll 1
      for (int column = 0; column < pipelines_.column_tiles; ++column) {
        float sums[kColumns / 8][4];
        const bool comes = !kStays || column == 0, goes = !kStays || column == pipelines_.column_tiles - 1;
        if (kInTurn) ptx::mbarrier_wait(pipelines_.may_begin + group, parity), parity ^= 1;
        int before_a = 0, before_b = 0;
#pragma unroll 1
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const typename Pipelines::Piece piece = a.of(turn, chunk);
          if (comes) ptx::mbarrier_wait(pipelines_.full_a + piece.barrier, piece.parity);
          ptx::mbarrier_wait(pipelines_.full_b + b.stage, b.parity);
          const auto of_a = ptx::matrix_at(pipelines_.buffer_a + piece.at * Pipelines::kPiece);
          const auto of_b = ptx::matrix_at(pipelines_.buffer_b + b.stage * Pipelines::kStageB);
          ptx::wgmma_fence(sums);
          if (chunk == 0) ptx::wgmma<true>(sums, ptx::matrix_at(constants), of_b);
#pragma unroll
          for (int panel = 0; panel < kPanels; ++panel) {
            const auto after = ptx::matrix_after(of_b, (panel + 1) * Pipelines::kPanelB);
            ptx::wgmma<false>(sums, ptx::matrix_after(of_a, panel * Pipelines::kPanelA), after);
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
        if (kInTurn) stage_epilogue(group);
        give_back(before_a, before_b, goes);
        epilogue_.take(rows, column_tile, sums);
        if (++column_tile == pipelines_.column_tiles) column_tile = 0;
      }
      epilogue_.fetch(fetched, first_row_of(turn + 1, group));
      epilogue_.end(rows, first_row_of(turn, group));
    }
    let_pass(group, pipelines_.start_of(kGroups - 1) - pipelines_.start_of(group), b, parity);
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
        reinterpret_cast<ptx::Half*>(constants)[panel_offset(row, kParts + i, 1, kPanelRows)] = parts[i];
      }
    }
    ptx::async_fence();
    ptx::barrier_sync(1 + group, 128);
  }

  // Column tiles of which a warpgroup multiplies nothing.
  __device__ __forceinline__ void let_pass(int group, int steps, PlaceOfB& b, unsigned& parity) const {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (kInTurn) ptx::mbarrier_wait(pipelines_.may_begin + group, parity), parity ^= 1;
      for (int chunk = 0; chunk < kChunks; ++chunk, b.next()) {
        ptx::mbarrier_wait(pipelines_.full_b + b.stage, b.parity);
        give_back(0, b.stage, false);
      }
      if (kInTurn) stage_epilogue(group);
      simt::sync_warp();  // as products do, for no lane to miss a phase
    }
  }

  // Lets those who are next begin their products.
  __device__ __forceinline__ void stage_epilogue(int group) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(pipelines_.may_begin + (group + kHalf) % kGroups);
  }

  __device__ __forceinline__ void give_back(int a, int b, bool goes) const {
    if (threadIdx.x % 32 != 0) return;
    ptx::mbarrier_arrive(pipelines_.empty_b + b);
    if (goes) ptx::mbarrier_arrive(pipelines_.empty_a + a);
  }

  // One half begins, as if the other had been before it; of an odd number, one after the other.
  static constexpr int kHalf = kGroups % 2 ? 1 : kGroups / 2;

  const Pipelines pipelines_;
  const Epilogue& epilogue_;
};

// `row_tiles` and `column_tiles` are at least 1.
template <int kColumns, int kPanels, int kChunks, int kGroups, int kStagesA, int kStagesB, bool kStays,
          typename Epilogue>
__global__ void __launch_bounds__(128 * kGroups + 128, 1)
    gemm_wgmma_streamed(const ptx::Half* A, const ptx::Half* B, int row_tiles, int column_tiles,
                        const Epilogue epilogue) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (epilogue.idle()) return;
  using Kernel = GemmWgmmaStreamed<kColumns, kPanels, kChunks, kGroups, kStagesA, kStagesB, kStays, Epilogue>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Kernel(shared, A, B, row_tiles, column_tiles, epilogue).run();
}

}  // namespace tsm2
