// The scores of few features by the tensor cores of each warp (mma), of rows rounded to float16; see iteration_mma.cuh.
//
//   a warp's tile, 32 rows,             columns 0 … 15        16 … 31       a lane (g, t) = (lane / 4, lane % 4) loads
//                                       columns
//   in its ring (tile_pipeline.cuh)         t=0 t=1 t=2 t=3    t=0 t=1 …        4·t … 4·t + 3 of each 16, of rows g and
//                                           g + 8: the
//     rows g                            ███ ███ ███ ███    ███ ███ …        quad reads a row, the warp eight. The product takes
//     rows g + 8                        ███ ███ ███ ███    ███ ███ …        them for columns 2·t, 2·t + 1, 2·t + 8 and 2·t + 9;
//     rows g + 16, g + 24               ███ ███ ███ ███    ███ ███ …        centers likewise
//
// With x̂ and ĉ rounded to float16, n = ‖x̂‖ and a the most that is lost next to zero,
//
//   |x·c − x̂·ĉ| ≤ (ρ n / (1 − ρ) + a) C + n δ,   ρ = 2⁻¹¹, or 0 of data that float16 holds,   a = √d 2⁻²⁵
//
// and the tensor cores lose what assign/large_k.cuh says. X is scaled for no row's norm to exceed 2¹⁰. On the
// benchmark's data 0.3 to 1.2 % of the rows are compared with their candidates, 16 × 16, and 0.7 to 2.5 %, 32 × 64.
// (With one bound for all rows, of the largest norm there is, it would be five times as many.)
//
// Why it is fast: centers that are few stay in registers, and the norms of rows come from the product too. Of 32 × 64,
// a row takes 456 lane instructions with its label, of 16 × 16 242, as compiled for sm_90a (424 by multiply-adds).
#pragma once
#include "apps/kmeans/small_d/half_centers.cuh"
#include "apps/kmeans/small_d/rescore.cuh"
#include "apps/kmeans/bounds/assign.cuh"
#include "kernels/ptx/arithmetic.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace kmeans {

// ‖x̂‖² of row g + 8·half. Eight rows are a matrix's rows and another's columns in the same registers, so that it is on
// the diagonal of their product.
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

// The largest scores of a row: the best, and of those that cannot be it, or zero where there is none.
struct Largest {
  float best, other;
};

// Which of a lane's scores of row g + 8·half can be the best: bit 2·j + i for column 8·j + 2·t + i, below others. The
// largest ones go to `largest`, if it is to have them: as integers, as they are not negative.
template <int kColumns, bool kLargest = false>
__device__ __forceinline__ unsigned candidates_of(const float (&scores)[kColumns][4], int half, float twice_error,
                                                  Largest* largest = nullptr) {
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
  static constexpr int kTogether = 1;                        // warps that multiply together
  static constexpr int kReadTogether = 16 * (int)sizeof(T);  // bytes of a row
  // In registers, of the ring: if there is room.
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

  // The candidates of a tile's rows: of row g + 8·i, this lane's 16 bits.
  template <typename Pipeline>
  __device__ __forceinline__ void find(const Pipeline& pipeline, unsigned (&bits)[4]) const {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      unsigned a[kSteps][4];
      float scores[kColumns][4];
      multiply(pipeline, b, a, scores);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float norm = ptx::square_root(square_norm<kSteps>(a, half));
        bits[2 * b + half] = candidates_of<kColumns>(scores, half, twice_error(norm));
      }
      // For the scores of no more blocks to be in registers at a time.
      if (kColumns > 2) __syncwarp();
    }
  }

  // The same, and by how much row g + 8·t, if it has one candidate, is nearer to it than to any other center, at least
  // (bounds/assign.cuh).
  template <typename Pipeline>
  __device__ __forceinline__ float find_gap(const Pipeline& pipeline, unsigned (&bits)[4]) const {
    const int t = threadIdx.x % 4;
    float own_norm = 0;
    Largest own = {0, 0};
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      unsigned a[kSteps][4];
      float scores[kColumns][4];
      multiply(pipeline, b, a, scores);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float norm = ptx::square_root(square_norm<kSteps>(a, half));
        Largest largest;
        bits[2 * b + half] = candidates_of<kColumns, true>(scores, half, twice_error(norm), &largest);
        if (t == 2 * b + half) own_norm = norm, own = largest;
      }
      if (kColumns > 2) __syncwarp();
    }
    // What a row next to zero loses is beside its norm. Scores have a level; that it is taken off again may cost a
    // rounding, of which the bound has one more than it needs.
    const float error = twice_error(own_norm) / (2 * kLarge), norm = own_norm + kNextToZero;
    return gap_of(norm, own.best - level_, own.other - level_, error, norm_limit_);
  }

 private:
  static constexpr float kNextToZero = 1.0f / (1 << 20);

  __device__ __forceinline__ float twice_error(float norm) const { return fmaf(norm, bound_.of_norm, bound_.always); }

  // The scores of rows g and g + 8 of block b, and the rows as they were multiplied.
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
  const float level_, norm_limit_;  // of gaps alone
  const float scale_;
  float shift_[kSteps][4];
};

}  // namespace kmeans
