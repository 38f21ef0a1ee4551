// The nearest of many centres: what nearest.cuh does, where the centres stream by 128 at a time (streamed_columns.cuh).
//
// The bound is that of nearest.cuh, and γ H more, as the tensor cores add to −‖c‖²/2, and 2⁻³² (slabs.cuh): a centre can be
// the nearest only if its score is above the best one less 2 E. While centres stream by, the best score so far is known, and centres near it
// are *candidates* so far. A lane has a quarter of a row's scores; it keeps its candidates of the last few tiles of 128
// centres that had any, as a mask of 32 bits each, with the best score as it then was: they are candidates still if that
// is within 2 E of the best of all.
//
// Why it is fast: of most scores nothing but a maximum; −‖c‖²/2 is where the products begin. Only where a warp meets a
// score near its row's best so far are two more instructions spent on each of that quarter of a lane's, which count
// candidates in the mantissa of a float; the more tiles, the less often.
#pragma once
#include "apps/kmeans/nearest.cuh"

namespace kmeans {

// A row whose label changes.
struct alignas(16) Change {
  unsigned row;
  int from, to, padding;
};

// A row that is to be decided between some candidates: of all centres, if `count` is 0.
constexpr int kCandidates = 11, kMostCentres = 1 << 16;
struct alignas(32) Undecided {
  unsigned row;
  int label;
  unsigned short count, candidates[kCandidates];
};

// How many of each a list has.
struct Lengths {
  unsigned changes, undecided;
};

// kKept: tiles of which a lane keeps candidates, for want of registers.
template <int kKept>
struct NearestOfMany {
  const Extremes* extremes;
  const float* norms;
  const int* labels;
  Change* changes;  // block b's from b · capacity on, and likewise
  Undecided* undecided;
  Lengths* lengths;  // of every block's
  const int* stopped;
  long long capacity;
  unsigned n;
  float tensor_error, rounding;  // γ, ρ

  struct Fetched {
    float norm[2];
    int label[2];
  };

  // Some candidates: bit 2·j + i of the mask is centre 128·tile + 8·j + 2·(lane % 4) + i. The tile is in the last 9 bits of
  // the best score as it then was, which is rounded up before.
  static constexpr unsigned kTiles = kMostCentres / 128;
  struct Found {
    unsigned best_and_tile, mask;

    __device__ __forceinline__ float best() const { return __uint_as_float(best_and_tile); }
    __device__ __forceinline__ int tile() const { return best_and_tile % kTiles; }
  };

  // Parts of a lane's scores that are looked at only where one is near the best.
  static constexpr int kParts = 2;

  // Of rows g and g + 8 of this warp's 16; the best is the same in the four lanes of a row.
  struct Rows {
    float best[2], twice_error[2], lost[2];  // the last: the best as it was when candidates were dropped for want of room
    int label[2];
    bool within[2];
    Found found[2][kKept];  // latest first
  };

  __device__ __forceinline__ bool idle() const { return *stopped; }

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) *here() = {};
  }

  __device__ __forceinline__ void close() const {
    if (threadIdx.x == 0) lengths[blockIdx.x] = *here();
  }

  __device__ __forceinline__ void fetch(Fetched& fetched, long long first) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const long long row = row_of(first, r);
      fetched.norm[r] = row < n ? norms[row] : 0.0f;
      fetched.label[r] = row < n ? labels[row] : 0;
    }
  }

  __device__ __forceinline__ void begin(Rows& rows, const Fetched& fetched) const {
    const Extremes most = *extremes;
    const Bound bound = bound_of(most, tensor_error, rounding, tensor_error + 1.0f / (1 << 22));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.twice_error[r] = 2.0002f * (fetched.norm[r] * bound.of_norm + bound.always + 2.5e-10f);
      rows.within[r] = fetched.norm[r] <= most.reach;
      rows.label[r] = fetched.label[r];
      rows.best[r] = rows.lost[r] = -kInfinity;
#pragma unroll
      for (int i = 0; i < kKept; ++i) rows.found[r][i] = {0, 0};
    }
  }

  __device__ __forceinline__ void take(Rows& rows, int tile, const float (&scores)[16][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float parts[kParts];
      most_of_parts(scores, r, parts);
      float own = parts[0];
#pragma unroll
      for (int part = 1; part < kParts; ++part) own = fmaxf(own, parts[part]);
      float best = fmaxf(own, simt::shuffle_xor(own, 1));
      best = fmaxf(best, simt::shuffle_xor(best, 2));
      rows.best[r] = fmaxf(rows.best[r], best);
      const float threshold = rows.twice_error[r] - rows.best[r];
      if (!__any_sync(simt::every_lane, own + threshold > 0)) continue;
      unsigned mask = 0;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (!__any_sync(simt::every_lane, parts[part] + threshold > 0)) continue;
        mask |= candidates(scores, r, part, threshold * kLarge) << 32 / kParts * part;
      }
      const float above = rows.best[r] + fabsf(rows.best[r]) * (2.0f / (1 << 23) * kTiles);
      add(rows, r, {(__float_as_uint(above) & ~(kTiles - 1)) | tile, mask});
    }
  }

  __device__ __forceinline__ void end(Rows& rows, long long first) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const long long row = row_of(first, r);
      const bool present = row < n;
      const float least = rows.best[r] - rows.twice_error[r];
      int mine = 0, to = 0;
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        Found& found = rows.found[r][i];
        if (!(found.best() > least)) found.mask = 0;
        mine += __popc(found.mask);
        if (found.mask) to = centre(found);
      }
      // How many there are in the row's lanes, in those before this one, and whether there were more.
      int all = mine + (rows.lost[r] > least ? 1 << 16 : 0);
      const int neighbour = simt::shuffle_xor(all, 1);
      all += neighbour;
      const int others = simt::shuffle_xor(all, 2), lane = threadIdx.x % 4;
      int at = (lane % 2 ? neighbour : 0) + (lane / 2 ? others : 0);
      all += others;
      const bool decided = rows.within[r] && all == 1;
      const bool changes_label = present && decided && mine == 1 && to != rows.label[r], open = present && !decided;
      const unsigned change = append(changes_label, &here()->changes);
      if (changes_label) changes[blockIdx.x * capacity + change] = {(unsigned)row, rows.label[r], to, 0};
      const unsigned place = simt::shuffle(append(open && lane == 0, &here()->undecided), (int)threadIdx.x % 32 / 4 * 4);
      if (open) {
        const bool known = rows.within[r] && 0 < all && all <= kCandidates;
        Undecided& entry = undecided[blockIdx.x * capacity + place];
        if (lane == 0) entry.row = (unsigned)row, entry.label = rows.label[r], entry.count = known ? all : 0;
#pragma unroll
        for (int i = 0; i < kKept; ++i) {
          Found& found = rows.found[r][i];
          for (; known && found.mask; found.mask &= found.mask - 1) entry.candidates[at++] = centre(found);
        }
      }
    }
  }

 private:
  // The lengths of this block's lists.
  static __device__ __forceinline__ Lengths* here() {
    __shared__ Lengths lengths;
    return &lengths;
  }

  static __device__ __forceinline__ long long row_of(long long first, int r) {
    return first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
  }

  // The first of some candidates of this lane.
  static __device__ __forceinline__ int centre(const Found& found) {
    const int bit = __ffs(found.mask) - 1;
    return 128 * found.tile() + bit / 2 * 8 + (int)threadIdx.x % 4 * 2 + bit % 2;
  }

  // The largest of each part of this lane's scores of a row; two at a time, for they wait for each other.
  static __device__ __forceinline__ void most_of_parts(const float (&scores)[16][4], int r, float (&most)[kParts]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float two[2];
#pragma unroll
      for (int j = 0; j < 16 / kParts; ++j) {
        const float(&here)[4] = scores[16 / kParts * part + j];
        const float both = fmaxf(here[2 * r], here[2 * r + 1]);
        two[j % 2] = j < 2 ? both : fmaxf(two[j % 2], both);
      }
      most[part] = fmaxf(two[0], two[1]);
    }
  }

  // As in nearest.cuh: a bit for each score of a part above a threshold, of which this is the opposite times 2¹⁰⁰.
  static __device__ __forceinline__ unsigned candidates(const float (&scores)[16][4], int r, int part, float threshold) {
    constexpr float kNoBits = 1 << 23;
    float sums[2] = {kNoBits, 0};
#pragma unroll
    for (int bit = 0; bit < 32 / kParts; ++bit) {
      const float above = __saturatef(fmaf(scores[16 / kParts * part + bit / 2][2 * r + bit % 2], kLarge, threshold));
      sums[bit % 2] = fmaf(above, (float)(1 << bit), sums[bit % 2]);
    }
    return __float_as_uint(sums[0] + sums[1]) ^ __float_as_uint(kNoBits);
  }

  static __device__ __forceinline__ void add(Rows& rows, int r, const Found& found) {
    if (found.mask == 0) return;
    Found(&kept)[kKept] = rows.found[r];
    if (kept[0].mask && kept[0].best() > rows.best[r] - rows.twice_error[r]) {
      if (kept[kKept - 1].mask) rows.lost[r] = fmaxf(rows.lost[r], kept[kKept - 1].best());
#pragma unroll
      for (int i = kKept - 1; i > 0; --i) kept[i] = kept[i - 1];
    }
    kept[0] = found;
  }

  // A place in a list for each lane that wants one.
  static __device__ __forceinline__ unsigned append(bool wanted, unsigned* length) {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    if (all == 0) return 0;
    const int lane = threadIdx.x % 32;
    unsigned begin = 0;
    if (lane == 0) begin = atomicAdd(length, (unsigned)__popc(all));
    return simt::shuffle(begin, 0) + __popc(all & ((1u << lane) - 1));
  }
};

}  // namespace kmeans
