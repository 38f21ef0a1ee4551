// What becomes of the sums of a tall-and-skinny product.
//
// An epilogue is a class that the kernel calls for a few rows of a warp's at a time when their sums are complete, with all
// 32 lanes:
//
//   template <typename Sums>
//   __device__ void operator()(const Sums& sums, long long row, int rows, int column, int columns) const;
//
// `sums(i, j)` is the sum of row + i and column + j, for i < rows and j < columns, in shared memory: an app's own epilogue
// (an arg-min along a row, a checksum) may go through them in any order.
#pragma once
#include "kernels/ptx.cuh"

namespace tsm2 {

// A warp's rows of sums in shared memory, kPitch apart.
template <typename Sum, int pitch>
struct Sums {
  static constexpr int kPitch = pitch;
  const Sum* first;
  __device__ const Sum& operator()(int i, int j) const { return first[i * kPitch + j]; }
};

// An element of C as the sum's type, and a sum as an element of C.
template <typename T>
struct Element {
  static __device__ T from(T sum) { return sum; }
  static __device__ T value(T x) { return x; }
};
template <>
struct Element<ptx::Half> {
  static __device__ ptx::Half from(float sum) { return ptx::to_half(sum); }
  static __device__ float value(ptx::Half x) { return ptx::to_float(x); }
};
template <>
struct Element<ptx::Bfloat16> {
  static __device__ ptx::Bfloat16 from(float sum) { return ptx::to_bfloat16(sum); }
  static __device__ float value(ptx::Bfloat16 x) { return ptx::to_float(x); }
};

// C ← alpha · sum + beta · C. With beta = 0, C is not read. `kColumns` is how many columns a warp has.
//   C[i, j] is C[i·row_stride + j·column_stride]
//   packed: whether C is row-major, of kColumns columns without a gap, and begins at a multiple of 16 bytes
template <typename T, typename Sum, int kColumns>
struct Store {
  T* C;
  long long row_stride, column_stride, packed;
  Sum alpha, beta;

  template <typename Sums>
  __device__ void operator()(const Sums& sums, long long row, int rows, int column, int columns) const {
    const int lane = threadIdx.x % 32;
    if (packed && rows % 8 == 0) {
      store_packed(sums, C + row * kColumns, rows * kColumns, lane);
      return;
    }
    // Lanes follow C's own order, so that their stores make whole sectors.
    T* block = C + row * row_stride + column * column_stride;
    const bool by_rows = column_stride <= row_stride;
    for (int i = lane; i < rows * kColumns; i += 32) {
      const int r = by_rows ? i / kColumns : i % rows, c = by_rows ? i % kColumns : i / rows;
      if (c >= columns) continue;
      T* to = block + r * row_stride + c * column_stride;
      *to = scaled(sums(r, c), to);
    }
  }

 private:
  // Rows that follow each other without a gap, and begin at a multiple of 16 bytes: 16 bytes a lane.
  template <typename Sums>
  __device__ void store_packed(const Sums& sums, T* to, int elements, int lane) const {
    constexpr int kVector = 16 / sizeof(T), kSums = 16 / sizeof(Sum);
    struct alignas(16) Vector {
      T at[kVector];
    };
    struct alignas(16) SumVector {
      Sum at[kSums];
    };
    for (int i = kVector * lane; i < elements; i += 32 * kVector) {
      Vector out;
      auto* place = reinterpret_cast<Vector*>(to + i);
      if (beta != Sum(0)) out = *place;
#pragma unroll
      for (int v = 0; v < kVector; v += kSums) {
        const Sum* from = Sums::kPitch == kColumns ? sums.first + i + v : &sums((i + v) / kColumns, (i + v) % kColumns);
        const auto some = *reinterpret_cast<const SumVector*>(from);
#pragma unroll
        for (int j = 0; j < kSums; ++j) out.at[v + j] = scaled(some.at[j], &out.at[v + j]);
      }
      *place = out;
    }
  }

  __device__ T scaled(Sum sum, const T* old) const {
    return Element<T>::from(beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(*old));
  }
};

// The same for operands whose lines were folded: kFold lines of A and of B were taken as one, so that the sums of k × w
// lie kFold times along the diagonal of the tile.
template <typename T, typename Sum, int kFold, int kRows, int kColumns>
struct StoreFolded {
  T* C;
  long long row_stride, column_stride, packed;
  Sum alpha, beta;

  template <typename Sums>
  __device__ void operator()(const Sums& sums, long long, int, int, int) const {
    for (int i = threadIdx.x % 32; i < kRows * kColumns; i += 32) {
      const int r = i / kColumns, c = i % kColumns;
      Sum sum = 0;
#pragma unroll
      for (int fold = 0; fold < kFold; ++fold) sum += sums(fold * kRows + r, fold * kColumns + c);
      T* to = C + r * row_stride + c * column_stride;
      *to = Element<T>::from(beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(*to));
    }
  }
};

}  // namespace tsm2
