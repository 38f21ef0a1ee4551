// Candidates of rows whose centers are all in shared memory (gemm_wgmma_resident.cuh): the centers that can be the
// nearest. Symbols: see the heads of small_k.cuh and streamed_candidates.cuh.
//
//   scores x̂ · ĉ − ‖c‖²/2 of a column tile, in registers, and the row's error bound E  →  candidates of each row
//
// A lane keeps a bit for each of its centers whose score is within 2 E of the best score so far of its centers. If a
// later score is more than 2 E above that one, it drops these bits. So in the end it has all candidates among its
// centers, and rarely others. Column j is center j.
//
// Why it is fast: see streamed_candidates.cuh. A row's bits are in one register per column tile. At the end, each lane
// compares its bits with those that the label would have: if all lanes of a warp agree, its rows keep their labels, and
// that is all.
#pragma once
#include "apps/kmeans/assign/streamed_candidates.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace kmeans {

// kColumns: centers of a column tile. kTiles: number of column tiles.
template <int kColumns, int kTiles>
struct ResidentCandidates {
  static constexpr bool kLevels = true, kSettles = true;  // as in `StreamedCandidates`
  static constexpr int kFragments = kColumns / 8;
  static_assert(kFragments <= 16, "a lane has at most 32 centers of a tile");

  struct Rows {
    float best[2], twice_error[2];  // the best score of this lane; 2 E, or infinity for a row without error bound
    unsigned masks[2][kTiles];      // of a tile: bit 2·j + i for column 8·j + 2·(lane % 4) + i
  };

  // As in `StreamedCandidates`.
  static __device__ __forceinline__ void begin(Rows& rows, const float (&norms)[2], const CenterStats& most,
                                               float tensor_error, float rounding, float (&levels)[2]) {
    float errors[2];
    bound_rows<kLevels>(norms, most, tensor_error, rounding, errors, levels);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.twice_error[r] = norms[r] <= most.norm_limit ? 2.001f * errors[r] : kInfinity;
      rows.best[r] = 0;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) rows.masks[r][i] = 0;
    }
  }

  template <int kTile>
  static __device__ __forceinline__ void take(Rows& rows, const float (&scores)[kFragments][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float best = largest(scores, r, rows.best[r]);
      const bool drops = rows.best[r] + rows.twice_error[r] < best;
      const unsigned bits = bits_above<kFragments>(scores, r, 0, fmaf(best, -kSteep, rows.twice_error[r] * kSteep));
      rows.best[r] = best;
#pragma unroll
      for (int i = 0; i < kTile; ++i) rows.masks[r][i] = drops ? 0 : rows.masks[r][i];
      rows.masks[r][kTile] = bits;
      // Otherwise the compiler copies scores, to consume them after the tensor cores have begun to overwrite them.
      ptx::computed_here(rows.masks[r][kTile]);
    }
  }

  // Drops the candidates of lanes whose scores are too low. Returns true if every row of the warp has one candidate,
  // which is its label.
  static __device__ __forceinline__ bool settles(Rows& rows, const int (&labels)[2]) {
    unsigned others = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float best = rows.best[r];
      best = fmaxf(best, simt::shuffle_xor(best, 1));
      best = fmaxf(best, simt::shuffle_xor(best, 2));
      const bool drops = rows.best[r] + rows.twice_error[r] < best;
      // The bit of the label, if this lane has that center.
      const unsigned label = labels[r], column = label % kColumns;
      const int tile = label / kColumns;
      const unsigned bit = column / 2 % 4 == threadIdx.x % 4 ? 1u << (column / 8 * 2 + column % 2) : 0;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        rows.masks[r][i] = drops ? 0 : rows.masks[r][i];
        others |= rows.masks[r][i] ^ (tile == i ? bit : 0);
      }
      others |= is_within(rows, r) ? 0 : 1;
    }
    return !__any_sync(simt::every_lane, others != 0);
  }

  // Returns true if every row of the warp has one candidate. `settles` comes before.
  static __device__ __forceinline__ bool certifies(const Rows& rows) {
    bool certain = true;
    unsigned several = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unsigned any = 0;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const unsigned mask = rows.masks[r][i];
        several |= (mask & (mask - 1)) | (any != 0 ? mask : 0), any |= mask;
      }
      const unsigned lanes = __ballot_sync(simt::every_lane, any != 0);  // four bits for each row
      // A row beyond the last has no candidates, so 8 lanes with candidates need not be of 8 rows.
      certain &= __popc(lanes) == 8 && ((lanes | lanes >> 1 | lanes >> 2 | lanes >> 3) & 0x11111111u) == 0x11111111u;
      several |= is_within(rows, r) ? 0 : 1;
    }
    return certain && !__any_sync(simt::every_lane, several != 0);
  }

  // As in `StreamedCandidates`; `settles` comes before.
  static __device__ __forceinline__ CandidateCount count(const Rows& rows, int r) {
    CandidateCount here = {0, 0, 0, first(rows, r)};
#pragma unroll
    for (int i = 0; i < kTiles; ++i) here.mine += __popc(rows.masks[r][i]);
    here.all = here.mine;
    here.add_lanes();
    if (!is_within(rows, r)) here.all = kMore;
    return here;
  }

  // The column of one of this lane's candidates of row r; −1 if it has none.
  static __device__ __forceinline__ int first(const Rows& rows, int r) {
    int tile = 0;
    unsigned mask = rows.masks[r][0];
#pragma unroll
    for (int i = 1; i < kTiles; ++i) {
      if (rows.masks[r][i] != 0) tile = i, mask = rows.masks[r][i];
    }
    return mask == 0 ? -1 : column_of(tile, mask);
  }

  template <typename Each>
  static __device__ __forceinline__ void for_each(Rows& rows, int r, Each each) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      for (unsigned& mask = rows.masks[r][i]; mask; mask &= mask - 1) each(column_of(i, mask));
    }
  }

 private:
  static __device__ __forceinline__ bool is_within(const Rows& rows, int r) { return rows.twice_error[r] < kInfinity; }

  // The column of the first bit of a tile's mask.
  static __device__ __forceinline__ int column_of(int tile, unsigned mask) {
    const unsigned bit = __ffs(mask) - 1;
    return tile * kColumns + bit / 2 * 8 + threadIdx.x % 4 * 2 + bit % 2;
  }

  // Returns the largest of `best` and this lane's scores of a row, which compare as integers, by independent chains.
  static __device__ __forceinline__ float largest(const float (&scores)[kFragments][4], int r, float best) {
    constexpr int kTogether = 4;
    int most[kTogether] = {__float_as_int(best)};
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      int& here = most[j % kTogether];
      here = larger(larger(here, __float_as_int(scores[j][2 * r])), __float_as_int(scores[j][2 * r + 1]));
    }
    return __int_as_float(larger(larger(larger(most[0], most[1]), most[2]), most[3]));
  }
};

}  // namespace kmeans
