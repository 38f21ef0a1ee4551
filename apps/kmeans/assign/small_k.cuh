// The nearest center of every row, as the epilogue of a tall-and-skinny product: which centers can be the nearest, and
// the rows that have to be looked at again.
//
//   sums (rows × k)   x̂ · ĉ of every row of the shadow (data/half_copy.cuh) and every center in float16, in float32
//
// The nearest center is the one of the largest x·c − ‖c‖²/2. What is known of x·c is x̂·ĉ ± E, where
// (data/half_copy.cuh)
//
//   E = norm · (ρ C + δ + γ (C + δ)) + 2⁻²² H,   C = max ‖c‖, δ = max ‖c − ĉ‖, H = max ‖c‖²/2
//
// norm being the row's, ρ what float16 loses (data/half_copy.cuh) and γ the tensor cores' error. So a center can be the
// nearest only if its score is above the best one less 2 E: the row's *candidates*, a bit each. A row with one
// candidate is decided, and nothing of it is written if that is its label already. Every other row goes to a list, one
// a block, for `rescore.cuh`. Where rows are long, and to decide one takes much, each center has an E of its own
// (ArgminEpilogueLargeD): of few samples, it may be several times as long as the others.
//
// Why it is fast: of each score a subtraction, a maximum and two multiply-adds, which count candidates in the mantissa
// of a float (a fused multiply-add that saturates is 1 above the threshold and 0 below it); then two shuffles bring the
// four parts of a row's bits together. The labels, 4 bytes a row, are read and not written.
#pragma once
#include "kernels/tsm2/epilogue.cuh"
#include "kernels/ptx/memory.cuh"

namespace kmeans {

#define kInfinity __uint_as_float(0x7f800000u)
constexpr float kLarge = 1.2676506e30f;  // 2¹⁰⁰

// What is to be decided of one row. Bit 16·s + p of the candidates is center 8·(p / 2) + 2·s + p % 2.
struct alignas(16) AmbiguousRow {
  unsigned row;
  int label;  // the one it has
  unsigned low, high;
};

__device__ __forceinline__ int center_of_bit(unsigned bit) { return (int)(bit % 16 / 2 * 8 + bit / 16 * 2 + bit % 2); }
__device__ __forceinline__ int bit_of_center(unsigned center) {
  return (int)(center % 8 / 2 * 16 + center / 8 * 2 + center % 2);
}
// The first of some candidates.
__device__ __forceinline__ int first_center(unsigned low, unsigned high) {
  return center_of_bit(low ? __ffs(low) - 1 : 31 + __ffs(high));
}

// The candidates of a row.
struct Candidates {
  unsigned low, high;

  // Whether there is one, and it is the row's label.
  __device__ __forceinline__ bool is(int label) const {
    const unsigned long long one = 1ull << (bit_of_center((unsigned)label) & 63);
    return (label >= 0) & (low == (unsigned)one) & (high == (unsigned)(one >> 32));
  }
};

// Of 32 rows, a lane has 16 bits each of four, in the lower half: of row g, of g + 8, and so on. Brings together those
// of row 8·t + g.
__device__ __forceinline__ Candidates candidates_of_own_row(const unsigned (&bits)[4]) {
  const int t = threadIdx.x % 4;
  const unsigned two[2] = {__byte_perm(bits[0], bits[1], 0x5410), __byte_perm(bits[2], bits[3], 0x5410)};
  // Each lane keeps what is of its own row, and of the row that it still has in hand for its neighbour, whose are the
  // other halves.
  const unsigned kept = t < 2 ? two[0] : two[1];
  const unsigned got = simt::shuffle_xor(t < 2 ? two[1] : two[0], 2);
  const unsigned across = simt::shuffle_xor(__byte_perm(kept, got, t % 2 ? 0x5410 : 0x7632), 1);
  // Of lanes t and t ^ 1, then of t ^ 2 and t ^ 3, the lower lane's in the lower half.
  const unsigned ours = __byte_perm(kept, across, t % 2 ? 0x3254 : 0x5410);
  const unsigned theirs = __byte_perm(got, across, t % 2 ? 0x3276 : 0x7610);
  return {t < 2 ? ours : theirs, t < 2 ? theirs : ours};
}

// What update/centers.cuh finds out of all centers: C, δ and H; and the norm from which on a row is not decided here.
struct CenterStats {
  float norm, lost, half_square, norm_limit;
};

// The bound E of a row of norm x: `of_norm` · x + `always`.
struct Bound {
  float of_norm, always;
};

// γ is the tensor cores' error, ρ the shadow's rounding; `of_half_square` what a score loses beside, relative to H.
__device__ __forceinline__ Bound bound_of(const CenterStats& most, float tensor_error, float rounding,
                                          float of_half_square) {
  return {most.norm * (rounding + 1.0f / (1 << 22)) + most.lost + tensor_error * (most.norm + most.lost),
          most.half_square * of_half_square + 1e-18f};
}

struct ArgminEpilogue {
  static constexpr tsm2::Takes kTakes = tsm2::Takes::kTile;
  template <int kBlocks>
  static constexpr int kBytes = 0;

  const float* offsets;  // −‖c‖²/2 of every column of the product; −infinite past the last center
  const CenterStats* center_stats;
  const float* norms;
  const int* labels;
  AmbiguousRow* entries;  // block b's from b · capacity on
  unsigned* counts;       // of every block's
  const int* stopped;     // if set, there is nothing to do
  long long capacity;
  unsigned n, ahead;  // rows, and how many from a warp's tile to its next: their labels and norms are asked for early
  float tensor_error, rounding;  // γ, ρ

  __device__ __forceinline__ bool idle() const { return *stopped; }

  template <int kBlocks, int kColumnBlocks>
  __device__ void tile(unsigned char*, long long row, int rows, long long, int,
                       const float (&d)[kBlocks][kColumnBlocks][4]) const {
    const Bound bound = bound_of(*center_stats, tensor_error, rounding, 1.0f / (1 << 22));
    label_rows(
        row, rows, d, [&](float norm) { return 1.0001f * (norm * bound.of_norm + bound.always); },
        [&](const float (&sums)[kColumnBlocks][4], int half, const float (&offset)[kColumnBlocks][2], float error) {
          return candidates(sums, half, offset, error);
        });
  }

  // A block counts in shared memory what it lists: warps would wait for additions in global memory longer than for
  // their rows.
  __device__ __forceinline__ void open() const {
    if (threadIdx.x == 0) *listed() = 0;
  }
  __device__ __forceinline__ void close() const {
    __syncthreads();
    if (threadIdx.x == 0 && *listed() != 0) counts[blockIdx.x] = *listed();
  }

 protected:
  static __device__ __forceinline__ unsigned* listed() {
    __shared__ unsigned count;
    return &count;
  }

  // This lane's numbers of every column, column 8·j + 2·t + i.
  template <int kColumnBlocks>
  static __device__ __forceinline__ void load_columns(const float* from, float (&to)[kColumnBlocks][2]) {
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) to[j][i] = from[8 * j + 2 * (threadIdx.x % 4) + i];
  }

  // Lists what is to be decided of a tile. `find` gives a lane's candidates by some sums, by which half of them, by the
  // columns' offsets and by what `of_norm` makes of the row's norm.
  template <int kBlocks, int kColumnBlocks, typename OfNorm, typename Find>
  __device__ __forceinline__ void label_rows(long long row, int rows, const float (&d)[kBlocks][kColumnBlocks][4],
                                             const OfNorm& of_norm, const Find& find) const {
    static_assert(kBlocks % 2 == 0 && kColumnBlocks <= 8,
                  "rows are dealt to lanes 32 at a time; a lane has up to 16 bits");
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float offset[kColumnBlocks][2];
    load_columns(offsets, offset);
    const unsigned from = (unsigned)row, soon = from + ahead + 16 * (lane / 2);
    if (lane < 2 * kBlocks && lane % 4 < 2 && soon < n) {
      ptx::prefetch(lane % 2 ? static_cast<const void*>(norms + soon) : labels + soon);
    }
    const float norm_limit = center_stats->norm_limit;
#pragma unroll
    for (int first = 0; first < kBlocks; first += 2) {
      // This lane decides row 8·t + g of these 32; of the others' rows it has some of the scores.
      const int mine = 16 * first + 8 * t + g;
      const bool present = mine < rows;
      const int label = present ? labels[from + mine] : 0;
      const float norm = present ? norms[from + mine] : 0.0f;
      const float own = of_norm(norm);
      unsigned bits[4];
#pragma unroll
      for (int q = 0; q < 4; ++q) bits[q] = find(d[first + q / 2], q % 2, offset, simt::shuffle(own, 4 * g + q));
      Candidates found = candidates_of_own_row(bits);
      if (!(norm <= norm_limit)) found = {0, 0};
      append(listed(), present && !found.is(label), {from + mine, label, found.low, found.high});
    }
  }

  // Which of this lane's centers of row 8·half + g can be the nearest, bit 2·j + i for column 8·j + 2·t + i.
  template <int kColumnBlocks>
  __device__ __forceinline__ unsigned candidates(const float (&d)[kColumnBlocks][4], int half,
                                                 const float (&offset)[kColumnBlocks][2], float error) const {
    float best = -kInfinity;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) best = fmaxf(best, d[j][2 * half + i] + offset[j][i]);
    best = fmaxf(best, simt::shuffle_xor(best, 1));
    best = fmaxf(best, simt::shuffle_xor(best, 2));
    return candidates_near(d, half, offset, error, best);
  }

  // The same where the best score of the row is known.
  template <int kColumnBlocks>
  static __device__ __forceinline__ unsigned candidates_near(const float (&d)[kColumnBlocks][4], int half,
                                                             const float (&offset)[kColumnBlocks][2], float error,
                                                             float best) {
    // Products are below 2²⁸ (update/centers.cuh), so that what overflows here is no candidate. Scores are 1e-18 apart
    // or more, or the same. They are computed again, in another way, for the compiler not to keep them in registers.
    const float threshold = (2 * error - best) * kLarge;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float above = fmaf(d[j][2 * half + i], kLarge, fmaf(offset[j][i], kLarge, threshold));
        sum = fmaf(__saturatef(above), (float)(1 << (2 * j + i)), sum);
      }
    return (unsigned)sum;
  }

  // Lists a lane's row behind the `count` that are listed.
  __device__ __forceinline__ void append(unsigned* count, bool wanted, const AmbiguousRow& entry) const {
    const unsigned all = __ballot_sync(simt::every_lane, wanted);
    if (all == 0) return;
    const int lane = threadIdx.x % 32;
    unsigned begin = 0;
    if (lane == 0) begin = atomicAdd(count, (unsigned)__popc(all));
    begin = simt::shuffle(begin, 0);
    if (wanted) entries[blockIdx.x * capacity + begin + __popc(all & ((1u << lane) - 1))] = entry;
  }
};

// Of what the first part of a center loses in float16, the second has 2¹¹ times (ArgminEpilogueLargeD).
constexpr float kSecondScale = 2048.0f;  // 2¹¹

// Of long rows. A row's score of center j is off by norm · e_j + 2⁻²¹ H at most, where e_j, which is behind the
// offsets, is E's factor for this center's own ‖c‖ and ‖c − ĉ‖ (update/centers.cuh): so a center can be the nearest
// only if its score and its own E come to the largest of all scores less theirs.
//
// Every center may have two columns: of the first half of them, ĉ has one whole, and of the second one times 2⁻¹¹. Then
// δ is next to nothing.
template <int kParts>
struct ArgminEpilogueLargeD : ArgminEpilogue {
  template <int kBlocks, int kColumnBlocks>
  __device__ void tile(unsigned char*, long long row, int rows, long long, int,
                       const float (&d)[kBlocks][kColumnBlocks][4]) const {
    static_assert(kColumnBlocks % kParts == 0, "as many second parts as first ones");
    constexpr int kCenters = kColumnBlocks / kParts;
    float error_coefficient[kCenters][2];
    load_columns(offsets + 8 * kCenters, error_coefficient);
    const float always = center_stats->half_square / (1 << 21) + 1e-18f;
    auto norm_itself = [](float norm) { return norm; };
    auto find = [&](const float (&sums)[kCenters][4], int half, const float (&offset)[kCenters][2], float norm) {
      return candidates_of_own(sums, half, offset, error_coefficient, norm, always);
    };
    if constexpr (kParts == 1) {
      label_rows(row, rows, d, norm_itself, find);
    } else {
      float whole[kBlocks][kCenters][4];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kCenters; ++j) {
          whole[i][j / 4][j % 4] = fmaf(d[i][kCenters + j / 4][j % 4], 1 / kSecondScale, d[i][j / 4][j % 4]);
        }
      label_rows(row, rows, whole, norm_itself, find);
    }
  }

 private:
  // As `candidates`, where each center has a margin. The roundings here are five of a score's and eight of H's, of 2⁻²⁴
  // each: as many as margins and `always` have beside.
  template <int kColumnBlocks>
  static __device__ __forceinline__ unsigned candidates_of_own(const float (&d)[kColumnBlocks][4], int half,
                                                               const float (&offset)[kColumnBlocks][2],
                                                               const float (&error_coefficient)[kColumnBlocks][2],
                                                               float norm, float always) {
    float least = -kInfinity;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        least = fmaxf(least, fmaf(-norm, error_coefficient[j][i], d[j][2 * half + i] + offset[j][i]));
    least = fmaxf(least, simt::shuffle_xor(least, 1));
    least = fmaxf(least, simt::shuffle_xor(least, 2));
    const float threshold = (2 * always - least) * kLarge, scaled_norm = norm * kLarge;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float most = fmaf(scaled_norm, error_coefficient[j][i], fmaf(offset[j][i], kLarge, threshold));
        sum = fmaf(__saturatef(fmaf(d[j][2 * half + i], kLarge, most)), (float)(1 << (2 * j + i)), sum);
      }
    return (unsigned)sum;
  }
};

}  // namespace kmeans
