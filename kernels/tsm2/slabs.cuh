// Matrices of float16 as warpgroups multiply them from shared memory, kept so in global memory: what a block needs of one
// lies together, and bulk copies bring it without a thread that computes addresses.
//
//       16 columns
//       ┌────┬────┬─       A tile is `height` rows, as slabs of 16 columns, one after the other; in a slab, 8 rows after the
//  tile │slab│slab│        other (256 bytes); of 8 rows, the first 8 columns and then the last; and of those, row by row.
//       ├────┼────┼─
//
// The right side of a product may have one slab more, before the others: a number for each of its rows, to begin sums with.
// It is kept in three parts of float16, which the tensor cores multiply by constants: exact to 2⁻³³ of itself, or 2⁻³³.
#pragma once
#include "kernels/ptx.cuh"

namespace tsm2 {

// The rows of a tile, on the left of a product and on its right; bytes of 8 rows of a slab.
constexpr int kSlabRows = 64, kSlabDepth = 16, kSlabGroup = 256;

// Where an element is, in elements, in a matrix of tiles of `height` rows with `slabs` slabs each.
__device__ __forceinline__ long long slab_offset(long long row, int column, int slabs, int height) {
  const int in_tile = (int)(row % height), in_slab = column % kSlabDepth;
  const long long slab = row / height * slabs + column / kSlabDepth;
  return slab * height * kSlabDepth + in_tile / 8 * 128 + in_slab / 8 * 64 + in_tile % 8 * 8 + in_slab % 8;
}

// What the parts of a number are multiplied by, powers of two: 2³⁰ is beyond them.
constexpr int kParts = 3;
constexpr float kPartScale[kParts] = {16384, 8, 1.0f / 256};

// Writes a number, which may be infinite, to the first slab of `row`, in a matrix of tiles of `height` rows with `slabs` slabs.
__device__ __forceinline__ void place_parts(ptx::Half* matrix, long long row, int slabs, int height, float number) {
  for (int i = 0; i < kSlabDepth; ++i) {
    ptx::Half part = {0};
    if (i < kParts) {
      part = ptx::to_half(number / kPartScale[i]);
      const float rest = number - ptx::to_float(part) * kPartScale[i];
      number = rest == rest ? rest : 0.0f;  // of an infinity, nothing
    }
    matrix[slab_offset(row, i, slabs, height)] = part;
  }
}

}  // namespace tsm2
