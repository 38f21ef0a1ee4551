// Batched scales: means, scales and tolerances of every problem from its moments (column_moments in problem.cuh).
//
//   means             origin + Σ(x − origin) / n, rounded to float; the origin is row 0
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

// The exponent e of a positive number 2^e · m, 1 ≤ m < 2, and m.
struct Binary {
  int exponent;
  double mantissa;
};
__device__ __forceinline__ Binary binary_of(double x) {
  const long long bits = __double_as_longlong(x), mantissa = bits & ((1LL << 52) - 1);
  return {(int)(bits >> 52 & 0x7ff) - 1023, __longlong_as_double(mantissa | 1023LL << 52)};
}
__device__ __forceinline__ double power_of_two(int exponent) {
  return __longlong_as_double((long long)(exponent + 1023) << 52);
}

// The smallest e with 2^e ≥ x; 0 if x is 0.
__device__ __forceinline__ int ceil_log2(double x) {
  if (!(x > 0)) return 0;
  const Binary of = binary_of(x);
  const int exponent = of.exponent + (of.mantissa > 1);
  return exponent < kLeastExponent ? kLeastExponent : exponent;
}

// Block (0, problem) computes one problem. `moments` has `slices` parts per problem. `wide_bits` is the number of bits
// of an element if the problem is not narrow. `refused` becomes the smallest index of a problem that is not finite.
template <typename T>
__global__ void __launch_bounds__(256)
    problem_scales(const Batch<T> batch, const double* moments, int slices, int wide_bits, double tol, int* refused) {
  const int problem = blockIdx.y, d = batch.d;
  const double* from = moments + (long long)problem * slices * 3 * d;
  float* means = batch.means + (long long)problem * d;
  double* scales = batch.sum_scales + (long long)problem * d;
  // Number 0: Σ variance. 1: Σ (mean − rounded mean)². 2: largest |x − mean|. 3: whether a moment is not finite.
  // 4 and 5: largest e and −e.
  kmeans::Doubles<6> mine = {{0, 0, 0, 0, -1e9, -1e9}};
  for (int j = threadIdx.x; j < d; j += kPrepareThreads) {
    double sum = 0, square = 0, largest = 0;
    for (int slice = 0; slice < slices; ++slice) {
      const double* of = from + (long long)slice * 3 * d + j;
      sum += of[0];
      square += of[d];
      largest = of[2 * d] > largest ? of[2 * d] : largest;
    }
    const double origin = tsm2::Element<T>::value(batch.row(problem, 0)[j]);
    const double mean = sum / batch.n, variance = square / batch.n - mean * mean;
    const float rounded = (float)(origin + mean);
    const double off = origin - (double)rounded;
    means[j] = rounded;
    largest += off < 0 ? -off : off;
    const int exponent = ceil_log2(largest);
    scales[j] = largest;
    mine.at[0] += variance > 0 ? variance : 0;
    mine.at[1] += (mean + off) * (mean + off);
    mine.at[2] = largest > mine.at[2] ? largest : mine.at[2];
    if (!(mean - mean == 0)) mine.at[3] = 1;
    mine.at[4] = exponent > mine.at[4] ? exponent : mine.at[4];
    mine.at[5] = -exponent > mine.at[5] ? -exponent : mine.at[5];
  }
  const auto all =
      kmeans::over_block(mine, [](int i, double x, double y) { return i < 2 ? x + y : kmeans::most_of(i, x, y); });
  const double variance = all.at[0] / d, rms = sqrt(variance + all.at[1] / d);
  const bool narrow = all.at[2] <= kSpread * rms && all.at[4] < kMostExponent && all.at[5] < kMostExponent;
  const int bits = narrow ? kNarrowBits : wide_bits;
  for (int j = threadIdx.x; j < d; j += kPrepareThreads) {
    const int exponent = bits - ceil_log2(scales[j]);
    scales[j] = power_of_two(exponent);
    batch.sum_units[(long long)problem * d + j] = power_of_two(-exponent);
  }
  if (threadIdx.x != 0) return;
  batch.tolerances[problem] = tol * variance;
  batch.narrow[problem] = narrow;
  int exponent = 0;
  if (rms > 0 && rms < kInfinity) {
    const Binary of = binary_of(rms);
    exponent = 4 - of.exponent - (of.mantissa > 1.4142135623730951);
    exponent = exponent < -kMostExponent ? -kMostExponent : exponent > kMostExponent ? kMostExponent : exponent;
  }
  batch.half_copy_scales[problem] = (float)power_of_two(exponent);
  if (all.at[3] != 0) atomicMin(refused, problem);
}

}  // namespace batched
