// Matrices of float16 as warpgroups multiply them from shared memory, kept so in global memory: what a block needs of one
// lies together, and bulk copies bring it without a thread that computes addresses.
//
//      16 columns
//      ┌────┬────┬─       A tile of 128 rows is slabs of 16 columns, 4 KB each, one after the other; in a slab, 8 rows after
//  128 │slab│slab│        the other (256 bytes); of 8 rows, the first 8 columns and then the last; and of those, row by row.
//      ├────┼────┼─
#pragma once

namespace tsm2 {

constexpr int kSlabRows = 128, kSlabColumns = 16, kSlabElements = kSlabRows * kSlabColumns, kSlabBytes = 2 * kSlabElements;

// Where an element of a matrix of `slabs` slabs a row is, in elements.
__device__ __forceinline__ long long slab_offset(long long row, int column, int slabs) {
  const int in_tile = (int)(row % kSlabRows), in_slab = column % kSlabColumns;
  return ((row / kSlabRows) * slabs + column / kSlabColumns) * kSlabElements + in_tile / 8 * 128 + in_slab / 8 * 64 +
         in_tile % 8 * 8 + in_slab % 8;
}

}  // namespace tsm2
