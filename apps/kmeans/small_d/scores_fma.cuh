// Scores for small d by fused multiply-adds, and the candidates of each row; see iteration_fma.cuh and
// iteration_fma_d4.cuh.
//
// found  the candidates of a row, if all are in one chunk of 16 centers: bit j is set if center 16 · chunk + j is a
//        candidate; the bits from 16 on hold `chunk`
//
// Why it is fast: centers are constant-memory operands. A saturating multiply-add compares a score with the threshold;
// another multiply-add sets the candidate's bit in the mantissa of a float. A lane processes several rows at a time.
#pragma once
#include "apps/kmeans/small_d/constant_centers.cuh"
#include "apps/kmeans/small_d/rescore.cuh"

namespace kmeans {

// Number of centers per chunk. If several chunks have candidates, `found` has no candidate bit set: the row is compared
// with all centers.
constexpr int kChunk = 16;

// center_row subtracts the mean from a row. scored_row converts a row for score_of; it subtracts the mean if kShifts.
template <int kFeatures, typename T>
__device__ __forceinline__ void center_row(const T (&row)[kFeatures], float (&value)[kFeatures]) {
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) value[i] = centered<T, float>(row[i], constant_centers.mean[i]);
}
template <bool kShifts, int kFeatures, typename T>
__device__ __forceinline__ void scored_row(const T (&row)[kFeatures], float (&x)[kFeatures]) {
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) {
    x[i] = kShifts ? centered<T, float>(row[i], constant_centers.mean[i]) : tsm2::Element<T>::value(row[i]);
  }
}

// Returns the score of center j. Center 0 needs no product: it is c₀ (constant_centers.cuh), or excluded.
template <int kFeatures>
__device__ __forceinline__ float score_of(const float (&x)[kFeatures], int j) {
  float sum = constant_centers.offsets[j];
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) {
    if (j > 0) sum = fmaf(x[i], constant_centers.centers[j * kFeatures + i], sum);
  }
  return sum;
}

// Returns the largest of `count` scores and `other`. If as_integers, compares scores as integers and ignores `other`.
// The result is then exact if any score is not negative. If all scores are negative, the result is one of the scores,
// so that there may be too many candidates, but never too few. sm_90 compares three integers with one instruction.
template <bool as_integers>
__device__ __forceinline__ float most_of(const float (&score)[kChunk], int count, float other) {
  if constexpr (as_integers) {
    int most = __float_as_int(score[0]);
#pragma unroll
    for (int j = 1; j < kChunk; ++j) {
      if (j < count) most = most < __float_as_int(score[j]) ? __float_as_int(score[j]) : most;
    }
    return __int_as_float(most);
  } else {
    float most = other;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (j < count) most = fmaxf(most, score[j]);
    }
    return most;
  }
}

// Computes `found` (head of this file) of kRows rows x.
template <int kFeatures, int kClusters, int kRows>
__device__ __forceinline__ void find_candidates(const float (&x)[kRows][kFeatures], unsigned (&found)[kRows]) {
  float best[kRows] = {};
#pragma unroll
  for (int first = 0; first < kClusters; first += kChunk) {
    constexpr int kLast = (kClusters - 1) % kChunk + 1;  // number of centers in the last chunk
    float score[kRows][kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (first + j >= kClusters) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) score[r][j] = score_of(x[r], first + j);
    }
    const int here = first + kChunk <= kClusters ? kChunk : kLast;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float most = most_of<kClusters <= kChunk>(score[r], here, first > 0 ? best[r] : -kInfinity);
      const float threshold = fmaf(most, -kLarge, constant_centers.threshold) - kLeast;
      float sum = kNoBits;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        if (j < here) sum = fmaf(__saturatef(fmaf(score[r][j], kLarge, threshold)), (float)(1 << j), sum);
      }
      const unsigned now = __float_as_uint(sum) ^ kNoBitsAsInteger;
      if (first == 0) {
        found[r] = now;
      } else {
        const bool keeps = fmaf(best[r], kLarge, threshold) > 0;
        const unsigned these = now | (unsigned)(first / kChunk) << 16;
        found[r] = !keeps ? these : now == 0 ? found[r] : 0u;
      }
      best[r] = most;
    }
  }
}

// Returns the value of `found` for a row with `label` as its only candidate.
template <int kClusters>
__device__ __forceinline__ unsigned found_of(int label) {
  // For label −1 (no cluster), returns a value that find_candidates never computes.
  if (kClusters <= kChunk) return 1u << (label & 31);
  return 1u << (label & (kChunk - 1)) | (unsigned)(label >> 4) << 16;
}

// Returns the only candidate in `found`, which is the certified label; negative if the row is ambiguous.
template <int kClusters>
__device__ __forceinline__ int cluster_of(unsigned found) {
  const unsigned bits = found & 0xffff;
  const int chunk = kClusters <= kChunk ? 0 : (int)(found >> 16 & 3) * kChunk;
  return bits != 0 && (bits & (bits - 1)) == 0 ? chunk + 31 - __clz((int)bits) : -1;
}

// Returns the nearest of the candidates in `found`, or of all centers if `found` has none, by float64 distances. Of
// equally near centers, returns the one with the lowest index.
template <int kFeatures>
__device__ __forceinline__ int nearest_of_found(const float (&x)[kFeatures], const float* centers, int k,
                                                unsigned found) {
  unsigned bits = found & 0xffff;
  const bool all = bits == 0;
  const int first = all ? 0 : (int)(found >> 16 & 3) * kChunk;
  Distant nearest = {kInfinity, 0};
  int j = all ? 0 : first + __ffs(bits) - 1;
#pragma unroll 1
  while (j < k) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) {
      const double difference = (double)x[i] - (double)centers[j * kFeatures + i];
      sum += difference * difference;
    }
    nearest.take({sum, j});
    bits &= bits - 1;
    j = all ? j + 1 : bits != 0 ? first + __ffs(bits) - 1 : k;
  }
  return nearest.center;
}

}  // namespace kmeans
