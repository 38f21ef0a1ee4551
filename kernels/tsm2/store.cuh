// Epilogues that store C ← alpha · A · B + beta · C.
#pragma once
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/device/element.cuh"
#include "kernels/tsm2/epilogue.cuh"

namespace tsm2 {

// C ← alpha · sum + beta · C. C[i, j] is at C[i·row_stride + j·column_stride]. With beta = 0, C is not read.
template <typename T, typename Sum>
struct Scaled {
  T* C;
  long long row_stride, column_stride;
  // Flag: if it is not 0, C has the layout that the fast path of the epilogue requires. For the epilogue Store, C is
  // then row-major without gaps, aligned to 16 bytes and as wide as a tile, and each warp holds whole rows of the tile.
  // For the epilogue StoreLines, every column of C is then aligned to 16 bytes.
  long long regular;
  Sum alpha, beta;

  __device__ Sum total(Sum sum, const T* old) const {
    return beta == Sum(0) ? alpha * sum : alpha * sum + beta * Element<T>::value(*old);
  }
  __device__ T scaled(Sum sum, const T* old) const { return Element<T>::from(total(sum, old)); }
};

// Stores a C of any layout. kColumns: number of columns that a warp holds.
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
    // Lanes follow the memory order of C, so that their stores fill whole sectors.
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
  // Stores contiguous rows that begin at a multiple of 16 bytes. Each lane stores 16 bytes at a time.
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
          const Sum* from =
              Sums::kPitch == kColumns ? sums.first + i + v : &sums((i + v) / kColumns, (i + v) % kColumns);
          const auto some = *reinterpret_cast<const SumVector*>(from);
#pragma unroll
          for (int j = 0; j < kSums; ++j) out.at[v + j] = this->scaled(some.at[j], &out.at[v + j]);
        }
      } else {
        static_assert(kColumns >= kVector, "a vector spans at most two rows");
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

// Stores a row-major C whose number of columns is a multiple of 8, or of 16 for 16-bit types. Rows are aligned to two
// elements, or to four for 16-bit types.
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
        // Two neighboring lanes exchange a pair of elements, so that each lane has four elements of one column block.
        // The eight bytes per lane then fill whole sectors of 32 bytes.
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
          for (int i = 0; i < 4; ++i)
            out.at[i] = this->scaled((i < 2) != odd ? mine[i % 2] : theirs[i % 2], &out.at[i]);
          *to = out;
        }
      }
    }
  }
};

// Stores a C with contiguous columns: row_stride is 1.
//
// Eight lanes store eight rows of a column: a whole sector of 32 bytes or more, or half a sector for 16-bit types.
template <typename T, typename Sum>
struct StoreColumns : Scaled<T, Sum> {
  using Scaled<T, Sum>::C, Scaled<T, Sum>::column_stride;
  static constexpr Takes kTakes = Takes::kFragments;

  template <int kBlocks>
  __device__ void fragments(long long row, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    T* begin = C + row + column * column_stride;
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
};

// Stores a C with contiguous columns through shared memory: 16 bytes per lane, and up to 128 bytes of a column at once.
// For plans whose tiles are one work unit.
template <typename T, typename Sum>
struct StoreLines : Scaled<T, Sum> {
  using Scaled<T, Sum>::C, Scaled<T, Sum>::column_stride, Scaled<T, Sum>::beta;
  static constexpr Takes kTakes = Takes::kTile;
  // Number of elements per 16 bytes; number of column blocks stored at once.
  static constexpr int kVector = 16 / sizeof(T), kAcross = 2;
  // Number of rows stored at once: at most 128 bytes of a column.
  template <int kBlocks>
  static constexpr int kLine = 16 * (kBlocks < kVector / 2 ? kBlocks : kVector / 2);
  // Number of elements from one column to the next in shared memory: an odd number of 16-byte pieces, to avoid bank
  // conflicts.
  template <int kBlocks>
  static constexpr int kPitch = kLine<kBlocks> + kVector;
  template <int kBlocks>
  static constexpr int kBytes = 8 * kAcross * kPitch<kBlocks> * (int)sizeof(T);

  template <int kBlocks, int kColumnBlocks>
  __device__ void tile(unsigned char* scratch, long long row, int rows, long long column, int columns,
                       const Sum (&d)[kBlocks][kColumnBlocks][4]) const {
    T* lines = reinterpret_cast<T*>(scratch);
#pragma unroll
    for (int i = 0; i < kBlocks; i += kLine<kBlocks> / 16)
#pragma unroll
      for (int j = 0; j < kColumnBlocks; j += kAcross) {
        const int down = rows - 16 * i < kLine<kBlocks> ? rows - 16 * i : kLine<kBlocks>;
        const int across = columns - 8 * j < 8 * kAcross ? columns - 8 * j : 8 * kAcross;
        T* to = C + row + 16 * i + (column + 8 * j) * column_stride;
        __syncwarp();  // the previous content has been stored to C
        if (beta != Sum(0)) {
          move<kLine<kBlocks>>(lines, kPitch<kBlocks>, to, column_stride, down, across);
          __syncwarp();
        }
#pragma unroll
        for (int block = 0; block < kLine<kBlocks> / 16 && i + block < kBlocks; ++block) {
          put<kPitch<kBlocks>>(lines + 16 * block, d[i + block], j);
        }
        __syncwarp();
        move<kLine<kBlocks>>(to, column_stride, lines, kPitch<kBlocks>, down, across);
      }
  }

 private:
  // Copies `columns` columns of `rows` rows from C to shared memory, or from shared memory to C.
  template <int kRows>
  __device__ void move(T* to, long long to_stride, const T* from, long long from_stride, int rows, int columns) const {
    const int lane = threadIdx.x % 32;
    if (this->regular && rows == kRows) {
      constexpr int kPieces = kRows / kVector;
#pragma unroll
      for (int i = lane; i < 8 * kAcross * kPieces; i += 32) {
        const int c = i / kPieces, r = i % kPieces * kVector;
        if (c >= columns) continue;
        *reinterpret_cast<ptx::Quad*>(to + r + c * to_stride) =
            *reinterpret_cast<const ptx::Quad*>(from + r + c * from_stride);
      }
      return;
    }
#pragma unroll 1
    for (int i = lane; i < 8 * kAcross * kRows; i += 32) {
      const int c = i / kRows, r = i % kRows;
      if (r < rows && c < columns) to[r + c * to_stride] = from[r + c * from_stride];
    }
  }

  // Writes 16 rows of column blocks `first` and `first` + 1 to shared memory. If beta is not 0, that memory holds the
  // old elements of C.
  template <int kPitch, int kColumnBlocks>
  __device__ void put(T* columns, const Sum (&d)[kColumnBlocks][4], int first) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (sizeof(T) == 2) {
      // The upper and lower halves of both blocks are four 8 × 8 matrices: lane 8·i + r passes the address of column r
      // of matrix i.
      T* mine = columns + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
      unsigned words[4] = {};
      if (beta != Sum(0)) ptx::ldmatrix_x4<true>(words, mine);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j = first + i / 2;
        if (j >= kColumnBlocks) break;
        const Sum* pair = &d[j][i % 2 * 2];
        T old[2];
        memcpy(old, &words[i], sizeof old);
        words[i] = Element<T>::pair(this->total(pair[0], &old[0]), this->total(pair[1], &old[1]));
      }
      ptx::stmatrix_x4_transposed(mine, words);
    } else {
#pragma unroll
      for (int j = first; j < first + kAcross && j < kColumnBlocks; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          T* to = columns + (8 * (j - first) + 2 * t + i % 2) * kPitch + 8 * (i / 2) + g;
          *to = this->scaled(d[j][i], to);
        }
    }
  }
};

// Stores a C of any layout for folded operands: the GEMM treats every kFold consecutive lines of A as one line, and
// likewise of B. The diagonal of the tile then has kFold blocks of kRows × kColumns sums. A · B is the sum of these
// blocks.
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
