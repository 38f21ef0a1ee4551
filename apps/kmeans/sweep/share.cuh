// How the blocks of a launch are shared among the fits that go on, by the entries of their lists.
//
//   stopped  one number per fit; 0 if the fit goes on (data/stopped.cuh)
//   counts   (fits × (lists + 1)): for each fit the lengths of its lists, and their sum
//
//      block   0      1      2      3      4      …      of 3 fits that go on, of which the second has most entries
//      fit     a      b      b      b      c
//      place   0      0      1      2      0             among the blocks of its fit
//
// Fits end one by one, and those of more clusters have more rows to relabel. With as many blocks for each, the launch
// would wait for the fit that has most.
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

// What a block does: a fit, and its place among the `places` blocks of this fit. `lengths` are those of its lists.
struct Share {
  int fit;
  unsigned place, places, lists;
  const unsigned* lengths;

  // `going` has at least one bit, and the grid has a block for each bit or more. All lanes of a warp take part.
  static __device__ __forceinline__ Share of_block(unsigned going, const unsigned* counts, unsigned lists) {
    const unsigned lane = threadIdx.x % 32, goes_on = going >> lane & 1, spare = gridDim.x - __popc(going);
    const double mine = goes_on ? (double)counts[lane * (lists + 1) + lists] + kLeastOfList * lists : 0.0;
    const double through = simt::warp_running_sum(mine), all = simt::shuffle(through, 31);
    // The first block after those of fits up to this one: each fit has one, and of the others a part by its entries.
    const unsigned end = __popc(going & ((2u << lane) - 1)) + (unsigned)(through / all * spare);
    const unsigned fit = __popc(__ballot_sync(simt::every_lane, end <= blockIdx.x)) % 32;
    const unsigned begin = fit > 0 ? simt::shuffle(end, (fit + 31) % 32) : 0, after = simt::shuffle(end, fit);
    return {(int)fit, blockIdx.x - begin, after - begin, lists, counts + fit * (lists + 1)};
  }

  // A part of a list: entries `begin` to `begin` + `count` − 1.
  struct Part {
    unsigned list, begin, count;
  };

  // Returns the number of parts of the lists that this block gets.
  __device__ __forceinline__ unsigned parts() const {
    const unsigned all = lists * parts_of_list();
    return place < all ? (all - place + places - 1) / places : 0;
  }

  // Returns this block's part number `index`.
  __device__ __forceinline__ Part part(unsigned index) const {
    const unsigned item = place + index * places, list = item % lists, each = parts_of_list();
    const unsigned length = lengths[list], size = (length + each - 1) / each, begin = item / lists * size;
    return {list, begin, begin >= length ? 0 : begin + size <= length ? size : length - begin};
  }

 private:
  // A list takes at least as long as this number of entries: those of a warp.
  static constexpr unsigned kLeastOfList = 32, kLongPart = 256;

  // A list is split if there are more blocks than lists, and so that a block gets four parts if these are long.
  __device__ __forceinline__ unsigned parts_of_list() const {
    const unsigned least = places / lists, wanted = 4 * places / lists + 1, most = lengths[lists] / (kLongPart * lists);
    const unsigned each = wanted < most ? wanted : most;
    return each > least ? each : least > 0 ? least : 1;
  }
};

}  // namespace kmeans
