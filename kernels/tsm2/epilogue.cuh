// What becomes of the sums of a tall-and-skinny product.
//
// An epilogue is a class that the kernel calls with complete sums, with all 32 lanes of a warp. By kTakes it says how:
//
//   kRows       template <typename Sums>
//               void operator()(const Sums& sums, long long row, int rows, long long column, int columns) const;
//
//               `sums(i, j)` is the sum of row + i and column + j, for i < rows and j < columns, in shared memory: an app's
//               own epilogue (an arg-min along a row, a checksum) may go through them in any order.
//
//   kFragments  template <int kBlocks>
//               void fragments(long long row, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const;
//
//               Registers, as the tensor cores leave them: with g = lane / 4 and t = lane % 4, d[j][2·half + i] is the sum
//               of row + 8·half + g and column + 8·j + 2·t + i, where that row and column are less than `rows` and
//               `columns` away.
#pragma once
#include "kernels/tsm2/element.cuh"

namespace tsm2 {

// A warp's rows of sums in shared memory, kPitch apart.
template <typename Sum, int pitch, int most_rows>
struct Sums {
  static constexpr int kPitch = pitch, kMostRows = most_rows;
  const Sum* first;
  __device__ const Sum& operator()(int i, int j) const { return first[i * kPitch + j]; }
};

enum class Takes { kRows, kFragments };

// C ← alpha · sum + beta · C, where C[i, j] is C[i·row_stride + j·column_stride]. With beta = 0, C is not read.
template <typename T, typename Sum>
struct Scaled {
  T* C;
  long long row_stride, column_stride;
  // Whether C lies as is best for the class below: without gaps for Store, for StoreColumns in columns of whole 8 bytes.
  long long regular;
  Sum alpha, beta;

  __device__ T scaled(Sum sum, const T* old) const {
    return Element<T>::from(beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(*old));
  }
};

// Any C. It is regular if it is row-major without gaps, as wide as the tile, from a multiple of 16 bytes on. `kColumns` is
// how many columns a warp has.
template <typename T, typename Sum, int kColumns>
struct Store : Scaled<T, Sum> {
  using Scaled<T, Sum>::C, Scaled<T, Sum>::row_stride, Scaled<T, Sum>::column_stride, Scaled<T, Sum>::beta;
  static constexpr Takes kTakes = Takes::kRows;

  template <typename Sums>
  __device__ void operator()(const Sums& sums, long long row, int rows, long long column, int columns) const {
    const int lane = threadIdx.x % 32;
    if (this->regular && rows % 8 == 0) {
      store_packed(sums, C + row * kColumns, rows * kColumns, lane);
      return;
    }
    // Lanes follow C's own order, so that their stores make whole sectors.
    T* block = C + row * row_stride + column * column_stride;
    const bool by_rows = column_stride <= row_stride;
    for (int i = lane; i < Sums::kMostRows * kColumns; i += 32) {
      const int r = by_rows ? i / kColumns : i % Sums::kMostRows, c = by_rows ? i % kColumns : i / Sums::kMostRows;
      if (r >= rows || c >= columns) continue;
      T* to = block + r * row_stride + c * column_stride;
      *to = this->scaled(sums(r, c), to);
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
      if constexpr (Sums::kPitch == kColumns || kColumns % kSums == 0) {
#pragma unroll
        for (int v = 0; v < kVector; v += kSums) {
          const Sum* from = Sums::kPitch == kColumns ? sums.first + i + v : &sums((i + v) / kColumns, (i + v) % kColumns);
          const auto some = *reinterpret_cast<const SumVector*>(from);
#pragma unroll
          for (int j = 0; j < kSums; ++j) out.at[v + j] = this->scaled(some.at[j], &out.at[v + j]);
        }
      } else {
        static_assert(kColumns >= kVector, "a vector is of two rows at most");
        const int column = i % kColumns;
        const Sum* from = &sums(i / kColumns, column);
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          out.at[v] = this->scaled(from[column + v < kColumns ? v : v + Sums::kPitch - kColumns], &out.at[v]);
        }
      }
      *place = out;
    }
  }
};

// A row-major C of whole column blocks (of two for halves), every row from a multiple of two elements (four) on.
template <typename T, typename Sum>
struct StorePairs : Scaled<T, Sum> {
  using Scaled<T, Sum>::C, Scaled<T, Sum>::row_stride, Scaled<T, Sum>::beta;
  static constexpr Takes kTakes = Takes::kFragments;

  template <int kBlocks>
  __device__ void fragments(long long row, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool present = 8 * half + g < rows;
      T* line = C + (row + 8 * half + g) * row_stride + column;
      if constexpr (sizeof(T) > 2) {
        struct alignas(2 * sizeof(T)) Pair {
          T at[2];
        };
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const int c = 8 * j + 2 * t;
          if (!present || c >= columns) continue;
          auto* to = reinterpret_cast<Pair*>(line + c);
          Pair out;
          if (beta != Sum(0)) out = *to;
#pragma unroll
          for (int i = 0; i < 2; ++i) out.at[i] = this->scaled(d[j][2 * half + i], &out.at[i]);
          *to = out;
        }
      } else if constexpr (kBlocks % 2 == 0) {
        // Two lanes that are neighbours swap a pair, so that each has four elements of one block, and a row's eight bytes
        // a lane fill a sector of 32.
        const bool odd = t % 2;
        struct alignas(8) Four {
          T at[4];
        };
#pragma unroll
        for (int j = 0; j < kBlocks; j += 2) {
          float mine[2], theirs[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float first = d[j][2 * half + i], second = d[j + 1][2 * half + i];
            mine[i] = odd ? second : first;
            theirs[i] = simt::shuffle_xor(odd ? first : second, 1);
          }
          const int c = 8 * (j + odd) + 4 * (t / 2);
          if (!present || c >= columns) continue;
          auto* to = reinterpret_cast<Four*>(line + c);
          Four out;
          if (beta != Sum(0)) out = *to;
#pragma unroll
          for (int i = 0; i < 4; ++i) out.at[i] = this->scaled((i < 2) != odd ? mine[i % 2] : theirs[i % 2], &out.at[i]);
          *to = out;
        }
      }
    }
  }
};

// A C whose columns are contiguous: row_stride is 1. It is regular if they begin at multiples of 8 bytes.
//
// Eight lanes have eight rows of a column, which are a sector of 32 bytes, or more; of halves, four lanes have 16 rows.
template <typename T, typename Sum>
struct StoreColumns : Scaled<T, Sum> {
  using Scaled<T, Sum>::C, Scaled<T, Sum>::column_stride, Scaled<T, Sum>::beta;
  static constexpr Takes kTakes = Takes::kFragments;

  template <int kBlocks>
  __device__ void fragments(long long row, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    T* begin = C + row + column * column_stride;
    if constexpr (sizeof(T) == 2) {
      if (this->regular && rows >= 16) {
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) four_rows(begin, columns, j, d[j]);
        return;
      }
    }
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 8 * (i / 2) + g, c = 8 * j + 2 * t + i % 2;
        if (r >= rows || c >= columns) continue;
        T* to = begin + r + c * column_stride;
        *to = this->scaled(d[j][i], to);
      }
  }

 private:
  // Lanes swap, first with the one of the next row, so that each has two rows of one column, then with the one two rows on:
  // each has four rows of one half.
  __device__ void four_rows(T* begin, int columns, int j, const Sum (&d)[4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const bool odd = g % 2, second = g / 2 % 2;
    float rows[2][2];  // of each half
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float mine = odd ? d[2 * half + 1] : d[2 * half];
      const float theirs = simt::shuffle_xor(odd ? d[2 * half] : d[2 * half + 1], 4);
      rows[half][0] = odd ? theirs : mine;
      rows[half][1] = odd ? mine : theirs;
    }
    struct alignas(8) Four {
      T at[4];
    };
    float four[4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float mine = second ? rows[1][i] : rows[0][i];
      const float theirs = simt::shuffle_xor(second ? rows[0][i] : rows[1][i], 8);
      four[i] = second ? theirs : mine;
      four[2 + i] = second ? mine : theirs;
    }
    const int r = 8 * second + g / 4 * 4, c = 8 * j + 2 * t + odd;
    if (c >= columns) return;
    auto* to = reinterpret_cast<Four*>(begin + r + c * column_stride);
    Four out;
    if (beta != Sum(0)) out = *to;
#pragma unroll
    for (int i = 0; i < 4; ++i) out.at[i] = this->scaled(four[i], &out.at[i]);
    *to = out;
  }
};

// The same for operands whose lines were folded: kFold lines of A and of B were taken as one, so that the sums of k × w
// lie kFold times along the diagonal of the tile.
template <typename T, typename Sum, int kFold, int kRows, int kColumns>
struct StoreFolded : Scaled<T, Sum> {
  using Scaled<T, Sum>::C, Scaled<T, Sum>::row_stride, Scaled<T, Sum>::column_stride;
  static constexpr Takes kTakes = Takes::kRows;

  template <typename Sums>
  __device__ void operator()(const Sums& sums, long long, int, long long, int) const {
    for (int i = threadIdx.x % 32; i < kRows * kColumns; i += 32) {
      const int r = i / kColumns, c = i % kColumns;
      Sum sum = 0;
#pragma unroll
      for (int fold = 0; fold < kFold; ++fold) sum += sums(fold * kRows + r, fold * kColumns + c);
      T* to = C + r * row_stride + c * column_stride;
      *to = this->scaled(sum, to);
    }
  }
};

}  // namespace tsm2
