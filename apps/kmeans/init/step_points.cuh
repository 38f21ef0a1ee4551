// The *points* of a step of greedy k-means++: the center of the previous step, then the candidates. sample_candidates
// (plusplus.cuh) writes them for the next step, and the kernels that evaluate candidates read them.
//
//   points (kTrials + 1 rows)  rows of X, `point_pitch` elements apart, so that each begins at a multiple of 16 bytes
//   indices (kTrials)          after the last row: the indices of the candidates in X, 64-bit integers
//
// There are two such buffers, for even and for odd steps: while blocks of sample_candidates write one, others read the
// other.
//
// If X is distributed over several GPUs, each has a *shard*, consecutive rows of X. The GPU that has a drawn row writes
// it and its index; other GPUs write zeros. The sum of the buffers of all GPUs, as 64-bit integers, then has every row
// and index with its bits.
//
// Why it is fast: a kernel reads the points without loading their indices first, and one exchange between GPUs is
// enough.
#pragma once

namespace kmeans {

// The distance between two points, in elements: d rounded up to whole vectors of 16 bytes.
template <typename T>
__device__ __forceinline__ int point_pitch(int d) {
  constexpr int kVector = 16 / (int)sizeof(T);
  return (d + kVector - 1) / kVector * kVector;
}

// The indices of the candidates, behind the rows of `count` points.
template <typename T>
__device__ __forceinline__ long long* indices_of(T* points, int count, int d) {
  return reinterpret_cast<long long*>(points + (long long)count * point_pitch<T>(d));
}
template <typename T>
__device__ __forceinline__ const long long* indices_of(const T* points, int count, int d) {
  return reinterpret_cast<const long long*>(points + (long long)count * point_pitch<T>(d));
}

// Writes a row to point `p`, or zeros if `row` is null. All threads of the block take part.
template <typename T>
__device__ __forceinline__ void write_point(const T* row, int p, int d, T* points) {
  T* to = points + (long long)p * point_pitch<T>(d);
#pragma unroll 4
  for (int i = threadIdx.x; i < d; i += blockDim.x) to[i] = row == nullptr ? T(0) : row[i];
}

// Copies `window` columns of the points, from column `begin` on, to `to`. Writes zeros past the last column. All
// threads of the block take part, so that all loads are in flight together.
template <int kPoints, typename T>
__device__ __forceinline__ void fetch_points(const T* points, int d, int begin, int window, T* to) {
  const long long pitch = point_pitch<T>(d);
#pragma unroll 4
  for (int i = threadIdx.x; i < kPoints * window; i += blockDim.x) {
    const int p = i / window, column = begin + i - p * window;
    to[i] = column < d ? points[p * pitch + column] : T(0);
  }
}

}  // namespace kmeans
