// A tall-and-skinny product whose rows are checked as they are computed, as an epilogue of it: C is stored, and the rows that
// do not agree with what is added up beside them are listed.
//
// With the weights v and x of row_checks.cuh, the kernel brings p = Σ_l a_il x_l of every row (row_sums.cuh). A row is looked at
// again where |Σ_j v_j c_ij − p| is above row · max(|p|, Σ_j |c_ij|) + row_absolute, or any of them is no number: of rows whose
// products cancel, that is too little. It is suspected if it is also above row · q + row_absolute (thresholds.py).
//
// Why it is fast: C is checked while it is in registers, as sums that have not been rounded to 16 bits, by two instructions an
// element and six shuffles for two rows. Beside them, p takes one multiply-add of every element of A, which is there for the
// tensor cores: B has no further columns, and the product is computed as it would be without. Only q takes another read of a
// row, by a warp, and hardly any row comes so far.
#pragma once
#include "kernels/tsm2/epilogue.cuh"

namespace abft {

// A matrix of any strides, in elements.
template <typename T>
struct Matrix {
  T* data;
  long long row_stride, column_stride;
  __device__ __forceinline__ T& operator()(long long i, long long j) const {
    return data[i * row_stride + j * column_stride];
  }
};

template <typename T>
__device__ __forceinline__ double wide(T x) {
  return (double)tsm2::Element<T>::value(x);
}
__device__ __forceinline__ double wide(double x) { return x; }

// Any C, from registers.
template <typename T, typename Sum>
struct StoreEach : tsm2::Scaled<T, Sum> {
  static constexpr tsm2::Takes kTakes = tsm2::Takes::kFragments;

  template <int kBlocks>
  __device__ void fragments(long long row, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (8 * half + g >= rows) continue;
      T* line = this->C + (row + 8 * half + g) * this->row_stride + column * this->column_stride;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int c = 8 * j + 2 * t + i;
          if (c < columns) line[c * this->column_stride] = this->scaled(d[j][2 * half + i], &line[c * this->column_stride]);
        }
    }
  }
};

// How many rows are suspected, and how many elements are wrong.
struct Counts {
  unsigned long long suspected, wrong;
};

// Where rows that are suspected are listed: the first `capacity` of them, in no order.
struct Suspects {
  long long* rows;
  Counts* counts;
  long long capacity;

  __device__ __forceinline__ void add(long long row) const {
    const unsigned long long place = atomicAdd(&counts->suspected, 1ull);
    if (place < (unsigned long long)capacity) rows[place] = row;
  }
};

template <typename X>
__device__ __forceinline__ X size_of(X x) {
  return x < X(0) ? -x : x;
}
// The larger; what is not a number stays, if it is the second.
template <typename X>
__device__ __forceinline__ X larger(X x, X y) {
  return x > y ? x : y;
}

// Whether a row does not agree. Written so that what is not a number does not.
template <typename X>
__device__ __forceinline__ bool disagrees(X off, X limit) {
  return !(size_of(off) <= limit && limit - limit == X(0));
}

// The second look at rows of A (m × k), and what they may be off by.
template <typename T, typename Sum>
struct SecondLook {
  Matrix<const T> A;
  long long k;
  const Sum* y;  // row_checks.cuh
  double row, row_absolute;
  Suspects suspects;

  // By a warp, each lane of which has a row or none: lists those that are off by too much.
  __device__ __forceinline__ void at(bool wanted, long long mine, double off) const {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (unsigned waiting = __ballot_sync(simt::every_lane, wanted); waiting; waiting &= waiting - 1) {
      const int next = __ffs((int)waiting) - 1;
      const long long i = simt::shuffle(mine, next);
      double square = 0;
#pragma unroll 1
      for (long long l = lane; l < k; l += 32) {
        const double scaled = wide(A(i, l)) * (double)y[l];
        square = fma(scaled, scaled, square);
      }
      square = simt::warp_sum(square);
      if (lane == next && disagrees(off, fma(row, sqrt(square), row_absolute))) suspects.add(i);
    }
  }
};

// Σ over the four lanes that have parts of a row.
template <typename Sum>
__device__ __forceinline__ Sum sum_of_row(Sum sum) {
  sum += simt::shuffle_xor(sum, 1);
  return sum + simt::shuffle_xor(sum, 2);
}

// `Store` is an epilogue that takes fragments; alpha is 1 and beta 0.
template <typename T, typename Sum, typename Store>
struct Checked : Store {
  static constexpr tsm2::Takes kTakes = tsm2::Takes::kFragments;

  const Sum* row_weights;
  SecondLook<T, Sum> look;
  Sum row, row_absolute;

  template <int kBlocks>
  __device__ void fragments(long long from, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    constexpr int kOfC = kBlocks - 1;
    static_assert(1 <= kOfC && kOfC <= 8, "the weights are those of at most 64 columns");
    Store::fragments(from, rows, column, columns, reinterpret_cast<const Sum(&)[kOfC][4]>(d));
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Sum off = 0, size = 0;
#pragma unroll
      for (int n = 0; n < 2 * kOfC; ++n) {
        // Columns beyond C are whatever was multiplied.
        const bool present = n / 2 + 1 < kOfC || n / 2 * 8 + 2 * t + n % 2 < columns;
        const Sum c = present ? d[n / 2][2 * half + n % 2] : Sum(0);
        off = fma(c, Sum(1 - n / 32.0), off);
        size += size_of(c);
      }
      const Sum p = sum_of_row(d[kOfC][2 * half]);
      off = sum_of_row(off * (1 - t * Sum(1 / 128.0))) - p;
      size = sum_of_row(size);
      const Sum limit = fma(row, larger(size_of(p), size), row_absolute);
      look.at(disagrees(off, limit) && t == 0 && 8 * half + g < rows, from + 8 * half + g, off);
    }
  }
};

// p of every row alone, of a product that is not wanted.
template <typename Sum>
struct StoreRowSums {
  static constexpr tsm2::Takes kTakes = tsm2::Takes::kFragments;

  const Sum* row_weights;
  Sum* to;

  template <int kBlocks>
  __device__ void fragments(long long from, int rows, long long, int, const Sum (&d)[kBlocks][4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Sum p = sum_of_row(d[kBlocks - 1][2 * half]);
      if (t == 0 && 8 * half + g < rows) to[from + 8 * half + g] = p;
    }
  }
};

}  // namespace abft
