// Half-precision copy of X for short rows, which are split into two float16 parts: products have float32 accuracy.
//
//   x = (row − mean) · scale  ≈  x₁ + x₂,   x₁ = fl16(x),  x₂ = fl16(x − x₁)        c ≈ c₁ + c₂ for centers alike
//
//   columns of a row      x₁ │ x₂ │ x₁ │ 0 …        d columns each, padded with zeros to whole panels of 16 columns
//   columns of a center   c₁ │ c₁ │ c₂ │ 0 …        (kernels/tsm2/core_matrix_layout.cuh)
//
// So one inner product gives x₁·c₁ + x₂·c₁ + x₁·c₂. What it lacks is x₂·c₂, at most 1.001 · 2⁻²² ‖x‖ ‖c‖: a second part
// is at most 2⁻¹¹ (1 + 2⁻¹¹) of its element, and zero for an element that is subnormal in float16. `norms` are
// max(‖x₁ + x₂‖, e / (ρ/2)) with the rounding error e = ‖x − x₁ − x₂‖. So for every center c and ρ = 2⁻²⁰
//
//   |x · c − (x₁·c₁ + x₂·c₁ + x₁·c₂)|  ≤  norms[i] · (ρ ‖c‖ + ‖c − c₁ − c₂‖)      for row i
//
// An element beyond float16's range has no second part, and its row has the norm infinity: no error bound.
//
// Why it is fast: a thread holds a row in registers and writes it 16 bytes at a time; eight threads write 128 adjacent
// bytes. Every iteration reads this copy instead of X; then nearly all labels are certified.
#pragma once
#include "apps/kmeans/data/half_copy.cuh"

namespace kmeans {

// (x − mean) · scale from `shift` = −mean · scale, by one rounding. Since the scale is a power of two, this is also the
// rounded difference times the scale.
template <typename T, typename Work>
__device__ __forceinline__ Work scaled(T x, float scale, Work shift) {
  return fma((Work)tsm2::Element<T>::value(x), (Work)scale, shift);
}

// A number in two float16 parts, and what they lack.
template <typename Work>
struct Split {
  ptx::Half first, second;
  float both, error;

  __device__ __forceinline__ explicit Split(Work x) : first(ptx::to_half((float)x)) {
    const Work rest = x - (Work)ptx::to_float(first);
    second = second_part((float)rest);
    both = ptx::to_float(first) + ptx::to_float(second), error = (float)(rest - (Work)ptx::to_float(second));
  }
};

// The elements of a row as they are loaded. kAligned: whether rows are aligned to vectors and consist of whole vectors.
template <typename T, int kFeatures, bool kAligned>
struct ShortRow {
  static constexpr int kWide = kAligned ? kVector<T> : 1;  // elements of a load
  Packed<T, kWide> some[kFeatures / kWide];

  __device__ __forceinline__ explicit ShortRow(const T* x) {
#pragma unroll
    for (int i = 0; i < kFeatures / kWide; ++i) some[i].load(x + i * kWide);
  }
  __device__ __forceinline__ T at(int i) const { return some[i / kWide].elements().at[i % kWide]; }
};

template <typename T, typename Work, int kFeatures, int kPanels, bool kAligned>
__global__ void __launch_bounds__(256) make_split_copy(const T* X, long long rows, const Work* mean, float scale,
                                                       float rounding, ptx::Half* half_copy, float* norms) {
  constexpr int kStored = 8;  // elements of a store
  const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const ShortRow<T, kFeatures, kAligned> x(X + row * kFeatures);
  ptx::Half columns[kPanels * tsm2::kPanelDepth] = {};
  float square = 0, lost = 0;
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) {
    const Split<Work> parts(centered<T, Work>(x.at(i), mean[i]) * (Work)scale);
    columns[i] = columns[2 * kFeatures + i] = parts.first, columns[kFeatures + i] = parts.second;
    square = fmaf(parts.both, parts.both, square), lost = fmaf(parts.error, parts.error, lost);
  }
#pragma unroll
  for (int i = 0; i < kPanels * tsm2::kPanelDepth; i += kStored) {
    simt::Vector<ptx::Half, kStored> stored;
#pragma unroll
    for (int j = 0; j < kStored; ++j) stored.at[j] = columns[i + j];
    ptx::Half* to = half_copy + tsm2::panel_offset(row, i, kPanels, tsm2::kPanelRows);
    *reinterpret_cast<simt::Vector<ptx::Half, kStored>*>(to) = stored;
  }
  norms[row] = norm_of(square, lost, 4 / (rounding * rounding));
}

// The norms alone, for rows that are split as they are read (assign/split_rows.cuh); `shifts` are −mean · scale. The
// numbers that are split have the same bits as there.
template <typename T, typename Work, int kFeatures, bool kAligned>
__global__ void __launch_bounds__(256)
    split_norms(const T* X, long long rows, const Work* shifts, float scale, float rounding, float* norms) {
  const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const ShortRow<T, kFeatures, kAligned> x(X + row * kFeatures);
  float square = 0, lost = 0;
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) {
    const Split<Work> parts(scaled<T, Work>(x.at(i), scale, shifts[i]));
    square = fmaf(parts.both, parts.both, square), lost = fmaf(parts.error, parts.error, lost);
  }
  norms[row] = norm_of(square, lost, 4 / (rounding * rounding));
}

}  // namespace kmeans
