// Labels for large k: the arg-min epilogue of small_k.cuh, for a GEMM that streams the centers, kColumns at a time
// (gemm_wgmma_streamed.cuh). Symbols: see the head of small_k.cuh.
//
// It finds the candidates of each row (streamed_candidates.cuh), and lists the rows that are ambiguous or have a new
// label. Columns are sorted by the norms that the centers had one iteration before (update/centers.cuh), so the centers
// of a column tile have similar norms. A row i has a score error bound E for each column tile T:
//
//   E = min(norm · b_T + a_T, E_i)   b_T = max_j ((ρ + 2⁻²² + γ) ‖c_j‖ + (1 + γ) δ_j),   a_T = max_j γ' ‖c_j‖²/2
//
// over the centers j of the tile. E_i is E of small_k.cuh. γ' = γ + 2⁻²², because the tensor cores also add −‖c‖²/2.
// With a level (kLevelled), γ' times the level is added to both. The core-matrix layout adds 2⁻³².
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/assign/streamed_candidates.cuh"

namespace kmeans {

// kColumns, kKept, kLevelled and kKeepsAll: see streamed_candidates.cuh. kCandidates: maximum number of candidates in
// the list of an ambiguous row.
template <int kColumns, int kKept, bool kLevelled, bool kKeepsAll, int kCandidates>
struct StreamedArgminEpilogue {
  using Streamed = StreamedCandidates<kColumns, kKept, kLevelled, kKeepsAll>;
  static constexpr bool kLevels = kLevelled;

  const CenterStats* center_stats;
  const TileBound* tile_bounds;  // one per column tile
  const int* centers;            // the center of each column
  const float* norms;
  const int* labels;
  Reassignment* changes;  // block b's list starts at b · capacity; `ambiguous` likewise
  AmbiguousLargeK<kCandidates>* ambiguous;
  Lengths* lengths;  // one per block
  const int* stopped;
  long long capacity;
  unsigned n;
  float tensor_error, rounding;  // γ, ρ

  struct Fetched {
    float norm[2];
    int label[2];
  };

  struct Rows {
    typename Streamed::Rows of;
    float norm[2];
    int label[2];
  };

  __device__ __forceinline__ bool idle() const { return *stopped; }

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) *here() = {};
  }

  __device__ __forceinline__ void close() const {
    if (threadIdx.x == 0) lengths[blockIdx.x] = *here();
  }

  __device__ __forceinline__ void fetch(Fetched& fetched, long long first, int) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const long long row = Streamed::row_of(first, r);
      fetched.norm[r] = row < n ? norms[row] : 0.0f;
      fetched.label[r] = row < n ? labels[row] : 0;
    }
  }

  __device__ __forceinline__ void begin(Rows& rows, const Fetched& fetched, float (&levels)[2]) const {
    Streamed::begin(rows.of, fetched.norm, *center_stats, tensor_error, rounding, levels);
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.norm[r] = fetched.norm[r], rows.label[r] = fetched.label[r];
  }

  __device__ __forceinline__ void take(Rows& rows, int tile, const float (&scores)[kColumns / 8][4]) const {
    const TileBound bound = tile_bounds[tile];
    float error[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) error[r] = fminf(fmaf(rows.norm[r], bound.of_norm, bound.always), rows.of.error[r]);
    Streamed::take(rows.of, tile, scores, error);
  }

  __device__ __forceinline__ void end(Rows& rows, long long first) const {
    const int lane = threadIdx.x % 4;
    const unsigned row = (unsigned)Streamed::row_of(first, 0);
    // `to`: new label or −1. `count`: candidates of an ambiguous row, otherwise 1. `at`: candidates in lower lanes.
    int to[2], count[2], at[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const typename Streamed::Count here = Streamed::count(rows.of, r);
      const bool present = row + 8 * r < n, certified = here.all == 1;
      int one = here.first;
      if (present && certified && here.mine == 1) one = centers[one];
      to[r] = present && certified && here.mine == 1 && one != rows.label[r] ? one : -1;
      count[r] = present && !certified ? here.all : 1;
      at[r] = here.before;
    }
    if (!__any_sync(simt::every_lane, (to[0] & to[1]) >= 0 || count[0] != 1 || count[1] != 1)) return;
    unsigned place[2];
    places_of(to[0] >= 0, to[1] >= 0, &here()->changes, place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (to[r] >= 0) changes[blockIdx.x * capacity + place[r]] = {row + 8 * r, rows.label[r], to[r], 0};
    }
    const auto listed = [&](int r) { return 1 < count[r] && count[r] <= kCandidates; };
    const auto all = [&](int r) { return count[r] != 1 && !listed(r); };
    if (__any_sync(simt::every_lane, all(0) || all(1))) {
      places_of(lane == 0 && all(0), lane == 0 && all(1), &here()->compared_with_all, place);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (lane != 0 || !all(r)) continue;
        AmbiguousLargeK<kCandidates>& entry = ambiguous[(blockIdx.x + 1) * capacity - 1 - place[r]];
        entry.row = row + 8 * r, entry.label = rows.label[r], entry.count = 0;
      }
    }
    places_of(lane == 0 && listed(0), lane == 0 && listed(1), &here()->ambiguous, place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned own = simt::shuffle(place[r], (int)(threadIdx.x & 28));
      if (!listed(r)) continue;
      AmbiguousLargeK<kCandidates>& entry = ambiguous[blockIdx.x * capacity + own];
      if (lane == 0) entry.row = row + 8 * r, entry.label = rows.label[r], entry.count = count[r];
      Streamed::for_each(rows.of, r, [&](int column) { entry.candidates[at[r]++] = centers[column]; });
    }
  }

 private:
  // Returns the lengths of this block's lists in shared memory.
  static __device__ __forceinline__ Lengths* here() {
    __shared__ Lengths lengths;
    return &lengths;
  }
};

}  // namespace kmeans
