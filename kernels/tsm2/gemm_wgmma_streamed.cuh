// Streamed GEMM by wgmma on Hopper (sm_90a): S (m × n) = A (m × k) · Bᵀ (k × n) + bias (a number per column), float16
// with float32 accumulators. S is never stored: an epilogue consumes it from registers, one column tile at a time. For
// an n so large that the tensor cores are the limit. The bias is the first panel of B (core_matrix_layout.cuh), and
// sums start with it.
//
//               k                     n            A and B are stored in panels (core_matrix_layout.cuh). kGroups
//          ┌─────────┐         ┌────┬────┬────┐    warpgroups hold 64 rows of A each, a *row tile*. All of B streams by
//  64 · kG │  stays  │   ×   k │    │ →  │ →  │    again and again: kColumns columns (a *column tile*) in *chunks* of
//          └─────────┘         └────┴────┴────┘    kPanels panels, which all warpgroups multiply.
//                               streams by, kColumns
//
// One more warpgroup copies (streamed_pipeline.cuh). If A stays (kStays), warpgroups start their rows at different
// column tiles, so that they do not all end at the same time.
//
// Why it is fast: half of the warpgroups run their epilogue of a column tile while the tensor cores work for the other
// half. The halves alternate explicitly, because the hardware interleaves products in flight: without turns, all would
// end together and then all run their epilogues. A slow epilogue needs more warpgroups; registers allow four.
//
// Products read 6 KB of shared memory per 64 clocks of the tensor cores, where 8 KB is the peak. Other reads of shared
// memory must be few, so even the bias comes in by the products. Many rows per block reduce level-2 reads, which are n
// · k per block's rows. If A streams too, multiplying more columns at a time reduces its reads.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/tsm2/streamed_pipeline.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/ptx/warp_specialization.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace tsm2 {

// An Epilogue defines `Rows`, the state of a thread for its rows; `Fetched`, data of these rows that it loads in
// advance; and:
//
//   idle()                               whether the launch has nothing to do
//   open(), close()                      before and after everything else, with a barrier of the block in between
//   fetch(Fetched&, row)                 loads data of the rows from `row` on, ahead of their turn; rows may not exist
//   begin(Rows&, Fetched, levels)        before the first columns of these rows; if kLevels, it sets the numbers to add
//                                        to all sums of this thread's two rows
//   take(Rows&, column tile, sums)       consumes kColumns columns: the fragments (ptx/mma.cuh) of a warp's 16 rows
//   end(Rows&, row)                      after the last columns
//
// All threads of a consumer warp call the last four; all threads of the block call open and close. Column tiles come in
// order, starting at any and wrapping around. The template constants are those of streamed_pipeline.cuh.
template <int kColumns, int kPanels, int kChunks, int kGroups, int kStagesA, int kStagesB, bool kStays,
          typename Epilogue>
class GemmWgmmaStreamed {
  using Pipelines =
      StreamedPipelines<kColumns, kPanels, kChunks, kGroups, kStagesA, kStagesB, kStays, Epilogue::kLevels>;
  using PlaceOfB = typename Pipelines::template Place<kStagesB>;

 public:
  static constexpr int kConsumers = Pipelines::kConsumers, kThreads = Pipelines::kThreads,
                       kSharedBytes = Pipelines::kSharedBytes;
  // Registers per thread: at launch, of the copying warpgroup, and of the consumers, which take the rest.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8, kProducerRegisters = 40;
  static constexpr int kConsumerRegisters =
      (kLaunchRegisters * kThreads - kProducerRegisters * 128) / kConsumers / 8 * 8;
  // Whether the halves take turns: a warpgroup ahead of the others must hold all chunks of a column tile.
  static constexpr bool kTakesTurns = kStays && kChunks <= kStagesB;

  // A has `row_tiles` tiles, B has `column_tiles`.
  __device__ GemmWgmmaStreamed(unsigned char* shared, const ptx::Half* A, const ptx::Half* B, int row_tiles,
                               int column_tiles, const Epilogue& epilogue)
      : pipelines_(shared, A, B, row_tiles, column_tiles), epilogue_(epilogue) {}

  __device__ __forceinline__ void run() const {
    pipelines_.set_up();
    epilogue_.open();
    __syncthreads();
    if (threadIdx.x >= kConsumers) {
      ptx::fewer_registers<kProducerRegisters>();
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
    // A shuffle tells the compiler that all lanes have the same value.
    const int group = simt::shuffle((int)threadIdx.x / 128, 0);
    typename Pipelines::Pieces a(group);
    PlaceOfB b;
    unsigned parity = group < kHalf;
    int column_tile = pipelines_.start_of(group);
    unsigned char* const constants = pipelines_.constants + (Epilogue::kLevels ? group * Pipelines::kPanelA : 0);
    typename Epilogue::Fetched fetched;
    epilogue_.fetch(fetched, first_row_of(0, group));
    skip_column_tiles(group, column_tile, b, parity);
    for (int turn = 0; turn < pipelines_.turns; ++turn, a.next_turn()) {
      typename Epilogue::Rows rows;
      float levels[2];
      epilogue_.begin(rows, fetched, levels);
      if (Epilogue::kLevels) set_levels(constants, group, levels);
#pragma unroll 1
      for (int column = 0; column < pipelines_.column_tiles; ++column) {
        float sums[kColumns / 8][4];
        const bool comes = !kStays || column == 0, goes = !kStays || column == pipelines_.column_tiles - 1;
        if (kTakesTurns) ptx::mbarrier_wait(pipelines_.may_begin + group, parity), parity ^= 1;
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
          // Wait for the previous chunk, and release its stages.
          if (chunk > 0) {
            ptx::wgmma_wait<1>();
            release_stages(before_a, before_b, goes);
          }
          before_a = piece.barrier, before_b = b.stage;
          a.next_chunk(), b.next();
        }
        ptx::wgmma_wait<0>(sums);
        if (kTakesTurns) pass_turn(group);
        release_stages(before_a, before_b, goes);
        epilogue_.take(rows, column_tile, sums);
        if (++column_tile == pipelines_.column_tiles) column_tile = 0;
      }
      epilogue_.fetch(fetched, first_row_of(turn + 1, group));
      epilogue_.end(rows, first_row_of(turn, group));
    }
    skip_column_tiles(group, pipelines_.start_of(kGroups - 1) - pipelines_.start_of(group), b, parity);
  }

  // Stores the numbers that the epilogue adds to this thread's rows, split into parts, for the warpgroup to multiply.
  __device__ __forceinline__ void set_levels(unsigned char* constants, int group, const float (&levels)[2]) const {
    ptx::barrier_sync(1 + group, 128);  // the previous content has been multiplied
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

  // Skips column tiles: takes part in their synchronization without multiplying.
  __device__ __forceinline__ void skip_column_tiles(int group, int steps, PlaceOfB& b, unsigned& parity) const {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (kTakesTurns) ptx::mbarrier_wait(pipelines_.may_begin + group, parity), parity ^= 1;
      for (int chunk = 0; chunk < kChunks; ++chunk, b.next()) {
        ptx::mbarrier_wait(pipelines_.full_b + b.stage, b.parity);
        release_stages(0, b.stage, false);
      }
      if (kTakesTurns) pass_turn(group);
      simt::sync_warp();  // as products do, so that no lane misses a phase
    }
  }

  // Lets the warpgroup of the other half begin its products.
  __device__ __forceinline__ void pass_turn(int group) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(pipelines_.may_begin + (group + kHalf) % kGroups);
  }

  __device__ __forceinline__ void release_stages(int a, int b, bool goes) const {
    if (threadIdx.x % 32 != 0) return;
    ptx::mbarrier_arrive(pipelines_.empty_b + b);
    if (goes) ptx::mbarrier_arrive(pipelines_.empty_a + a);
  }

  // Warpgroup g passes the turn to g + kHalf, and the first kHalf warpgroups start. With an even number two halves
  // alternate; with an odd number one warpgroup follows another.
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
