// Simplified silhouettes of all rows in all clusterings of them, from distances to centers, in one pass over X.
//
//   X (n × d), centers (columns × d, float32), labels   →   sums (blocks × clusterings, float64) of (b − a) / max(a, b)
//
// where a is a row's distance from its own center, and b that from the nearest other center of the clustering. An
// origin is subtracted from rows, and was from centers, of which float32 then holds more digits if X is far from zero.
//
// a tile    kScoreThreads rows, one per thread, which keeps kFeatures of its features in registers. If d is larger,
//           rows are loaded again, kFeatures features at a time, for every kColumnsTogether centers, and sums of
//           squares wait in shared memory meanwhile.
// centers   of all clusterings, side by side, kColumnsTogether at a time in shared memory. A thread goes through them
//           in order, and thereby through the clusterings: it keeps the smallest distance of the present one only.
//
// Distances are from direct differences in float32. A warp adds up the values of its 32 rows in float32, and a block
// adds up these sums in float64, in a fixed order, so results have the same bits on every run.
//
// Why it is fast: a subtraction and a fused multiply-add per feature, row and center limit it. All threads read the
// same center, so one load brings four of its features to 32 rows, for 8 instructions. Four sums per distance shorten
// the chain of dependent additions. Square roots are taken of two numbers per row and clustering, not of all distances.
#pragma once
#include "apps/kmeans/scores/clusterings.cuh"

namespace kmeans {

constexpr int kColumnsTogether = 32;

// Shared memory has the sums of each warp, kColumnsTogether · kFeatures floats of centers, rows on their way to
// registers (kScoreThreads × (kStaged + 1)), and, if d exceeds kFeatures, kColumnsTogether · kScoreThreads sums of
// squares.
template <typename T, int kFeatures>
__global__ void __launch_bounds__(kScoreThreads, kFeatures <= 16 ? 4 : 2)
    row_scores(const T* X, long long n, int d, const float* origin, const float* centers, Clusterings clusterings,
               double* sums) {
  constexpr int kStaged = kFeatures < 32 ? kFeatures : 32, kPitch = kStaged + 1, kWarps = kScoreThreads / 32;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int chunks = (d + kFeatures - 1) / kFeatures, columns = clusterings.starts[clusterings.count];
  double* const of_warps = simt::dynamic_shared<double>();
  float* const of_centers = reinterpret_cast<float*>(of_warps + (kWarps * clusterings.count + 1) / 2 * 2);
  float* const staged = of_centers + kColumnsTogether * kFeatures;
  float* const waiting = staged + kScoreThreads * kPitch;
  for (int i = thread; i < kWarps * clusterings.count; i += kScoreThreads) of_warps[i] = 0;

  float x[kFeatures];
  const auto load_rows = [&](long long first_row, int chunk) {
#pragma unroll
    for (int part = 0; part < kFeatures / kStaged; ++part) {
      __syncthreads();
      const int column = thread % kStaged, feature = chunk * kFeatures + part * kStaged + column;
      const float middle = feature < d ? origin[feature] : 0.0f;
#pragma unroll 8
      for (int row = thread / kStaged; row < kScoreThreads; row += kScoreThreads / kStaged) {
        const bool present = feature < d && first_row + row < n;
        staged[row * kPitch + column] =
            present ? (float)tsm2::Element<T>::value(X[(first_row + row) * d + feature]) - middle : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kStaged; ++j) x[part * kStaged + j] = staged[thread * kPitch + j];
    }
  };

  for (long long first_row = (long long)blockIdx.x * kScoreThreads; first_row < n;
       first_row += (long long)gridDim.x * kScoreThreads) {
    const bool present = first_row + thread < n;
    const long long row = present ? first_row + thread : n - 1;
    // The column of the row's label in the present clustering, and the label in the next.
    int clustering = 0, end = clusterings.starts[1], own_column = clusterings.labels[0][row];
    int next_label = clusterings.count > 1 ? clusterings.labels[1][row] : 0;
    float own = 0, nearest = __uint_as_float(0x7f800000u);
    for (int first = 0; first < columns; first += kColumnsTogether) {
      const int together = columns - first < kColumnsTogether ? columns - first : kColumnsTogether;
      for (int chunk = 0; chunk < chunks; ++chunk) {
        if (chunks > 1 || first == 0) load_rows(first_row, chunk);
        __syncthreads();
        for (int i = thread; i < kColumnsTogether * kFeatures; i += kScoreThreads) {
          const int column = i / kFeatures, feature = chunk * kFeatures + i % kFeatures;
          const bool exists = column < together && feature < d;
          of_centers[i] = exists ? centers[(long long)(first + column) * d + feature] : 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (int j = 0; j < together; ++j) {
          using Four = simt::Vector<float, 4>;
          float squares[4] = {};
          const Four* const center = reinterpret_cast<const Four*>(of_centers + j * kFeatures);
#pragma unroll
          for (int f = 0; f < kFeatures / 4; ++f) {
            const Four four = center[f];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float apart = x[4 * f + i] - four[i];
              squares[i] += apart * apart;
            }
          }
          float square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
          if (chunk > 0) square += waiting[j * kScoreThreads + thread];
          if (chunk + 1 < chunks) {
            waiting[j * kScoreThreads + thread] = square;
            continue;
          }
          if (first + j == own_column) {
            own = square;
          } else {
            nearest = square < nearest ? square : nearest;
          }
          if (first + j + 1 < end) continue;
          // The last center of a clustering.
          const float a = ptx::square_root(own), b = ptx::square_root(nearest), larger = a > b ? a : b;
          const float sum = simt::warp_sum(present && larger > 0 ? (b - a) / larger : 0.0f);
          if (lane == 0) of_warps[warp * clusterings.count + clustering] += (double)sum;
          own_column = end + next_label;
          ++clustering;
          nearest = __uint_as_float(0x7f800000u);
          if (clustering < clusterings.count) end = clusterings.starts[clustering + 1];
          if (clustering + 1 < clusterings.count) next_label = clusterings.labels[clustering + 1][row];
        }
      }
    }
  }
  __syncthreads();
  for (int i = thread; i < clusterings.count; i += kScoreThreads) {
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += of_warps[w * clusterings.count + i];
    sums[(long long)blockIdx.x * clusterings.count + i] = sum;
  }
}

}  // namespace kmeans
