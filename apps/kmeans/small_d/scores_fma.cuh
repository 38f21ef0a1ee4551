// The scores of few features by fused multiply-adds, and which centers can be a row's nearest by them; see
// iteration_fma.cuh, and iteration_fma_d4.cuh.
//
//   found     of 16 clusters at a time, bit j for center 16 · chunk + j, and the chunk from bit 16 on
//
// Why it is fast: centers are operands in constant memory, and candidates are counted in the mantissa of a float, by a
// multiply-add that saturates, for several rows at a time.
#pragma once
#include "apps/kmeans/small_d/constant_centers.cuh"
#include "apps/kmeans/small_d/rescore.cuh"

namespace kmeans {

// Of the centers, in chunks of 16: the candidates of one chunk, bit j for center 16 · chunk + j, and the chunk from bit
// 16 on; no bit where several chunks have candidates.
constexpr int kChunk = 16;

// A row less the mean; and as scores are of it.
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

// The score of center j. The first one is c₀, or is left out: it has no product.
template <int kFeatures>
__device__ __forceinline__ float score_of(const float (&x)[kFeatures], int j) {
  float sum = constant_centers.offsets[j];
#pragma unroll
  for (int i = 0; i < kFeatures; ++i) {
    if (j > 0) sum = fmaf(x[i], constant_centers.centers[j * kFeatures + i], sum);
  }
  return sum;
}

// The largest of some scores and `other`. If `as_integers`, it is where that is not negative, and some score where all
// are: then more are candidates, and none is lost. Three integers are compared by one instruction of sm_90 and later.
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

template <int kFeatures, int kClusters, int kRows>
__device__ __forceinline__ void find_candidates(const float (&x)[kRows][kFeatures], unsigned (&found)[kRows]) {
  float best[kRows] = {};
#pragma unroll
  for (int first = 0; first < kClusters; first += kChunk) {
    constexpr int kLast = (kClusters - 1) % kChunk + 1;  // in the last chunk
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

// What was found of a row that has one candidate, which is its label.
template <int kClusters>
__device__ __forceinline__ unsigned found_of(int label) {
  // Of no cluster, what no row has.
  if (kClusters <= kChunk) return 1u << (label & 31);
  return 1u << (label & (kChunk - 1)) | (unsigned)(label >> 4) << 16;
}

// The cluster that was found; negative if it is in doubt.
template <int kClusters>
__device__ __forceinline__ int cluster_of(unsigned found) {
  const unsigned bits = found & 0xffff;
  const int chunk = kClusters <= kChunk ? 0 : (int)(found >> 16 & 3) * kChunk;
  return bits != 0 && (bits & (bits - 1)) == 0 ? chunk + 31 - __clz((int)bits) : -1;
}

// The nearest, in float64, of the centers that were found, or of all if none was: the first of equals.
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
