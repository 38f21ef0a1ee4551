// Sums by cluster, over all rows, of values that each row has: for all clusterings of the same rows in one pass.
//
//   values (points × n)  ·  labels, one-hot (n × columns)   →   partial sums (points × columns), float64, of each range
//                                                               of rows (partial_sums.cuh)
//
// kDistances   a point is a row s of a sample, and its value for a row x is the distance ‖x − s‖
// otherwise    a point is a feature f, and its value is x[f] − origin[f]; feature d has the value 1, so it counts rows
//
// The clusters of all clusterings stand side by side: a column for each. Block (x, y, z) has kBlockPoints points,
// 8 · kTiles columns, and range z of the rows, of which it takes kTileRows, a tile, at a time.
//
//   shared memory   points    kBlockPoints × pitch       features of the sample, float32; only if kDistances
//                   rows      2 × (kTileRows × pitch)    a tile and the next, float32
//                   one-hot   3 × (kTileRows × columns)  fragments of mma (kernels/ptx/mma.cuh), bfloat16, of a tile
//                                                        and the next; the third is cleared for the tile after that
//   a warp          16 points. Lane 4·g + t has points g and g + 8, and rows t, t + 4, …, t + 28: the values that it
//                   computes are its part of fragment A, since rows may be in any order
//
// Distances are from direct differences in float32, so a row's distance from itself is 0; for 9 to 64 features,
// distances_by_cluster.cuh has most of them from products. Tensor cores multiply by 0 and 1 without error. A value is a
// sum of kPlanes bfloat16 numbers: of two, which round a distance by at most 2⁻¹⁷, or of three, which have all digits
// of a float32 feature. Tensor cores add up kFlushTiles tiles in float32, where an addition loses at most 2⁻²³ of the
// sum; sums of these are in float64. No sum depends on the order in which warps run, so results have the same bits on
// every run.
//
// Why it is fast: a subtraction and a fused multiply-add per feature, row and point limit it. For four features of 16
// distances, a lane loads ten vectors, without bank conflicts, for 128 of these instructions. To add each distance to a
// sum of each of 19 clusterings would take 19 instructions and as many accesses to shared memory; tensor cores take one
// instruction for 16 points, 8 columns and 16 rows, and run beside the float32 units. Fragments of labels are built
// once for all warps of a block. There is one barrier per tile, and the loads of the next tile are in flight meanwhile.
// Blocks that run together have different points of the same rows, which L2 then holds.
#pragma once
#include "apps/kmeans/scores/one_hot.cuh"

namespace kmeans {

// Vectors of features that a lane processes between two branches. From compute capability 10 on, instructions take
// pairs of float32 numbers, which leaves no registers for two vectors.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kVectorsTogether = 1;
#else
constexpr int kVectorsTogether = 2;
#endif

// Elements of X: of `width` columns from `first` on, and zeros after the last column and the last row.
template <typename T>
struct Columns {
  const T* X;
  long long n;
  int d, first, width;

  __device__ __forceinline__ float at(long long row, int column) const {
    return row < n && column < width ? (float)tsm2::Element<T>::value(X[row * d + first + column]) : 0.0f;
  }
};

// `sample` has the row of each of n_points points; for features it is null, and n_points is d + 1. A range has `tiles`
// tiles. `chunk` features are in shared memory at a time, a multiple of 4; with more, points are loaded again for every
// tile. The pitch, kPitch or if that is 0 `any_pitch`, is 4 times an odd number, which keeps rows in different banks.
template <typename T, bool kDistances, int kTiles, int kPitch>
__global__ void __launch_bounds__(kScoreThreads, 1)
    sums_by_cluster(const T* X, long long n, int d, const long long* sample, int n_points, const float* origin,
                    Clusterings clusterings, int chunk, int any_pitch, int tiles, double* partial) {
  using OfTile = Labels<kTiles, true>;
  constexpr int kPlanes = kDistances ? 2 : 3, kFragments = OfTile::kFragments;
  // Columns of X of which threads load elements ahead, the rows that they load together, and the loads of each.
  constexpr int kColumnsAhead = kDistances ? 64 : kBlockPoints, kTogether = kScoreThreads / kColumnsAhead;
  constexpr int kAhead = kTileRows / kTogether;
  const int pitch = kPitch > 0 ? kPitch : any_pitch;
  float* const points = simt::dynamic_shared<float>();
  float* const rows = points + (kDistances ? kBlockPoints * pitch : 0);
  uint2* const one_hot = reinterpret_cast<uint2*>(rows + 2 * kTileRows * pitch);
  OneClustering* const of_clusterings = reinterpret_cast<OneClustering*>(one_hot + 3 * kFragments);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int first_point = blockIdx.x * kBlockPoints, first_column = blockIdx.y * (8 * kTiles);
  const bool active = first_point + 16 * warp < n_points;
  const long long n_tiles = (n + kTileRows - 1) / kTileRows, begin = (long long)blockIdx.z * tiles;
  const int count = n_tiles - begin < tiles ? (int)(n_tiles - begin) : tiles;
  const int chunks = kDistances ? (d + chunk - 1) / chunk : 1;

  const auto columns_of = [&](int part) {
    const int first = kDistances ? part * chunk : first_point, left = (kDistances ? d : n_points) - first;
    return Columns<T>{X, n, d, first, left < chunk ? left : chunk};
  };
  place_clusterings(clusterings, first_column, of_clusterings);
  __syncthreads();

  // Elements of a tile: this thread has a column of every kTogether-th row. They are converted when they are placed:
  // when they are loaded, it would wait for them. Of distances, it has the columns 64, 128, … after it besides.
  const int own_row = thread / kColumnsAhead, own_column = thread % kColumnsAhead;
  const auto first_columns = columns_of(0);
  const bool exists = own_column < first_columns.width && first_columns.first + own_column < d;
  // Feature d is 0 − (−1).
  const float none = first_columns.first + own_column == d ? -1.0f : 0.0f;
  const float middle = kDistances ? 0.0f : exists ? origin[first_columns.first + own_column] : none;
  T ahead[kAhead] = {};
  OfTile labels{of_clusterings, clusterings.count, {}};
  const auto fetch = [&](long long tile) {
    const long long first_row = tile * kTileRows;
    const int present = n - first_row < kTileRows ? (int)(n - first_row) : kTileRows;
    const T* from = X + (first_row + own_row) * d + (first_columns.first + own_column);
    // One branch for all elements: a predicate for each would take most of the instructions.
    if (exists && present == kTileRows) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        ahead[i] = *from;
        from += kTogether * d;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (exists && own_row + kTogether * i < present) ahead[i] = from[kTogether * i * d];
      }
    }
    labels.fetch(first_row, present);
  };
  const auto place_rows = [&](const Columns<T>& columns, long long tile, float* to, int from) {
    const int width = (columns.width + 3) / 4 * 4;
    for (int column = own_column + from; column < width; column += kColumnsAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        to[(own_row + kTogether * i) * pitch + column] = columns.at(tile * kTileRows + own_row + kTogether * i, column);
    }
  };
  const auto place_ahead = [&](long long tile, float* to, uint2* marks) {
    const int present = n - tile * kTileRows < kTileRows ? (int)(n - tile * kTileRows) : kTileRows;
    if (own_column < (first_columns.width + 3) / 4 * 4) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const float value = (float)tsm2::Element<T>::value(ahead[i]) - middle;
        to[(own_row + kTogether * i) * pitch + own_column] = own_row + kTogether * i < present ? value : 0.0f;
      }
    }
    if (kDistances) place_rows(first_columns, tile, to, kColumnsAhead);
    labels.place(tile * kTileRows, present, marks);
  };
  const auto place_points = [&](int part) {
    const auto columns = columns_of(part);
    const int width = (columns.width + 3) / 4 * 4;
    for (int p = own_row; p < kBlockPoints; p += kScoreThreads / kColumnsAhead) {
      const long long row = first_point + p < n_points ? sample[first_point + p] : n;
      for (int column = own_column; column < width; column += kColumnsAhead)
        points[p * pitch + column] = columns.at(row, column);
    }
  };

  for (int i = thread; i < 3 * kFragments; i += kScoreThreads) one_hot[i] = uint2{0, 0};
  if (kDistances && chunks == 1) place_points(0);
  if (count > 0) fetch(begin);
  __syncthreads();
  if (count > 0) place_ahead(begin, rows, one_hot);

  float sums[kTiles][4] = {};
  double* const mine =
      partial + place_of<kTiles>(blockIdx.z, blockIdx.x, gridDim.x, blockIdx.y, gridDim.y, warp) + lane;
  int present = 0, cleared = 2;
  bool is_first = true;
  for (int tile = 0; tile < count; ++tile) {
    float* const now = rows + tile % 2 * kTileRows * pitch;
    float values[2][kTileRows / 4] = {};
    for (int part = 0; part < chunks; ++part) {
      const auto columns = columns_of(part);
      __syncthreads();
      if (chunks > 1) {
        place_points(part);
        if (part > 0) place_rows(columns, begin + tile, now, 0);
        __syncthreads();
      }
      if (part == 0) {
        if (tile + 1 < count) fetch(begin + tile + 1);
        uint4* const clear = reinterpret_cast<uint4*>(one_hot + cleared * kFragments);
        for (int i = thread; i < kFragments / 2; i += kScoreThreads) clear[i] = uint4{0, 0, 0, 0};
      }
      if (!active) continue;
      if constexpr (kDistances) {
        using Four = simt::Vector<float, 4>;
        const float *const of_points = points + (16 * warp + g) * pitch, *const of_rows = now + t * pitch;
#pragma unroll kVectorsTogether
        for (int f = 0; f < columns.width; f += 4) {
          Four point[2];
#pragma unroll
          for (int h = 0; h < 2; ++h) point[h] = *reinterpret_cast<const Four*>(of_points + 8 * h * pitch + f);
#pragma unroll
          for (int i = 0; i < kTileRows / 4; ++i) {
            const Four row = *reinterpret_cast<const Four*>(of_rows + 4 * i * pitch + f);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
              for (int h = 0; h < 2; ++h) {
                const float apart = row[j] - point[h][j];
                values[h][i] += apart * apart;
              }
            }
          }
        }
      }
    }
    if (active) {
#pragma unroll
      for (int i = 0; i < kTileRows / 4; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int feature = 16 * warp + g + 8 * h;
          if (kDistances) values[h][i] = ptx::square_root(values[h][i]);
          if (!kDistances && feature < first_columns.width) values[h][i] = now[(4 * i + t) * pitch + feature];
        }
      }
      const uint2* const marks = one_hot + present * kFragments + lane;
#pragma unroll
      for (int step = 0; step < kTileRows / 16; ++step) {
        unsigned planes[kPlanes][4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float* const pair = values[r % 2] + 4 * step + 2 * (r / 2);
          split_pair(pair[0], pair[1], planes, r);
        }
        add_by_label<!kDistances>(sums, planes, marks + step * kTiles * 32);
      }
      if ((tile + 1) % kFlushTiles == 0 || tile + 1 == count) {
        flush(sums, mine, is_first);
        is_first = false;
      }
    }
    const int next = present == 2 ? 0 : present + 1;
    if (tile + 1 < count)
      place_ahead(begin + tile + 1, rows + (tile + 1) % 2 * kTileRows * pitch, one_hot + next * kFragments);
    cleared = present;
    present = next;
  }
}

}  // namespace kmeans
