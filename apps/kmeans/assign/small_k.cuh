// Labels for small k: arg-min epilogue of a tall-and-skinny GEMM. Finds the candidate centers of each row, and lists
// the rows that are ambiguous or have a new label.
//
//   sums (rows × k)   x̂ · ĉ, in float32, for each row x and each center c
//
// x̂ is the row in the half-precision copy (data/half_copy.cuh), and ĉ is the center in float16. The nearest center of
// a row has the largest score x·c − ‖c‖²/2. The GEMM computes x̂·ĉ instead of x·c. So scores have an error of at most
//
//   E = norm · (ρ C + δ + γ (C + δ)) + 2⁻²² H,   C = max ‖c‖, δ = max ‖c − ĉ‖, H = max ‖c‖²/2
//
// norm is the stored norm of the row, and ρ is the relative rounding error of the half-precision copy. γ is the error
// of a tensor-core product x̂·ĉ, relative to ‖x̂‖ ‖ĉ‖.
//
// One distant center must not widen the bounds of all rows. So the maxima C, δ and H of a row are taken over the
// centers whose norm is at most a limit R (RowBound in error_bound.cuh):
//
//   R = 2.2 norm + 1.05 c₀ + 1,   c₀ = min ‖c‖
//
// A center of a larger norm is not the nearest, even by its computed score. That score is at most
//
//   (1.001 + γ) norm ‖c‖ − (1 − γ) ‖c‖²/2
//
// which decreases with ‖c‖ from R on. At R it is less than −norm c₀ − c₀²/2, since γ < 0.016. The true score of the
// center of norm c₀ is at least that.
//
// A center can be the nearest only if its score exceeds the best score minus 2 E. Such centers are the *candidates* of
// the row, one bit each. A row with one candidate is certified. If this candidate is the row's label already, the
// kernel writes nothing. Every other row is appended to its block's list, which rescore.cuh processes.
//
// For large d, rescoring is costly. There, ArgminEpilogueLargeD computes an error bound for each center, because the
// mean of few samples may have several times the rounding error ‖c − ĉ‖ of the other centers.
//
// Why it is fast: a score costs an addition, a maximum and three fused multiply-adds. The first two of these compare
// the score with the threshold; the second saturates to 1 above it and to 0 below it. The third sets the candidate's
// bit in the mantissa of a float. Two shuffles then give each lane all candidate bits of one row. The kernel reads the
// labels, 4 bytes per row, but does not write them.
#pragma once
#include "apps/kmeans/assign/ambiguous_row.cuh"
#include "apps/kmeans/assign/error_bound.cuh"
#include "kernels/tsm2/epilogue.cuh"
#include "kernels/ptx/memory.cuh"

namespace kmeans {

constexpr float kLarge = 1.2676506e30f;  // 2¹⁰⁰, the factor that makes score differences saturate to 0 or 1

struct ArgminEpilogue {
  static constexpr tsm2::Takes kTakes = tsm2::Takes::kTile;
  template <int kBlocks>
  static constexpr int kBytes = 0;

  const float* offsets;  // −‖c‖²/2 of every column of the product; −infinite past the last center
  const CenterStats* center_stats;
  const float* norms;
  const int* labels;
  AmbiguousRow* entries;  // block b's list starts at b · capacity
  unsigned* counts;       // length of each block's list
  const int* stopped;     // if set, the kernel does nothing
  long long capacity;
  unsigned n, ahead;             // number of rows; distance from a warp's tile to its next tile in rows, for prefetches
  float tensor_error, rounding;  // γ, ρ

  __device__ __forceinline__ bool idle() const { return *stopped; }

  template <int kBlocks, int kColumnBlocks>
  __device__ void tile(unsigned char*, long long row, int rows, long long, int,
                       const float (&d)[kBlocks][kColumnBlocks][4]) const {
    const RowBound bound(*center_stats, tensor_error, rounding, 1.0f / (1 << 22));
    label_rows(
        row, rows, d, [&](float norm) { return 1.0001f * bound(norm); },
        [&](const float (&sums)[kColumnBlocks][4], int half, const float (&offset)[kColumnBlocks][2], float error) {
          return candidates(sums, half, offset, error);
        });
  }

  // The row that lane (g, t) labels of 32 rows, row 8·t + g.
  struct OwnRow {
    unsigned row;
    int label;  // before this iteration
    float norm;
    bool present;
  };

  // Lists those of 32 rows that are ambiguous or have a new label. `sums` are those of rows 0 … 15 and of rows 16 … 31.
  // `count` is the length of the list, in shared memory. For `find` and `of_norm`, see label_rows.
  template <int kColumnBlocks, typename Find>
  __device__ __forceinline__ void label_32_rows(unsigned* count, const OwnRow& own, float of_norm, float norm_limit,
                                                const float (*sums)[kColumnBlocks][4],
                                                const float (&offset)[kColumnBlocks][2], const Find& find) const {
    // This lane holds sums of rows g, g + 8, g + 16 and g + 24.
    const int g = threadIdx.x % 32 / 4;
    unsigned bits[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) bits[q] = find(sums[q / 2], q % 2, offset, simt::shuffle(of_norm, 4 * g + q));
    Candidates found = candidates_of_own_row(bits);
    if (!(own.norm <= norm_limit)) found = {0, 0};
    append(count, own.present && !found.is(own.label), {own.row, own.label, found.low, found.high});
  }

  // A block keeps the length of its list in shared memory. An atomic operation in global memory would delay a warp
  // longer than loading its rows does.
  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) *listed() = 0;
  }
  __device__ __forceinline__ void close() const {
    __syncthreads();
    if (threadIdx.x == 0 && *listed() != 0) counts[blockIdx.x] = *listed();
  }

  // Loads the values of this lane's columns: to[j][i] is that of column 8·j + 2·t + i, where t = lane % 4.
  template <int kColumnBlocks>
  static __device__ __forceinline__ void load_columns(const float* from, float (&to)[kColumnBlocks][2]) {
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) to[j][i] = from[8 * j + 2 * (threadIdx.x % 4) + i];
  }

  // Returns the candidates of row 8·half + g among this lane's columns: bit 2·j + i for column 8·j + 2·t + i.
  template <int kColumnBlocks>
  __device__ __forceinline__ unsigned candidates(const float (&d)[kColumnBlocks][4], int half,
                                                 const float (&offset)[kColumnBlocks][2], float error) const {
    float best = -kInfinity;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) best = fmaxf(best, d[j][2 * half + i] + offset[j][i]);
    best = fmaxf(best, simt::shuffle_xor(best, 1));
    best = fmaxf(best, simt::shuffle_xor(best, 2));
    return candidates_near(d, half, offset, error, best);
  }

  // Appends the `entry` of each lane with `wanted` to the block's list. `*count` is the length of this list.
  __device__ __forceinline__ void append(unsigned* count, bool wanted, const AmbiguousRow& entry) const {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    if (all == 0) return;
    const int lane = threadIdx.x % 32;
    unsigned begin = 0;
    if (lane == 0) begin = atomicAdd(count, (unsigned)__popc(all));
    begin = simt::shuffle(begin, 0);
    if (wanted) entries[blockIdx.x * capacity + begin + __popc(all & ((1u << lane) - 1))] = entry;
  }

 protected:
  static __device__ __forceinline__ unsigned* listed() {
    __shared__ unsigned count;
    return &count;
  }

  // Lists the rows of a tile that are ambiguous or have a new label. `find` returns this lane's candidate bits of one
  // row. The arguments of `find` are the sums of 16 rows, the half of these rows with the row (0 or 1), the column
  // biases, and the result of `of_norm` for the row's norm.
  template <int kBlocks, int kColumnBlocks, typename OfNorm, typename Find>
  __device__ __forceinline__ void label_rows(long long row, int rows, const float (&d)[kBlocks][kColumnBlocks][4],
                                             const OfNorm& of_norm, const Find& find) const {
    static_assert(kBlocks % 2 == 0 && kColumnBlocks <= 8,
                  "rows are dealt to lanes 32 at a time; a lane has up to 16 bits");
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float offset[kColumnBlocks][2];
    load_columns(offsets, offset);
    const unsigned from = (unsigned)row, soon = from + ahead + 16 * (lane / 2);
    if (lane < 2 * kBlocks && lane % 4 < 2 && soon < n) {
      ptx::prefetch(lane % 2 ? static_cast<const void*>(norms + soon) : labels + soon);
    }
    const float norm_limit = center_stats->norm_limit;
#pragma unroll
    for (int first = 0; first < kBlocks; first += 2) {
      const int mine = 16 * first + 8 * t + g;
      const bool present = mine < rows;
      const int label = present ? labels[from + mine] : 0;
      const float norm = present ? norms[from + mine] : 0.0f;
      label_32_rows(listed(), {from + mine, label, norm, present}, of_norm(norm), norm_limit, &d[first], offset, find);
    }
  }

  // As `candidates`, for a row whose best score is known.
  template <int kColumnBlocks>
  static __device__ __forceinline__ unsigned candidates_near(const float (&d)[kColumnBlocks][4], int half,
                                                             const float (&offset)[kColumnBlocks][2], float error,
                                                             float best) {
    // Products x̂·ĉ are below 2²⁸ (update/centers.cuh), so a center whose scaled score overflows is no candidate.
    // Different scores are at least 1e-18 apart, so that scaled differences saturate. The scores are computed again, by
    // another formula, so that the compiler does not keep them in registers.
    const float threshold = (2 * error - best) * kLarge;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float above = fmaf(d[j][2 * half + i], kLarge, fmaf(offset[j][i], kLarge, threshold));
        sum = fmaf(__saturatef(above), (float)(1 << (2 * j + i)), sum);
      }
    return (unsigned)sum;
  }
};

// The second part of a center holds 2¹¹ times the float16 rounding error of the first part (ArgminEpilogueLargeD).
constexpr float kSecondScale = 2048.0f;  // 2¹¹

// Epilogue for large d. Symbols: see the head of this file. The score of center j has an error of at most E_j = norm ·
// e_j + 2⁻²¹ H. The error coefficient e_j is the factor of `norm` in E, with ‖c‖ and ‖c − ĉ‖ of center j instead of C
// and δ. update/centers.cuh stores the coefficients after the biases. Center j can be the nearest only if its score
// plus E_j is at least the maximum of score − E_i over all centers i.
//
// If kParts is 2, each center has two columns of the GEMM. The first half of the columns has the first parts of all
// centers, with weight 1; the second half has the second parts, with weight 2⁻¹¹. Then ‖c − ĉ‖ is almost zero.
template <int kParts>
struct ArgminEpilogueLargeD : ArgminEpilogue {
  template <int kBlocks, int kColumnBlocks>
  __device__ void tile(unsigned char*, long long row, int rows, long long, int,
                       const float (&d)[kBlocks][kColumnBlocks][4]) const {
    static_assert(kColumnBlocks % kParts == 0, "as many second parts as first ones");
    constexpr int kCenters = kColumnBlocks / kParts;
    float error_coefficient[kCenters][2];
    load_columns(offsets + 8 * kCenters, error_coefficient);
    const RowBound bound(*center_stats, tensor_error, rounding, 0);
    auto norm_itself = [](float norm) { return norm; };
    auto find = [&](const float (&sums)[kCenters][4], int half, const float (&offset)[kCenters][2], float norm) {
      const float most = bound.largest_norm(norm), always = most * most / (1 << 22) + 1e-18f;
      return candidates_of_own(sums, half, offset, error_coefficient, norm, always);
    };
    if constexpr (kParts == 1) {
      label_rows(row, rows, d, norm_itself, find);
    } else {
      float whole[kBlocks][kCenters][4];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kCenters; ++j) {
          whole[i][j / 4][j % 4] = fmaf(d[i][kCenters + j / 4][j % 4], 1 / kSecondScale, d[i][j / 4][j % 4]);
        }
      label_rows(row, rows, whole, norm_itself, find);
    }
  }

 private:
  // As `candidates`, with an error coefficient per center. The additions here have a rounding error of at most 5·2⁻²⁴
  // of a score plus 8·2⁻²⁴ of H. The error coefficients and `always` cover these errors.
  template <int kColumnBlocks>
  static __device__ __forceinline__ unsigned candidates_of_own(const float (&d)[kColumnBlocks][4], int half,
                                                               const float (&offset)[kColumnBlocks][2],
                                                               const float (&error_coefficient)[kColumnBlocks][2],
                                                               float norm, float always) {
    float least = -kInfinity;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        least = fmaxf(least, fmaf(-norm, error_coefficient[j][i], d[j][2 * half + i] + offset[j][i]));
    least = fmaxf(least, simt::shuffle_xor(least, 1));
    least = fmaxf(least, simt::shuffle_xor(least, 2));
    const float threshold = (2 * always - least) * kLarge, scaled_norm = norm * kLarge;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float most = fmaf(scaled_norm, error_coefficient[j][i], fmaf(offset[j][i], kLarge, threshold));
        sum = fmaf(__saturatef(fmaf(d[j][2 * half + i], kLarge, most)), (float)(1 << (2 * j + i)), sum);
      }
    return (unsigned)sum;
  }
};

}  // namespace kmeans
