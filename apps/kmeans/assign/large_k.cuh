// Labels for large k: the arg-min epilogue of small_k.cuh, for GEMMs that compute the scores of a row tile one column
// tile at a time: gemm_wgmma_streamed.cuh, and gemm_wgmma_resident.cuh for few features. Symbols: see the head of
// small_k.cuh.
//
// It finds the candidates of each row, and lists the rows that are ambiguous or have a new label. If a resident GEMM
// has few column tiles, the error bound of row i is E_i of small_k.cuh (resident_candidates.cuh). Otherwise columns are
// sorted by the norms that the centers had one iteration before (update/centers.cuh), so the centers of a column tile
// have similar norms, and row i has an error bound E for each column tile T (streamed_candidates.cuh):
//
//   E = min(norm · b_T + a_T, E_i)   b_T = max_j ((ρ + 2⁻²² + γ) ‖c_j‖ + (1 + γ) δ_j),   a_T = max_j γ' ‖c_j‖²/2
//
// over the centers j of the tile. γ' = γ + 2⁻²², because the tensor cores also add −‖c‖²/2. With levels, γ' times the
// level is added to both. The core-matrix layout adds 2⁻³².
#pragma once
#include "apps/kmeans/assign/resident_candidates.cuh"
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/assign/streamed_candidates.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace kmeans {

// Candidates: `StreamedCandidates`, or `ResidentCandidates` for gemm_wgmma_resident.cuh. kCandidates: maximum number of
// candidates in the list of an ambiguous row.
template <typename Candidates, int kCandidates>
struct LargeKArgminEpilogue {
  static constexpr bool kLevels = Candidates::kLevels;

  const CenterStats* center_stats;
  const TileBound* tile_bounds;  // one per column tile
  const int* centers;            // the center of each column; null if it is the column
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
    typename Candidates::Rows of;
    float norm[2];  // unused if the error bound is the same for all column tiles
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
      const unsigned row = tsm2::fragment_row(first, r);
      fetched.norm[r] = row < n ? norms[row] : 0.0f;
      fetched.label[r] = row < n ? labels[row] : 0;
    }
  }

  __device__ __forceinline__ void begin(Rows& rows, const Fetched& fetched, float (&levels)[2]) const {
    Candidates::begin(rows.of, fetched.norm, *center_stats, tensor_error, rounding, levels);
#pragma unroll
    for (int r = 0; r < 2; ++r) rows.norm[r] = fetched.norm[r], rows.label[r] = fetched.label[r];
  }

  template <int kFragments>
  __device__ __forceinline__ void take(Rows& rows, int tile, const float (&scores)[kFragments][4]) const {
    const TileBound bound = tile_bounds[tile];
    float error[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) error[r] = fminf(fmaf(rows.norm[r], bound.of_norm, bound.always), rows.of.error[r]);
    Candidates::take(rows.of, tile, scores, error);
  }

  template <int kTile, int kFragments>
  __device__ __forceinline__ void take(Rows& rows, const float (&scores)[kFragments][4]) const {
    Candidates::template take<kTile>(rows.of, scores);
  }

  __device__ __forceinline__ void end(Rows& rows, long long first) const {
    const int lane = threadIdx.x % 4;
    const unsigned row = tsm2::fragment_row(first, 0);
    // `to`: new label or −1. `count`: candidates of an ambiguous row, otherwise 1. `at`: candidates in lower lanes.
    int to[2], count[2] = {1, 1}, at[2];
    if constexpr (Candidates::kSettles) {
      if (Candidates::settles(rows.of, rows.label)) return;
      if (Candidates::certifies(rows.of)) {
#pragma unroll
        for (int r = 0; r < 2; ++r) to[r] = changed(rows, r, row + 8 * r < n ? Candidates::first(rows.of, r) : -1);
        list_changes(rows, row, to);
        return;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const CandidateCount here = Candidates::count(rows.of, r);
      const bool present = row + 8 * r < n, certified = here.all == 1;
      to[r] = changed(rows, r, present && certified && here.mine == 1 ? here.first : -1);
      count[r] = present && !certified ? here.all : 1;
      at[r] = here.before;
    }
    if (!__any_sync(simt::every_lane, (to[0] & to[1]) >= 0 || count[0] != 1 || count[1] != 1)) return;
    list_changes(rows, row, to);
    unsigned place[2];
    const auto listed = [&](int r) { return 1 < count[r] && count[r] <= kCandidates; };
    const auto all = [&](int r) { return count[r] != 1 && !listed(r); };
    if (__any_sync(simt::every_lane, all(0) || all(1))) {
      places_of(lane == 0 && all(0), lane == 0 && all(1), &here()->compared_with_all, place);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        int one = 0;  // the column of a candidate, if any lane has one
        if (all(r)) Candidates::for_each(rows.of, r, [&](int column) { one = column; });
        one = larger(one, simt::shuffle_xor(one, 1));
        one = larger(one, simt::shuffle_xor(one, 2));
        if (lane != 0 || !all(r)) continue;
        AmbiguousLargeK<kCandidates>& entry = ambiguous[(blockIdx.x + 1) * capacity - 1 - place[r]];
        entry.row = row + 8 * r, entry.label = rows.label[r], entry.count = 0;
        entry.candidates[0] = center_of(one);
      }
    }
    places_of(lane == 0 && listed(0), lane == 0 && listed(1), &here()->ambiguous, place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned own = simt::shuffle(place[r], (int)(threadIdx.x & 28));
      if (!listed(r)) continue;
      AmbiguousLargeK<kCandidates>& entry = ambiguous[blockIdx.x * capacity + own];
      if (lane == 0) entry.row = row + 8 * r, entry.label = rows.label[r], entry.count = count[r];
      Candidates::for_each(rows.of, r, [&](int column) { entry.candidates[at[r]++] = center_of(column); });
    }
  }

 private:
  __device__ __forceinline__ int center_of(int column) const { return centers == nullptr ? column : centers[column]; }

  // Returns the center of a column if it is not the label of row r; −1 if it is, or if `column` is −1.
  __device__ __forceinline__ int changed(const Rows& rows, int r, int column) const {
    const int center = column < 0 ? -1 : center_of(column);
    return center == rows.label[r] ? -1 : center;
  }

  // Lists the rows whose new label `to` is not −1.
  __device__ __forceinline__ void list_changes(const Rows& rows, unsigned row, const int (&to)[2]) const {
    unsigned place[2];
    places_of(to[0] >= 0, to[1] >= 0, &here()->changes, place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (to[r] >= 0) changes[blockIdx.x * capacity + place[r]] = {row + 8 * r, rows.label[r], to[r], 0};
    }
  }

  // Returns the lengths of this block's lists in shared memory.
  static __device__ __forceinline__ Lengths* here() {
    __shared__ Lengths lengths;
    return &lengths;
  }
};

}  // namespace kmeans
