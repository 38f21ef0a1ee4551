// Scores for small d by mma, the tensor cores of each warp, on rows rounded to float16; see iteration_mma.cuh.
//
//   a warp's tile            columns 0 … 15     16 … 31       a lane (g, t) = (lane / 4, lane % 4) loads columns
//   of 32 rows               t=0 t=1 t=2 t=3    t=0 t=1 …     4·t … 4·t + 3 of every 16 columns of rows g, g + 8,
//     rows g                 ███ ███ ███ ███    ███ ███ …     g + 16 and g + 24. An mma uses them as columns 2·t,
//     rows g + 8             ███ ███ ███ ███    ███ ███ …     2·t + 1, 2·t + 8 and 2·t + 9; centers have the same
//     rows g + 16, g + 24    ███ ███ ███ ███    ███ ███ …     order. tile_pipeline.cuh holds the tile.
//
// x̂ and ĉ are the row x and the center c in float16. n is ‖x̂‖, C is max ‖c‖, δ is max ‖c − ĉ‖, and a is the maximum
// rounding error of a row with subnormal elements. The error of a product is
//
//   |x·c − x̂·ĉ| ≤ (ρ n / (1 − ρ) + a) C + n δ,   ρ = 2⁻¹¹, or 0 for data that float16 holds exactly,   a = √d 2⁻²⁵
//
// assign/large_k.cuh states the tensor-core error. X is scaled so that no row norm exceeds 2¹⁰. On the benchmark's
// data, 0.3 to 1.2 % of the rows are ambiguous at d = k = 16, and 0.7 to 2.5 % at d = 32, k = 64. (One error bound for
// all rows, from the largest norm, would make five times as many rows ambiguous.)
//
// Why it is fast: for small d, centers are in registers. mma also computes the row norms. As compiled for sm_90a, a row
// and its label take 456 lane instructions at d = 32, k = 64. At d = k = 16 they take 242, compared with 424 by
// multiply-adds.
#pragma once
#include "apps/kmeans/small_d/half_centers.cuh"
#include "apps/kmeans/small_d/rescore.cuh"
#include "apps/kmeans/bounds/assign.cuh"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace kmeans {

// Returns ‖x̂‖² of row g + 8·half, where g = lane / 4. An mma takes the same registers as eight rows of operand A and
// as eight columns of operand B. So the squared norms are on the diagonal of the product.
template <int kSteps>
__device__ __forceinline__ float square_norm(const unsigned (&a)[kSteps][4], int half) {
  const int g = threadIdx.x % 32 / 4;
  float squares[4] = {};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const unsigned b[2] = {a[s][half], a[s][half + 2]};
    ptx::mma_m16n8k16_f16(squares, a[s], b);
  }
  return simt::shuffle(g % 2 ? squares[2 * half + 1] : squares[2 * half], 4 * g + g / 2);
}

// `best`: the best score of a row. `other`: the largest score of any center that is no candidate, or zero if all
// centers are candidates.
struct BestScores {
  float best, other;
};

// Returns the candidates of row g + 8·half among a lane's scores, in the low 16 bits: bit 2·j + i for column 8·j + 2·t
// + i. If kLargest, also stores the row's BestScores in `largest`. Scores are compared as integers, since no score is
// negative.
template <int kColumns, bool kLargest = false>
__device__ __forceinline__ unsigned candidates_of(const float (&scores)[kColumns][4], int half, float twice_error,
                                                  BestScores* largest = nullptr) {
  const auto most = [](int a, int b) { return b > a ? b : a; };
  int best = 0;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    best = most(most(best, __float_as_int(scores[j][2 * half])), __float_as_int(scores[j][2 * half + 1]));
  }
  best = most(best, simt::shuffle_xor(best, 1));
  best = most(best, simt::shuffle_xor(best, 2));
  const float threshold = fmaf(__int_as_float(best), -kLarge, twice_error) - kLeast;
  float sum = kNoBits;
  int other = 0;
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float score = scores[j][2 * half + i], can_be = __saturatef(fmaf(score, kLarge, threshold));
      sum = fmaf(can_be, (float)(1 << (2 * j + i)), sum);
      if constexpr (kLargest) other = most(other, __float_as_int(fmaf(can_be, -kLarge, score)));
    }
  if constexpr (kLargest) {
    other = most(other, simt::shuffle_xor(other, 1));
    *largest = {__int_as_float(best), __int_as_float(most(other, simt::shuffle_xor(other, 2)))};
  }
  return __float_as_uint(sum);
}

template <typename T, int kFeatures, int kColumns, bool kKept>
class WarpScores {
 public:
  static constexpr int kSteps = (kFeatures + 15) / 16;
  static constexpr int kTogether = 1;                        // number of warps that compute a product together
  static constexpr int kReadTogether = 16 * (int)sizeof(T);  // number of bytes of a row that four lanes read together
  // True if the pipeline is to keep addresses in registers: there are then enough registers.
  static constexpr bool kKeepsPlaces = sizeof(T) == 4 || kFeatures <= 16;
  static constexpr int kBytes = SharedCenters<kSteps, kColumns, kKept>::kBytes;

  __device__ WarpScores(const Products& of, const float*, int, void* shared)
      : centers_(of, shared), bound_(small_d_error_bound(of, kFeatures)), level_(score_level(of)),
        norm_limit_(of.center_stats->norm_limit), scale_(of.scale) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int column = 16 * s + 4 * (threadIdx.x % 4) + e;
        shift_[s][e] = column < kFeatures ? -of.mean[column] * of.scale : 0.0f;
      }
  }

  // Finds the candidates of a tile's rows: bits[i] has this lane's 16 bits of row g + 8·i.
  template <typename Pipeline>
  __device__ __forceinline__ void find(const Pipeline& pipeline, unsigned (&bits)[4]) const {
    find_in_tile<false>(pipeline, bits);
  }

  // As `find`; also returns a lower bound of the gap of row g + 8·t between its only candidate and all other centers
  // (bounds/assign.cuh).
  template <typename Pipeline>
  __device__ __forceinline__ float find_gap(const Pipeline& pipeline, unsigned (&bits)[4]) const {
    float own_norm = 0;
    BestScores own = {0, 0};
    find_in_tile<true>(pipeline, bits, &own_norm, &own);
    // kNextToZero covers subnormal rounding errors, which the norm does not include. Subtracting the level may cause
    // one more rounding; `error` includes one rounding more than the scores have.
    const float error = twice_error(own_norm) / (2 * kLarge), norm = own_norm + kNextToZero;
    return gap_of(norm, own.best - level_, own.other - level_, error, 4.01f * norm_limit_);
  }

 private:
  static constexpr float kNextToZero = 1.0f / (1 << 20);

  __device__ __forceinline__ float twice_error(float norm) const { return fmaf(norm, bound_.of_norm, bound_.always); }

  // As `find`. If kLargest, also stores the norm and the largest scores of row g + 8·t.
  template <bool kLargest, typename Pipeline>
  __device__ __forceinline__ void find_in_tile(const Pipeline& pipeline, unsigned (&bits)[4], float* own_norm = nullptr,
                                               BestScores* own = nullptr) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      unsigned a[kSteps][4];
      float scores[kColumns][4];
      multiply(pipeline, b, a, scores);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float norm = ptx::square_root(square_norm<kSteps>(a, half));
        BestScores largest;
        bits[2 * b + half] = candidates_of<kColumns, kLargest>(scores, half, twice_error(norm), &largest);
        if (kLargest && t == 2 * b + half) *own_norm = norm, *own = largest;
      }
      // Keeps the compiler from computing the scores of both blocks at once, which would need more registers.
      if (kColumns > 2) __syncwarp();
    }
  }

  // Computes the scores of rows g and g + 8 of block b, which is 16 rows of the tile. Stores the mma operands of these
  // rows in `a`.
  template <typename Pipeline>
  __device__ __forceinline__ void multiply(const Pipeline& pipeline, int b, unsigned (&a)[kSteps][4],
                                           float (&scores)[kColumns][4]) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int row = 16 * b + 8 * half + g;
        T raw[4];
        constexpr Past kPast = 16 * kSteps == kFeatures ? Past::kNone : Past::kZero;
        load_some<kFeatures, kPast>(pipeline.row(row), Pipeline::swizzle(row), 16 * s + 4 * t, raw);
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = fmaf(tsm2::Element<T>::value(raw[e]), scale_, shift_[s][e]);
        a[s][half] = ptx::to_half_pair(x[0], x[1]);
        a[s][half + 2] = ptx::to_half_pair(x[2], x[3]);
      }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) centers_.begin(j, scores[j]);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) centers_.multiply(j, s, a[s], scores[j]);
  }

  const SharedCenters<kSteps, kColumns, kKept> centers_;
  const Bound bound_;
  const float level_, norm_limit_;  // for gaps only
  const float scale_;
  float shift_[kSteps][4];
};

}  // namespace kmeans
