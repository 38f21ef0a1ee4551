// Quantized copy of X, which most steps of k-means++ read instead of X (plusplus_pruned.cuh): eight bits per element,
// in two planes of four bits, and bounds of each row's quantization errors.
//
//   y = (x − mean) · unit for a row x of X; `unit` is a power of two that brings the elements of y near 16
//   y_f ≈ s h_f (2 Q_f − 255) / 32,  Q_f = 16 U_f + L_f in 0 … 255     for column f; s is the scale of the row, h_f the
//                                                                      scale of the column
//   y_f ≈ s h_f (2 U_f − 15) / 2                                       from the upper plane alone
//
//   upper, lower (n × groups)  U and L; a *group* is 16 bytes, for 32 columns. Columns past d have U = 8 and L = 0
//   rows (n)                   s and the error e₄ = ‖y − upper‖ as bfloat16, both rounded up, and ‖y‖² as float
//   errors (n)                 the error e₈ of both planes together
//   scales (2 × d)             h_f, then 1 / h_f
//
//   a word of a plane:   bits   0 … 3   4 … 7   8 … 11   12 … 15   …   24 … 27   28 … 31     for eight columns in a row
//                        column   0       4       1         5      …      3         7
//
// so `word & 0x0f0f0f0f` and `word >> 4 & 0x0f0f0f0f` are four columns each, as mma takes them.
//
// The scale of a row is such that no element is clipped. The scale of a column is the root mean square of y_f / ‖y‖
// over a sample of rows, relative to the mean over all columns: a row of any norm counts the same. At d = 384, e₄ is
// about 0.12 ‖y‖ for normally distributed elements, and e₈ 0.008 ‖y‖. Errors are measured, not estimated. They include
// the rounding errors of their computation, except for 2⁻²¹ ‖y‖.
//
// Why it is fast: X is read once from memory, then from the L1 cache; one byte per element is written.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/ptx/types.cuh"

namespace kmeans {

constexpr int kQuantizeThreads = 256, kScaleThreads = 512, kScaleSamples = 512;

// The copy as the kernel argument of plusplus_pruned.cuh. `largest` is the maximum of Σ (2 U_f − 15)² over all rows.
// `roundings` bounds the rounding errors of a squared distance computed from the copy, relative to the sum of the two
// squared norms. `of_distance` is 1 plus the relative error by which a squared distance computed from X may be too
// small.
template <typename T>
struct QuantizedCopy {
  const unsigned* upper;
  const unsigned* lower;
  const uint2* rows;
  const float* errors;
  const float* scales;
  const int* largest;
  const T* mean;
  int groups;
  float unit, roundings, of_distance;
};

// An element of y.
template <typename T>
__device__ __forceinline__ float scaled_difference(T x, T mean, float unit) {
  return (float)((x - mean) * (T)unit);
}

// A nonnegative float rounded up to a bfloat16, whose bits are the upper half of the result; infinity for NaN.
__device__ __forceinline__ unsigned rounded_up(float x) {
  return ((x < 3e38f ? __float_as_uint(x) : 0x7f800000u) + 0xffff) & 0xffff0000u;
}

// A bound of an error from the sum of its squares. It includes the relative errors of a few hundred additions, and
// squares that are zero in float.
__device__ __forceinline__ float error_bound(float squares) { return 1.001f * sqrtf(squares) + 1e-18f; }

// Computes `scales` (head of this file) from kScaleSamples rows at equal distances; all rows, if X has fewer. A block
// computes 32 columns, one per lane.
template <typename T>
__global__ void __launch_bounds__(kScaleThreads)
    column_scales(const T* X, long long n, int d, const T* mean, float unit, float* scales) {
  constexpr int kWarps = kScaleThreads / 32;
  __shared__ float inverses[kScaleSamples], sums[kWarps][32];
  const int lane = simt::lane(), warp = threadIdx.x / 32, column = 32 * blockIdx.x + lane;
  const int samples = n < kScaleSamples ? (int)n : kScaleSamples;
  const auto row = [&](int i) { return X + i * n / samples * d; };
  for (int i = warp; i < samples; i += kWarps) {
    const T* x = row(i);
    float square = 0;
    for (int f = lane; f < d; f += 32) {
      const float y = scaled_difference(x[f], mean[f], unit);
      square += y * y;
    }
    square = simt::warp_sum(square);
    if (lane == 0) inverses[i] = square > 1e-30f && square < 1e30f ? 1 / square : 0;
  }
  __syncthreads();
  float sum = 0;
  for (int i = warp; column < d && i < samples; i += kWarps) {
    const float y = scaled_difference(row(i)[column], mean[column], unit);
    if (inverses[i] > 0) sum += y * y * inverses[i];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= d) return;
  for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
  const float scale = sqrtf(sum * (float)d / (float)samples);
  scales[column] = scale > 1.0f / 32 ? scale : 1.0f / 32;  // no column is rounded 32 times as finely as the mean column
  scales[d + column] = 1 / scales[column];
}

// Elements 8·word … 8·word + 7 of y for a row x of X; zeros past the last column.
template <bool kAligned, typename T>
__device__ __forceinline__ void load_columns(const T* x, const T* mean, float unit, int word, int d, float (&y)[8]) {
  constexpr int kWide = kAligned ? 16 / (int)sizeof(T) : 1;
#pragma unroll
  for (int i = 0; i < 8; i += kWide) {
    const int column = 8 * word + i;
    if (column < d) {
      const auto some = *reinterpret_cast<const simt::Vector<T, kWide>*>(x + column);
      const auto middle = *reinterpret_cast<const simt::Vector<T, kWide>*>(mean + column);
#pragma unroll
      for (int e = 0; e < kWide; ++e) y[i + e] = scaled_difference(some.at[e], middle.at[e], unit);
    } else {
#pragma unroll
      for (int e = 0; e < kWide; ++e) y[i + e] = 0;
    }
  }
}

// Packs the code parts of eight columns into a word (head of this file).
__device__ __forceinline__ unsigned packed(const unsigned (&parts)[8]) {
  unsigned word = 0;
#pragma unroll
  for (int b = 0; b < 4; ++b) word |= (parts[b] | parts[4 + b] << 4) << 8 * b;
  return word;
}

// Writes the copy. A row is split among 2^log2_lanes lanes.
template <typename T, bool kAligned>
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_rows(const T* X, long long n, int d, const T* mean, float unit, const float* scales, int groups,
                  int log2_lanes, unsigned* upper, unsigned* lower, uint2* rows, float* errors, int* largest) {
  const int lanes = 1 << log2_lanes, member = simt::lane() & (lanes - 1), words = 4 * groups;
  const long long step = (long long)gridDim.x * blockDim.x >> log2_lanes;
  const long long own = ((long long)blockIdx.x * blockDim.x + threadIdx.x) >> log2_lanes;
  const auto over_row = [&](auto value, auto add) {
    for (int bits = lanes / 2; bits > 0; bits /= 2) value = add(value, simt::shuffle_xor(value, bits));
    return value;
  };
  const auto sum = [](auto a, auto b) { return a + b; };
  const auto maximum = [](auto a, auto b) { return a > b ? a : b; };
  int most_squares = 0;
  // Every lane takes part in the shuffles. Lanes past the last row repeat it.
  for (long long first = own - (simt::lane() >> log2_lanes); first < n; first += step) {
    const long long wanted = first + (simt::lane() >> log2_lanes), row = wanted < n ? wanted : n - 1;
    const T* x = X + row * d;
    float square = 0, most = 0;
    for (int word = member; word < words; word += lanes) {
      float y[8];
      load_columns<kAligned>(x, mean, unit, word, d, y);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        square += y[i] * y[i];
        if (8 * word + i < d) most = maximum(most, fabsf(y[i]) * scales[d + 8 * word + i]);
      }
    }
    square = over_row(square, sum);
    // |2 Q − 255| is at most 255.
    const unsigned scale_bits = rounded_up(over_row(most, maximum) * (32.0f / 255));
    const float scale = __uint_as_float(scale_bits), inverse = scale > 0 ? 1 / scale : 0;
    float of_upper = 0, of_both = 0;
    int squares = 0;
    for (int word = member; word < words; word += lanes) {
      float y[8];
      load_columns<kAligned>(x, mean, unit, word, d, y);
      unsigned high[8], low[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        high[i] = 8, low[i] = 0;
        const int column = 8 * word + i;
        if (column >= d) continue;
        const float level = floorf(y[i] * scales[d + column] * inverse * 16 + 128);
        const unsigned code = (unsigned)fminf(fmaxf(level, 0.0f), 255.0f);
        high[i] = code / 16, low[i] = code % 16;
        const float half = 0.5f * (scale * scales[column]);
        const float beside_upper = y[i] - half * (float)(2 * (int)high[i] - 15);
        const float beside_both = y[i] - half * 0.0625f * (float)(2 * (int)code - 255);
        of_upper += beside_upper * beside_upper;
        of_both += beside_both * beside_both;
        squares += (2 * (int)high[i] - 15) * (2 * (int)high[i] - 15);
      }
      if (wanted < n) {
        upper[row * words + word] = packed(high);
        lower[row * words + word] = packed(low);
      }
    }
    of_upper = over_row(of_upper, sum);
    of_both = over_row(of_both, sum);
    most_squares = maximum(most_squares, over_row(squares, sum));
    if (member == 0 && wanted < n) {
      rows[row] = {scale_bits | rounded_up(error_bound(of_upper)) >> 16, __float_as_uint(square)};
      errors[row] = error_bound(of_both);
    }
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    most_squares = maximum(most_squares, simt::shuffle_xor(most_squares, bits));
  }
  if (simt::lane() == 0) atomicMax(largest, most_squares);
}

}  // namespace kmeans
