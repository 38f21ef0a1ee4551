// Batched candidates: epilogue of a product that streams the centers of many problems (gemm_wgmma_streamed.cuh, or
// gemm_mma_streamed.cuh without wgmma). It finds the nearest center of each row, or the candidates of an ambiguous row.
// Sizes b, n, k, rows, columns: see problem.cuh.
//
//   half copy (b × rows × padded), centers_half (b × columns × padded), in panels  →  found (b × rows), lists
//
// found[row] is a center; or, for an ambiguous row, kIsListed or kCompareAll. Rows past n get values too, which nothing
// reads. settle.cuh reads the others.
//
// Scores, error bounds and candidates are those of assign/large_k.cuh and assign/streamed_candidates.cuh, with the
// statistics of the problem's centers. Columns are not sorted, so the error bound of a row is the same for all column
// tiles.
//
// Why it is fast: see assign/streamed_candidates.cuh. The epilogue reads a norm and writes a number per row, without
// atomic operations unless a row is ambiguous. A launch processes all problems, so that only its end leaves
// multiprocessors without work.
#pragma once
#include "apps/kmeans/assign/streamed_candidates.cuh"
#include "apps/kmeans/batched/candidate_list.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace batched {

template <int kColumns, int kKept, bool kLevelled, bool kKeepsAll>
struct CandidatesEpilogue {
  using Streamed = kmeans::StreamedCandidates<kColumns, kKept, kLevelled, kKeepsAll>;
  using Rows = typename Streamed::Rows;
  static constexpr bool kLevels = kLevelled;

  const kmeans::CenterStats* center_stats;  // one per problem
  const float* roundings;                   // ρ, one per problem
  const float* norms;
  int* found;
  CandidateList* lists;  // block x's begin at x · capacity
  unsigned* lengths;     // one per block: the rows that asked for a list, which may be more than `capacity`
  const int* n_running;  // number of problems that the launch processes
  unsigned capacity;
  float tensor_error;  // γ

  struct Fetched {
    float norm[2];
    int problem;
  };

  __device__ __forceinline__ bool idle() const { return *n_running == 0; }

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) *length() = 0;
  }

  __device__ __forceinline__ void close() const {
    if (threadIdx.x == 0) lengths[blockIdx.x] = *length();
  }

  __device__ __forceinline__ void fetch(Fetched& fetched, long long first, int problem) const {
    fetched.problem = problem;
#pragma unroll
    for (int r = 0; r < 2; ++r) fetched.norm[r] = norms[tsm2::fragment_row(first, r)];
  }

  __device__ __forceinline__ void begin(Rows& of, const Fetched& fetched, float (&levels)[2]) const {
    const int problem = fetched.problem;
    Streamed::begin(of, fetched.norm, center_stats[problem], tensor_error, roundings[problem], levels);
  }

  __device__ __forceinline__ void take(Rows& of, int tile, const float (&scores)[kColumns / 8][4]) const {
    Streamed::take(of, tile, scores, of.error);
  }

  __device__ __forceinline__ void end(Rows& of, long long first) const {
    const bool leads = threadIdx.x % 4 == 0;
    const unsigned row = tsm2::fragment_row(first, 0);
    int count[2], at[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const kmeans::CandidateCount here = Streamed::count(of, r);
      if (here.all == 1 && here.mine == 1) found[row + 8 * r] = here.first;
      count[r] = here.all, at[r] = here.before;
    }
    if (!__any_sync(simt::every_lane, count[0] != 1 || count[1] != 1)) return;
    unsigned place[2];
    kmeans::places_of(leads && count[0] != 1, leads && count[1] != 1, length(), place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned own = simt::shuffle(place[r], (int)(threadIdx.x & 28));
      if (count[r] == 1) continue;
      if (leads) found[row + 8 * r] = own < capacity ? kIsListed : kCompareAll;
      if (own >= capacity) continue;
      CandidateList& list = lists[blockIdx.x * capacity + own];
      const bool fits = count[r] <= kListed;
      if (leads) list.row = row + 8 * r, list.count = fits ? count[r] : 0;
      if (fits) Streamed::for_each(of, r, [&](int column) { list.at[at[r]++] = column; });
    }
  }

 private:
  // Returns the number of lists of this block that rows asked for, in shared memory.
  static __device__ __forceinline__ unsigned* length() {
    __shared__ unsigned length;
    return &length;
  }
};

}  // namespace batched
