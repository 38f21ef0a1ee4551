// Candidates for large k: the centers that can be the nearest of a row, found while centers stream by
// (gemm_wgmma_streamed.cuh). Symbols: see the head of small_k.cuh.
//
//   scores x̂ · ĉ − ‖c‖²/2 of a column tile, in registers, and their error bound E  →  candidates of each row
//
// A *lower score* is a score minus E, and an *upper score* is a score plus E. While centers stream by, those whose
// upper score is at least the row's best lower score so far are *candidates*. Scores are processed in *units* of at
// most 128 centers, of which a lane holds a quarter. It keeps the kKept latest units with candidates: for each, a
// 32-bit mask and the best upper score of its tile. At the end, the candidates of a unit remain candidates if this
// upper score is at least the final best lower score.
//
// Why it is fast: accumulators start at −‖c‖²/2, so a score needs no addition. A maximum takes one instruction per two
// or three scores, and two more instructions per score set candidate bits in the mantissa of a float. Independent
// chains of instructions hide latency. With many tiles, only those with a score near the row's best need candidate
// bits. With few (kKeepsAll), some row of a warp needs them for almost every tile. So lanes set them without asking:
// each lane compares with its own best lower score, which needs no shuffles, and keeps all units, which needs no
// conditions.
#pragma once
#include "apps/kmeans/assign/error_bound.cuh"
#include "apps/kmeans/assign/large_k_lists.cuh"

namespace kmeans {

// 2⁹⁶, the factor that makes score differences saturate to 0 or 1: scores differ by 0 or by 2⁻⁵⁶ to 2³¹.
constexpr float kSteep = 7.9228163e28f;

// Numbers of candidates of a row. `mine`: in this lane. `all`: in all lanes of the row, plus kMore for each lane that
// dropped some; kMore for a row that has no error bound. `before`: in lower lanes. `first`: the column of one of this
// lane's candidates, if it has any.
struct CandidateCount {
  int mine, all, before, first;

  // Computes `all` and `before` from the number of each lane, which is `all` at first.
  __device__ __forceinline__ void add_lanes() {
    const int lane = threadIdx.x % 4, neighbour = simt::shuffle_xor(all, 1);
    all += neighbour;
    const int others = simt::shuffle_xor(all, 2);
    before = (lane % 2 ? neighbour : 0) + (lane / 2 ? others : 0);
    all += others;
  }
};

// Returns a mask with a bit for each of up to 32 scores of row r that exceed a limit: those of `kCount` fragments from
// `first` on. `threshold` is the limit times −kSteep. Four independent chains compute eight bits each.
template <int kCount, int kFragments>
__device__ __forceinline__ unsigned bits_above(const float (&scores)[kFragments][4], int r, int first,
                                               float threshold) {
  constexpr float kNoBits = 1 << 23;
  float parts[4] = {kNoBits, kNoBits, kNoBits, kNoBits};
#pragma unroll
  for (int bit = 0; bit < 8; ++bit) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int fragment = 4 * part + bit / 2, j = first + fragment;
      if (fragment >= kCount || j >= kFragments) continue;
      const float above = __saturatef(fmaf(scores[j][2 * r + bit % 2], kSteep, threshold));
      parts[part] = fmaf(above, (float)(1 << bit), parts[part]);
    }
  }
  const unsigned low = __byte_perm(__float_as_uint(parts[0]), __float_as_uint(parts[1]), 0x0040);
  const unsigned high = __byte_perm(__float_as_uint(parts[2]), __float_as_uint(parts[3]), 0x0040);
  return __byte_perm(low, high, 0x5410);
}

__device__ __forceinline__ int larger(int a, int b) { return b > a ? b : a; }
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }

// Computes the error bounds E_i of two rows of these norms, and their levels (`StreamedCandidates`), or zero for a row
// that has no error bound. `tensor_error` is γ and `rounding` is ρ.
template <bool kLevelled>
__device__ __forceinline__ void bound_rows(const float (&norms)[2], const CenterStats& most, float tensor_error,
                                           float rounding, float (&errors)[2], float (&levels)[2]) {
  const float of_sums = tensor_error + 1.0f / (1 << 22);  // γ'
  const RowBound bound(most, tensor_error, rounding, of_sums);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // The score of the center of the minimum norm, and so the best score, is at least −least.
    const float least = kLevelled ? 1.02f * most.least * (norms[r] + most.least / 2) : 0.0f;
    errors[r] = 1.001f * (bound(norms[r]) + of_sums * least) + kLeastError;
    levels[r] = norms[r] <= most.norm_limit ? least + 4 * errors[r] : 0.0f;
  }
}

// kColumns: centers of a tile. kKept: maximum number of units whose candidates a lane keeps; registers limit it.
// kLevelled: a number per row, the level, is added to all scores of the row. It is computed from norms and makes the
// best score larger than 2 E_i. So scores compare as integers: negative scores then have the wrong order, but they are
// not those of candidates. kKeepsAll: there are only kKept units.
template <int kColumns, int kKept, bool kLevelled, bool kKeepsAll>
struct StreamedCandidates {
  // kSettles: whether there are `settles`, `certifies` and `first`, for warps all of whose rows have one candidate.
  static constexpr bool kLevels = kLevelled, kSettles = false;
  // A tile has kUnits units of kOfUnit fragments; a fragment is 8 columns. A mask has bits for at most 16 fragments.
  static constexpr int kFragments = kColumns / 8, kUnits = (kFragments + 15) / 16;
  static constexpr int kOfUnit = (kFragments + kUnits - 1) / kUnits;

  // Candidates of a unit: mask bit 2·j + i is column 8·j + 2·(lane % 4) + i. The unit number replaces the last bits of
  // the best upper score of the tile, which is rounded up first.
  static constexpr unsigned numbers() {
    unsigned numbers = 1;
    while (numbers < (kMostCenters + kColumns - 1) / kColumns * kUnits) numbers *= 2;
    return numbers;
  }
  static constexpr unsigned kNumbers = numbers();
  struct Found {
    unsigned upper_and_unit, mask;

    __device__ __forceinline__ float upper() const { return __uint_as_float(upper_and_unit); }
    __device__ __forceinline__ int unit() const { return upper_and_unit % kNumbers; }
  };

  // State of rows g = lane / 4 and g + 8 of this warp's 16.
  struct Rows {
    // `lower`: the best lower score so far; with kKeepsAll, of this lane's centers. `error`: E_i. `lost`: the largest
    // upper score that was kept with candidates since dropped, for lack of space.
    float lower[2], error[2], lost[2];
    bool within[2];
    Found found[2][kKept];  // the latest unit first
  };

  // Sets the state of two rows, before the first column tile, and their levels. Arguments as for `bound_rows`.
  static __device__ __forceinline__ void begin(Rows& rows, const float (&norms)[2], const CenterStats& most,
                                               float tensor_error, float rounding, float (&levels)[2]) {
    bound_rows<kLevelled>(norms, most, tensor_error, rounding, rows.error, levels);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.within[r] = norms[r] <= most.norm_limit;
      rows.lower[r] = rows.lost[r] = -kInfinity;
#pragma unroll
      for (int i = 0; i < kKept; ++i) rows.found[r][i] = {0, 0};
    }
  }

  // Updates the candidates by the scores of a column tile. `error` is their error bound, for each row.
  static __device__ __forceinline__ void take(Rows& rows, int tile, const float (&scores)[kFragments][4],
                                              const float (&error)[2]) {
    float own[2], threshold[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) own[r] = most(scores, r);
    if constexpr (kKeepsAll) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        rows.lower[r] = fmaxf(rows.lower[r], own[r] - error[r]);
        threshold[r] = (error[r] - rows.lower[r]) * kSteep;
      }
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const unsigned mask = bits_above<kOfUnit>(scores, r, unit * kOfUnit, threshold[r]);
#pragma unroll
          for (int i = kKept - 1; i > 0; --i) rows.found[r][i] = rows.found[r][i - 1];
          rows.found[r][0] = found_of(tile * kUnits + unit, mask, own[r] + error[r]);
        }
      }
      return;
    }
    float best[2] = {own[0], own[1]};
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) best[r] = fmaxf(best[r], simt::shuffle_xor(best[r], lanes));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.lower[r] = fmaxf(rows.lower[r], best[r] - error[r]);
      threshold[r] = error[r] - rows.lower[r];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!__any_sync(simt::every_lane, own[r] + threshold[r] > 0)) continue;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        const unsigned mask = bits_above<kOfUnit>(scores, r, unit * kOfUnit, threshold[r] * kSteep);
        add(rows, r, tile * kUnits + unit, mask, best[r] + error[r]);
      }
    }
  }

  // Counts the candidates of row r, and clears the masks of units that have none.
  static __device__ __forceinline__ CandidateCount count(Rows& rows, int r) {
    float least = rows.lower[r];
    if constexpr (kKeepsAll) {
      least = fmaxf(least, simt::shuffle_xor(least, 1));
      least = fmaxf(least, simt::shuffle_xor(least, 2));
    }
    CandidateCount here = {0, 0, 0, 0};
    Found last = rows.found[r][0];
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      Found& found = rows.found[r][i];
      if (!(found.upper() >= least)) found.mask = 0;
      here.mine += __popc(found.mask);
      last = found.mask ? found : last;
    }
    here.first = column(last);
    here.all = here.mine + (!kKeepsAll && rows.lost[r] >= least ? kMore : 0);
    here.add_lanes();
    if (!rows.within[r]) here.all = kMore;
    return here;
  }

  // Calls `each` with the column of every candidate of row r in this lane. `count` comes before.
  template <typename Each>
  static __device__ __forceinline__ void for_each(Rows& rows, int r, Each each) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      Found& found = rows.found[r][i];
      for (; found.mask; found.mask &= found.mask - 1) each(column(found));
    }
  }

 private:
  // The column of the first of this lane's candidates.
  static __device__ __forceinline__ int column(const Found& found) {
    const int bit = __ffs(found.mask) - 1;
    const int fragment = found.unit() % kUnits * kOfUnit + bit / 2;
    return found.unit() / kUnits * kColumns + fragment * 8 + (int)threadIdx.x % 4 * 2 + bit % 2;
  }

  // Returns the largest of this lane's scores of a row, by independent chains of maxima.
  static __device__ __forceinline__ float most(const float (&scores)[kFragments][4], int r) {
    if constexpr (kLevelled) {
      return __int_as_float(largest<int>(scores, r));
    } else {
      return largest<float>(scores, r);
    }
  }

  template <typename Number>
  static __device__ __forceinline__ Number largest(const float (&scores)[kFragments][4], int r) {
    constexpr int kTogether = 4;
    Number most[kTogether];
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      Number one, other, &here = most[j % kTogether];
      read(scores[j][2 * r], one), read(scores[j][2 * r + 1], other);
      here = j < kTogether ? larger(one, other) : larger(larger(here, one), other);
    }
    return larger(larger(larger(most[0], most[1]), most[2]), most[3]);
  }

  static __device__ __forceinline__ void read(float score, int& to) { to = __float_as_int(score); }
  static __device__ __forceinline__ void read(float score, float& to) { to = score; }

  // Stores a unit's candidates, if any, with the best upper score of its tile. They replace those of the latest stored
  // unit if these are no longer candidates.
  static __device__ __forceinline__ void add(Rows& rows, int r, int unit, unsigned mask, float upper) {
    Found(&kept)[kKept] = rows.found[r];
    const bool any = mask != 0;
    const bool stays = any && kept[0].mask != 0 && kept[0].upper() >= rows.lower[r];
    const Found last = kept[kKept - 1];
    rows.lost[r] = stays && last.mask != 0 ? fmaxf(rows.lost[r], last.upper()) : rows.lost[r];
#pragma unroll
    for (int i = kKept - 1; i > 0; --i) kept[i] = stays ? kept[i - 1] : kept[i];
    if (any) kept[0] = found_of(unit, mask, upper);
  }

  static __device__ __forceinline__ Found found_of(int unit, unsigned mask, float upper) {
    const float above = upper + fabsf(upper) * (2.0f / (1 << 23) * kNumbers);
    return {(__float_as_uint(above) & ~(kNumbers - 1)) | unit, mask};
  }
};

}  // namespace kmeans
