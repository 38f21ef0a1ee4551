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
  int* labels;
  unsigned long long* sums;
  unsigned* n_reassigned;
  int k, padding;
};

struct FitsToAdd {
  FitToAdd at[kMostFits];
  const int* stopped;
  const unsigned* counts;  // share.cuh
  long long capacity;
  int count, lists;
  int columns, log2_lanes;  // as of scatter_add
};

template <typename T, typename Work, int kDigits, bool kWeighted>
__global__ void __launch_bounds__(32 * kScatterWarps, 2)
    scatter_add_fits(const CenteredRows<T, Work> rows, const typename Integer<kDigits>::Scale* scales,
                     const FitsToAdd fits) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const unsigned going = fits_that_go_on(fits.stopped, fits.count);
  if (going == 0) return;
  const Share share = Share::of_block(going, fits.counts, fits.lists);
  const FitToAdd& fit = fits.at[share.fit];
  const int first = blockIdx.y * fits.columns;
  const int end = first + fits.columns <= rows.d + 1 ? first + fits.columns : rows.d + 1;
  const SharedSums<kDigits> here(fit.sums, simt::dynamic_shared<unsigned>(), fit.k, rows.d + 1, first, fits.columns);
  here.clear();
  unsigned changed = 0;
  // Warps take chunks of 32 entries, in turn, of up to 32 parts of lists at a time. Lane i knows part i.
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, parts = share.parts();
  for (unsigned begin = 0; begin < parts; begin += 32) {
    Share::Part mine = {};
    if (begin + lane < parts) mine = share.part(begin + lane);
    const unsigned chunks = (mine.count + 31) / 32, through = simt::warp_running_sum(chunks);
    const unsigned all = simt::shuffle(through, 31);
    for (unsigned chunk = warp, since = 0; chunk - warp < all; chunk += kScatterWarps, since += 32 * kScatterWarps) {
      if (since + 32 * kScatterWarps > kFlush || (begin > 0 && chunk == warp)) {
        here.flush();
        since = 0;
      }
      const int part = __popc(__ballot_sync(simt::every_lane, through <= chunk)) % 32;
      const unsigned at = 32 * (chunk - simt::shuffle(through - chunks, part)), count = simt::shuffle(mine.count, part);
      const long long list = simt::shuffle(mine.list, part) * fits.capacity + simt::shuffle(mine.begin, part);
      changed += add_entries<T, Work, kDigits, kWeighted>(rows, scales, here, first, end, fits.log2_lanes,
                                                          fit.entries + list + at,
                                                          chunk < all && at < count ? count - at : 0, fit.labels);
    }
  }
  here.flush();
  if (lane == 0 && first == 0 && changed) atomicAdd(fit.n_reassigned, changed);
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
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (stopped[blockIdx.y] != 0) return;
  const UpdateCenters<Work>& of = arguments_of(fits, blockIdx.y);
  if ((int)blockIdx.x < of.k) update_center(of, blockIdx.x);
}

}  // namespace kmeans
