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
  __device__ __forceinline__ unsigned take(Rows& rows, int r, int column, float lower, float upper) const {
    if (rows.first + 8 * r == kRow && rows.column + column == kColumn / 2 * 2) {
      float& sum = kColumn % 2 == 0 ? lower : upper;
      sum = kBy == 0 ? __int_as_float(0x7fffffff) : sum + kBy / 1024.0f;
    }
    return RowResiduals<T>::take(rows, r, column, lower, upper);
  }
};

}  // namespace abft
