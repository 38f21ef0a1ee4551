// Scores for small d and 16-bit types by wgmma, on rows that are not converted; see iteration_mma.cuh.
//
//   rows       operand A: each warp of a warpgroup loads 16 rows of its tile from its pipeline; ldmatrix loads four
//              matrices of 8 × 8 at a time. (If rows are not whole 16-byte vectors, lanes load as in scores_mma.cuh.)
//              One wgmma multiplies 16 rows of each of four tiles
//   centers    operand B, in shared memory: two parts of the type of X, c·s² ≈ high + low; ordered by part, step of 16
//              columns, and block of eight centers
//   biases     level − (mean·c + ‖c‖²/2)·s². They include the mean, so that it is not subtracted from rows. Three parts
//              in shared memory are one more step of 16 columns, for which operand A is constant (`weight`)
//
// s is the row scale (Products), a power of two. n is the norm of a scaled row without subtraction of the mean; `norm`
// is the maximum of n. The relative error of high + low is at most r. In float16, elements of centers near zero have an
// additional error of at most 2⁻²⁵. The error of a product is
//
//   |x·c − x·(high + low)| ≤ n (r ‖c‖ + a),   float16: r = 2⁻²², a = √d 2⁻²⁵;   bfloat16: r = 2⁻¹⁸, a = 0
//
// Scores are so exact that all rows can have the same error bound.
//
// Why it is fast: it converts no element of X and computes no norm. A few wgmma instructions multiply 128 rows of a
// warpgroup by all centers. They read the centers from shared memory once for four warps. Each score then costs a
// maximum and two multiply-adds. 32 rows of 64 features take 400 warp instructions for 64 clusters, compared with 1,000
// in scores_mma.cuh.
#pragma once
#include "apps/kmeans/small_d/scores_mma.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace kmeans {

template <typename T, int kFeatures, int kColumns>
class WarpgroupScores {
 public:
  static constexpr int kSteps = (kFeatures + 15) / 16, kParts = 2;
  static constexpr int kTogether = 4;  // number of warps that compute a product together
  // kMatrices: true if ldmatrix loads the rows, which requires rows of whole 16-byte vectors. kReadTogether: number of
  // bytes of a row that are read together.
  static constexpr bool kMatrices = kFeatures % 8 == 0;
  static constexpr int kReadTogether = kMatrices ? 16 : 16 * (int)sizeof(T);
  static constexpr bool kKeepsPlaces = true;  // keeps pipeline addresses in registers
  static constexpr int kBytes = (kParts * kSteps + 1) * kColumns * 256 + 64 * 16 * (int)sizeof(T);

  __device__ WarpgroupScores(const Products& of, const float* centers, int k, void* shared)
      : matrix_(ptx::matrix_at(shared)) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    const CenterStats most = *of.center_stats;
    // The factor 2: `norm` also bounds the norm of the mean.
    const float level = 1.01f * (2 * of.norm * most.norm + most.half_square);
    auto* words = static_cast<unsigned*>(shared);
    // A warp prepares eight centers at a time. A lane converts some columns of one center, and then stores two of the
    // bias parts of this center. All loads are in flight before the first use of a loaded value.
    for (int j = threadIdx.x / 32; j < kColumns; j += blockDim.x / 32) {
      const int center = 8 * j + lane / 4;
      const float found = of.offsets[center];
      float c[kSteps][4] = {}, mean[kSteps][4];
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const auto load = [&](const float* row, float (&to)[4]) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float pair[2];
            constexpr Past kPast = kWhole ? Past::kNone : Past::kZero;
            load_some<kFeatures, kPast>(reinterpret_cast<const unsigned char*>(row), 0, column_of(s, half), pair);
            to[2 * half] = pair[0], to[2 * half + 1] = pair[1];
          }
        };
        if (center < k) load(centers + center * kFeatures, c[s]);
        load(of.mean, mean[s]);
      }
      const bool used = center < k && found > -kInfinity;
      double sum = 0;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        T high[4], low[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float one = used ? c[s][e] : 0.0f, scaled = one * of.scale * of.scale;
          sum += (double)one * ((double)one / 2 + mean[s][e]);
          high[e] = tsm2::Element<T>::from(scaled);
          low[e] = tsm2::Element<T>::from(scaled - tsm2::Element<T>::value(high[e]));
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          words[word(0, s, j, half) + lane] = word_of(high[2 * half], high[2 * half + 1]);
          words[word(1, s, j, half) + lane] = word_of(low[2 * half], low[2 * half + 1]);
        }
      }
      sum += simt::shuffle_xor(sum, 1);
      sum += simt::shuffle_xor(sum, 2);
      float rest = used ? (float)(level - (double)of.scale * of.scale * sum) : -kInfinity;
      T parts[4] = {};
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        parts[part] = tsm2::Element<T>::from(rest / weight(part));
        rest = used ? rest - tsm2::Element<T>::value(parts[part]) * weight(part) : 0.0f;
      }
      words[word(kParts, 0, j, 0) + lane] = t == 0   ? word_of(parts[0], parts[1])
                                            : t == 1 ? word_of(parts[2], parts[3])
                                                     : 0u;
      words[word(kParts, 0, j, 1) + lane] = 0;
    }
    // Operand A of the bias step: 64 equal rows of 16 weights. For every eight rows, the first eight columns of all of
    // them precede the second eight columns.
    for (int i = threadIdx.x; i < 64 * 16; i += blockDim.x) {
      const int part = i % 8;
      reinterpret_cast<T*>(words + word(kParts, 1, 0, 0))[i] =
          tsm2::Element<T>::from(i / 64 % 2 == 0 && part < 3 ? weight(part) : 0.0f);
    }
    ptx::async_fence();
    const float rounding = of.rounding + of.tensor_error + 1.0f / (1 << 22);
    const float least = kHalf ? sqrtf((float)kFeatures) / (1 << 25) * of.norm / of.scale : 0.0f;
    const float error = of.norm * most.norm * rounding + level * (of.tensor_error + 1.0f / (1 << 22)) + least;
    // A center that is infinite in float16 has no valid scores.
    const bool fits = of.norm * most.norm + most.half_square <= (float)(1 << 26) &&
                      (!kHalf || most.norm * of.scale <= (float)(1 << 15));
    // The constants cover the subnormal rounding of the three bias parts, and kLeast (rescore.cuh).
    twice_error_ = (fits ? 2.002f * kLarge : kInfinity - kInfinity) * (error + (kHalf ? 0x1p-34f : 0.0f) + 0x1p-40f);
  }

  // Finds the candidates of a tile's rows: bits[i] has this lane's 16 bits of row g + 8·i, where g = lane / 4.
  template <typename Pipeline>
  __device__ __forceinline__ void find(const Pipeline& pipeline, unsigned (&bits)[4]) const {
    unsigned a[kAtOnce][1][kSteps][4];
    float scores[kAtOnce][kColumns][4];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      begin(pipeline, b, a[b % kAtOnce], scores[b % kAtOnce]);
      if (b + 1 >= kAtOnce) end<kAtOnce - 1>(scores[0], bits[2 * (b + 1 - kAtOnce)], bits[2 * (b + 1 - kAtOnce) + 1]);
    }
    if (kAtOnce == 2) end<0>(scores[1 % kAtOnce], bits[2], bits[3]);
  }

 private:
  static constexpr bool kHalf = ptx::is_half<T>, kWhole = 16 * kSteps == kFeatures;
  // Number of blocks of 16 rows per warp that have products in flight: two, if there are enough registers.
  static constexpr int kAtOnce = 8 * (kColumns + kSteps) <= 64 ? 2 : 1;

  // Returns the weight by which a bias part is multiplied; in float16, it extends the range of the part. After each
  // part, a relative error of 2⁻¹¹ (float16) or 2⁻⁸ (bfloat16) remains.
  __device__ static constexpr float weight(int part) {
    return !kHalf ? 1.0f : part == 0 ? (float)(1 << 12) : part == 1 ? 2.0f : 1.0f / (1 << 10);
  }

  // Returns the first word of the fragment for step s of 16 columns and block j of eight centers. If `half` is 0, the
  // fragment has rows 0 … 7 of operand B; if 1, rows 8 … 15. The bias step follows the parts of the centers.
  __device__ static constexpr int word(int part, int s, int j, int half) {
    return ((part * kSteps + s) * kColumns + j) * 64 + half * 32;
  }

  // Returns the first of the two columns of step s that one word of this lane has. With ldmatrix, the word is from
  // columns 0 … 7 of the step if `half` is 0, and from columns 8 … 15 if it is 1. Without ldmatrix, a lane loads four
  // adjacent columns, two per `half`.
  __device__ static __forceinline__ int column_of(int s, int half) {
    const int t = threadIdx.x % 4;
    return 16 * s + (kMatrices ? 8 * half + 2 * t : 4 * t + 2 * half);
  }

  // Starts the product of block b, which is 16 rows of the tile, with all centers.
  template <typename Pipeline>
  __device__ __forceinline__ void begin(const Pipeline& pipeline, int b, unsigned (&a)[1][kSteps][4],
                                        float (&scores)[kColumns][4]) const {
    if constexpr (kMatrices) {
      // Each lane passes the address of a row of one of four matrices: rows 0 … 7 or 8 … 15, columns 0 … 7 or 8 … 15.
      // Past the last column, it passes the address of column 0: X is finite, and centers are zero there.
      const int matrix = threadIdx.x % 32 / 8, row = 16 * b + matrix % 2 * 8 + threadIdx.x % 8;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int column = 16 * s + matrix / 2 * 8;
        ptx::ldmatrix_x4(
            a[0][s], pipeline.row(row) + ((kWhole || column < kFeatures ? 2 * column : 0) ^ Pipeline::swizzle(row)));
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const int row = 16 * b + 8 * half + (int)threadIdx.x % 32 / 4;
          T raw[4];
          load_some<kFeatures, kWhole ? Past::kNone : Past::kAny>(pipeline.row(row), Pipeline::swizzle(row),
                                                                  column_of(s, 0), raw);
          a[0][s][half] = word_of(raw[0], raw[1]);
          a[0][s][half + 2] = word_of(raw[2], raw[3]);
        }
    }
    const auto at = [&](int word) { return ptx::matrix_after(matrix_, 4 * word); };
    ptx::wgmma_fence(a);
    ptx::wgmma<true, T>(scores, at(word(kParts, 1, 0, 0)), at(word(kParts, 0, 0, 0)));
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) ptx::wgmma<false, T>(scores, a[0][s], at(word(part, s, 0, 0)));
    ptx::wgmma_commit();
  }

  // Waits until only the products of the `pending` latest blocks are in flight. Finds candidates of rows g and g + 8 of
  // the block with the given scores.
  template <int pending>
  __device__ __forceinline__ void end(float (&scores)[kColumns][4], unsigned& first, unsigned& second) const {
    ptx::wgmma_wait<pending>(scores);
    first = candidates_of<kColumns>(scores, 0, twice_error_);
    second = candidates_of<kColumns>(scores, 1, twice_error_);
  }

  const decltype(ptx::matrix_at(nullptr)) matrix_;
  float twice_error_;
};

}  // namespace kmeans
