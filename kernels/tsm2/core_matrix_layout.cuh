// Core-matrix layout: float16 matrices stored in global memory as wgmma reads them from shared memory. The data that a
// thread block copies at a time is contiguous, so bulk copies load it without address computation by threads.
//
//       16 columns
//       ┌─────┬─────┬─     A tile has `height` rows and is a sequence of panels of 16 columns. A panel is a sequence
//  tile │panel│panel│      of groups of 8 rows (256 bytes). A group holds its first 8 columns, then its last 8, each
//       ├─────┼─────┼─     half row by row.
//
// The right operand may have an additional panel before the others. It holds one number per row of the right operand: a
// bias, with which all sums of that row begin. The number is split into three float16 parts, and the tensor cores
// multiply each part by a constant power of two. The split is exact to a relative error of 2⁻³³ or an absolute error of
// 2⁻³³. The panel also holds these constants. With them, the tensor cores can also add a number per row of the left
// operand, split into three parts in the same way.
#pragma once
#include "kernels/ptx/types.cuh"

namespace tsm2 {

// Rows of a tile of the left operand; columns of a panel; bytes of 8 rows of a panel.
constexpr int kPanelRows = 64, kPanelDepth = 16, kPanelGroup = 256;

// The offset of an element, in elements, in a matrix of tiles of `height` rows with `panels` panels each.
__device__ __forceinline__ long long panel_offset(long long row, int column, int panels, int height) {
  const int in_tile = (int)(row % height), in_panel = column % kPanelDepth;
  const long long panel = row / height * panels + column / kPanelDepth;
  return panel * height * kPanelDepth + in_tile / 8 * 128 + in_panel / 8 * 64 + in_tile % 8 * 8 + in_panel % 8;
}

// Multipliers of the three parts of a number. Finite numbers are below 2³⁰ in magnitude.
constexpr int kParts = 3;
constexpr float kPartScale[kParts] = {16384, 8, 1.0f / 256};

// Splits a number, which may be infinite, into its parts.
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
  ptx::Half parts[kParts];
  parts_of(number, parts);
  for (int i = 0; i < kPanelDepth; ++i) {
    const ptx::Half one = i < kParts ? parts[i] : i < 2 * kParts ? ptx::to_half(kPartScale[i - kParts]) : ptx::Half{0};
    matrix[panel_offset(row, i, panels, height)] = one;
  }
}

}  // namespace tsm2
