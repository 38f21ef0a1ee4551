// Weighted row sums and column sums of a strip's elements. Each of eight warps sums 128 bytes of each row.
//
//   row sum p      Σ (column of the segment + 1)^p · element    over the warp's 128 bytes of the row; encode.cuh adds
//                                                               the sums of the warps
//   column sum p   Σ (row of the stripe + 1)^p · element        over the stripe's rows
//
// p is 0 … kWeights − 1. Columns of a segment and rows of a stripe count from 0. tile_pipeline.cuh defines segment,
// stripe, strip and stage.
//
//   ElementSums<T, kWeights>::Sum       type of the sums
//       kParts                          number of parts from which the sums of a row are computed
//       add<kWhole>(mine, first, to)    adds the elements of a stage to the column sums, and writes the parts of the
//                                       stage's row sums: part q of row r to to[q · kWarps · kRows + r]
//       of_row(parts, p)                returns row sum p, computed from the parts of the row
//       store(...)                      writes the column sums
//
// A *chunk* is 16 bytes of a row. Below, g = lane / 4 and t = lane % 4. In each row, lanes t = 0 … 3 first read chunks
// 0, 1, 4 and 5 of the 128 bytes, and then chunks 2, 3, 6 and 7. So the lanes that read two rows access all banks.
//
// float and double: a lane reads two chunks of every eighth row, beginning with row g. It adds the elements to column
// sums in double. The tensor cores add the row sums of lanes t = 0 … 3, weighted by 1 and by the column.
//
// float16 and bfloat16: tensor cores compute row sums and column sums in float. A weight is 16 · high + low, where the
// element type represents `low` and `high` exactly. For column sums, a lane reads chunk g of every fourth row,
// beginning with row t, as in exact_sums.cuh. Each word of a right operand is a pair of elements from rows t and t + 4.
// The eight columns of a right operand are one column of each chunk.
//
// Why it is fast: two row sums and two column sums together take six instructions per float element, and two
// instructions per pair of 16-bit elements.
#pragma once
#include "apps/abft/at_rest/gpu/tile_pipeline.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace abft {

constexpr int kChunks = 2;  // number of chunks that a lane reads per row

// Byte offset in the warp's 128 bytes of chunk number `chunk`, 0 or 1, of the lanes with this t.
__device__ __forceinline__ int place_of_chunk(int t, int chunk) { return t / 2 * 64 + t % 2 * 16 + chunk * 32; }

// Converts the elements in 16 bytes to double.
template <typename T>
__device__ __forceinline__ void widen(double (&to)[16 / sizeof(T)], const uint4& words) {
  if constexpr (sizeof(T) == 8) {
    memcpy(to, &words, 16);
  } else {
    const float values[4] = {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                             __uint_as_float(words.w)};
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j] = values[j];
  }
}

template <typename T, int kWeights>
class ElementSums {
  static constexpr int kElements = 16 / (int)sizeof(T), kColumns = kChunks * kElements;

 public:
  using Sum = double;
  static constexpr int kParts = 2;

  // `column` is the index in the segment of the warp's first column. rows_at(offset) returns the number of rows of the
  // stripe that contain the 16 bytes at `offset` of the warp's 128 bytes; at the end of the matrix, not all rows do.
  template <typename RowsAt>
  __device__ ElementSums(int column, const RowsAt& rows_at) : columns_{} {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) present_[chunk] = rows_at(place_of_chunk(t, chunk));
    of_plain_[0] = g == 0 ? 1.0 : g == 1 ? column + place_of_chunk(t, 0) / (int)sizeof(T) + 1.0 : 0.0;
    of_further_[0] = g == 1 ? 1.0 : 0.0;
  }

  template <bool kWhole>
  __device__ __forceinline__ void add(const unsigned char* mine, int first, Sum* to) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    mine += g * kPitch + place_of_chunk(t, 0);
    to += g;
#pragma unroll
    for (int i = 0; i < kRows; i += 16) {
      // Sums of the lane's elements in row g and in row g + 8 of the 16 rows. `plain` is unweighted; `further` is
      // weighted by the distance of the element from the lane's first column.
      double plain[2] = {}, further[2] = {};
#pragma unroll
      for (int chunk = 0; chunk < kChunks; ++chunk)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first + i + 8 * half + g;
          uint4 words = {0, 0, 0, 0};
          if (kWhole || row < present_[chunk]) {
            words = *reinterpret_cast<const uint4*>(mine + (i + 8 * half) * kPitch + place_of_chunk(0, chunk));
          }
          double x[kElements];
          widen<T>(x, words);
          const double weight = row + 1;
#pragma unroll
          for (int j = 0; j < kElements; ++j) {
            double (&sums)[kWeights] = columns_[chunk * kElements + j];
            sums[0] += x[j];
            if constexpr (kWeights > 1) sums[1] += weight * x[j];
            const int columns = place_of_chunk(0, chunk) / (int)sizeof(T) + j;
            plain[half] = columns == 0 ? x[j] : plain[half] + x[j];
            if (columns > 0) further[half] = columns == 1 ? x[j] : further[half] + columns * x[j];
          }
        }
      Sum d[4] = {};
      ptx::mma_m16n8k4(d, plain, of_plain_);
      if constexpr (kWeights > 1) ptx::mma_m16n8k4(d, further, of_further_);
      // Lane t = 0 holds both parts of the row sums of rows g and g + 8.
      if (t == 0) {
        to[i] = d[0], to[kWarps * kRows + i] = d[1];
        to[i + 8] = d[2], to[kWarps * kRows + i + 8] = d[3];
      }
    }
  }

  static __device__ __forceinline__ Sum of_row(const Sum* parts, int p) { return parts[p * kWarps * kRows]; }

  // Writes the column sums. `to` points to column sum 0 of the warp's first column; column sum 1 is `width` entries
  // further. `columns` is the number of columns from the warp's first column to the end of the matrix row.
  __device__ __forceinline__ void store(Sum* to, int columns, long long width) {
    // Reduction over the lanes with the same t: in each round, a lane sends half of its columns to another lane, until
    // one column per lane remains.
    const int lane = threadIdx.x % 32;
    int column = 0;
    bool mine = true;
#pragma unroll
    for (int left = kColumns / 2, bit = 16; bit >= 4; bit /= 2, left /= 2) {
      const bool upper = lane & bit;
      if (left == 0) mine = mine && !upper;
      column += upper ? left : 0;
#pragma unroll
      for (int j = 0; j < (left > 0 ? left : 1); ++j)
#pragma unroll
        for (int p = 0; p < kWeights; ++p) {
          const double kept = upper ? columns_[left + j][p] : columns_[j][p];
          columns_[j][p] = kept + simt::shuffle_xor(upper ? columns_[j][p] : columns_[left + j][p], bit);
        }
    }
    const int place = place_of_chunk(lane % 4, column / kElements) / (int)sizeof(T) + column % kElements;
    if (!mine || place >= columns) return;
#pragma unroll
    for (int p = 0; p < kWeights; ++p) to[p * width + place] = columns_[0][p];
  }

 private:
  double columns_[kColumns][kWeights], of_plain_[1], of_further_[1];
  int present_[kChunks];
};

__device__ __forceinline__ unsigned pair(ptx::Half, float lower, float upper) {
  return ptx::to_half_pair(lower, upper);
}
__device__ __forceinline__ unsigned pair(ptx::Bfloat16, float lower, float upper) {
  return ptx::to_bfloat16s(lower, upper);
}
__device__ __forceinline__ void multiply(ptx::Half, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  ptx::mma_m16n8k16_f16(d, a, b);
}
__device__ __forceinline__ void multiply(ptx::Bfloat16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  ptx::mma_m16n8k16_bf16(d, a, b);
}

// ElementSums of 16-bit types T.
template <typename T, int kWeights>
class HalfSums {
  static constexpr int kColumns = 8;  // number of elements per chunk

 public:
  using Sum = float;
  static constexpr int kParts = 3;

  template <typename RowsAt>
  __device__ HalfSums(int column, const RowsAt& rows_at) : columns_{} {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int offset = place_of_chunk(t, chunk), at = column + offset / 2;
      present_of_lane_[chunk] = rows_at(offset);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        of_columns_[chunk][half] = pair(T(), part(g, at + 4 * half), part(g, at + 4 * half + 1));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float low = 8 * half + t + 1.0f;
      of_rows_[half] = g == 0 ? pair(T(), 1.0f, 1.0f) : g == 1 ? pair(T(), low, low + 4.0f) : 0;
    }
    present_of_columns_ = rows_at(16 * g);
  }

  template <bool kWhole>
  __device__ __forceinline__ void add(const unsigned char* mine, int first, Sum* to) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const unsigned char* of_columns = mine + t * kPitch + g * 16;
    mine += g * kPitch + place_of_chunk(t, 0);
    to += 2 * t * kWarps * kRows + g;
#pragma unroll
    for (int i = 0; i < kRows; i += 16) {
      // Row sums: the four words of a lane's chunk are a left operand. The instruction assigns words 0 and 2 to row g
      // of the product, and words 1 and 3 to row g + 8. Here all four words are from the same row of the stage, so rows
      // g and g + 8 of the product are added. The weights of words 1 and 3 are those of words 0 and 2, which are two
      // columns to the left. So twice the unweighted sum of words 1 and 3 is added.
#pragma unroll
      for (int row = i; row < i + 16; row += 8) {
        float d[4] = {};
#pragma unroll
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          uint4 four = {0, 0, 0, 0};
          if (kWhole || first + row + g < present_of_lane_[chunk]) {
            four = *reinterpret_cast<const uint4*>(mine + row * kPitch + place_of_chunk(0, chunk));
          }
          const unsigned words[4] = {four.x, four.y, four.z, four.w};
          multiply(T(), d, words, of_columns_[chunk]);
        }
        // Lane t holds parts 2·t and 2·t + 1 of the row sums; there are three parts.
        if (t < 2) to[row] = d[0] + d[2];
        if (t == 0) to[kWarps * kRows + row] = d[1] + d[3] + 2.0f * d[2];
      }
      // Column sums: the left operand holds the weights of the rows. Its row g = 0 holds ones, row 1 holds `low`, and
      // row 2 holds `high`.
      const float high = (float)((first + i) / 16);
      const unsigned highs = pair(T(), high, high);
      const unsigned a[4] = {g == 2 ? highs : of_rows_[0], 0, g == 2 ? highs : of_rows_[1], 0};
      unsigned rows[4][4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint4 four = {0, 0, 0, 0};
        if (kWhole || first + i + 4 * j + t < present_of_columns_) {
          four = *reinterpret_cast<const uint4*>(of_columns + (i + 4 * j) * kPitch);
        }
        rows[j][0] = four.x, rows[j][1] = four.y, rows[j][2] = four.z, rows[j][3] = four.w;
      }
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const unsigned selector = column % 2 == 0 ? 0x5410 : 0x7632;
        const unsigned b[2] = {__byte_perm(rows[0][column / 2], rows[1][column / 2], selector),
                               __byte_perm(rows[2][column / 2], rows[3][column / 2], selector)};
        multiply(T(), columns_[column], a, b);
      }
    }
  }

  static __device__ __forceinline__ Sum of_row(const Sum* parts, int p) {
    return p == 0 ? parts[0] : parts[kWarps * kRows] + 16.0f * parts[2 * kWarps * kRows];
  }

  __device__ __forceinline__ void store(Sum* to, int columns, long long width) {
    // Lane t holds the column sums of chunks 2·t and 2·t + 1. Lanes with g = 0 hold unweighted sums, lanes with g = 1
    // sums weighted by `low`, and lanes with g = 2 sums weighted by `high`.
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int chunk = 2 * t + i;
      simt::Vector<float, kColumns> sums;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        const float high = simt::shuffle(columns_[column][i], (lane + 4) % 32);
        sums[column] = g == 0 ? columns_[column][i] : columns_[column][i] + 16.0f * high;
      }
      if (g < kWeights && kColumns * chunk < columns) {
        *reinterpret_cast<simt::Vector<float, kColumns>*>(to + g * width + kColumns * chunk) = sums;
      }
    }
  }

 private:
  // Weight of a column in row g of an operand: 1, low or high for g = 0, 1 or 2; otherwise 0.
  static __device__ __forceinline__ float part(int g, int column) {
    return g == 0 ? 1.0f : g == 1 ? column % 16 + 1.0f : g == 2 ? (float)(column / 16) : 0.0f;
  }

  float columns_[kColumns][4];
  unsigned of_columns_[kChunks][2], of_rows_[2];
  int present_of_lane_[kChunks], present_of_columns_;
};

template <int kWeights>
class ElementSums<ptx::Half, kWeights> : public HalfSums<ptx::Half, kWeights> {
  using HalfSums<ptx::Half, kWeights>::HalfSums;
};
template <int kWeights>
class ElementSums<ptx::Bfloat16, kWeights> : public HalfSums<ptx::Bfloat16, kWeights> {
  using HalfSums<ptx::Bfloat16, kWeights>::HalfSums;
};

}  // namespace abft
