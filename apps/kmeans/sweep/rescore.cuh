// Rescoring of the ambiguous rows of several fits (assign/rescore.cuh).
//
// Why it is fast: one launch for all fits, whose blocks are shared among those that go on (share.cuh).
#pragma once
#include "apps/kmeans/assign/rescore.cuh"
#include "apps/kmeans/sweep/share.cuh"

namespace kmeans {

// The lists of a fit, as label_fits (assign.cuh) writes them.
template <typename Work>
struct FitToRescore {
  const Work* centers;
  AmbiguousRow* entries;
  const unsigned* counts;
  int k, padding;
};

template <typename Work>
struct FitsToRescore {
  FitToRescore<Work> at[kMostFits];
  const int* stopped;
  long long capacity;
  int count, lists;
};

template <typename T, typename Work, int kLanes>
__global__ void __launch_bounds__(256, 3)
    rescore_fits(const CenteredRows<T, Work> rows, const FitsToRescore<Work> fits) {
  ptx::griddepcontrol_wait();
  const unsigned going = fits_that_go_on(fits.stopped, fits.count);
  if (going == 0) return;
  // What a thread need not hold while it rescores is in shared memory: registers are few.
  struct Here {
    AmbiguousRow* entries;
    const Work* centers;
    unsigned count, parts;
    int k;
  };
  __shared__ Here here;
  for (unsigned i = 0;; ++i) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const Share share(going);
      const FitToRescore<Work>& fit = fits.at[share.fit];
      const Share::Part part = share.part(i, fits.lists, fit.counts);
      here = {fit.entries + part.list * fits.capacity + part.begin, fit.centers, part.count, share.parts(fits.lists),
              fit.k};
    }
    __syncthreads();
    if (i >= here.parts) return;
    rescore_list<T, Work, kLanes>(rows, here.centers, here.k, here.entries, here.count);
  }
}

}  // namespace kmeans
