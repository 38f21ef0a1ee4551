// The word `stopped`, by which the launches of a run agree on whether it goes on.
//
//   0        it goes on
//   1        it has ended, or the host must act: later launches do nothing
//   1 + e    e clusters are empty. Only the launches that relocate them (update/relocate.cuh) do anything
#pragma once

namespace kmeans {

// Maximum number of empty clusters that launches relocate.
constexpr int kMostRelocated = 1024;

// Returns the number of clusters that launches relocate; 0 if they do nothing.
__device__ __forceinline__ int clusters_to_relocate(int stopped) {
  return stopped > 1 && stopped - 1 <= kMostRelocated ? stopped - 1 : 0;
}

}  // namespace kmeans
