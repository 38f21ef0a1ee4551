// GEMM by wgmma on Hopper (sm_90a) for short rows: S (m × n) = A (m × k) · Bᵀ (k × n), float16 with float32
// accumulators. B stays in shared memory; A is made in registers from rows of any type. S is never stored: an epilogue
// consumes it from registers, one column tile at a time.
//
//               k             n              A warpgroup multiplies 64 rows, a *row tile*, by all *column tiles* of
//          ┌─────────┐     ┌────┬────┬───    kColumns columns. B is stored in panels (core_matrix_layout.cuh), with
//      64  │ row tile│  ×  │  0 │  1 │  k    kColumns rows per tile. Row tiles are distributed over all warpgroups in
//          └─────────┘     └────┴────┴───    rotation.
//          in registers    in shared memory
//
// Why it is fast: rows are read once, ahead of their use, and need no copy in float16. Nothing in the loop waits for
// other warpgroups. The epilogue and the tensor cores do not work faster at the same time than one after the other
// (docs/notes/lloyd.md), so the best is to have little work: few panels, and wide column tiles.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/ptx/bulk_copy.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace tsm2 {

// A Source makes the fragments of A (ptx/mma.cuh) of a warp's 16 rows, one per panel:
//
//   kPanels                           number of panels
//   Raw, load(Raw&, row)              loads data of the row tile that begins at `row`, ahead of its turn; the row tile
//                                     may lie beyond the end of A
//   convert(Raw, levels, fragments)   makes the fragments; levels[i] is to be added to all sums of row i of this
//                                     thread's two rows
//
// An Epilogue is as in gemm_wgmma_streamed.cuh, and column tiles come in order. If kUnrolled is not 0, it is the number
// of column tiles, and take<tile>(Rows&, sums) has the column tile as a constant.
template <int kColumns, int kUnrolled, int kGroups, typename Source, typename Epilogue>
class GemmWgmmaResident {
 public:
  static constexpr int kThreads = 128 * kGroups, kPanelB = kColumns / 8 * kPanelGroup,
                       kTileB = Source::kPanels * kPanelB;

  __device__ GemmWgmmaResident(unsigned char* shared, const Source& source, int row_tiles, int column_tiles,
                               const Epilogue& epilogue)
      : b_(ptx::matrix_at(shared)), source_(source), row_tiles_(row_tiles), column_tiles_(column_tiles),
        epilogue_(epilogue) {}

  __device__ __forceinline__ void run() const {
    // A shuffle tells the compiler that all lanes have the same value.
    const int group = simt::shuffle((int)threadIdx.x / 128, 0), step = gridDim.x * kGroups;
    int tile = blockIdx.x * kGroups + group;
    typename Source::Raw raw;
    typename Epilogue::Fetched fetched;
    const auto fetch = [&] {
      source_.load(raw, (unsigned)tile * kPanelRows);
      epilogue_.fetch(fetched, (unsigned)tile * kPanelRows, 0);
    };
    fetch();
#pragma unroll 1
    while (tile < row_tiles_) {
      typename Epilogue::Rows rows;
      Fragments a;
      float levels[2] = {}, sums[kColumns / 8][4];
      epilogue_.begin(rows, fetched, levels);
      source_.convert(raw, levels, a);
      const unsigned row = (unsigned)tile * kPanelRows;
      tile += step;
      fetch();
      if constexpr (kUnrolled != 0) {
        take_from<0>(rows, a, sums);
      } else {
#pragma unroll 1
        for (int column = 0; column < column_tiles_; ++column) {
          multiply(column, a, sums);
          epilogue_.take(rows, column, sums);
        }
      }
      epilogue_.end(rows, row);
    }
  }

 private:
  using Fragments = unsigned[Source::kPanels][1][4];

  // Multiplies and consumes the column tiles from kTile on.
  template <int kTile>
  __device__ __forceinline__ void take_from(typename Epilogue::Rows& rows, Fragments& a,
                                            float (&sums)[kColumns / 8][4]) const {
    multiply(kTile, a, sums);
    epilogue_.template take<kTile>(rows, sums);
    if constexpr (kTile + 1 < kUnrolled) take_from<kTile + 1>(rows, a, sums);
  }

  // Computes the sums of a column tile.
  __device__ __forceinline__ void multiply(int column, Fragments& a, float (&sums)[kColumns / 8][4]) const {
    const auto at = [&](int panel) { return ptx::matrix_after(b_, column * kTileB + panel * kPanelB); };
    ptx::wgmma_fence(a);
    ptx::wgmma_fence(sums);
    ptx::wgmma<true, ptx::Half>(sums, a[0][0], at(0));
#pragma unroll
    for (int panel = 1; panel < Source::kPanels; ++panel) ptx::wgmma<false, ptx::Half>(sums, a[panel][0], at(panel));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>(sums);
  }

  const decltype(ptx::matrix_at(nullptr)) b_;
  const Source& source_;
  const int row_tiles_, column_tiles_;
  const Epilogue& epilogue_;
};

// A has `row_tiles` row tiles, and B has `column_tiles` column tiles. Shared memory has a barrier after B.
template <int kColumns, int kUnrolled, int kGroups, typename Source, typename Epilogue>
__global__ void __launch_bounds__(128 * kGroups, 1)
    gemm_wgmma_resident(const Source source, const ptx::Half* B, int row_tiles, int column_tiles,
                        const Epilogue epilogue) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (epilogue.idle()) return;
  using Kernel = GemmWgmmaResident<kColumns, kUnrolled, kGroups, Source, Epilogue>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  const int bytes = column_tiles * Kernel::kTileB;
  auto* const copied = reinterpret_cast<ptx::Mbarrier*>(shared + bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(copied, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_arrive_expect(copied, bytes);
    ptx::bulk_copy(shared, B, bytes, copied);
  }
  epilogue.open();
  __syncthreads();
  ptx::mbarrier_wait(copied, 0);
  Kernel(shared, source, row_tiles, column_tiles, epilogue).run();
  __syncthreads();
  epilogue.close();
}

}  // namespace tsm2
