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
// stored ones, rounded. The tensor cores compute all sums: Σ_l a_il x_l by the side of gemm_square, those of c_ij by
// products of a fragment of C, as it is stored, with columns of weights. For that, x_l and v_j are split into kParts
// parts of the elements' type. Squares are rounded to that type, which changes s_i by less than 1 %.
//
// Why it is fast: C and A are not read again, and the epilogue takes half as many instructions again as one that only
// stores. Only what changes C and A after this kernel is not seen.
#pragma once
#include "apps/abft/modules/row_check.cuh"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/square/gemm_square.cuh"

namespace abft {

// Parts of a checksum of B, and of a weight, of bfloat16: 24 bits.
constexpr int kParts = 3;

// The partial residuals of a product: arrays (column tiles, pitch).
struct PartialResiduals {
  float *sums, *squares;
  long long pitch;
};

// Epilogue of gemm_square. `weights` (kParts + 1, n) has the parts of v_j, then v_j²; `bias` has n elements or is null.
// n is a multiple of 8, and both addresses are multiples of 16. Only for bfloat16: parts need the exponents of float32.
template <typename T>
struct RowResiduals;

template <>
struct RowResiduals<ptx::Bfloat16> {
  using T = ptx::Bfloat16;
  const T *weights, *bias;
  PartialResiduals to;
  int m, n;

  // Shared memory: the weights of a tile's columns, with rows that begin in different banks, and the biases.
  static constexpr int kColumnBytes = tsm2::kTileColumns * (int)sizeof(T), kWeightRowBytes = kColumnBytes + 16;
  static constexpr int kBiasAt = (kParts + 1) * kWeightRowBytes, kSharedBytes = kBiasAt + kColumnBytes;

  // Fragments of the products of c_ij and of c_ij² with the columns of weights: Σ v_j c_ij are columns 0 to kParts − 1
  // of the first, and Σ v_j² c_ij² is column kParts of the second.
  struct Rows {
    float sums[4], squares[4];
    const unsigned char* shared;
    int first;
  };

  __device__ __forceinline__ void begin(Rows& rows, unsigned char* shared, int row, int column) const {
    rows = {{}, {}, shared, row};
    constexpr int kCopies = kColumnBytes / 16;
    for (int copy = threadIdx.x % 128; copy < (kParts + 2) * kCopies; copy += 128) {
      const int part = copy / kCopies, from = column + copy % kCopies * 8;
      const bool of_weights = part <= kParts;
      unsigned char* const to = shared + part * kWeightRowBytes + copy % kCopies * 16;
      const T* const source = of_weights ? weights + (long long)part * n + from : bias + from;
      ptx::cp_async<16>(to, source, from < n && (of_weights || bias != nullptr) ? 16 : 0);
    }
  }

  __device__ __forceinline__ void take(Rows& rows, int column, const float (&lower)[4], const float (&upper)[4],
                                       unsigned (&words)[4]) const {
    using Pair = tsm2::Element<T>;
    const auto pair_at = [&](int at) { return *reinterpret_cast<const unsigned*>(rows.shared + at + 2 * column); };
    unsigned weights[2], squares[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto& sums = half == 0 ? lower : upper;
      const auto biases = Pair::values(pair_at(kBiasAt + 16 * half));
      weights[half] = pair_at(threadIdx.x / 4 % (kParts + 1) * kWeightRowBytes + 16 * half);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        words[2 * half + r] = Pair::pair(sums[2 * r] + biases[0], sums[2 * r + 1] + biases[1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) squares[i] = ptx::product_of_bfloat16s(words[i], words[i]);
    ptx::mma_m16n8k16_bf16(rows.sums, words, weights);
    ptx::mma_m16n8k16_bf16(rows.squares, squares, weights);
  }

  // The first kParts columns of the side have the products with the parts of x.
  __device__ __forceinline__ void end(Rows& rows, const float (&side)[4], int tile) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float own = rows.sums[2 * r] - side[2 * r], next = rows.sums[2 * r + 1] - side[2 * r + 1];
      const float sum = t == 0 ? own + next : own, total = sum + simt::shuffle_xor(sum, 1);
      const long long at = tile * to.pitch + rows.first + 8 * r;
      if (rows.first + 8 * r >= m) continue;
      if (t == 0) to.sums[at] = total;
      if (t == 1) to.squares[at] = rows.squares[2 * r + 1];
    }
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
    const T part = tsm2::Element<T>::from(i < kParts ? rest : 0.0f);
    rest -= tsm2::Element<T>::value(part);
    parts[i * k + l] = part;
  }
}

// Checks all rows of C by their partial residuals. A warp takes eight rows at a time, which four lanes share. Those of
// a block lie far apart, so that many blocks share the work if a tile of C is wrong. Step −1, before the product has
// ended, has no rows: it fetches instructions and arguments, which saves a microsecond of three.
template <typename T>
__global__ void __launch_bounds__(kCheckThreads, 2)
    check_residuals(const __grid_constant__ CheckArgs<T> args, const PartialResiduals of, int column_tiles) {
  constexpr int kWarps = kCheckThreads / 32, kRows = 8;
  __shared__ unsigned flagged_rows[kWarps];  // a bit for each row
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto first_of = [&](long long step, int w) { return ((step * kWarps + w) * gridDim.x + blockIdx.x) * kRows; };
  ptx::griddepcontrol_launch_dependents();
#pragma unroll 1
  for (long long step = -1; step < 0 || first_of(step, 0) < args.of.m; ++step) {
    if (step == 0) ptx::griddepcontrol_wait();
    const long long row = first_of(step, warp) + lane % kRows;
    const bool exists = step >= 0 && row < args.of.m;
    float d = 0, square = 0;
    double of_bias = 0;
    if (exists) {
      if (args.bias_sum != nullptr) of_bias = *args.bias_sum;
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
    const double limit =
        (args.limits.output + 1.7320508 * args.limits.sum) * sqrt((double)square) + args.limits.absolute;
    const bool flagged = exists && disagrees(d - of_bias, limit);
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
