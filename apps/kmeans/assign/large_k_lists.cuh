// Items of the lists that the assignment for large k writes, and that rescoring and the update read.
#pragma once

namespace kmeans {

// A row whose label changes.
struct alignas(16) Reassignment {
  unsigned row;
  int from, to, padding;
};

// An ambiguous row and its `count` candidates, kCandidates at most. If `count` is 0, all centers are candidates.
constexpr int kCandidates = 11, kMostCenters = 1 << 16;
constexpr int kMore = kMostCenters;  // added to a row's number of candidates if some were dropped
struct alignas(32) AmbiguousLargeK {
  unsigned row;
  int label;
  unsigned short count, candidates[kCandidates];
};

// Lengths of the two lists of one block.
struct Lengths {
  unsigned changes, ambiguous;
};

}  // namespace kmeans
