// Distances of all rows from the means of their own clusters, in all clusterings of them, in one pass over X.
//
//   X (n × d), means (columns × pitch, float32), labels   →   sums (blocks × (columns + clusterings), float64): Σ ‖x − m‖ over
//                                                             the rows x of each cluster with mean m, and Σ ‖x − m‖² over all
//                                                             rows in each clustering
//
// a warp    four rows, 8 lanes each: lane l of these has features 4·l … 4·l + 3, and those 32, 64, … further on. The first 64
//           features of a row stay in registers; others are read again for each clustering, from L1. Distances of eight
//           clusterings are computed one after the other; then lane l has that of clustering l, and adds it to the warp's sums.
// sums      of each warp in float64, in shared memory if they fit, else in global memory. The four rows are added one after
//           the other, since two of them may be of one cluster. Nothing depends on the order in which warps run, so results
//           have the same bits on every run.
//
// `pitch` is d rounded up to a multiple of 4; means are zero from feature d on.
//
// Why it is fast: a row is read once for all clusterings. Lanes of a row read consecutive vectors of its mean, and there are
// few means, which stay in L1. Rows of a warp differ in their labels, but a load of four means touches four lines only.
#pragma once
#include "apps/kmeans/scores/sums_by_cluster.cuh"

namespace kmeans {

// `scratch` has (blocks × warps × (columns + clusterings)) numbers, or is null: then shared memory has those of a block.
template <typename T>
__global__ void __launch_bounds__(kScoreThreads, 4)
    spreads(const T* X, long long n, int d, const float* means, int pitch, Clusterings clusterings, double* scratch,
            double* sums) {
  constexpr int kWarps = kScoreThreads / 32, kLanes = 8, kRows = 32 / kLanes, kHeld = 2;
  using Four = simt::Vector<float, 4>;
  const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, in_row = lane % kLanes;
  const int columns = clusterings.starts[clusterings.count], width = columns + clusterings.count;
  double* const of_warps =
      scratch == nullptr ? simt::dynamic_shared<double>() : scratch + (long long)blockIdx.x * kWarps * width;
  double* const mine = of_warps + (long long)warp * width;
  for (int i = lane; i < width; i += 32) mine[i] = 0;
  __syncwarp();

  for (long long first = ((long long)blockIdx.x * kWarps + warp) * kRows; first < n;
       first += (long long)gridDim.x * kWarps * kRows) {
    const bool present = first + lane / kLanes < n;
    const long long row = present ? first + lane / kLanes : n - 1;
    const T* const from = X + row * d;
    const auto load = [&](int column) {
      Four value;
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = column + i < d ? (float)tsm2::Element<T>::value(from[column + i]) : 0.0f;
      return value;
    };
    Four held[kHeld];
#pragma unroll
    for (int part = 0; part < kHeld; ++part) held[part] = load(4 * (kLanes * part + in_row));
    for (int begin = 0; begin < clusterings.count; begin += kLanes) {
      float square_of_mine = 0;
      int column_of_mine = 0;
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        if (begin + i >= clusterings.count) break;
        const int column = clusterings.starts[begin + i] + clusterings.labels[begin + i][row];
        const float* const mean = means + (long long)column * pitch;
        float square = 0;
        const auto add = [&](const Four& value, int at) {
          const Four of_mean = *reinterpret_cast<const Four*>(mean + at);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float apart = value[j] - of_mean[j];
            square += apart * apart;
          }
        };
#pragma unroll
        for (int part = 0; part < kHeld; ++part) {
          const int at = 4 * (kLanes * part + in_row);
          if (at < pitch) add(held[part], at);
        }
        for (int at = 4 * (kLanes * kHeld + in_row); at < pitch; at += 4 * kLanes) add(load(at), at);
#pragma unroll
        for (int bits = kLanes / 2; bits > 0; bits /= 2) square += simt::shuffle_xor(square, bits);
        if (in_row == i) {
          square_of_mine = square;
          column_of_mine = column;
        }
      }
      const float distance = ptx::square_root(square_of_mine);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (lane / kLanes == r && present && begin + in_row < clusterings.count) {
          mine[column_of_mine] += (double)distance;
          mine[columns + begin + in_row] += (double)square_of_mine;
        }
        __syncwarp();
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < width; i += kScoreThreads) {
    double sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += of_warps[(long long)w * width + i];
    sums[(long long)blockIdx.x * width + i] = sum;
  }
}

}  // namespace kmeans
