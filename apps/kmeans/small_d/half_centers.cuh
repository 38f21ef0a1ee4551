// Float16 centers as mma operands of iteration_mma.cuh, and the score error bound of these products.
//
//   centers (8 · kColumns × 16 · kSteps, float16)   lane (g, t) = (lane / 4, lane % 4) loads columns 16·s + 4·t to
//                                                   16·s + 4·t + 3 of center 8·j + g. An mma uses them as rows 2·t,
//                                                   2·t + 1, 2·t + 8 and 2·t + 9 of step s
//
// Why it is fast: a block reads the centers from global memory once. For small d, they are in registers. For larger d,
// a lane reads 8 bytes of shared memory per 2048 products of its warp. To start the sums of 16 rows and eight centers,
// it reads 16 bytes of biases.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace kmeans {

// The centers, the scaling of the rows, and the error coefficients for the tensor-core products of iteration_mma.cuh.
struct Products {
  // One row of kSteps · 16 elements for each column of the product, which is a center.
  const ptx::Half* centers_half;
  const float* offsets;  // −‖c‖²/2 of every column; −infinite past the last center
  const CenterStats* center_stats;
  const float *mean, *scales;  // mean of the rows; fixed-point scales
  float scale, norm;  // scale of rows (scores_wgmma.cuh multiplies centers by scale²); maximum norm of scaled rows
  float tensor_error, rounding;  // γ; ρ (scores_mma.cuh) or r (scores_wgmma.cuh)
};

// Returns the level, a constant added to every score so that no score is negative. Non-negative floats order like
// integers, and sm_90 finds the largest of three integers with one instruction.
__device__ __forceinline__ float score_level(const Products& of) {
  const CenterStats most = *of.center_stats;
  return 1.01f * (of.norm * (most.norm + most.lost) + most.half_square);
}

// Returns the coefficients of 2 E · kLarge = of_norm · n + always. E is the score error bound of a row of norm n, and
// kLarge scales scores (assign/small_k.cuh).
__device__ __forceinline__ Bound small_d_error_bound(const Products& of, int features) {
  const CenterStats most = *of.center_stats;
  const Bound bound = bound_of(most, of.tensor_error, of.rounding, of.tensor_error + 1.0f / (1 << 22));
  // Further errors: subnormal rounding; the tensor-core error and the rounding of the level; kLeast (rescore.cuh).
  const float least = sqrtf((float)features) / (1 << 25) * (most.norm + most.lost) +
                      score_level(of) * (of.tensor_error + 1.0f / (1 << 22)) + 1.0f / (1ull << 40);
  const bool fits = of.norm * most.norm + most.half_square <= (float)(1 << 26);
  // The factor 2.002 instead of 2 covers 1 / (1 − ρ) and the rounding errors of the norm.
  const float twice = fits ? 2.002f * kLarge : kInfinity - kInfinity;
  return {twice * bound.of_norm, twice * (bound.always + least)};
}

// The B operands of mma for the centers: a fragment per block j of eight centers and step s of 16 columns. They are in
// registers if kKept, otherwise in shared memory. Shared memory also holds bias plus level of each lane's centers, once
// for row g and once for row g + 8.
template <int kSteps, int kColumns, bool kKept>
class SharedCenters {
 public:
  static constexpr int kBytes = (kKept ? 0 : kColumns * kSteps * 256) + kColumns * 64;

  struct Two {
    unsigned at[2];
  };

  __device__ SharedCenters(const Products& of, void* shared) : shared_(static_cast<unsigned char*>(shared)) {
    const int lane = threadIdx.x % 32;
    const float level = score_level(of);
    for (int j = threadIdx.x / 32; j < kColumns; j += blockDim.x / 32) {
      if (lane < 4) {
        const float first = of.offsets[8 * j + 2 * lane] + level, second = of.offsets[8 * j + 2 * lane + 1] + level;
        offsets()[4 * j + lane] = {first, second, first, second};
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (!kKept) fragments()[(j * kSteps + s) * 32 + lane] = fetch(of, j, s);
      }
    }
    if (kKept) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
#pragma unroll
        for (int s = 0; s < kSteps; ++s) kept_[kKept ? j : 0][kKept ? s : 0] = fetch(of, j, s);
    }
  }

  __device__ __forceinline__ void begin(int j, float (&scores)[4]) const {
    const float4 two = offsets()[4 * j + threadIdx.x % 4];
    scores[0] = two.x, scores[1] = two.y, scores[2] = two.z, scores[3] = two.w;
  }

  __device__ __forceinline__ void multiply(int j, int s, const unsigned (&a)[4], float (&scores)[4]) const {
    const Two b = kKept ? kept_[kKept ? j : 0][kKept ? s : 0] : fragments()[(j * kSteps + s) * 32 + threadIdx.x % 32];
    ptx::mma_m16n8k16_f16(scores, a, b.at);
  }

 private:
  // Loads this lane's elements of center 8·j + g in step s, where g = lane / 4.
  __device__ static __forceinline__ Two fetch(const Products& of, int j, int s) {
    const int lane = threadIdx.x % 32;
    const auto* from = of.centers_half + (8 * j + lane / 4) * (16 * kSteps) + 16 * s + 4 * (lane % 4);
    return *reinterpret_cast<const Two*>(from);
  }

  __device__ __forceinline__ float4* offsets() const { return reinterpret_cast<float4*>(shared_); }
  __device__ __forceinline__ Two* fragments() const { return reinterpret_cast<Two*>(shared_ + kColumns * 64); }

  unsigned char* shared_;
  Two kept_[kKept ? kColumns : 1][kKept ? kSteps : 1];
};

}  // namespace kmeans
