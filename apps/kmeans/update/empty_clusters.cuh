// Empty clusters: their list, and the cluster whose mean one gets that cannot be filled. For update/centers.cuh.
//
//   sums (k × (d + 1)), the last column of which has the weights of the clusters
#pragma once
#include "apps/kmeans/data/stopped.cuh"
#include "kernels/device/block_reduce.cuh"

namespace kmeans {

// Lists the empty clusters in increasing order in `empty`, if they are at most kMostRelocated. All threads of a block
// take part.
__device__ __forceinline__ void list_empty_clusters(const unsigned long long* sums, int k, int d, int* empty) {
  __shared__ int found[kMostRelocated], count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    if (sums[(long long)j * (d + 1) + d] != 0) continue;
    const int at = atomicAdd(&count, 1);
    if (at < kMostRelocated) found[at] = j;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count && count <= kMostRelocated; i += blockDim.x) {
    int rank = 0;
    for (int other = 0; other < count; ++other) rank += found[other] < found[i];
    empty[rank] = found[i];
  }
}

// Returns the cluster of most weight, of several the first. All kCenterThreads threads of a block take part.
__device__ __forceinline__ int heaviest_cluster(const unsigned long long* sums, int k, int d) {
  const auto weight = [&](int j) { return (double)(long long)sums[(long long)j * (d + 1) + d]; };
  double most = 0, first = k;
  for (int j = threadIdx.x; j < k; j += blockDim.x) most = most_of(0, most, weight(j));
  most = over_block(Doubles<1>{most}, most_of).at[0];
  for (int j = threadIdx.x; j < k && first == k; j += blockDim.x) {
    if (weight(j) == most) first = j;
  }
  return (int)over_block(Doubles<1>{first}, [](int, double a, double b) { return b < a ? b : a; }).at[0];
}

}  // namespace kmeans
