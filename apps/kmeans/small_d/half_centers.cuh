// The centers as iteration_mma.cuh multiplies with them, and the bound of what that may be off by.
//
//   centers (8 · kColumns × 16 · kSteps, float16)   a lane (g, t) has of center 8·j + g the columns 16·s + 4·t … 4·t +
//                                                   3, which
//                                                   the product takes for rows 2·t, 2·t + 1, 2·t + 8 and 2·t + 9 of
//                                                   step s
//
// Why it is fast: they are read once by a block. Few are kept in registers; of more, a lane reads 8 bytes of shared
// memory for 2048 products of its warp, and where the sums of a block begin, 16.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace kmeans {

// What iteration_mma.cuh is told of the centers and of the data.
struct Products {
  // Of the centers, rows of kSteps · 16 (and of as many centers as the columns of the product).
  const ptx::Half* centers_half;
  const float* offsets;  // −‖c‖²/2 of every column; −infinite past the last center
  const CenterStats* center_stats;
  const float *mean, *scales;    // what is subtracted of rows; what integers are multiplied by
  float scale, norm;             // what rows are multiplied by, or centers twice (scores_wgmma.cuh); what no row's norm
                                 // exceeds then
  float tensor_error, rounding;  // γ, ρ or r
};

// What is added to every score, for none to be negative: such are in order as integers too, of which the largest of
// three is found by one instruction of sm_90 and later.
__device__ __forceinline__ float score_level(const Products& of) {
  const CenterStats most = *of.center_stats;
  return 1.01f * (of.norm * (most.norm + most.lost) + most.half_square);
}

// 2 E of a row of norm n, times kLarge: `of_norm` · n + `always`.
__device__ __forceinline__ Bound small_d_error_bound(const Products& of, int features) {
  const CenterStats most = *of.center_stats;
  const Bound bound = bound_of(most, of.tensor_error, of.rounding, of.tensor_error + 1.0f / (1 << 22));
  // Next to zero; of the level, what the tensor cores lose and its addition; and kLeast.
  const float least = sqrtf((float)features) / (1 << 25) * (most.norm + most.lost) +
                      score_level(of) * (of.tensor_error + 1.0f / (1 << 22)) + 1.0f / (1ull << 40);
  const bool fits = of.norm * most.norm + most.half_square <= (float)(1 << 26);
  // 0.1 % for 1 / (1 − ρ), and for roundings of the norm.
  const float twice = fits ? 2.002f * kLarge : kInfinity - kInfinity;
  return {twice * bound.of_norm, twice * (bound.always + least)};
}

// The centers' parts of the product, as a lane has them: of column block j and step s, and the level − ‖c‖²/2 of its
// columns of a block, of rows g and g + 8. In shared memory, or (kKept) in registers.
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
  // Of center 8·j + g, the elements that go with this lane's columns.
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
