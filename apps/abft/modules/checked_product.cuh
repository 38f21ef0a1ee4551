// A product that checks itself as it is computed, and the check of what it leaves to check (Hopper, 16-bit types).
//
//   gemm_square with RowResiduals   A (m × k), B (n × k), checksums of B   →   C = A · Bᵀ + bias, partial residuals
//   check_residuals                 partial residuals                      →   C repaired, and a list of rows
//
// Symbols, limits and repairs are those of row_check.cuh. For row i and column tile t of C, the epilogue adds up
//
//   Σ_j v_j c_ij − Σ_l a_il x_l,   j in the columns of t, l in the chunks of t      and      Σ_j (v_j c_ij)²
//
// where every chunk of k belongs to one column tile, so that the sums over all t are d_i and s_i². The c_ij are the
// stored ones, rounded. The tensor cores compute Σ_l a_il x_l, by the side of gemm_square: x_l is split into kXParts
// parts of the elements' type.
//
// Why it is fast: C and A are not read again. Only what changes them after this kernel is not seen.
#pragma once
#include "apps/abft/modules/row_check.cuh"
#include "kernels/square/gemm_square.cuh"

namespace abft {

// Parts of a checksum of B, of bfloat16: 24 bits.
constexpr int kXParts = 3;

// The partial residuals of a product: arrays (column tiles, pitch).
struct PartialResiduals {
  float *sums, *squares;
  long long pitch;
};

// Epilogue of gemm_square. `v` and `bias` have n elements, a multiple of 8, and are aligned to 16 bytes; `bias` may be
// null.
template <typename T>
struct RowResiduals {
  const float* v;
  const T* bias;
  PartialResiduals to;
  int m, n;

  static constexpr int kWeightBytes = tsm2::kTileColumns * (int)sizeof(float);
  static constexpr int kSharedBytes = kWeightBytes + tsm2::kTileColumns * (int)sizeof(T);

  // The weights and biases of a tile's columns are in shared memory.
  struct Rows {
    float sum[2], square[2];
    const unsigned char* shared;
    int first;
  };

  __device__ __forceinline__ void begin(Rows& rows, unsigned char* shared, int row, int column) const {
    rows = {{}, {}, shared, row};
    const int thread = threadIdx.x % 128, left = n - column;
    if (thread < kWeightBytes / 16) {
      copy(shared + 16 * thread, v + column + 4 * thread, left - 4 * thread);
    } else if (thread < kSharedBytes / 16) {
      const int first = 8 * (thread - kWeightBytes / 16);
      copy(shared + 16 * thread, bias + column + first, bias == nullptr ? 0 : left - first);
    }
  }

  __device__ __forceinline__ unsigned take(Rows& rows, int r, int column, float lower, float upper) const {
    using Pair = tsm2::Element<T>;
    const auto weights = *reinterpret_cast<const simt::Vector<float, 2>*>(rows.shared + 4 * column);
    const auto biases = Pair::values(*reinterpret_cast<const unsigned*>(rows.shared + kWeightBytes + 2 * column));
    const unsigned pair = Pair::pair(lower + biases[0], upper + biases[1]);
    const auto stored = Pair::values(pair);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float product = stored[i] * weights[i];
      rows.sum[r] += product;
      rows.square[r] = fma(product, product, rows.square[r]);
    }
    return pair;
  }

  // The first kXParts columns of the side have the products with the parts of x, the others zeros.
  __device__ __forceinline__ void end(Rows& rows, const float (&side)[4], int tile) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = rows.sum[r] - (side[2 * r] + side[2 * r + 1]), square = rows.square[r];
#pragma unroll
      for (int bits = 1; bits < 4; bits *= 2) {
        sum += simt::shuffle_xor(sum, bits);
        square += simt::shuffle_xor(square, bits);
      }
      const int i = rows.first + 8 * r;
      if (threadIdx.x % 4 == 0 && i < m) to.sums[tile * to.pitch + i] = sum, to.squares[tile * to.pitch + i] = square;
    }
  }

 private:
  // Copies up to 16 bytes, of which `left` elements exist, and fills the others with zeros.
  template <typename E>
  static __device__ __forceinline__ void copy(unsigned char* shared, const E* from, int left) {
    constexpr int kWide = 16 / (int)sizeof(E);
    const int elements = left < 0 ? 0 : left < kWide ? left : kWide;
    ptx::cp_async<16>(shared, from, elements * (int)sizeof(E));
  }
};

// Splits checksums x into parts of the elements' type: `parts` (8 × k), whose other rows become zeros.
template <typename T>
__global__ void __launch_bounds__(kPartThreads) split_checksums(const float* x, long long k, T* parts) {
  const long long l = (long long)blockIdx.x * kPartThreads + threadIdx.x;
  if (l >= k) return;
  float rest = x[l];
#pragma unroll
  for (int i = 0; i < tsm2::kSideRows; ++i) {
    const T part = tsm2::Element<T>::from(i < kXParts ? rest : 0.0f);
    rest -= tsm2::Element<T>::value(part);
    parts[i * k + l] = part;
  }
}

// Checks all rows of C by their partial residuals. A warp takes eight rows at a time, which four lanes share. Those of
// a block lie far apart, so that many blocks share the work if a tile of C is wrong.
template <typename T>
__global__ void __launch_bounds__(kCheckThreads, 2)
    check_residuals(const __grid_constant__ CheckArgs<T> args, const PartialResiduals of, int column_tiles) {
  constexpr int kWarps = kCheckThreads / 32, kRows = 8;
  __shared__ unsigned flagged_rows[kWarps];  // a bit for each row
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto first_of = [&](long long step, int w) { return ((step * kWarps + w) * gridDim.x + blockIdx.x) * kRows; };
  ptx::griddepcontrol_wait();
#pragma unroll 1
  for (long long step = 0; first_of(step, 0) < args.of.m; ++step) {
    const long long row = first_of(step, warp) + lane % kRows;
    float d = 0, square = 0;
    if (row < args.of.m) {
#pragma unroll 4
      for (int tile = lane / kRows; tile < column_tiles; tile += 32 / kRows) {
        d += of.sums[tile * of.pitch + row];
        square += of.squares[tile * of.pitch + row];
      }
    }
#pragma unroll
    for (int bits = kRows; bits < 32; bits *= 2) {
      d += simt::shuffle_xor(d, bits);
      square += simt::shuffle_xor(square, bits);
    }
    const double residual = args.bias_sum == nullptr ? d : d - *args.bias_sum;
    const double limit =
        (args.limits.output + 1.7320508 * args.limits.sum) * sqrt((double)square) + args.limits.absolute;
    const bool flagged = row < args.of.m && disagrees(residual, limit);
    const unsigned found = __ballot_sync(0xffffffffu, flagged);
    if (lane == 0) flagged_rows[warp] = found;
    if (!__syncthreads_or(flagged)) continue;
#pragma unroll 1
    for (int i = 0; i < kWarps * kRows; ++i)
      if (flagged_rows[i / kRows] >> i % kRows & 1) settle_row(args, first_of(step, i / kRows) + i % kRows);
    __syncthreads();  // flagged_rows has been read
  }
}

}  // namespace abft
