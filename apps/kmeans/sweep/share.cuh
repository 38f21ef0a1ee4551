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
struct Share {
  int fit;
  unsigned place, places;

  // `going` has at least one bit.
  static __device__ __forceinline__ Share of_block(unsigned going) {
    const unsigned fits = __popc(going), index = blockIdx.x % fits;
    return {simt::bit_number(going, (int)index), blockIdx.x / fits, (gridDim.x - index + fits - 1) / fits};
  }

  // A part of a list: entries `begin` to `begin` + `count` − 1.
  struct Part {
    unsigned list, begin, count;
  };

  // Returns the number of parts of the lists of this block's fit that the block gets. If there are more blocks than
  // lists, a list has several parts.
  __device__ __forceinline__ unsigned parts(unsigned lists) const {
    const unsigned all = lists * parts_of_list(lists);
    return place < all ? (all - place + places - 1) / places : 0;
  }

  // Returns this block's part number `index`; `lengths` are those of the lists.
  __device__ __forceinline__ Part part(unsigned index, unsigned lists, const unsigned* lengths) const {
    const unsigned item = place + index * places, list = item % lists, each = parts_of_list(lists);
    const unsigned length = lengths[list], size = (length + each - 1) / each, begin = item / lists * size;
    return {list, begin, begin >= length ? 0 : begin + size <= length ? size : length - begin};
  }

  __device__ __forceinline__ unsigned parts_of_list(unsigned lists) const {
    return places > lists ? places / lists : 1;
  }
};

}  // namespace kmeans
