// Lists of candidates, which candidates.cuh writes and settle.cuh reads.
#pragma once

namespace batched {

// Values of `found` for an ambiguous row: its candidates are in a list; or there was no room for one, and it is
// compared with all centers.
constexpr int kIsListed = -1, kCompareAll = -2;

// An ambiguous row and its candidates. `row` counts the rows of the half copies of all problems. If `count` is 0, all
// centers are candidates.
constexpr int kListed = 13;
struct alignas(32) CandidateList {
  unsigned row;
  unsigned short count, at[kListed];
};

}  // namespace batched
