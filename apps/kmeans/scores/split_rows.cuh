// Rows as pairs of float16 numbers, of which tensor cores compute squares of distances, and a bound of the error.
//
//   ‖s − x‖² = ‖s − o‖² + ‖x − o‖² − 2·(s − o)·(x − o)     point s, row x, origin o
//
// parts    v = (x − o) · 2^e, with the largest element of a row in [2¹⁴, 2¹⁵), is split into two float16 numbers; each
//          row has an exponent of its own, so that nothing overflows. Three products: high·high, which float32
//          additions add up over the steps of 16 features, and high·low, low·high
// error    Let N = ‖s − o‖² + ‖x − o‖², so that |s − o|·|x − o| ≤ N / 2, and u = 2⁻²⁴. The square ‖s − x‖² is off by
//          at most the sum over both of E, of which E(x) = u·(22·‖x − o‖² + 16·Σ m²) + ‖low part‖², where
//            7  norm: a pairwise sum, of which an element is rounded at most seven times
//            4  what the two parts omit: at most 2⁻²³ of an element
//            4  high·high: the sum of 16 products is truncated to 24 bits, at most twice: some GPUs add eight at once
//            4  additions of the sums of steps
//            3  N, the last subtraction, and what is smaller: high·low, errors of errors
//            16·Σ m²  high·high: 16 products are truncated to one bit below the last of the largest, which is at most
//               the product of the largest elements m of these 16 features. |m·m'| ≤ (m² + m'²) / 2
//            ‖low part‖²  the product low·low is omitted; it is at most half of the sum of both
//          A distance is off by half of that relative to its square. So if the square exceeds (E(s) + E(x)) / (2·δ),
//          the distance is off by at most δ, of which `per_error` has the reciprocal of twice. Elsewhere, and where
//          anything is not finite, the square comes from direct differences of the rows themselves, as in
//          sums_by_cluster.cuh. A row's distance from itself is 0, and equal rows have distance 0. Besides, x − o is
//          rounded to float32, by which a distance beyond that limit is off by less than δ / 16.
//
// For normal data E is about 27·u·‖x − o‖²: with δ = 2⁻¹⁵ squares below N / 38 are computed directly. Eight lanes do so
// for one pair, so that a warp has four at a time, if no lane has more than kSparse of its eight; else the warp takes
// all of its 16 × 16.
#pragma once
#include "apps/kmeans/scores/one_hot.cuh"

namespace kmeans {

// Most pairs of a lane, of its eight of 16 rows, that are computed directly one by one.
constexpr int kSparse = 4;

// Rows of a tile as two float16 parts, with their norms, 2^−e, and the smallest squares of distances from products.
template <int kSteps>
struct alignas(16) PartsOfRows {
  static constexpr int kPitch = 16 * kSteps + 8;  // 16 bytes times an odd number: rows of ldmatrix in different banks
  unsigned short parts[2][kTileRows * kPitch];
  float norms[kTileRows], factors[kTileRows], limits[kTileRows];
};

// A row of which eight lanes have 4·kVectors columns each: lane l those from 4·l + 32·i on. Elements are converted when
// they are used: earlier, a thread would wait for them.
template <typename T, int kVectors>
struct RowPart {
  simt::Vector<T, 4> at[kVectors];

  __device__ __forceinline__ simt::Vector<float, 4> values(int i) const {
    simt::Vector<float, 4> four;
#pragma unroll
    for (int j = 0; j < 4; ++j) four[j] = (float)tsm2::Element<T>::value(at[i][j]);
    return four;
  }
};

// Loads a row of zeros for a negative number. `is_aligned` says that vectors of four elements may be loaded.
template <typename T, int kVectors>
__device__ __forceinline__ RowPart<T, kVectors> load_part(const T* X, long long row, int d, int in_row,
                                                          bool is_aligned) {
  RowPart<T, kVectors> part = {};
  if (row < 0) return part;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int column = 32 * i + 4 * in_row;
    const T* const from = X + row * d + column;
    if (is_aligned && column < d) {
      part.at[i] = *reinterpret_cast<const simt::Vector<T, 4>*>(from);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (column + j < d) part.at[i][j] = from[j];
      }
    }
  }
  return part;
}

// Splits row `row` of a tile, of which eight adjacent lanes have a part each; four lanes have a step of 16 features.
template <typename T, int kSteps>
__device__ __forceinline__ void split_row(const RowPart<T, kSteps / 2>& part, const float* origin, int row, int in_row,
                                          float per_error, PartsOfRows<kSteps>* to) {
  constexpr int kVectors = kSteps / 2;
  constexpr float kRounding = 1.0f / (1 << 24);
  float v[kVectors][4], of_steps[kVectors], largest = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const auto middle = *reinterpret_cast<const simt::Vector<float, 4>*>(origin + 32 * i + 4 * in_row);
    const auto four = part.values(i);
    of_steps[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      v[i][j] = four[j] - middle[j];
      of_steps[i] = fmaxf(of_steps[i], fabsf(v[i][j]));
    }
    of_steps[i] = fmaxf(of_steps[i], simt::shuffle_xor(of_steps[i], 1));
    of_steps[i] = fmaxf(of_steps[i], simt::shuffle_xor(of_steps[i], 2));
    largest = fmaxf(largest, of_steps[i]);
  }
  largest = fmaxf(largest, simt::shuffle_xor(largest, 4));
  // 2^e and 2^−e as bits, both normal numbers.
  const unsigned exponent = __float_as_uint(largest) >> 23, at_least = exponent < 16 ? 16 : exponent;
  const float scale = __uint_as_float((268 - at_least) << 23), factor = __uint_as_float((at_least - 14) << 23);
  float square = 0, omitted = 0, products = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    unsigned high[2], low[2];
    float squares[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float a = v[i][2 * j] * scale, b = v[i][2 * j + 1] * scale;
      squares[j] = a * a + b * b;
      high[j] = ptx::to_half_pair(a, b);
      const auto rounded = tsm2::Element<ptx::Half>::values(high[j]);
      const float of_a = a - rounded[0], of_b = b - rounded[1];
      low[j] = ptx::to_half_pair(of_a, of_b);
      omitted += of_a * of_a + of_b * of_b;
    }
    square += squares[0] + squares[1];
    products += of_steps[i] * scale * (of_steps[i] * scale);
    const int at = row * PartsOfRows<kSteps>::kPitch + 32 * i + 4 * in_row;
    *reinterpret_cast<uint2*>(to->parts[0] + at) = uint2{high[0], high[1]};
    *reinterpret_cast<uint2*>(to->parts[1] + at) = uint2{low[0], low[1]};
  }
#pragma unroll
  for (int bits = 1; bits < 8; bits *= 2) {
    square += simt::shuffle_xor(square, bits);
    omitted += simt::shuffle_xor(omitted, bits);
  }
  products += simt::shuffle_xor(products, 4);
  const float error = kRounding * (22.0f * square + 16.0f * products) + omitted;
  if (in_row > 0) return;
  to->norms[row] = square * factor * factor;
  to->factors[row] = factor;
  // Below 2⁻¹⁰⁰ squares may have lost digits because they are small.
  to->limits[row] = per_error * (error * factor * factor) + 7.9e-31f;
}

// Squares of the distances of 16 points of a warp from 16 rows by direct differences: of those pairs that have a
// negative square, or of all. Element 4·b + 2·h + c is of point g + 8·h and row 2·t + c + 8·b.
template <int kVectors, int kPitch>
__device__ __forceinline__ void square_directly(float (&squares)[8], const float* of_points, const float* of_rows) {
  using Four = simt::Vector<float, 4>;
  const int lane = (int)threadIdx.x % 32, in_pair = lane % 8;
  unsigned wanted = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) wanted |= squares[i] < 0 ? 1u << i : 0u;
  if (__any_sync(simt::every_lane, __popc(wanted) > kSparse)) {
#pragma unroll
    for (int i = 0; i < 8; ++i) squares[i] = 0;
    const float *const own_point = of_points + lane / 4 * kPitch, *const own_row = of_rows + lane % 4 * 2 * kPitch;
#pragma unroll 1
    for (int f = 0; f < 32 * kVectors; f += 4) {
      Four point[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) point[h] = *reinterpret_cast<const Four*>(own_point + 8 * h * kPitch + f);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Four row = *reinterpret_cast<const Four*>(own_row + (i / 2 * 8 + i % 2) * kPitch + f);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const float apart = row[j] - point[h][j];
            squares[i / 2 * 4 + 2 * h + i % 2] += apart * apart;
          }
        }
      }
    }
    return;
  }
  unsigned lanes = __ballot_sync(simt::every_lane, wanted != 0);
  while (lanes != 0) {
    // The next pairs of the first four lanes that want one, for eight lanes each.
    unsigned from = lanes;
#pragma unroll
    for (int i = 0; i < 3; ++i) from = lane / 8 > i ? from & (from - 1) : from;
    const int source = from != 0 ? __ffs((int)from) - 1 : 0, place = __popc(lanes & ((1u << lane) - 1));
    const int next = wanted != 0 ? __ffs((int)wanted) - 1 : 0, one = simt::shuffle(next, source);
    const float* const point = of_points + (source / 4 + one / 2 % 2 * 8) * kPitch + 4 * in_pair;
    const float* const row = of_rows + (source % 4 * 2 + one / 4 * 8 + one % 2) * kPitch + 4 * in_pair;
    float square = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Four a = *reinterpret_cast<const Four*>(row + 32 * i), b = *reinterpret_cast<const Four*>(point + 32 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) square += (a[j] - b[j]) * (a[j] - b[j]);
    }
#pragma unroll
    for (int bits = 1; bits < 8; bits *= 2) square += simt::shuffle_xor(square, bits);
    square = simt::shuffle(square, place % 4 * 8);
    if (wanted != 0 && place < 4) {
#pragma unroll
      for (int i = 0; i < 8; ++i) squares[i] = next == i ? square : squares[i];
      wanted &= wanted - 1;
    }
    lanes = __ballot_sync(simt::every_lane, wanted != 0);
  }
}

}  // namespace kmeans
