// Items of the lists that the assignment for large k writes, and that rescoring and the update read.
#pragma once

namespace kmeans {

// A row whose label changes.
struct alignas(16) Reassignment {
  unsigned row;
  int from, to, padding;
};

constexpr int kMostCenters = 1 << 16;  // maximum k
constexpr int kMore = kMostCenters;    // added to a row's number of candidates for each lane that dropped some
// An ambiguous row, its label and its `count` candidates. If `count` is 0, all centers are candidates. kCandidates, the
// maximum number of candidates, is 11 or 27, so that an object has 32 or 64 bytes.
template <int kCandidates>
struct alignas(32) AmbiguousLargeK {
  unsigned row;
  int label;
  unsigned short count, candidates[kCandidates];
};

// Lengths of the lists that one block writes: reassigned rows (`changes`) and ambiguous rows.
struct Lengths {
  unsigned changes, ambiguous;
};

}  // namespace kmeans
