// A tall-and-skinny product whose rows are checked as they are computed, as an epilogue of it: C is stored, and the
// rows that do not agree with what is added up beside them are listed.
//
// With the weights v and x of row_checksums.cuh, the kernel brings p = Σ_l a_il x_l of every row
// (weighted_row_sums.cuh); a row is suspected where |Σ_j v_j c_ij − p| is above max(row · |p|, row_size · Σ_j |c_ij|) +
// row_absolute, or any of them is no number (thresholds.py). Of rows whose products cancel that is too little, and
// locate.cuh looks again.
//
// Why it is fast: C is checked while it is in registers, as sums that have not been rounded to 16 bits, by two
// instructions an element and twelve shuffles for the sixteen rows of a fragment. Beside them, p takes one multiply-add
// of every element of A, which is there for the tensor cores: B has no further columns, and the product is computed as
// it would be without.
#pragma once
#include "kernels/tsm2/store.cuh"

namespace abft {

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
          if (c < columns)
            line[c * this->column_stride] = this->scaled(d[j][2 * half + i], &line[c * this->column_stride]);
        }
    }
  }
};

// How many rows are suspected, how many of them at a second look, and how many elements are wrong.
struct Counts {
  unsigned long long flagged, confirmed, wrong;
};

// A row, and by how much it does not agree.
struct FlaggedRow {
  long long row;
  double off;
};

// Where rows that are suspected are listed: the first `capacity` of them, in no order.
struct FlaggedRows {
  FlaggedRow* rows;
  Counts* counts;
  long long capacity;

  __device__ __forceinline__ void add(long long row, double off) const {
    const unsigned long long place = atomicAdd(&counts->flagged, 1ull);
    if (place < (unsigned long long)capacity) rows[place] = {row, off};
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

// Σ over the four lanes that have parts of a row.
template <typename Sum>
__device__ __forceinline__ Sum sum_of_row(Sum sum) {
  sum += simt::shuffle_xor(sum, 1);
  return sum + simt::shuffle_xor(sum, 2);
}

// `Store` is an epilogue that takes fragments; alpha is 1 and beta 0.
template <typename Sum, typename Store>
struct Checked : Store {
  static constexpr tsm2::Takes kTakes = tsm2::Takes::kFragments;

  const Sum* row_weights;
  FlaggedRows suspects;
  Sum row, row_size, row_absolute;

  template <int kBlocks>
  __device__ void fragments(long long from, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    constexpr int kOfC = kBlocks - 1;
    static_assert(1 <= kOfC && kOfC <= 8, "the weights are those of at most 64 columns");
    Store::fragments(from, rows, column, columns, reinterpret_cast<const Sum(&)[kOfC][4]>(d));
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    // Both halves before either is judged, and even columns beside odd ones, so that nothing waits for one thing after
    // another.
    Sum off[2][2] = {}, size[2][2] = {}, p[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < 2 * kOfC; ++n) {
        // Columns beyond C are whatever was multiplied.
        const bool present = n / 2 + 1 < kOfC || n / 2 * 8 + 2 * t + n % 2 < columns;
        const Sum c = present ? d[n / 2][2 * half + n % 2] : Sum(0);
        off[half][n % 2] = fma(c, Sum(1 - n / 32.0), off[half][n % 2]);
        size[half][n % 2] += size_of(c);
      }
      off[half][0] = sum_of_row((off[half][0] + off[half][1]) * (1 - t * Sum(1 / 128.0)));
      size[half][0] = sum_of_row(size[half][0] + size[half][1]);
      p[half] = sum_of_row(d[kOfC][2 * half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Sum by = off[half][0] - p[half],
                limit = larger(row * size_of(p[half]), row_size * size[half][0]) + row_absolute;
      if (disagrees(by, limit) && t == 0 && 8 * half + g < rows) suspects.add(from + 8 * half + g, by);
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
