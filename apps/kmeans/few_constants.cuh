// What few_features.cuh computes every row with, in constant memory: centres, offsets and the bound.
#pragma once
#include "apps/kmeans/centers.cuh"

namespace kmeans {

constexpr int kMostFeatures = 16, kMostOfFew = 64;
// Elements of centres: 2 KiB, which the multiprocessor's first constant cache holds.
constexpr int kMostElements = 512;

// What every row is computed with.
struct FewConstants {
  float centers[kMostElements];  // c · scale², cluster by cluster
  float offsets[kMostOfFew];     // in units of scale²; −infinite of what is no centre
  float mean[kMostFeatures], scales[kMostFeatures];  // what is subtracted; what integers are multiplied by
  float threshold;               // 2 E, times kLarge; no number if every row is to be compared
  float padding[3];
};
static_assert(sizeof(FewConstants) == 4 * (kMostElements + kMostOfFew + 2 * kMostFeatures + 4), "FEW_BYTES");

}  // namespace kmeans

#if defined(TSA_HOST)
static kmeans::FewConstants few_constants;
#else
extern "C" {
__constant__ kmeans::FewConstants few_constants;
}
#endif

namespace kmeans {

// Makes the constants of centres that centers.cuh has placed, by one block; they are then copied to constant memory. `norm`
// is no less than any ‖x − mean‖ · scale; if `folds`, `of_mean` is no less than ‖mean‖ · scale, and scores are of rows that
// are not centred.
//
// All offsets have one more term, ‖x‖ ‖c‖ + ‖c‖²/2 of the largest row and the shortest centre: that centre's score, and so the
// best, is then not negative, and the best of float32 is the best of their bits as integers.
template <typename Work>
__global__ void __launch_bounds__(128, 4) place_constants(const Work* centers, int k, int d, int clusters,
                                                          const float* offsets, const Extremes* extremes,
                                                          const Work* mean, const float* scales, float scale, float norm,
                                                          float of_mean, bool folds, FewConstants* to) {
  ptx::after_previous();
  __shared__ unsigned shortest;  // ‖c‖² as its bits
  if (threadIdx.x == 0) shortest = __float_as_uint(kInfinity);
  __syncthreads();
  double offset = 0;  // of the one centre that a thread has
  static_assert(kMostOfFew <= 128, "a thread a centre");
  const int own = threadIdx.x;
  // A centre that was left out may be anywhere, and is no number here.
  const bool present = own < k && offsets[own] > -kInfinity;
  if (own < clusters) {
    double square = 0, shared = 0;
    for (int i = 0; i < d; ++i) {
      const double c = present ? (double)centers[own * d + i] * scale : 0.0;
      square += c * c;
      shared += c * ((double)mean[i] * scale);
      to->centers[own * d + i] = (float)(c * scale);
    }
    offset = -(square / 2 + (folds ? shared : 0.0));
    if (present) atomicMin(&shortest, __float_as_uint((float)(square * (1 + 1.0 / (1 << 20)))));
  }
  __syncthreads();
  const double least = __uint_as_float(shortest), more = least < kInfinity ? norm * sqrt(least) + least / 2 : 0.0;
  if (own < clusters) to->offsets[own] = present ? (float)(offset + more) : -kInfinity;
  for (int i = threadIdx.x; i < kMostFeatures; i += blockDim.x) {
    to->mean[i] = i < d ? (float)mean[i] : 0.0f;
    to->scales[i] = i < d ? scales[i] : 0.0f;
  }
  if (threadIdx.x != 0) return;
  const double most = extremes->norm, shift = folds ? (double)of_mean : 0.0;
  const double large = (norm + shift) * most + extremes->half_square + shift * most + more;
  // 1 % for higher powers of u; the last is for what is too small for float32, and for the threshold's own last step.
  const double error = 1.01 * (d + 4) / (1 << 24) * large + 1.0 / (1ull << 40);
  to->threshold = large <= (double)(1 << 26) ? (float)(2 * error * kLarge) : kInfinity - kInfinity;
}

}  // namespace kmeans
