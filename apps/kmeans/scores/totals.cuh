// From partial sums to results, in float64: partial sums are added up in the order of their ranges of rows.
//
// cluster_means   sums of features, and counts (sums_by_cluster.cuh)   →   sums (columns × (d + 1)), and means
// silhouettes     sums of distances by cluster, and counts             →   silhouettes (clusterings × sample)
// add_blocks      partial sums of each block                           →   their sums
//
// Why it is fast: a thread computes a result, with eight loads in flight. All partial sums are far smaller than X.
#pragma once
#include "apps/kmeans/scores/clusterings.cuh"
#include "apps/kmeans/scores/partial_sums.cuh"

namespace kmeans {

// The last of the d + 1 sums of a cluster is its number of rows. Means, about the origin of the features, are rows of
// `pitch` numbers in float32; they are zero from feature d on, and for empty clusters.
template <int kTiles>
__global__ void __launch_bounds__(256) cluster_means(const double* partial, int ranges, int groups, int all_columns,
                                                     int columns, int d, int pitch, double* sums, float* means) {
  const int thread = blockIdx.x * 256 + threadIdx.x, column = thread % columns, feature = thread / columns;
  if (feature > d && feature >= pitch) return;
  const auto total = [&](int point) { return total_of<kTiles>(partial, ranges, groups, all_columns, point, column); };
  const double sum = feature <= d ? total(feature) : 0.0;
  if (feature <= d) sums[(long long)column * (d + 1) + feature] = sum;
  if (feature >= pitch) return;
  const double count = feature < d ? total(d) : 0.0;
  means[(long long)column * pitch + feature] = count > 0 ? (float)(sum / count) : 0.0f;
}

// The silhouette of row i of the sample in a clustering is (b − a) / max(a, b), where a is its mean distance from the
// other rows of its own cluster and b that from the rows of the nearest other; 0 for a row that is alone in its
// cluster. Results of a clustering are `stride` numbers from those of the next. An infinite distance makes a silhouette
// NaN.
template <int kTiles>
__global__ void __launch_bounds__(64)
    silhouettes(const double* partial, int ranges, int groups, int all_columns, const double* sums, int d,
                const long long* sample, int sampled, Clusterings clusterings, int stride, double* found) {
  const int i = blockIdx.x * 64 + threadIdx.x, clustering = blockIdx.y;
  if (i >= sampled) return;
  const int start = clusterings.starts[clustering], end = clusterings.starts[clustering + 1];
  const int own = start + clusterings.labels[clustering][sample[i]];
  const auto count_of = [&](int column) { return sums[(long long)column * (d + 1) + d]; };
  double a = 0, b = -1;
  for (int column = start; column < end; ++column) {
    const double count = count_of(column);
    if (count == 0) continue;
    const double sum = total_of<kTiles>(partial, ranges, groups, all_columns, i, column);
    if (column == own) {
      a = sum / (count > 1 ? count - 1 : 1.0);
    } else {
      b = b < 0 || sum / count < b ? sum / count : b;
    }
  }
  const double larger = a > b ? a : b;
  const bool defined = count_of(own) > 1 && b >= 0 && larger > 0;
  found[(long long)clustering * stride + i] = defined ? (b - a) / larger : (a == a && b == b ? 0.0 : a + b);
}

__global__ void __launch_bounds__(64) add_blocks(const double* partial, int blocks, int count, double* sums) {
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i >= count) return;
  double sum = 0;
#pragma unroll 8
  for (int block = 0; block < blocks; ++block) sum += partial[(long long)block * count + i];
  sums[i] = sum;
}

}  // namespace kmeans
