// The nearest of many centres: what nearest.cuh does, where the centres stream by 128 at a time (streamed_columns.cuh).
//
// The bound is that of nearest.cuh: a centre can be the nearest only if its score is above the best one less 2 E. While
// centres stream by, the best score so far is known, and centres near it are *candidates* so far. A lane has a quarter of
// a row's scores; it keeps its candidates of the last two tiles of 128 centres that had any, as a mask of 32 bits each,
// with the best score as it then was: they are candidates still if that is within 2 E of the best of all.
//
// Why it is fast: of most scores a subtraction and a maximum. Only where a warp meets a score near its row's best so far
// are two more instructions spent on each, which count candidates in the mantissa of a float; the more tiles, the less
// often.
#pragma once
#include "apps/kmeans/nearest.cuh"

namespace kmeans {

// A row whose label changes.
struct alignas(16) Change {
  unsigned row;
  int from, to, padding;
};

// A row that is to be decided between some candidates: of all centres, if `count` is 0.
constexpr int kCandidates = 5;
struct alignas(32) Undecided {
  unsigned row;
  int label, count, candidates[kCandidates];
};

// How many of each a list has.
struct Lengths {
  unsigned changes, undecided;
};

struct NearestOfMany {
  const float* half_squares;  // ‖c‖²/2 of every column of the product; infinite past the last centre
  const Extremes* extremes;
  const float* norms;
  const int* labels;
  Change* changes;  // block b's from b · capacity on, and likewise
  Undecided* undecided;
  Lengths* lengths;  // of every block's
  const int* stopped;
  long long capacity;
  unsigned n;
  float tensor_error;  // γ

  struct Fetched {
    float norm[2];
    int label[2];
  };

  // Some candidates: bit 2·j + i of the mask is centre 128·tile + 8·j + 2·(lane % 4) + i.
  struct Found {
    float best;
    int tile;
    unsigned mask;
  };

  // Of rows g and g + 8 of this warp's 16; the best is the same in the four lanes of a row.
  struct Rows {
    float best[2], twice_error[2], lost[2];  // the last: the best as it was when candidates were dropped for want of room
    int label[2];
    bool within[2];
    Found latest[2], before[2];
  };

  __device__ __forceinline__ bool idle() const { return *stopped; }

  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) *here() = {};
  }

  __device__ __forceinline__ void close() const {
    if (threadIdx.x == 0) lengths[blockIdx.x] = *here();
  }

  __device__ __forceinline__ void fetch(Fetched& fetched, int tile) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned row = row_of(tile, r);
      fetched.norm[r] = row < n ? norms[row] : 0.0f;
      fetched.label[r] = row < n ? labels[row] : 0;
    }
  }

  __device__ __forceinline__ void begin(Rows& rows, const Fetched& fetched) const {
    const Extremes most = *extremes;
    const float a_norm = most.norm * (1.0f / 4096 + 1.0f / (1 << 22)) + most.lost + tensor_error * (most.norm + most.lost);
    const float always = most.half_square * (1.0f / (1 << 22)) + 1e-18f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.twice_error[r] = 2.0002f * (fetched.norm[r] * a_norm + always);
      rows.within[r] = fetched.norm[r] <= most.reach;
      rows.label[r] = fetched.label[r];
      rows.best[r] = rows.lost[r] = -kInfinity;
      rows.latest[r] = rows.before[r] = {-kInfinity, 0, 0};
    }
  }

  __device__ __forceinline__ void take(Rows& rows, int tile, const float (&products)[16][4]) const {
    const float2* half_square = reinterpret_cast<const float2*>(half_squares + 128 * tile) + threadIdx.x % 4;
    // One row after the other, for want of registers; and not in place, or the tensor cores would wait for it.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float scores[16][2], own = -kInfinity;
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float2 of_two = half_square[4 * j];
        scores[j][0] = products[j][2 * r] - of_two.x;
        scores[j][1] = products[j][2 * r + 1] - of_two.y;
        own = fmaxf(own, fmaxf(scores[j][0], scores[j][1]));
      }
      float best = fmaxf(own, simt::shuffle_xor(own, 1));
      best = fmaxf(best, simt::shuffle_xor(best, 2));
      rows.best[r] = fmaxf(rows.best[r], best);
      if (__any_sync(simt::every_lane, own > rows.best[r] - rows.twice_error[r])) {
        add(rows, r, {rows.best[r], tile, candidates(scores, (rows.twice_error[r] - rows.best[r]) * kLarge)});
      }
    }
  }

  __device__ __forceinline__ void end(Rows& rows, int tile) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned row = row_of(tile, r);
      const bool present = row < n;
      const float least = rows.best[r] - rows.twice_error[r];
      if (!(rows.latest[r].best > least)) rows.latest[r].mask = 0;
      if (!(rows.before[r].best > least)) rows.before[r].mask = 0;
      const int mine = __popc(rows.latest[r].mask) + __popc(rows.before[r].mask);
      // How many there are in the row's lanes, in those before this one, and whether there were more.
      int all = mine + (rows.lost[r] > least ? 1 << 16 : 0);
      const int neighbour = simt::shuffle_xor(all, 1);
      all += neighbour;
      const int others = simt::shuffle_xor(all, 2), lane = threadIdx.x % 4;
      int at = (lane % 2 ? neighbour : 0) + (lane / 2 ? others : 0);
      all += others;
      const bool decided = rows.within[r] && all == 1;
      const int to = centre(rows.latest[r].mask ? rows.latest[r] : rows.before[r]);
      const bool changes_label = present && decided && mine == 1 && to != rows.label[r], open = present && !decided;
      const unsigned change = append(changes_label, &here()->changes);
      if (changes_label) changes[blockIdx.x * capacity + change] = {row, rows.label[r], to, 0};
      const unsigned place = simt::shuffle(append(open && lane == 0, &here()->undecided), (int)threadIdx.x % 32 / 4 * 4);
      if (open) {
        const bool known = rows.within[r] && 0 < all && all <= kCandidates;
        Undecided& entry = undecided[blockIdx.x * capacity + place];
        if (lane == 0) entry.row = row, entry.label = rows.label[r], entry.count = known ? all : 0;
        for (Found& found = rows.latest[r]; known && found.mask; found.mask &= found.mask - 1) {
          entry.candidates[at++] = centre(found);
        }
        for (Found& found = rows.before[r]; known && found.mask; found.mask &= found.mask - 1) {
          entry.candidates[at++] = centre(found);
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

  static __device__ __forceinline__ unsigned row_of(int tile, int r) {
    return 128u * tile + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
  }

  // The first of some candidates of this lane.
  static __device__ __forceinline__ int centre(const Found& found) {
    const int bit = __ffs(found.mask) - 1;
    return 128 * found.tile + bit / 2 * 8 + (int)threadIdx.x % 4 * 2 + bit % 2;
  }

  // As in nearest.cuh: a bit for each score above a threshold, of which this is the opposite times 2¹⁰⁰.
  static __device__ __forceinline__ unsigned candidates(const float (&scores)[16][2], float threshold) {
    float sums[2] = {};
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float above = __saturatef(fmaf(scores[j][i], kLarge, threshold));
        sums[j / 8] = fmaf(above, (float)(1 << (2 * j + i) % 16), sums[j / 8]);
      }
    return (unsigned)sums[0] | (unsigned)sums[1] << 16;
  }

  static __device__ __forceinline__ void add(Rows& rows, int r, const Found& found) {
    if (found.mask == 0) return;
    const float least = rows.best[r] - rows.twice_error[r];
    if (rows.latest[r].mask && rows.latest[r].best > least) {
      if (rows.before[r].mask) rows.lost[r] = fmaxf(rows.lost[r], rows.before[r].best);
      rows.before[r] = rows.latest[r];
    }
    rows.latest[r] = found;
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
