// A tall-and-skinny product whose rows carry their own checks, as an epilogue of it: C is stored, and the rows that do not
// agree with their checks are listed.
//
//   sums (rows × columns)   A · [ B | 0 | checks ], B's columns filled up to whole blocks of eight; the checks are one more
//
// The block of checks is four pairs of columns, a lane of the tensor cores' fragments each (check_columns.cuh):
//
//   pairs 0 … kParts − 1   p₁, p₂: the sums of B's columns, of weights 1 and (j + 1) / w, in parts, times `scale`
//   the others             probes of the row's magnitude, likewise
//
// With d₁ = scale · Σ_j c_ij − p₁ and d₂ likewise, a row is suspected where |d₁| or |d₂| is above row · max(|p|, |y|) +
// scale · row_absolute, or any is no number (thresholds.py).
//
// Why it is fast: C is checked while it is in registers, as sums that have not been rounded to 16 bits. Of each sum it
// takes two additions, half a multiply-add; of a row, six shuffles among four lanes. The eight columns are one more block of
// the tensor cores, of a product that is bound by what is read of A.
#pragma once
#include "kernels/tsm2/epilogue.cuh"

namespace abft {

// Columns of the checks.
constexpr int kChecks = 8;

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

// Rows that are suspected: how many, and the first `capacity` of them, in no order.
struct Suspects {
  long long* rows;
  unsigned long long* count;
  long long capacity;

  __device__ __forceinline__ void add(long long row) const {
    const unsigned long long place = atomicAdd(count, 1ull);
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
__device__ __forceinline__ bool disagrees(X first, X second, X limit) {
  return !(size_of(first) <= limit && size_of(second) <= limit && limit - limit == X(0));
}

// `Store` is an epilogue that takes fragments; alpha is 1 and beta 0.
template <typename Sum, typename Store, int kParts>
struct Checked : Store {
  static constexpr tsm2::Takes kTakes = tsm2::Takes::kFragments;

  Suspects suspects;
  const Sum* scale;
  long long width;  // columns of C
  Sum row, row_absolute, step /* 1 / w */, padding;

  template <int kBlocks>
  __device__ void fragments(long long from, int rows, long long column, int, const Sum (&d)[kBlocks][4]) const {
    static_assert(kBlocks > 1, "a block of checks comes after those of C");
    constexpr int kOfC = kBlocks - 1;
    Store::fragments(from, rows, column, (int)width, reinterpret_cast<const Sum(&)[kOfC][4]>(d));
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const Sum times = *scale;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Of weights 8j + 2t + i + 1, 8j comes as a constant of the instruction, and what is the same for a lane at the end.
      Sum first = 0, second = 0;
#pragma unroll
      for (int j = 0; j < kOfC; ++j) {
        const Sum odd = d[j][2 * half + 1], both = d[j][2 * half] + odd;
        first += both;
        second = fma(both, Sum(8 * j), second + odd);
      }
      second = fma(first, Sum(2 * t + 1), second) * step;
      const Sum mine[2] = {d[kOfC][2 * half], d[kOfC][2 * half + 1]};
      first = fma(first, times, t < kParts ? -mine[0] : Sum(0));
      second = fma(second, times, t < kParts ? -mine[1] : Sum(0));
      Sum most = larger(size_of(mine[0]), size_of(mine[1]));
#pragma unroll
      for (int bits = 1; bits < 4; bits *= 2) {
        first += simt::shuffle_xor(first, bits);
        second += simt::shuffle_xor(second, bits);
        most = larger(most, simt::shuffle_xor(most, bits));
      }
      const Sum limit = fma(row, most, row_absolute * times);
      if (disagrees(first, second, limit) && t == 0 && 8 * half + g < rows) suspects.add(from + 8 * half + g);
    }
  }
};

}  // namespace abft
