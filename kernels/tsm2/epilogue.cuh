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
//
// With kTakesFragments and where takes_fragments() says so, it is given registers instead, as the tensor cores leave them:
//
//   template <int kBlocks>
//   __device__ void fragments(long long row, int column, int columns, bool present, int half,
//                             const Sum (&d)[kBlocks][4]) const;
//
// where d[j][2·half] and d[j][2·half + 1] are columns 8·j + 2·(lane % 4) and the next of the lane's row.
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

// How C lies in memory, as far as it matters to Store.
enum class Lies : long long {
  kAnyhow,  // with any strides
  kPacked,  // row-major without gaps, as wide as the tile, from a multiple of 16 bytes on
  kInPairs  // row-major, of whole column blocks (of two for halves), every row from a multiple of two elements (four) on
};

// C ← alpha · sum + beta · C. With beta = 0, C is not read. `kColumns` is how many columns a warp has.
// C[i, j] is C[i·row_stride + j·column_stride].
template <typename T, typename Sum, int kColumns>
struct Store {
  T* C;
  long long row_stride, column_stride;
  Lies lies;
  Sum alpha, beta;

  static constexpr bool kTakesFragments = kColumns % (sizeof(T) == 2 ? 16 : 8) == 0;
  __device__ bool takes_fragments() const { return lies == Lies::kInPairs; }

  template <int kBlocks>
  __device__ void fragments(long long row, int column, int columns, bool present, int half,
                            const Sum (&d)[kBlocks][4]) const {
    const int t = threadIdx.x % 4;
    if constexpr (sizeof(T) > 2) {
      struct alignas(2 * sizeof(T)) Pair {
        T at[2];
      };
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const int c = 8 * j + 2 * t;
        if (!present || c >= columns) continue;
        auto* to = reinterpret_cast<Pair*>(C + row * row_stride + column + c);
        Pair out;
        if (beta != Sum(0)) out = *to;
#pragma unroll
        for (int i = 0; i < 2; ++i) out.at[i] = scaled(d[j][2 * half + i], &out.at[i]);
        *to = out;
      }
    } else if constexpr (kBlocks % 2 == 0) {
      // Two lanes that are neighbours swap a pair, so that each has four elements of one block, and a row's eight bytes a
      // lane fill a sector of 32.
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
        auto* to = reinterpret_cast<Four*>(C + row * row_stride + column + c);
        Four out;
        if (beta != Sum(0)) out = *to;
#pragma unroll
        for (int i = 0; i < 4; ++i) out.at[i] = scaled((i < 2) != odd ? mine[i % 2] : theirs[i % 2], &out.at[i]);
        *to = out;
      }
    }
  }

  template <typename Sums>
  __device__ void operator()(const Sums& sums, long long row, int rows, int column, int columns) const {
    const int lane = threadIdx.x % 32;
    if (lies == Lies::kPacked && rows % 8 == 0) {
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
  long long row_stride, column_stride;
  Lies lies;
  Sum alpha, beta;

  static constexpr bool kTakesFragments = false;

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
