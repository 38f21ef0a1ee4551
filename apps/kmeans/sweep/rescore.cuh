// Rescoring of the ambiguous rows of several fits (assign/rescore.cuh).
//
// Why it is fast: one launch for all fits, whose blocks are shared among those that go on (share.cuh).
#pragma once
#include "apps/kmeans/assign/rescore.cuh"
#include "apps/kmeans/sweep/share.cuh"

namespace kmeans {

// The centers of a fit, and its lists, as label_fits (assign.cuh) writes them.
template <typename Work>
struct FitToRescore {
  const Work* centers;
  AmbiguousRow* entries;
  int k, padding;
};

template <typename Work>
struct FitsToRescore {
  FitToRescore<Work> at[kMostFits];
  const int* stopped;
  const unsigned* counts;  // share.cuh
  long long capacity;
  int count, lists;
};

template <typename T, typename Work, int kLanes>
__global__ void __launch_bounds__(256, 3)
    rescore_fits(const CenteredRows<T, Work> rows, const FitsToRescore<Work> fits) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const unsigned going = fits_that_go_on(fits.stopped, fits.count);
  if (going == 0) return;
  // What threads need not hold while they rescore is in shared memory: registers are few.
  struct Here {
    Share share;
    unsigned index;
    Share::Part part;
    bool ended;
  };
  __shared__ Here here;
  if (threadIdx.x < 32) {
    const Share mine = Share::of_block(going, fits.counts, fits.lists);
    if (threadIdx.x == 0) here.share = mine, here.index = 0;
  }
  for (;;) {
    __syncthreads();
    if (threadIdx.x == 0) {
      here.ended = here.index >= here.share.parts();
      if (!here.ended) here.part = here.share.part(here.index++);
    }
    __syncthreads();
    if (here.ended) return;
    const FitToRescore<Work>& fit = fits.at[here.share.fit];
    AmbiguousRow* const list = fit.entries + here.part.list * fits.capacity + here.part.begin;
    rescore_list<T, Work, kLanes>(rows, fit.centers, fit.k, list, here.part.count);
  }
}

}  // namespace kmeans
