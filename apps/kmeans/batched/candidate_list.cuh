// Lists of candidates, which candidates.cuh writes and settle.cuh reads.
#pragma once

namespace batched {

// The candidates of an ambiguous row: at most kListed centers. A row with more, or without a list because they ran out,
// is compared with all centers: kCompareAll.
constexpr int kListed = 15, kCompareAll = -2147483647 - 1;
struct alignas(32) CandidateList {
  unsigned short count, at[kListed];
};

}  // namespace batched
