// Detection epilogue of a protected product C = A · B: stores C and flags the rows whose elements disagree with their
// checksum.
//
// row_checksums.cuh defines the weights v_j and the checksum vector x of B. The GEMM kernel also computes the checksum
// p_i = Σ_l a_il x_l of every row i (weighted_row_sums.cuh). The residual of row i is Σ_j v_j c_ij − p_i. The epilogue
// flags row i if the residual or its bound is not finite, or if
//
//   |residual| > max(row · |p_i|, row_size · Σ_j |c_ij|) + row_absolute.
//
// thresholds.py defines row and row_absolute; `row_size` of plan.py defines row_size. The bound is too small for rows
// whose products cancel, so locate.cuh re-checks flagged rows.
//
// Why it is fast: the check reads C from registers, before rounding to 16 bits. It takes two instructions per element
// and twelve shuffles per fragment of sixteen rows. Computing p_i takes one multiply-add per element of A, which is in
// registers for the tensor cores anyway. No checksum column is added to B, so the plan of the product does not change.
#pragma once
#include "kernels/tsm2/store.cuh"

namespace abft {

// Epilogue that stores C with any strides, element by element from registers.
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

// Number of flagged rows, number of rows that the re-check confirms, and number of wrong elements.
struct Counts {
  unsigned long long flagged, confirmed, wrong;
};

// A flagged row i, and its residual Σ_j v_j c_ij − p_i.
struct FlaggedRow {
  long long row;
  double residual;
};

// The list of flagged rows, in no order. Once the list holds `capacity` rows, further flagged rows are only counted.
struct FlaggedRows {
  FlaggedRow* rows;
  Counts* counts;
  long long capacity;

  __device__ __forceinline__ void add(long long row, double residual) const {
    const unsigned long long place = atomicAdd(&counts->flagged, 1ull);
    if (place < (unsigned long long)capacity) rows[place] = {row, residual};
  }
};

template <typename X>
__device__ __forceinline__ X absolute_value(X x) {
  return x < X(0) ? -x : x;
}
// Maximum of x and y; NaN if y is NaN.
template <typename X>
__device__ __forceinline__ X larger(X x, X y) {
  return x > y ? x : y;
}

// True if the magnitude of a residual exceeds its limit, or if the residual or the limit is not finite.
template <typename X>
__device__ __forceinline__ bool disagrees(X residual, X limit) {
  return !(absolute_value(residual) <= limit && limit - limit == X(0));
}

// Adds the partial sums of a row in the four lanes that hold the row, and returns the total to all four lanes.
template <typename Sum>
__device__ __forceinline__ Sum sum_of_row(Sum sum) {
  sum += simt::shuffle_xor(sum, 1);
  return sum + simt::shuffle_xor(sum, 2);
}

// Stores C by the base class `Store`, an epilogue that takes fragments, and flags rows. The caller sets alpha to 1 and
// beta to 0.
template <typename Sum, typename Store>
struct DetectEpilogue : Store {
  static constexpr tsm2::Takes kTakes = tsm2::Takes::kFragments;

  const Sum* row_weights;
  FlaggedRows flagged_rows;
  Sum row, row_size, row_absolute;

  template <int kBlocks>
  __device__ void fragments(long long from, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    constexpr int kOfC = kBlocks - 1;  // the last block holds the partial sums of p
    static_assert(1 <= kOfC && kOfC <= 8, "the weights are those of at most 64 columns");
    Store::fragments(from, rows, column, columns, reinterpret_cast<const Sum(&)[kOfC][4]>(d));
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    // First index: rows g and g + 8. Second index: even and odd columns, separate to shorten the dependency chains.
    Sum residual[2][2] = {}, magnitude[2][2] = {}, p[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < 2 * kOfC; ++n) {
        // Accumulators beyond the last column of C hold arbitrary values.
        const bool present = n / 2 + 1 < kOfC || n / 2 * 8 + 2 * t + n % 2 < columns;
        const Sum c = present ? d[n / 2][2 * half + n % 2] : Sum(0);
        residual[half][n % 2] = fma(c, Sum(1 - n / 32.0), residual[half][n % 2]);
        magnitude[half][n % 2] += absolute_value(c);
      }
      residual[half][0] = sum_of_row((residual[half][0] + residual[half][1]) * (1 - t * Sum(1 / 128.0)));
      magnitude[half][0] = sum_of_row(magnitude[half][0] + magnitude[half][1]);
      p[half] = sum_of_row(d[kOfC][2 * half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Sum difference = residual[half][0] - p[half],
                limit = larger(row * absolute_value(p[half]), row_size * magnitude[half][0]) + row_absolute;
      if (disagrees(difference, limit) && t == 0 && 8 * half + g < rows)
        flagged_rows.add(from + 8 * half + g, difference);
    }
  }
};

// Epilogue that stores only the checksum p_i of every row; the elements of the product are discarded.
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
