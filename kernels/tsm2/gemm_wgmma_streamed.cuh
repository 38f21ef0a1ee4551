// Streamed GEMM by wgmma on Hopper (sm_90a): S (m × n) = A (m × k) · Bᵀ (k × n) + bias (a number per column), float16
// with float32 accumulators. S is never stored: an epilogue consumes it from registers, one column tile at a time. This
// kernel is for an n so large that the tensor cores limit the speed. The first panel of B holds the bias
// (core_matrix_layout.cuh); all sums begin with it.
//
//               k                     n            A and B are stored in panels (core_matrix_layout.cuh). In a *turn*,
//          ┌─────────┐         ┌────┬────┬────┐    each of kG = kGroups warpgroups multiplies 64 rows of A, a *row
//  64 · kG │ row tile│   ×   k │    │ →  │ →  │    tile*, by all of B. B is copied once per turn: in *column tiles* of
//          └─────────┘         └────┴────┴────┘    kColumns columns, and these in *chunks* of kPanels panels, which
//                           B: copied every turn   all warpgroups multiply.
//
// One more warpgroup issues the copies (streamed_pipeline.cuh). If the row tiles fit in shared memory, they are copied
// once per turn and remain there for the whole turn (kStays). Warpgroups then begin their row tiles at different column
// tiles, so that they do not all end at the same time.
//
// Why it is fast: some warpgroups run their epilogue of a column tile while the tensor cores work for the others. A
// slow epilogue needs more warpgroups; the registers suffice for at most four.
//
// The products read 6 KB of shared memory per 64 clocks of the tensor cores; the peak is 8 KB. Other reads of shared
// memory must be few, so the tensor cores add even the bias. A block reads all n · k elements of B from the level-2
// cache in every turn; more rows per turn reduce these reads. Without kStays, A is read again for every column tile;
// wider column tiles reduce these reads.
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
//   idle()                               returns true if the launch has nothing to do
//   open(), close()                      are called first and last; a barrier of the block follows open and precedes
//                                        close
//   fetch(Fetched&, row, product)        loads data of the row tile that begins at `row`, ahead of its turn; the row
//                                        tile may lie beyond the end of A, or not be multiplied at all
//   begin(Rows&, Fetched, levels)        is called before the first column tile of a row tile; if kLevels, it sets
//                                        levels[i], which is added to all sums of row i of this thread's two rows
//   take(Rows&, column tile, sums)       consumes a column tile: the fragments (ptx/mma.cuh) of a warp's 16 rows
//   end(Rows&, row)                      is called after the last column tile of the row tile that begins at `row`
//
// All threads of a consumer warp call fetch, begin, take and end; all threads of the block call open and close. The
// column tiles of a row tile come in increasing order, begin with any tile, and continue with tile 0 after the last.
// The template constants are those of streamed_pipeline.cuh.
template <int kColumns, int kPanels, int kChunks, int kGroups, int kStagesA, int kStagesB, bool kStays,
          typename Products, typename Epilogue>
class GemmWgmmaStreamed {
  using Pipelines =
      StreamedPipelines<kColumns, kPanels, kChunks, kGroups, kStagesA, kStagesB, kStays, Epilogue::kLevels, Products>;
  using PlaceOfB = typename Pipelines::template Place<kStagesB>;

 public:
  static constexpr int kConsumers = Pipelines::kConsumers, kThreads = Pipelines::kThreads,
                       kSharedBytes = Pipelines::kSharedBytes;
  // Registers per thread: at launch, of the copying warpgroup, and of the consumers, which get all other registers.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8, kProducerRegisters = 40;
  static constexpr int kConsumerRegisters =
      (kLaunchRegisters * kThreads - kProducerRegisters * 128) / kConsumers / 8 * 8;

  // B has `column_tiles` column tiles.
  __device__ GemmWgmmaStreamed(unsigned char* shared, const ptx::Half* A, const ptx::Half* B, const Products& products,
                               int column_tiles, const Epilogue& epilogue)
      : pipelines_(shared, A, B, products, column_tiles), epilogue_(epilogue) {}

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
  __device__ __forceinline__ void multiply() const {
    // A shuffle tells the compiler that all lanes have the same value.
    const int group = simt::shuffle((int)threadIdx.x / 128, 0);
    typename Pipelines::Pieces a(group);
    PlaceOfB b;
    int column_tile = pipelines_.start_of(group);
    unsigned char* const constants = pipelines_.constants + (Epilogue::kLevels ? group * Pipelines::kPanelA : 0);
    typename Epilogue::Fetched fetched;
    auto at = pipelines_.first_turn;
    const auto row = [&] { return (long long)at.row_tile(group) * kPanelRows; };
    epilogue_.fetch(fetched, row(), at.product());
    skip_column_tiles(column_tile, b);
    for (int turn = 0; turn < pipelines_.turns; ++turn, a.next_turn()) {
      typename Epilogue::Rows rows;
      float levels[2];
      epilogue_.begin(rows, fetched, levels);
      if (Epilogue::kLevels) set_levels(constants, group, levels);
#pragma unroll 1
      for (int column = 0; column < pipelines_.column_tiles; ++column) {
        float sums[kColumns / 8][4];
        const bool comes = !kStays || column == 0, goes = !kStays || column == pipelines_.column_tiles - 1;
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
          // Wait for the products of the previous chunk, and release its stages.
          if (chunk > 0) {
            ptx::wgmma_wait<1>();
            release_stages(before_a, before_b, goes);
          }
          before_a = piece.barrier, before_b = b.stage;
          a.next_chunk(), b.next();
        }
        ptx::wgmma_wait<0>(sums);
        release_stages(before_a, before_b, goes);
        epilogue_.take(rows, column_tile, sums);
        if (++column_tile == pipelines_.column_tiles) column_tile = 0;
      }
      const long long ended = row();
      at.next();
      epilogue_.fetch(fetched, row(), at.product());
      epilogue_.end(rows, ended);
    }
    skip_column_tiles(pipelines_.start_of(kGroups - 1) - pipelines_.start_of(group), b);
  }

  // `levels` are the numbers that the epilogue adds to the sums of this thread's two rows. Splits them into parts, and
  // stores the parts in the warpgroup's panel that multiplies the first panel of B.
  __device__ __forceinline__ void set_levels(unsigned char* constants, int group, const float (&levels)[2]) const {
    ptx::barrier_sync(1 + group, 128);  // all products with the previous content are complete
    const int r = threadIdx.x % 4;
    if (r < 2) {
      ptx::Half parts[kParts];
      parts_of(r == 0 ? levels[0] : levels[1], parts);
      const unsigned row = fragment_row(0, r);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        reinterpret_cast<ptx::Half*>(constants)[panel_offset(row, kParts + i, 1, kPanelRows)] = parts[i];
      }
    }
    ptx::async_fence();
    ptx::barrier_sync(1 + group, 128);
  }

  // Skips `steps` column tiles: takes part in their synchronization without multiplying.
  __device__ __forceinline__ void skip_column_tiles(int steps, PlaceOfB& b) const {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      for (int chunk = 0; chunk < kChunks; ++chunk, b.next()) {
        ptx::mbarrier_wait(pipelines_.full_b + b.stage, b.parity);
        release_stages(0, b.stage, false);
      }
      simt::sync_warp();  // as after products: lanes that run ahead could miss a phase
    }
  }

  __device__ __forceinline__ void release_stages(int a, int b, bool goes) const {
    if (threadIdx.x % 32 != 0) return;
    ptx::mbarrier_arrive(pipelines_.empty_b + b);
    if (goes) ptx::mbarrier_arrive(pipelines_.empty_a + a);
  }

  const Pipelines pipelines_;
  const Epilogue& epilogue_;
};

// `column_tiles` is at least 1.
template <int kColumns, int kPanels, int kChunks, int kGroups, int kStagesA, int kStagesB, bool kStays,
          typename Products, typename Epilogue>
__global__ void __launch_bounds__(128 * kGroups + 128, 1)
    gemm_wgmma_streamed(const ptx::Half* A, const ptx::Half* B, const Products products, int column_tiles,
                        const Epilogue epilogue) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (epilogue.idle()) return;
  using Kernel = GemmWgmmaStreamed<kColumns, kPanels, kChunks, kGroups, kStagesA, kStagesB, kStays, Products, Epilogue>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Kernel(shared, A, B, products, column_tiles, epilogue).run();
}

}  // namespace tsm2
