// The scores of few features in 16 bits by the tensor cores of warpgroups (wgmma), of rows as they lie; see few_products.cuh.
//
//   rows       a warp's tile in its ring, as in few_warps.cuh: the 8 bytes that a lane loads are words of the product's left
//              operand, of which each warp of a warpgroup has 16 rows; the warpgroup's four tiles are multiplied together
//   centres    in two parts of X's type, c·s² ≈ high + low, in shared memory by fragments: part, step s, eight centres j
//   scores     begin with a level − (mean·c + ‖c‖²/2)·s², so that nothing is subtracted from rows
//
// s is the power of two by which no row's norm n, with the mean in it, exceeds `norm`. What the parts leave of a centre is
// 2⁻²² of it in float16, 2⁻¹⁸ in bfloat16, and 2⁻²⁵ at most next to zero in float16:
//
//   |x·c − x·(high + low)| ≤ n (r ‖c‖ + a),   r = 2⁻²² or 2⁻¹⁸,   a = √d 2⁻²⁵ or 0
//
// So near are scores to what they should be that one bound serves all rows.
//
// Why it is fast: no element is converted, no norm is needed, and a warpgroup has 128 rows multiplied by all centres by a few
// instructions, which read centres from shared memory for four warps at once. What is left is a maximum and two multiply-adds
// of each score: a row of 64 features and 64 clusters takes 400 lane instructions, where few_warps.cuh takes 1,000. While a
// warp looks at the scores of 16 rows, the next 16 are multiplied.
#pragma once
#include "apps/kmeans/few_warps.cuh"
#include "kernels/warpgroup.cuh"

namespace kmeans {

template <typename T, int kFeatures, int kColumns>
class WarpgroupScores {
 public:
  static constexpr int kSteps = (kFeatures + 15) / 16, kParts = 2;
  static constexpr int kTogether = 4;  // warps that multiply together
  static constexpr int kBytes = kColumns * (kParts * kSteps * 256 + 64);

  __device__ WarpgroupScores(const Products& of, const float* centers, int k, void* shared)
      : fragments_(static_cast<const unsigned char*>(shared)), offsets_(reinterpret_cast<const float4*>(fragments_ + kOffsets)) {
    const Extremes most = *of.extremes;
    // The norm of the mean is within that of rows.
    const float level = 1.01f * (2 * of.norm * most.norm + most.half_square);
    auto* words = static_cast<unsigned*>(shared);
    for (int i = threadIdx.x; i < 32 * kSteps * kColumns; i += blockDim.x) {
      const int lane = i % 32, j = i / 32 % kColumns, s = i / 32 / kColumns;
      const int centre = 8 * j + lane / 4, column = 16 * s + 4 * (lane % 4);
      const bool used = centre < k && of.offsets[centre] > -kInfinity;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        T high[2], low[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = column + 2 * half + e;
          const float c = used && at < kFeatures ? centers[centre * kFeatures + at] * of.scale * of.scale : 0.0f;
          high[e] = tsm2::Element<T>::from(c);
          low[e] = tsm2::Element<T>::from(c - tsm2::Element<T>::value(high[e]));
        }
        words[word(0, s, j, half) + lane] = high[0].bits | (unsigned)high[1].bits << 16;
        words[word(1, s, j, half) + lane] = low[0].bits | (unsigned)low[1].bits << 16;
      }
    }
    auto* offsets = reinterpret_cast<float*>(static_cast<unsigned char*>(shared) + kOffsets);
    for (int centre = threadIdx.x / 32; centre < 8 * kColumns; centre += blockDim.x / 32) {
      const bool used = centre < k && of.offsets[centre] > -kInfinity;
      double sum = 0;
      for (int i = threadIdx.x % 32; used && i < kFeatures; i += 32) {
        const double c = centers[centre * kFeatures + i];
        sum += c * (c / 2 + of.mean[i]);
      }
      sum = simt::warp_sum(sum);
      // Of rows g and g + 8.
      if (threadIdx.x % 32 < 2) {
        offsets[centre / 2 * 4 + threadIdx.x % 32 * 2 + centre % 2] = used ? (float)(level - (double)of.scale * of.scale * sum) : -kInfinity;
      }
    }
    ptx::async_fence();
    constexpr bool kHalf = ptx::is_half<T>;
    const float rounding = of.rounding + of.tensor_error + 1.0f / (1 << 22);
    const float least = kHalf ? sqrtf((float)kFeatures) / (1 << 25) * of.norm / of.scale : 0.0f;
    const float error = of.norm * most.norm * rounding + level * (of.tensor_error + 1.0f / (1 << 22)) + least;
    // A centre that is infinite in float16 has no scores.
    const bool fits = of.norm * most.norm + most.half_square <= (float)(1 << 26) &&
                      (!kHalf || most.norm * of.scale <= (float)(1 << 15));
    twice_error_ = (fits ? 2.002f * kLarge : kInfinity - kInfinity) * (error + 1.0f / (1ull << 40));
  }

  // The candidates of a tile's rows: of row g + 8·i, this lane's 16 bits.
  template <typename Ring>
  __device__ __forceinline__ void find(const Ring& ring, unsigned (&bits)[4]) const {
    unsigned a[kAtOnce][1][kSteps][4];
    float scores[kAtOnce][kColumns][4];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      begin(ring, b, a[b % kAtOnce], scores[b % kAtOnce]);
      if (b + 1 >= kAtOnce) end<kAtOnce - 1>(scores[0], bits[2 * (b + 1 - kAtOnce)], bits[2 * (b + 1 - kAtOnce) + 1]);
    }
    if (kAtOnce == 2) end<0>(scores[1 % kAtOnce], bits[2], bits[3]);
  }

 private:
  static constexpr int kOffsets = kColumns * kParts * kSteps * 256;
  // Blocks of 16 rows that are multiplied at the same time: two, where registers have room for them.
  static constexpr int kAtOnce = 8 * (kColumns + kSteps) <= 64 ? 2 : 1;

  // Where the words of a fragment begin: of rows 2·t and 2·t + 1 of step s, or (`half`) of 2·t + 8 and 2·t + 9.
  __device__ static constexpr int word(int part, int s, int j, int half) {
    return ((part * kSteps + s) * kColumns + j) * 64 + half * 32;
  }

  // Begins to multiply block b of a tile's rows.
  template <typename Ring>
  __device__ __forceinline__ void begin(const Ring& ring, int b, unsigned (&a)[1][kSteps][4],
                                        float (&scores)[kColumns][4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int row = 16 * b + 8 * half + g;
        T raw[4];
        load_four<kFeatures, T>(ring.row(row), Ring::swizzle(row), s, 4 * t, raw);
        a[0][s][half] = raw[0].bits | (unsigned)raw[1].bits << 16;
        a[0][s][half + 2] = raw[2].bits | (unsigned)raw[3].bits << 16;
      }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const float4 two = offsets_[4 * j + t];
      scores[j][0] = two.x, scores[j][1] = two.y, scores[j][2] = two.z, scores[j][3] = two.w;
    }
    ptx::wgmma_fence(a);
    ptx::wgmma_fence(scores);
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        ptx::wgmma<false, T>(scores, a[0][s], fragments_ + 4 * word(part, s, 0, 0));
      }
    ptx::wgmma_commit();
  }

  // Waits for all but the `pending` latest blocks, and finds the candidates of one, of its rows g and g + 8.
  template <int pending>
  __device__ __forceinline__ void end(float (&scores)[kColumns][4], unsigned& first, unsigned& second) const {
    ptx::wgmma_wait<pending>(scores);
    first = candidates_of<kColumns>(scores, 0, twice_error_);
    second = candidates_of<kColumns>(scores, 1, twice_error_);
  }

  const unsigned char* const fragments_;
  const float4* const offsets_;
  float twice_error_;
};

}  // namespace kmeans
