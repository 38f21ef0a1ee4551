// Labels for large k: the arg-min epilogue of small_k.cuh, for a GEMM that streams the centers, kColumns at a time
// (gemm_wgmma_streamed.cuh). Symbols: see the head of small_k.cuh.
//
// The score error bound E is that of small_k.cuh plus two terms. The tensor cores also add −‖c‖²/2, with an error of γ
// H (with a level, kLevelled: 2.1 γ H + 1.1 γ C norm). The core-matrix layout adds 2⁻³² (core_matrix_layout.cuh). The
// *candidates* of a row are the centers with scores within 2 E of its best score so far. A *unit* is at most 128
// consecutive centers; a lane holds a quarter of its scores. For each row, a lane stores the kKept latest units with
// candidates: a 32-bit mask of candidates, and the best score at that time. After the last unit, a lane drops each unit
// with a stored best score more than 2 E below the final best score.
//
// Why it is fast: most scores cost half a maximum instruction, since accumulators start at −‖c‖²/2 plus the level. Only
// a tile with a score near the row's best needs two more instructions per score, to set candidate bits in the mantissa
// of a float. The more tiles, the rarer this is. Independent chains of instructions hide latency, which is long because
// the tensor cores take half the register bandwidth.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"

namespace kmeans {

// A row whose label changes.
struct alignas(16) Reassignment {
  unsigned row;
  int from, to, padding;
};

// 2⁹⁶, the factor that makes score differences saturate to 0 or 1: scores differ by 0 or by 2⁻⁵⁶ to 2³¹.
constexpr float kSteep = 7.9228163e28f;

constexpr int kCandidates = 11, kMostCenters = 1 << 16;  // maximum candidates of an AmbiguousLargeK; maximum k
constexpr int kMore = kMostCenters;  // added to a row's number of candidates for each lane that dropped some
// An ambiguous row, its label and its `count` candidates. If `count` is 0, all centers are candidates.
struct alignas(32) AmbiguousLargeK {
  unsigned row;
  int label;
  unsigned short count, candidates[kCandidates];
};

// Lengths of the lists that one block writes: reassigned rows (`changes`) and ambiguous rows.
struct Lengths {
  unsigned changes, ambiguous;
};

// kColumns: number of centers per tile. kKept: maximum number of units whose candidates a lane keeps; registers limit
// it. kLevelled: if true, a constant per row, the level, is added to the row's scores and makes them positive. Positive
// scores compare as integers, and one integer instruction finds the largest of three.
template <int kColumns, int kKept, bool kLevelled>
struct StreamedArgminEpilogue {
  static constexpr bool kLevels = kLevelled;

  const CenterStats* center_stats;
  const float* norms;
  const int* labels;
  Reassignment* changes;  // block b's list starts at b · capacity; `ambiguous` likewise
  AmbiguousLargeK* ambiguous;
  Lengths* lengths;  // one per block
  const int* stopped;
  long long capacity;
  unsigned n;
  float tensor_error, rounding;  // γ, ρ

  struct Fetched {
    float norm[2];
    int label[2];
  };

  // A tile has kUnits units of kOfUnit fragments; a fragment is 8 columns. A mask has bits for at most 16 fragments.
  static constexpr int kFragments = kColumns / 8, kUnits = (kFragments + 15) / 16;
  static constexpr int kOfUnit = (kFragments + kUnits - 1) / kUnits;

  // Candidates of a unit: mask bit 2·j + i is column 8·j + 2·(lane % 4) + i. `best_and_unit` is the best score so far,
  // rounded up, with the unit number in its lowest bits.
  static constexpr unsigned numbers() {
    unsigned numbers = 1;
    while (numbers < (kMostCenters + kColumns - 1) / kColumns * kUnits) numbers *= 2;
    return numbers;
  }
  static constexpr unsigned kNumbers = numbers();
  struct Found {
    unsigned best_and_unit, mask;

    __device__ __forceinline__ float best() const { return __uint_as_float(best_and_unit); }
    __device__ __forceinline__ int unit() const { return best_and_unit % kNumbers; }
  };

  // A lane's state of rows g = lane / 4 and g + 8 of its warp's 16 rows. The four lanes of a row hold the same `best`.
  struct Rows {
    // `lost`: the largest stored best score of the units that the lane dropped for lack of space.
    float best[2], twice_error[2], lost[2];
    int label[2];
    bool within[2];
    Found found[2][kKept];  // the latest unit first
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

  __device__ __forceinline__ void begin(Rows& rows, const Fetched& fetched, float (&levels)[2]) const {
    const CenterStats most = *center_stats;
    // Tensor-core error of adding −‖c‖²/2 and the level, which is at most 1.1 (C norm + H).
    const float of_sums = tensor_error + 1.0f / (1 << 22), of_level = kLevelled ? 1.1f * of_sums : 0.0f;
    const Bound bound = bound_of(most, tensor_error, rounding, of_sums + of_level);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float norm = fetched.norm[r];
      rows.twice_error[r] = 2.0002f * (norm * (bound.of_norm + of_level * most.norm) + bound.always + 2.5e-10f);
      rows.within[r] = norm <= most.norm_limit;
      rows.label[r] = fetched.label[r];
      rows.best[r] = rows.lost[r] = -kInfinity;
#pragma unroll
      for (int i = 0; i < kKept; ++i) rows.found[r][i] = {0, 0};
      // The level keeps every score above zero.
      levels[r] = rows.within[r] ? 1.02f * (norm * most.norm + most.half_square) + 2 * rows.twice_error[r] : 0.0f;
    }
  }

  __device__ __forceinline__ void take(Rows& rows, int tile, const float (&scores)[kFragments][4]) const {
    float own[2], threshold[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) own[r] = most(scores, r);
    float best[2] = {own[0], own[1]};
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2) {
#pragma unroll
      for (int r = 0; r < 2; ++r) best[r] = fmaxf(best[r], simt::shuffle_xor(best[r], lanes));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.best[r] = fmaxf(rows.best[r], best[r]);
      threshold[r] = rows.twice_error[r] - rows.best[r];
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!__any_sync(simt::every_lane, own[r] + threshold[r] > 0)) continue;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        add(rows, r, tile * kUnits + unit, candidates(scores, r, unit, threshold[r] * kSteep));
      }
    }
  }

  __device__ __forceinline__ void end(Rows& rows, long long first) const {
    const int lane = threadIdx.x % 4;
    const unsigned row = (unsigned)row_of(first, 0);
    // `to`: new label or −1. `count`: candidates of an ambiguous row, otherwise 1. `at`: candidates in lower lanes.
    int to[2], count[2], at[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float least = rows.best[r] - rows.twice_error[r];
      int mine = 0, one = 0;
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        Found& found = rows.found[r][i];
        if (!(found.best() > least)) found.mask = 0;
        mine += __popc(found.mask);
        one = found.mask ? center(found) : one;
      }
      // The number of candidates in all lanes of the row, plus kMore for each lane that dropped some.
      int all = mine + (rows.lost[r] > least ? kMore : 0);
      const int neighbour = simt::shuffle_xor(all, 1);
      all += neighbour;
      const int others = simt::shuffle_xor(all, 2);
      at[r] = (lane % 2 ? neighbour : 0) + (lane / 2 ? others : 0);
      all = rows.within[r] ? all + others : kMore;
      const bool present = row + 8 * r < n, certified = all == 1;
      to[r] = present && certified && mine == 1 && one != rows.label[r] ? one : -1;
      count[r] = present && !certified ? all : 1;
    }
    if (!__any_sync(simt::every_lane, (to[0] & to[1]) >= 0 || count[0] != 1 || count[1] != 1)) return;
    unsigned place[2];
    places_of(to[0] >= 0, to[1] >= 0, &here()->changes, place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (to[r] >= 0) changes[blockIdx.x * capacity + place[r]] = {row + 8 * r, rows.label[r], to[r], 0};
    }
    places_of(lane == 0 && count[0] != 1, lane == 0 && count[1] != 1, &here()->ambiguous, place);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned own = simt::shuffle(place[r], (int)(threadIdx.x & 28));
      if (count[r] == 1) continue;
      const bool known = 0 < count[r] && count[r] <= kCandidates;
      AmbiguousLargeK& entry = ambiguous[blockIdx.x * capacity + own];
      if (lane == 0) entry.row = row + 8 * r, entry.label = rows.label[r], entry.count = known ? count[r] : 0;
#pragma unroll
      for (int i = 0; i < kKept; ++i) {
        Found& found = rows.found[r][i];
        for (; known && found.mask; found.mask &= found.mask - 1) entry.candidates[at[r]++] = center(found);
      }
    }
  }

 private:
  // Returns the lengths of this block's lists in shared memory.
  static __device__ __forceinline__ Lengths* here() {
    __shared__ Lengths lengths;
    return &lengths;
  }

  static __device__ __forceinline__ long long row_of(long long first, int r) {
    return first + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
  }

  // Returns the index of the center of the lowest mask bit of `found`.
  static __device__ __forceinline__ int center(const Found& found) {
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
  static __device__ __forceinline__ int larger(int a, int b) { return b > a ? b : a; }
  static __device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }

  // Returns a mask with a bit for each score of a unit that exceeds a limit; `threshold` is the limit times −kSteep.
  // Four independent chains compute eight bits each.
  static __device__ __forceinline__ unsigned candidates(const float (&scores)[kFragments][4], int r, int unit,
                                                        float threshold) {
    constexpr float kNoBits = 1 << 23;
    float parts[4] = {kNoBits, kNoBits, kNoBits, kNoBits};
#pragma unroll
    for (int bit = 0; bit < 8; ++bit) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int fragment = 4 * part + bit / 2, j = unit * kOfUnit + fragment;
        if (fragment >= kOfUnit || j >= kFragments) continue;
        const float above = __saturatef(fmaf(scores[j][2 * r + bit % 2], kSteep, threshold));
        parts[part] = fmaf(above, (float)(1 << bit), parts[part]);
      }
    }
    const unsigned low = __byte_perm(__float_as_uint(parts[0]), __float_as_uint(parts[1]), 0x0040);
    const unsigned high = __byte_perm(__float_as_uint(parts[2]), __float_as_uint(parts[3]), 0x0040);
    return __byte_perm(low, high, 0x5410);
  }

  // Stores a unit's candidates, if any. They replace those of the latest stored unit if these are no longer candidates.
  static __device__ __forceinline__ void add(Rows& rows, int r, int unit, unsigned mask) {
    Found(&kept)[kKept] = rows.found[r];
    const float above = rows.best[r] + fabsf(rows.best[r]) * (2.0f / (1 << 23) * kNumbers);
    const bool any = mask != 0;
    const bool stays = any && kept[0].mask != 0 && kept[0].best() > rows.best[r] - rows.twice_error[r];
    const Found last = kept[kKept - 1];
    rows.lost[r] = stays && last.mask != 0 ? fmaxf(rows.lost[r], last.best()) : rows.lost[r];
#pragma unroll
    for (int i = kKept - 1; i > 0; --i) kept[i] = stays ? kept[i - 1] : kept[i];
    if (any) kept[0] = {(__float_as_uint(above) & ~(kNumbers - 1)) | unit, mask};
  }

  // Reserves list positions for a warp. Each lane appends one item if `one`, and another if `other`.
  static __device__ __forceinline__ void places_of(bool one, bool other, unsigned* length, unsigned (&place)[2]) {
    const unsigned ones = __ballot_sync(simt::every_lane, one), others = __ballot_sync(simt::every_lane, other);
    const unsigned before = (1u << threadIdx.x % 32) - 1;
    unsigned begin = 0;
    if ((ones | others) != 0) {
      if (threadIdx.x % 32 == 0) begin = atomicAdd(length, (unsigned)(__popc(ones) + __popc(others)));
      begin = simt::shuffle(begin, 0);
    }
    place[0] = begin + __popc(ones & before);
    place[1] = begin + __popc(ones) + __popc(others & before);
  }
};

}  // namespace kmeans
