// Distances of all rows from the means of their own clusters, in all clusterings of them, in one pass over X.
//
//   X (n × d), means (columns × pitch, float32), labels   →   sums (blocks × (columns + clusterings), float64)
//
// of ‖x − m‖ over the rows x of each cluster with mean m, and of ‖x − m‖² over all rows in each clustering. An origin
// is subtracted from rows, and was from means, of which float32 then holds more digits if X is far from zero.
//
// a warp    four rows of 8 lanes each. Lane l has features 4·l … 4·l + 3, and those 32, 64, … further on. The first 64
//           features of a row stay in registers; others are read again for each clustering, from L1. The lanes compute
//           their parts of the distances of eight clusterings; adding up these leaves distance l in lane l.
// sums      of each warp in float64, in shared memory if they fit, else in global memory. The four rows are added one
//           after the other, since two of them may be of one cluster. Nothing depends on the order in which warps run,
//           so results have the same bits on every run.
//
// `pitch` is d rounded up to a multiple of 32; means are zero from feature d on.
//
// Why it is fast: a row is read once for all clusterings. The lanes of a row read consecutive vectors of its mean, and
// means are few, so that they stay in L1. Eight sums over eight lanes take 7 shuffles together, and 24 one by one.
#pragma once
#include "apps/kmeans/scores/clusterings.cuh"

namespace kmeans {

// kParts is pitch / 32, or 0 for any pitch. `scratch` has (blocks × warps × (columns + clusterings)) numbers, or is
// null: then shared memory has those of a block, after the clusterings.
template <typename T, int kParts>
__global__ void __launch_bounds__(kScoreThreads, kParts > 0 ? 4 : 3)
    spreads(const T* X, long long n, int d, const float* origin, const float* means, int any_pitch,
            Clusterings clusterings, double* scratch, double* sums) {
  constexpr int kWarps = kScoreThreads / 32, kLanes = 8, kRows = 32 / kLanes, kHeld = kParts > 0 ? kParts : 2;
  using Four = simt::Vector<float, 4>;
  const int pitch = kParts > 0 ? 4 * kLanes * kParts : any_pitch;
  const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, in_row = lane % kLanes;
  const int columns = clusterings.starts[clusterings.count], width = columns + clusterings.count;
  OneClustering* const of_clusterings = simt::dynamic_shared<OneClustering>();
  double* const of_warps = scratch == nullptr ? reinterpret_cast<double*>(of_clusterings + clusterings.count)
                                              : scratch + (long long)blockIdx.x * kWarps * width;
  double* const mine = of_warps + (long long)warp * width;
  place_clusterings(clusterings, 0, of_clusterings);
  for (int i = lane; i < width; i += 32) mine[i] = 0;
  __syncthreads();

  for (long long first = ((long long)blockIdx.x * kWarps + warp) * kRows; first < n;
       first += (long long)gridDim.x * kWarps * kRows) {
    const bool present = first + lane / kLanes < n;
    const long long row = present ? first + lane / kLanes : n - 1;
    const T* const from = X + row * d;
    const auto load = [&](int column) {
      Four value;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        value[i] = column + i < d ? (float)tsm2::Element<T>::value(from[column + i]) - origin[column + i] : 0.0f;
      return value;
    };
    Four held[kHeld];
#pragma unroll
    for (int part = 0; part < kHeld; ++part) held[part] = load(4 * (kLanes * part + in_row));
    for (int begin = 0; begin < clusterings.count; begin += kLanes) {
      float squares[kLanes];
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        // After the last clustering, the last is computed again, by as many instructions as a branch would take.
        const int clustering = begin + i < clusterings.count ? begin + i : clusterings.count - 1;
        const OneClustering of = of_clusterings[clustering];
        const int column = of.start + of.labels[row];
        const float* const mean = means + (long long)column * pitch;
        float& square = squares[i] = 0;
        const auto add = [&](const Four& value, int at) {
          const Four of_mean = *reinterpret_cast<const Four*>(mean + at);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const float apart = value[j] - of_mean[j];
            square += apart * apart;
          }
        };
#pragma unroll
        for (int part = 0; part < kHeld; ++part) add(held[part], 4 * (kLanes * part + in_row));
        if constexpr (kParts == 0) {
          for (int at = 4 * (kLanes * kHeld + in_row); at < pitch; at += 4 * kLanes) add(load(at), at);
        }
      }
      // Adds the parts of eight distances over eight lanes, of which lane l gets distance l.
#pragma unroll
      for (int bits = kLanes / 2; bits > 0; bits /= 2) {
        const bool upper = (in_row & bits) != 0;
#pragma unroll
        for (int i = 0; i < bits; ++i) {
          const float given = upper ? squares[i] : squares[i + bits], kept = upper ? squares[i + bits] : squares[i];
          squares[i] = kept + simt::shuffle_xor(given, bits);
        }
      }
      const bool is_one = present && begin + in_row < clusterings.count;
      const OneClustering of = of_clusterings[is_one ? begin + in_row : 0];
      const int column = of.start + of.labels[row];
      const double square = (double)squares[0], distance = (double)ptx::square_root(squares[0]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (lane / kLanes == r && is_one) {
          mine[column] += distance;
          mine[columns + begin + in_row] += square;
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
