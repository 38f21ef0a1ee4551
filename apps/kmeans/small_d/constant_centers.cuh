// Constant-memory operands of iteration_fma.cuh and iteration_fma_d4.cuh: centers, biases and the score error bound.
//
// Why it is fast: arithmetic instructions read these operands through uniform registers, and need not wait for shared
// memory.
#pragma once
#include "apps/kmeans/update/centers.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

constexpr int kMostFeatures = 16, kMostSmallK = 64;  // maximum d and maximum k
// Maximum number of elements of all centers: 2 KiB fit in the first-level constant cache.
constexpr int kMostElements = 512;

// The constants of one iteration. c₀ is the first center that is not excluded (update/centers.cuh).
struct ConstantCenters {
  float centers[kMostElements];                      // (c − c₀) · scale² of each center c, one after another
  float offsets[kMostSmallK];                        // biases, times scale²; −infinite past the last center
  float mean[kMostFeatures], scales[kMostFeatures];  // mean of the rows; fixed-point scales
  float bound, threshold;                            // 2 E, and 2 E · kLarge; NaN makes every row ambiguous
  float padding[2];
};
static_assert(sizeof(ConstantCenters) == 4 * (kMostElements + kMostSmallK + 2 * kMostFeatures + 4),
              "CONSTANT_CENTERS_BYTES");

}  // namespace kmeans

#if defined(TSA_HOST)
[[maybe_unused]] static kmeans::ConstantCenters constant_centers;
#else
extern "C" {
__constant__ kmeans::ConstantCenters constant_centers;
}
#endif

namespace kmeans {

// Computes the constants from the centers of update/centers.cuh, by one block, in global memory; a copy to constant
// memory follows. `norm` is an upper bound of ‖x − mean‖ · scale for all rows x. If `folds`, the biases include the
// mean, so that scores are computed from rows that are not centered; `of_mean` is an upper bound of ‖mean‖ · scale.
//
// Scores are relative to the score of c₀, the first center that is not excluded. So the score of c₀ is zero, and needs
// no product if the index of c₀ is known at compile time. Then the best score is not negative, so that comparing scores
// as integers finds it.
template <typename Work>
__global__ void __launch_bounds__(128, 4)
    place_constants(const Work* centers, int k, int d, int clusters, const float* offsets, const Work* mean,
                    const float* scales, float scale, float norm, float of_mean, bool folds, ConstantCenters* to) {
  ptx::griddepcontrol_wait();
  __shared__ int first;
  __shared__ unsigned longest, largest;  // maxima of ‖c − c₀‖ and of the biases, as float bits
  const int own = threadIdx.x;           // the center of this thread
  static_assert(kMostSmallK <= 128, "a thread a center");
  if (own == 0) first = k, longest = largest = 0;
  __syncthreads();
  // An excluded center may have any elements, even NaN; zeros replace them.
  const bool present = own < k && offsets[own] > -kInfinity;
  if (present) atomicMin(&first, own);
  __syncthreads();
  if (own < clusters) {
    double square = 0, offset = 0;
    for (int i = 0; i < d; ++i) {
      const double c = present ? (double)centers[own * d + i] * scale : 0.0;
      const double from = present ? (double)centers[first * d + i] * scale : 0.0;
      square += (c - from) * (c - from);
      offset -= (c - from) * ((c + from) / 2 + (folds ? (double)mean[i] * scale : 0.0));
      to->centers[own * d + i] = (float)((c - from) * scale);
    }
    to->offsets[own] = present ? (float)offset : -kInfinity;
    constexpr double kUp = 1 + 1.0 / (1 << 20);
    atomicMax(&longest, __float_as_uint((float)(sqrt(square) * kUp)));
    atomicMax(&largest, __float_as_uint((float)(fabs(offset) * kUp)));
  }
  for (int i = threadIdx.x; i < kMostFeatures; i += blockDim.x) {
    to->mean[i] = i < d ? (float)mean[i] : 0.0f;
    to->scales[i] = i < d ? scales[i] : 0.0f;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const double rows = norm + (folds ? (double)of_mean : 0.0);
  const double large = rows * __uint_as_float(longest) + __uint_as_float(largest);
  // The factor 1.01 covers higher powers of u = 2⁻²⁴. The last term covers underflow in float32, and kLeast, which is
  // subtracted from the threshold (rescore.cuh).
  const double error = 1.01 * (d + 6) / (1 << 24) * large + 1.0 / (1ull << 40);
  const bool fits = large <= (double)(1 << 26);
  to->bound = fits ? (float)(2 * error) : kInfinity - kInfinity;
  to->threshold = fits ? (float)(2 * error * kLarge) : kInfinity - kInfinity;
}

}  // namespace kmeans
