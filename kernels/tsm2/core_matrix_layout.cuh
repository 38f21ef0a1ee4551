// Core-matrix layout: float16 matrices stored in global memory in the order in which wgmma reads them from shared
// memory. The data that a thread block copies at a time is contiguous, so bulk copies load it without address
// computation by threads.
//
//       16 columns
//       ┌─────┬─────┬─     A tile has `height` rows and is a sequence of panels of 16 columns. A panel is a sequence
//  tile │panel│panel│      of groups of 8 rows (256 bytes). A group holds its first 8 columns, then its last 8, each
//       ├─────┼─────┼─     half row by row.
//
// The right operand may have an additional panel before the others. This panel holds one number per row of the right
// operand: a bias, the initial value of all sums that use this row. The bias is split into three float16 parts, and the
// tensor cores multiply each part by a constant power of two. The split is exact to a relative error of 2⁻³³ or an
// absolute error of 2⁻³³. The panel also holds these constants. They let the tensor cores also add a number per row of
// the left operand, which is split into three parts in the same way.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/ptx/types.cuh"

namespace tsm2 {

// Number of rows per tile of the left operand; number of columns per panel; number of bytes per 8 rows of a panel.
constexpr int kPanelRows = 64, kPanelDepth = 16, kPanelGroup = 256;

// Returns the offset, in elements, of the element in row `row` and column `column`. The matrix consists of tiles of
// `height` rows, and each tile has `panels` panels.
__device__ __forceinline__ long long panel_offset(long long row, int column, int panels, int height) {
  const int in_tile = (int)(row % height), in_panel = column % kPanelDepth;
  const long long panel = row / height * panels + column / kPanelDepth;
  return panel * height * kPanelDepth + in_tile / 8 * 128 + in_panel / 8 * 64 + in_tile % 8 * 8 + in_panel % 8;
}

// Returns a row of this thread's fragments (ptx/mma.cuh) in the row tile of its warpgroup, which begins at row `first`:
// of the warp's 16 rows, row g (r = 0) or g + 8 (r = 1), g = lane / 4.
__device__ __forceinline__ unsigned fragment_row(unsigned first, int r) {
  return first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
}

// Multipliers of the three parts of a number. Finite numbers must be below 2³⁰ in magnitude.
constexpr int kParts = 3;
constexpr float kPartScale[kParts] = {16384, 8, 1.0f / 256};

// Splits a number into three float16 parts. The number may be infinite.
__device__ __forceinline__ void parts_of(float number, ptx::Half (&parts)[kParts]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    parts[i] = ptx::to_half(number / kPartScale[i]);
    const float rest = number - ptx::to_float(parts[i]) * kPartScale[i];
    number = rest == rest ? rest : 0.0f;  // an infinity leaves no remainder
  }
}

// Writes row `row` of the additional panel of the right operand: the parts of `number`, then the multipliers. The
// matrix has tiles of `height` rows, with `panels` panels each.
__device__ __forceinline__ void place_parts(ptx::Half* matrix, long long row, int panels, int height, float number) {
  // The first eight columns of a panel's row are adjacent, and so are the others, which are zeros.
  static_assert(2 * kParts <= 8, "the parts and the multipliers fit in eight columns");
  simt::Vector<ptx::Half, 8> first = {}, others = {};
  ptx::Half parts[kParts];
  parts_of(number, parts);
#pragma unroll
  for (int i = 0; i < kParts; ++i) first.at[i] = parts[i], first.at[kParts + i] = ptx::to_half(kPartScale[i]);
  *reinterpret_cast<simt::Vector<ptx::Half, 8>*>(matrix + panel_offset(row, 0, panels, height)) = first;
  *reinterpret_cast<simt::Vector<ptx::Half, 8>*>(matrix + panel_offset(row, 8, panels, height)) = others;
}

}  // namespace tsm2
