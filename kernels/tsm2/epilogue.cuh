// What becomes of the sums of a tall-and-skinny product.
//
// An epilogue is a class that the kernel calls for each warp's block of up to 16 rows when its sums are complete, with
// all 32 lanes:
//
//   template <typename Sums>
//   __device__ void operator()(const Sums& sums, long long row, int rows, int column, int columns) const;
//
// `sums(i, j)` is the sum of row + i and column + j, for i < rows and j < columns, in shared memory: an app's own epilogue
// (an arg-min along a row, a checksum) may go through them in any order.
#pragma once
#include "kernels/ptx.cuh"

namespace tsm2 {

// A warp's block of sums in shared memory; rows begin at multiples of 16 bytes.
template <typename Sum, int kPitch>
struct Sums {
  const Sum* first;
  __device__ const Sum& operator()(int i, int j) const { return first[i * kPitch + j]; }
};

// An element of C, as the sum's type and back.
template <typename T>
__device__ inline T convert(T x) {
  return x;
}
__device__ inline float convert(ptx::Half x) { return ptx::to_float(x); }
__device__ inline float convert(ptx::Bfloat16 x) { return ptx::to_float(x); }
template <typename T, typename Sum>
__device__ inline T convert_to(Sum x) {
  if constexpr (sizeof(T) == sizeof(Sum)) return x;
  else if constexpr (__is_same(T, ptx::Half)) return ptx::to_half(x);
  else return ptx::to_bfloat16(x);
}

// C ← alpha · sum + beta · C. With beta = 0, C is not read. `kColumns` is how many columns a tile has.
//   C[i, j] is C[i·row_stride + j·column_stride]
//   vector: whether column_stride is 1 and every row begins at a multiple of 16 bytes
template <typename T, typename Sum, int kColumns>
struct Store {
  T* C;
  long long row_stride, column_stride, vector;
  Sum alpha, beta;

  template <typename Sums>
  __device__ void operator()(const Sums& sums, long long row, int rows, int column, int columns) const {
    constexpr int kVector = 16 / sizeof(T);
    const int lane = threadIdx.x % 32;
    T* block = C + row * row_stride + column * column_stride;
    if (kColumns % kVector == 0 && vector && columns == kColumns) {
      for (int i = kVector * lane; i < rows * kColumns; i += 32 * kVector) {
        struct alignas(16) Vector {
          T at[kVector];
        } out;
        auto* to = reinterpret_cast<Vector*>(block + i / kColumns * row_stride + i % kColumns);
        if (beta != Sum(0)) out = *to;
        struct alignas(16) SumVector {
          Sum at[16 / sizeof(Sum)];
        };
#pragma unroll
        for (int v = 0; v < kVector; v += 16 / sizeof(Sum)) {
          const auto some = *reinterpret_cast<const SumVector*>(&sums(i / kColumns, i % kColumns + v));
#pragma unroll
          for (int j = 0; j < int(16 / sizeof(Sum)); ++j) out.at[v + j] = scaled(some.at[j], &out.at[v + j]);
        }
        *to = out;
      }
      return;
    }
    // Lanes follow C's own order, so that their stores make whole sectors.
    const bool by_rows = column_stride <= row_stride;
    for (int i = lane; i < 16 * kColumns; i += 32) {
      const int r = by_rows ? i / kColumns : i % 16, c = by_rows ? i % kColumns : i / 16;
      if (r >= rows || c >= columns) continue;
      T* to = block + r * row_stride + c * column_stride;
      *to = scaled(sums(r, c), to);
    }
  }

 private:
  __device__ T scaled(Sum sum, const T* old) const {
    return convert_to<T, Sum>(beta == Sum(0) ? alpha * sum : alpha * sum + beta * convert(*old));
  }
};

// The same for operands whose lines were folded: kFold lines of A and of B were taken as one, so that the sums of k × w
// lie kFold times along the diagonal of the tile.
template <typename T, typename Sum, int kFold, int kRows, int kColumns>
struct StoreFolded {
  T* C;
  long long row_stride, column_stride, vector;
  Sum alpha, beta;

  template <typename Sums>
  __device__ void operator()(const Sums& sums, long long, int, int, int) const {
    for (int i = threadIdx.x % 32; i < kRows * kColumns; i += 32) {
      const int r = i / kColumns, c = i % kColumns;
      Sum sum = 0;
#pragma unroll
      for (int fold = 0; fold < kFold; ++fold) sum += sums(fold * kRows + r, fold * kColumns + c);
      T* to = C + r * row_stride + c * column_stride;
      *to = convert_to<T, Sum>(beta == Sum(0) ? alpha * sum : alpha * sum + beta * convert(*to));
    }
  }
};

}  // namespace tsm2
