// The epilogue of checked_product.cuh in a product with a fault: one sum of the product is wrong.
#pragma once
#include "apps/abft/modules/checked_product.cuh"

namespace abft {

// Adds kBy / 1024 to the sum in row kRow and column kColumn; kBy = 0 makes it NaN.
template <typename T, int kRow, int kColumn, int kBy>
struct FaultyResiduals : RowResiduals<T> {
  struct Rows : RowResiduals<T>::Rows {
    int column;
  };
  __device__ __forceinline__ void begin(Rows& rows, unsigned char* shared, int row, int column) const {
    RowResiduals<T>::begin(rows, shared, row, column);
    rows.column = column;
  }
  __device__ __forceinline__ void take(Rows& rows, int column, const float (&lower)[4], const float (&upper)[4],
                                       unsigned (&words)[4]) const {
    float sums[2][4];
    for (int i = 0; i < 4; ++i) {
      sums[0][i] = lower[i], sums[1][i] = upper[i];
      for (int half = 0; half < 2; ++half)
        if (rows.first + 8 * (i / 2) == kRow && rows.column + column + 8 * half + i % 2 == kColumn)
          sums[half][i] = kBy == 0 ? __int_as_float(0x7fffffff) : sums[half][i] + kBy / 1024.0f;
    }
    RowResiduals<T>::take(rows, column, sums[0], sums[1], words);
  }
};

}  // namespace abft
