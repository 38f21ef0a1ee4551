// How the blocks of a launch are shared among the fits that go on.
//
//   stopped  one number per fit; 0 if the fit goes on (data/stopped.cuh)
//
//      block   0      1      2      3      4      …      of 3 fits that go on, of which these are the first two
//      fit     a      b      c      a      b
//      place   0      0      0      1      1             among the blocks of its fit
//
// Fits end one by one, so the blocks of those that have ended go to the others.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

// Maximum number of fits in a launch: as many as a warp has lanes.
constexpr int kMostFits = 32;

// Returns a bit for each of `count` fits that goes on. All lanes of a warp take part.
__device__ __forceinline__ unsigned fits_that_go_on(const int* stopped, int count) {
  const int lane = threadIdx.x % 32;
  return __ballot_sync(simt::every_lane, lane < count && stopped[lane] == 0);
}

// What a block does: a fit, and its place among the `places` blocks of this fit.
class Share {
 public:
  // `going` has at least one bit.
  __device__ explicit Share(unsigned going) {
    const unsigned fits = __popc(going), index = blockIdx.x % fits;
    fit = simt::bit_number(going, (int)index);
    place_ = blockIdx.x / fits;
    places_ = (gridDim.x - index + fits - 1) / fits;
  }

  // Calls work(list, part, parts) for this block's parts of the lists of its fit: all threads of the block, in the same
  // order. If there are more blocks than lists, a list has several parts.
  template <typename Work>
  __device__ __forceinline__ void for_each_part(unsigned lists, const Work& work) const {
    const unsigned parts = places_ > lists ? places_ / lists : 1;
    for (unsigned item = place_; item < lists * parts; item += places_) work(item % lists, item / lists, parts);
  }

  int fit;

 private:
  unsigned place_, places_;
};

}  // namespace kmeans
