// Cluster sums and new centers of several fits (update/scatter_add.cuh, update/centers.cuh).
//
//   scatter_add_fits   blocks (x, z): columns number z of the sums of one fit, that of `Share`
//   prepare_fits       blocks (j, fit): center j of a fit, or a column past its last center
//   update_fits        likewise
//
// Why it is fast: one launch for all fits, whose blocks are shared among those that go on (share.cuh). A block of
// scatter_add_fits adds all lists that it gets in shared memory before it adds its sums to those in global memory.
#pragma once
#include "apps/kmeans/sweep/share.cuh"
#include "apps/kmeans/update/centers.cuh"
#include "apps/kmeans/update/scatter_add.cuh"

namespace kmeans {

// The lists of a fit, and what they change.
struct FitToAdd {
  const AmbiguousRow* entries;
  const unsigned* counts;
  int* labels;
  unsigned long long* sums;
  unsigned* n_reassigned;
  int k, padding;
};

struct FitsToAdd {
  FitToAdd at[kMostFits];
  const int* stopped;
  long long capacity;
  int count, lists;
  int columns, log2_lanes;  // as of scatter_add
};

template <typename T, typename Work, int kDigits, bool kWeighted>
__global__ void __launch_bounds__(512, 2)
    scatter_add_fits(const CenteredRows<T, Work> rows, const typename Integer<kDigits>::Scale* scales,
                     const FitsToAdd fits) {
  ptx::griddepcontrol_wait();
  const unsigned going = fits_that_go_on(fits.stopped, fits.count);
  if (going == 0) return;
  const Share share(going);
  const FitToAdd& fit = fits.at[share.fit];
  const int first = blockIdx.y * fits.columns;
  const int end = first + fits.columns <= rows.d + 1 ? first + fits.columns : rows.d + 1;
  const SharedSums<kDigits> here(fit.sums, simt::dynamic_shared<unsigned>(), fit.k, rows.d + 1, first, fits.columns);
  here.clear();
  unsigned since = 0, changed = 0;
  share.for_each_part(fits.lists, [&](unsigned list, unsigned part, unsigned parts) {
    add_list<T, Work, kDigits, kWeighted>(rows, scales, here, first, end, fits.log2_lanes,
                                          fit.entries + list * fits.capacity, fit.counts[list], part, parts, fit.labels,
                                          since, changed);
  });
  here.flush();
  if (threadIdx.x % 32 == 0 && first == 0 && changed) atomicAdd(fit.n_reassigned, changed);
}

// Copies the arguments of fit `fit` to shared memory, by all threads of a block: most are read several times.
template <typename Work>
__device__ __forceinline__ const UpdateCenters<Work>& arguments_of(const UpdateCenters<Work>* fits, int fit) {
  constexpr int kWords = sizeof(UpdateCenters<Work>) / 8;
  static_assert(kWords * 8 == sizeof(UpdateCenters<Work>) && kWords <= kCenterThreads, "a word per thread");
  __shared__ unsigned long long words[kWords];
  if (threadIdx.x < kWords) words[threadIdx.x] = reinterpret_cast<const unsigned long long*>(fits + fit)[threadIdx.x];
  __syncthreads();
  return *reinterpret_cast<const UpdateCenters<Work>*>(words);
}

// Prepares the centers of all fits, those at `centers`.
template <typename Work>
__global__ void __launch_bounds__(kCenterThreads, 3) prepare_fits(const UpdateCenters<Work>* fits) {
  ptx::griddepcontrol_wait();
  const UpdateCenters<Work>& of = arguments_of(fits, blockIdx.y);
  const unsigned columns = (of.k + 7) / 8 * 8;
  if (blockIdx.x < columns) prepare_center(of.centers, of, false, blockIdx.x, columns);
}

// Computes the new centers of all fits that go on.
template <typename Work>
__global__ void __launch_bounds__(kCenterThreads, 3) update_fits(const UpdateCenters<Work>* fits, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (stopped[blockIdx.y] != 0) return;
  const UpdateCenters<Work>& of = arguments_of(fits, blockIdx.y);
  if ((int)blockIdx.x < of.k) update_center(of, blockIdx.x);
}

}  // namespace kmeans
