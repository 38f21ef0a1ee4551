// Matrices of float16 as warpgroups multiply them from shared memory, kept so in global memory: what a block needs of
// one lies together, and bulk copies bring it without a thread that computes addresses.
//
//       16 columns
//       ┌────┬────┬─       A tile is `height` rows, as panels of 16 columns, one after the other; in a panel, 8 rows after the
//  tile │panel│panel│        other (256 bytes); of 8 rows, the first 8 columns and then the last; and of those, row by row.
//       ├────┼────┼─
//
// The right side of a product may have one panel more, before the others: a number for each of its rows, to begin sums
// with. It is kept in three parts of float16, which the tensor cores multiply by constants: exact to 2⁻³³ of itself, or
// 2⁻³³. And the same constants, by which a number of each row of the left side can be added, kept there in three parts
// likewise.
#pragma once
#include "kernels/ptx/types.cuh"

namespace tsm2 {

// The rows of a tile, on the left of a product and on its right; bytes of 8 rows of a panel.
constexpr int kPanelRows = 64, kPanelDepth = 16, kPanelGroup = 256;

// Where an element is, in elements, in a matrix of tiles of `height` rows with `panels` panels each.
__device__ __forceinline__ long long panel_offset(long long row, int column, int panels, int height) {
  const int in_tile = (int)(row % height), in_panel = column % kPanelDepth;
  const long long panel = row / height * panels + column / kPanelDepth;
  return panel * height * kPanelDepth + in_tile / 8 * 128 + in_panel / 8 * 64 + in_tile % 8 * 8 + in_panel % 8;
}

// What the parts of a number are multiplied by, powers of two: 2³⁰ is beyond them.
constexpr int kParts = 3;
constexpr float kPartScale[kParts] = {16384, 8, 1.0f / 256};

// A number in parts, which may be infinite.
__device__ __forceinline__ void parts_of(float number, ptx::Half (&parts)[kParts]) {
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    parts[i] = ptx::to_half(number / kPartScale[i]);
    const float rest = number - ptx::to_float(parts[i]) * kPartScale[i];
    number = rest == rest ? rest : 0.0f;  // of an infinity, nothing
  }
}

// Writes the first panel of a row of the right side, in a matrix of tiles of `height` rows with `panels` panels.
__device__ __forceinline__ void place_parts(ptx::Half* matrix, long long row, int panels, int height, float number) {
  ptx::Half parts[kParts];
  parts_of(number, parts);
  for (int i = 0; i < kPanelDepth; ++i) {
    const ptx::Half one = i < kParts ? parts[i] : i < 2 * kParts ? ptx::to_half(kPartScale[i - kParts]) : ptx::Half{0};
    matrix[panel_offset(row, i, panels, height)] = one;
  }
}

}  // namespace tsm2
