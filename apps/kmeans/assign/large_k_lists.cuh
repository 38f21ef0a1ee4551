// Items of the lists that the assignment for large k writes, and that rescoring and the update read.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

// A row whose label changes.
struct alignas(16) Reassignment {
  unsigned row;
  int from, to, padding;
};

constexpr int kMostCenters = 1 << 16;  // maximum k
constexpr int kMore = kMostCenters;    // added to a row's number of candidates for each lane that dropped some
// An ambiguous row, its label and its `count` candidates. If `count` is 0, all centers are candidates; the first in the
// list is then one that is probably near (rescore_by_pivot.cuh). kCandidates, the maximum number of candidates, is 11
// or 27, so that an object has 32 or 64 bytes. A block stores rows with candidates from the start of its list, and rows
// that are compared with all centers from the end.
template <int kCandidates>
struct alignas(32) AmbiguousLargeK {
  unsigned row;
  int label;
  unsigned short count, candidates[kCandidates];
};

// Lengths of the lists that one block writes: reassigned rows (`changes`), ambiguous rows with candidates, and
// ambiguous rows that are compared with all centers.
struct Lengths {
  unsigned changes, ambiguous, compared_with_all;
};

// Reserves list positions for a warp. Each lane appends one item if `one`, and another if `other`.
__device__ __forceinline__ void places_of(bool one, bool other, unsigned* length, unsigned (&place)[2]) {
  const unsigned ones = __ballot_sync(simt::every_lane, one), others = __ballot_sync(simt::every_lane, other);
  const unsigned before = (1u << threadIdx.x % 32) - 1;
  unsigned begin = 0;
  if ((ones | others) != 0) {
    if (threadIdx.x % 32 == 0) begin = atomicAdd(length, (unsigned)(__popc(ones) + __popc(others)));
    begin = simt::shuffle(begin, 0);
  }
  place[0] = begin + __popc(ones & before);
  place[1] = begin + __popc(ones) + __popc(others & before);
}

}  // namespace kmeans
