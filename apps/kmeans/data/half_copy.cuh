// Half-precision copy of X: float16 rows that every iteration reads instead of X, and norms that bound the rounding
// error.
//
//   X (n × d, any dtype, rows `leading` elements apart)   →   x̂ (n × padded, float16) = fl16((x − mean) · scale)
//                                                             norms (n) = max(‖x̂‖, e / ρ)
//
// x is a row of X, and x̂ is the same row of the copy. `scale` is a power of two that brings the data to the middle of
// float16's range. Rows of the copy are padded with zeros to a multiple of 16 bytes. For large k, the copy consists of
// panels (core_matrix_layout.cuh). e = ‖(x − mean)·scale − x̂‖ is the rounding error of a row. The rounding error of an
// element is at most 2⁻¹¹ of the element, and less than half of that on average. ρ is 2⁻¹², or 2⁻²⁰ for data that
// float16 represents exactly. So for every center c, scaled like x, and its float16 value ĉ
//
//   |(x − mean)·scale · c − x̂ · ĉ|  ≤  norms[i] · (ρ ‖c‖ + ‖c − ĉ‖)      for row i
//
// A value beyond float16's range becomes infinite, and so does the norm of its row: such a row has no error bound.
//
// Why it is fast: a fit reads X once and writes the copy once; then every iteration reads half as many bytes (a quarter
// for float64). A row is split among a group of lanes, so that short rows fill a warp too. A lane holds one vector of
// each of several rows, 64 bytes in all, and loads the next vectors before it converts the current ones. So 24 warps
// have 48 KB per multiprocessor in flight. The reduction over a group leaves sums of different rows in different lanes,
// so one shuffle, square root or store serves several rows. This takes 2.5 shuffles per row; it would take 10 if every
// lane received all sums. In panels, eight columns of neighboring rows are neighbors: two lanes exchange halves of
// them, so that a warp writes whole sectors of 32 bytes.
#pragma once
#include "kernels/device/vector_load.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace kmeans {

// x − mean, computed in the working type.
template <typename T, typename Work>
__device__ __forceinline__ Work centered(T x, Work mean) {
  return (Work)tsm2::Element<T>::value(x) - mean;
}

// The second float16 part of an element whose first part lacks `rest`: zero if the first part is infinite.
__device__ __forceinline__ ptx::Half second_part(float rest) { return ptx::to_half(rest - rest == 0 ? rest : 0.0f); }

// Number of elements that a lane processes at a time; a row is split among 2^log2_lanes lanes. With kAligned, one load
// reads these elements, and rows must be aligned and consist of whole vectors.
template <typename T>
constexpr int kVector = sizeof(T) == 8 ? 2 : 4;

// Number of rows of which a lane holds one vector at a time. These vectors take 64 bytes if one load reads a vector.
template <typename T, bool kAligned>
constexpr int kHalfCopyRows = sizeof(T) == 2 && kAligned ? 8 : 4;

// One butterfly step over kCount sums per lane. A lane sends half of its sums to the lane at distance `lanes` / 2, and
// adds the values that it receives to its other sums. `member` is the index of the lane in its group.
template <int kCount, typename Sum, int kAll>
__device__ __forceinline__ void halve_sums(Sum (&values)[kAll], int member, int lanes) {
  const bool upper = member & lanes / 2;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const Sum low = values[i], high = values[kCount / 2 + i];
    values[i] = (upper ? high : low) + simt::shuffle_xor(upper ? low : high, lanes / 2);
  }
}

// Reduces kCount values per lane over a group of `lanes` lanes. Each lane gets the totals of a part of them. While
// a lane has several values, a butterfly step halves their number. If lanes ≥ kCount, values[0] of lane i becomes the
// total of value i · kCount / lanes.
template <int kCount, int kAll>
__device__ __forceinline__ void share_sums(float (&values)[kAll], int member, int lanes) {
  if constexpr (kCount > 1) {
    halve_sums<kCount>(values, member, lanes);
    share_sums<kCount / 2>(values, member, lanes / 2);
  } else {
    for (int bits = lanes / 2; bits > 0; bits /= 2) values[0] += simt::shuffle_xor(values[0], bits);
  }
}

// The norm of a row (symbols: see the head of this file), from ‖x̂‖² (`square`), e² (`lost`) and 1 / ρ² (`inverse`). It
// includes the rounding error of the additions. If an element is infinite, e² is infinite or NaN, and the norm is
// infinite.
__device__ __forceinline__ float norm_of(float square, float lost, float inverse) {
  const float least = lost * inverse;
  return 1.0002f * sqrtf(least > square ? least : square);
}

// Stores four elements of each of two rows of this lane, in panels: it has columns j to j + 3, and the lane next to it
// the other half of eight columns, which are 16 bytes of a panel. Each of the two lanes stores these of one row, so
// that neighboring rows are stored together. Nothing is stored past column `padded`. All lanes of a warp call it.
__device__ __forceinline__ void store_two_rows(ptx::Half* half_copy, const simt::Vector<unsigned, 2>& one,
                                               const simt::Vector<unsigned, 2>& other, long long row_of_one,
                                               long long row_of_other, int j, int padded, int panels) {
  const bool upper = j & 4;
  simt::Vector<unsigned, 2> received;
#pragma unroll
  for (int i = 0; i < 2; ++i) received.at[i] = simt::shuffle_xor(upper ? one.at[i] : other.at[i], 1);
  const simt::Vector<unsigned, 4> row = {upper ? received.at[0] : one.at[0], upper ? received.at[1] : one.at[1],
                                         upper ? other.at[0] : received.at[0], upper ? other.at[1] : received.at[1]};
  const long long to = tsm2::panel_offset(upper ? row_of_other : row_of_one, j & ~7, panels, tsm2::kPanelRows);
  if (j < padded) simt::store_streaming(reinterpret_cast<unsigned*>(half_copy + to), row);
}

template <typename T, typename Work, bool kAligned>
__global__ void __launch_bounds__(256, sizeof(T) == 2 ? 2 : 3)
    make_half_copy(const T* X, long long leading, long long rows, int d, int padded, int panels, const Work* mean,
                   int log2_lanes, float scale, float rounding, ptx::Half* half_copy, float* norms) {
  constexpr int kWide = kVector<T>, kRows = kHalfCopyRows<T, kAligned>, kLoads = kAligned ? 1 : kWide;
  using Some = Packed<T, kWide / kLoads>;
  const int lanes = 1 << log2_lanes, member = simt::lane() & (lanes - 1), groups = 32 >> log2_lanes;
  const int stride = kWide << log2_lanes, column = kWide * member;
  const float inverse = 1 / (rounding * rounding);  // exact, because `rounding` is a power of two
  // A tile is the rows that one warp processes at a time: kRows rows per group of lanes. The last tile begins early
  // enough to be whole, so it may overlap the tile before it. If X has too few rows for one tile, each group has one
  // row; groups past the last row repeat the last row.
  const int below = rows < kRows * groups ? 0 : groups, tile = below == 0 ? groups : kRows * groups;
  const long long last = rows < tile ? 0 : rows - tile, row_stride = below * leading;
  const long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const long long step = (long long)gridDim.x * blockDim.x / 32 * tile;
  int in_tile = simt::lane() >> log2_lanes;
  in_tile = in_tile < rows ? in_tile : (int)rows - 1;
  const auto read = [&](Some(&some)[kRows][kLoads], long long first, int j) {
    const T* x = X + ((first < last ? first : last) + in_tile) * leading;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kLoads; ++i) some[r][i].load(x + r * row_stride + (j + i < d ? j + i : 0));
  };

  Some now[kRows][kLoads], next[kRows][kLoads];
  // A lane's part of ‖x̂‖² for each of kRows rows, then of e² for each of these rows.
  float sums[2 * kRows] = {};
  long long first = warp * tile;
  int from = 0;
  if (first < rows) read(now, first, column);
  while (first < rows) {
    const bool ends = from + stride >= padded;
    const long long later = ends ? first + step : first;
    const int following = ends ? 0 : from + stride;
    read(next, later, following + column);
    const int j = from + column;
    const long long row = (first < last ? first : last) + in_tile;
    simt::Vector<Work, kWide> middle;
    if constexpr (kAligned) {
      middle = *reinterpret_cast<const simt::Vector<Work, kWide>*>(mean + (j < d ? j : 0));
    } else {
#pragma unroll
      for (int i = 0; i < kWide; ++i) middle.at[i] = mean[j + i < d ? j + i : 0];
    }
    simt::Vector<unsigned, kWide / 2> before;  // of the previous row
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      simt::Vector<T, kWide> x;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const auto elements = now[r][i].elements();
#pragma unroll
        for (int e = 0; e < kWide / kLoads; ++e) x.at[i * (kWide / kLoads) + e] = elements.at[e];
      }
      simt::Vector<unsigned, kWide / 2> pairs;
#pragma unroll
      for (int i = 0; i < kWide; i += 2) {
        Work value[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          value[e] = centered<T, Work>(x.at[i + e], middle.at[i + e]) * (Work)scale;
          if (j + (kAligned ? 0 : i + e) >= d) value[e] = 0;
        }
        const unsigned pair = pairs.at[i / 2] = ptx::to_half_pair((float)value[0], (float)value[1]);
        const float a = ptx::to_float(ptx::Half{(unsigned short)(pair & 0xffff)});
        const float b = ptx::to_float(ptx::Half{(unsigned short)(pair >> 16)});
        const float of_a = (float)(value[0] - a), of_b = (float)(value[1] - b);
        sums[r] += a * a + b * b;
        sums[kRows + r] += of_a * of_a + of_b * of_b;
      }
      const long long stored = row + r * below;
      // One store writes all elements of a lane: they are contiguous in panels too.
      if (!panels) {
        if (j < padded) simt::store_streaming(reinterpret_cast<unsigned*>(half_copy + stored * padded + j), pairs);
      } else if constexpr (kWide != 4) {
        const long long to = tsm2::panel_offset(stored, j, panels, tsm2::kPanelRows);
        if (j < padded) simt::store_streaming(reinterpret_cast<unsigned*>(half_copy + to), pairs);
      } else if (r % 2 == 1) {
        store_two_rows(half_copy, before, pairs, stored - below, stored, j, padded, panels);
      }
      before = pairs;
    }
    if (ends) {
      if (lanes >= 2 * kRows) {
        share_sums<2 * kRows>(sums, member, lanes);
        const float lost = simt::shuffle_xor(sums[0], lanes / 2);
        const int alike = lanes / (2 * kRows), r = member / alike;
        const float norm = norm_of(sums[0], lost, inverse);
        if (r < kRows && member % alike == 0) norms[row + r * below] = norm;
      } else {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          for (int bits = lanes / 2; bits > 0; bits /= 2) {
            sums[r] += simt::shuffle_xor(sums[r], bits);
            sums[kRows + r] += simt::shuffle_xor(sums[kRows + r], bits);
          }
          if (member == 0) norms[row + r * below] = norm_of(sums[r], sums[kRows + r], inverse);
        }
      }
#pragma unroll
      for (int i = 0; i < 2 * kRows; ++i) sums[i] = 0;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kLoads; ++i) now[r][i] = next[r][i];
    first = later;
    from = following;
  }
}

}  // namespace kmeans
