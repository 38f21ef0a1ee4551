// Batched scales: means, scales and tolerances of every problem from its moments (column_moments in problem.cuh).
//
//   means             origin + Σ(x − origin) / n, rounded to float; the origin is row 0. Zero if elements have 16 bits
//                     and the means are small compared with the spread: then the half copy is exact, or nearly so
//   roundings         2⁻²⁰ for a half copy that is nearly exact, otherwise 2⁻¹² (data/half_copy.cuh)
//   half_copy_scales  the power of two that brings the root mean square of x − mean nearest to 16 (data/plan.py)
//   sum_scales        2^(bits − e), where 2^e is at least the largest |x − mean| of the feature. bits is 30 if that is
//                     as exact as float32: if no |x − mean| of the problem is above 256 times the root mean square.
//                     Otherwise bits is 46, or less if the sum of n elements could overflow
//   tolerances        tol times the mean variance of the features
//
// One block computes one problem. The host reads only the first problem that has a NaN or an infinity.
#pragma once
#include "apps/kmeans/batched/problem.cuh"
#include "kernels/device/block_reduce.cuh"

namespace batched {

// Maximum |e| of scales 2^e that float32 represents with their inverses; lower limit of e for 46 bits.
constexpr int kMostExponent = 96, kLeastExponent = -900;
constexpr int kNarrowBits = 30;
constexpr double kSpread = 256;
// Means are small if their mean square is at most this times the mean variance: norms then grow by 3 % at most.
constexpr double kSmallMeans = 1.0 / 16;

// The smallest e with 2^e ≥ x, at least kLeastExponent; 0 if x is 0.
__device__ __forceinline__ int ceil_log2(double x) {
  int exponent;
  const double mantissa = frexp(x, &exponent);  // x = mantissa · 2^exponent, ½ ≤ mantissa < 1
  exponent -= mantissa == 0.5;
  return exponent < kLeastExponent ? kLeastExponent : exponent;
}

// The e of the half-copy scale 2^e for this root mean square.
__device__ __forceinline__ int half_copy_exponent(double rms) {
  if (!(rms > 0 && rms < kInfinity)) return 0;
  int exponent;
  const double mantissa = frexp(rms, &exponent);
  exponent =
      4 - exponent + (mantissa < 0.70710678118654752);  // 4 = log2(16); the nearest integer, since √½ is irrational
  return exponent < -kMostExponent ? -kMostExponent : exponent > kMostExponent ? kMostExponent : exponent;
}

// Block (0, problem) computes one problem. `moments` has `slices` parts per problem. `wide_bits` is the number of bits
// of an element if the problem is not narrow. `refused`, 0 before, becomes the number of problems minus
// the smallest index of one that is not finite.
template <typename T>
__global__ void __launch_bounds__(kmeans::kCenterThreads)
    problem_scales(const Batch<T> batch, const double* moments, int slices, int wide_bits, double tol, int* refused) {
  const int problem = blockIdx.y, d = batch.d;
  const double* from = moments + (long long)problem * slices * 3 * d;
  float* means = batch.means + (long long)problem * d;
  double* scales = batch.sum_scales + (long long)problem * d;
  // Number 0: Σ variance. 1: Σ mean².
  kmeans::Doubles<2> spread = {{0, 0}};
  for (int j = threadIdx.x; sizeof(T) == 2 && j < d; j += kmeans::kCenterThreads) {
    double sum = 0, square = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const double* of = from + (long long)slice * 3 * d + j;
      sum += of[0];
      square += of[d];
    }
    const double mean = sum / batch.n, absolute = mean + tsm2::Element<T>::value(batch.row(problem, 0)[j]);
    spread.at[0] += square / batch.n - mean * mean;
    spread.at[1] += absolute * absolute;
  }
  spread = kmeans::over_block(spread, [](int, double x, double y) { return x + y; });
  const bool stays = sizeof(T) == 2 && spread.at[1] <= kSmallMeans * spread.at[0];
  // Number 0: Σ variance. 1: Σ (mean − rounded mean)². 2: largest |x − mean|. 3: whether a moment is not finite.
  // 4: largest −e.
  kmeans::Doubles<5> mine = {{0, 0, 0, 0, -kInfinity}};
  for (int j = threadIdx.x; j < d; j += kmeans::kCenterThreads) {
    double sum = 0, square = 0, largest = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const double* of = from + (long long)slice * 3 * d + j;
      sum += of[0];
      square += of[d];
      largest = of[2 * d] > largest ? of[2 * d] : largest;
    }
    const double origin = tsm2::Element<T>::value(batch.row(problem, 0)[j]);
    const double mean = sum / batch.n, variance = square / batch.n - mean * mean;
    const float rounded = stays ? 0.0f : (float)(origin + mean);
    const double off = origin - (double)rounded;
    means[j] = rounded;
    largest += off < 0 ? -off : off;
    const int exponent = ceil_log2(largest);
    scales[j] = exponent;  // until the number of bits is known
    mine.at[0] += variance > 0 ? variance : 0;
    mine.at[1] += (mean + off) * (mean + off);
    mine.at[2] = largest > mine.at[2] ? largest : mine.at[2];
    if (!(mean - mean == 0)) mine.at[3] = 1;
    mine.at[4] = -exponent > mine.at[4] ? -exponent : mine.at[4];
  }
  const auto all =
      kmeans::over_block(mine, [](int i, double x, double y) { return i < 2 ? x + y : kmeans::most_of(i, x, y); });
  const double variance = all.at[0] / d, rms = sqrt(variance + all.at[1] / d);
  const bool narrow = all.at[2] <= kSpread * rms && ceil_log2(all.at[2]) < kMostExponent && all.at[4] < kMostExponent;
  const int bits = narrow ? kNarrowBits : wide_bits;
  for (int j = threadIdx.x; j < d; j += kmeans::kCenterThreads) {
    const int exponent = bits - (int)scales[j];
    scales[j] = ldexp(1.0, exponent);
    batch.sum_units[(long long)problem * d + j] = ldexp(1.0, -exponent);
  }
  if (threadIdx.x != 0) return;
  batch.tolerances[problem] = tol * variance;
  batch.narrow[problem] = narrow;
  batch.roundings[problem] = stays ? 1.0f / (1 << 20) : 1.0f / (1 << 12);
  batch.half_copy_scales[problem] = (float)ldexp(1.0, half_copy_exponent(rms));
  if (all.at[3] != 0) atomicMax(refused, (int)gridDim.y - problem);
}

}  // namespace batched
