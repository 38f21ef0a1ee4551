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

// kAligned: whether rows are aligned to vectors and consist of whole vectors.
template <typename T, typename Work, int kFeatures, int kPanels, bool kAligned>
__global__ void __launch_bounds__(256) make_split_copy(const T* X, long long rows, const Work* mean, float scale,
                                                       float rounding, ptx::Half* half_copy, float* norms) {
  constexpr int kWide = kAligned ? kVector<T> : 1, kStored = 8;  // elements of a load and of a store
  const long long row = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  Packed<T, kWide> some[kFeatures / kWide];
#pragma unroll
  for (int i = 0; i < kFeatures / kWide; ++i) some[i].load(X + row * kFeatures + i * kWide);
  ptx::Half columns[kPanels * tsm2::kPanelDepth] = {};
  float square = 0, lost = 0;
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) {
    const Work x = centered<T, Work>(some[i / kWide].elements().at[i % kWide], mean[i]) * (Work)scale;
    const ptx::Half first = ptx::to_half((float)x);
    const Work rest = x - (Work)ptx::to_float(first);
    const ptx::Half second = second_part((float)rest);
    columns[i] = columns[2 * kFeatures + i] = first, columns[kFeatures + i] = second;
    const float both = ptx::to_float(first) + ptx::to_float(second),
                error = (float)(rest - (Work)ptx::to_float(second));
    square = fmaf(both, both, square), lost = fmaf(error, error, lost);
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

}  // namespace kmeans
