// Loads of rows for small d, the loop over tiles of rows, and float64 rescoring of ambiguous rows by a lane or a warp.
//
// tiles  kTile rows each; the warps of a block process consecutive tiles, and so do the blocks of the grid; the next
//        tile of a warp is later by the number of warps in the grid
//
// Why it is fast: if a warp has 32 rows to rescore, each lane rescores one row. If a warp has fewer rows, each row is
// split among several lanes.
#pragma once
#include "apps/kmeans/assign/rescore.cuh"
#include "apps/kmeans/update/fixed_point.cuh"
#include "kernels/device/warp_queue.cuh"

namespace kmeans {

// kLeast is subtracted from the threshold, so that the threshold is never zero. Near zero, scores may differ by less
// than 1 / kLarge. A score just above the threshold would then add only a part of its candidate bit. The term 2⁻⁴⁰ of
// the error bounds (place_constants, small_d_error_bound) covers kLeast.
constexpr float kLeast = (float)(1 << 26);
// A float that stands for an empty mask of candidates: the mask is the low bits of its mantissa.
constexpr float kNoBits = (float)(1 << 23);
#define kNoBitsAsInteger 0x4b000000u

// Returns the number of elements that one load of a row reads: at most kMost (16 bytes by default), and a divisor of
// kFeatures.
template <typename T, int kFeatures, int kMost = 16 / sizeof(T)>
constexpr int vector_width() {
  int wide = kMost;
  while (kFeatures % wide) wide /= 2;
  return wide;
}

// Loads a row. The element at byte i of the row is at byte i ^ swizzle (TilePipeline).
template <int kFeatures, typename T>
__device__ __forceinline__ void load_row(const void* row, int swizzle, T (&to)[kFeatures]) {
  constexpr int kWide = vector_width<T, kFeatures>();
  const auto* from = static_cast<const unsigned char*>(row);
#pragma unroll
  for (int i = 0; i < kFeatures; i += kWide) {
    const auto some = *reinterpret_cast<const simt::Vector<T, kWide>*>(from + (i * (int)sizeof(T) ^ swizzle));
#pragma unroll
    for (int e = 0; e < kWide; ++e) to[i + e] = some.at[e];
  }
}

// What load_some loads for columns past the last. kNone: no such columns are requested. kZero: zeros. kAny: other
// elements of the row.
enum class Past { kNone, kZero, kAny };

// Loads kCount columns (two or four) of a row, from `column` on. For `swizzle`, see load_row.
template <int kFeatures, Past past, int kCount, typename T>
__device__ __forceinline__ void load_some(const unsigned char* row, int swizzle, int column, T (&to)[kCount]) {
  constexpr int kWide = vector_width<T, kFeatures, kCount>();
#pragma unroll
  for (int i = 0; i < kCount; i += kWide) {
    simt::Vector<T, kWide> some = {};
    const bool there = past == Past::kNone || column + i < kFeatures;
    if (past == Past::kAny || there) {
      const int at = there ? column + i : 0;
      some = *reinterpret_cast<const simt::Vector<T, kWide>*>(row + (at * (int)sizeof(T) ^ swizzle));
    }
#pragma unroll
    for (int e = 0; e < kWide; ++e) to[i + e] = some.at[e];
  }
}

// Packs two 16-bit elements into a 32-bit word of an mma operand.
template <typename T>
__device__ __forceinline__ unsigned word_of(T lower, T upper) {
  return lower.bits | (unsigned)upper.bits << 16;
}

// Returns ‖x − mean − c‖² of a row x of X, summed in type Sum by one thread in the order of features.
template <typename Sum, int kFeatures, typename T>
__device__ __forceinline__ Sum square_distance(const T* row, const float* mean, const float* center) {
  constexpr int kWide = vector_width<T, kFeatures, 4>();
  Sum sum = 0;
#pragma unroll 2
  for (int i = 0; i < kFeatures; i += kWide) {
    const auto x = *reinterpret_cast<const simt::Vector<T, kWide>*>(row + i);
    const auto middle = *reinterpret_cast<const simt::Vector<float, kWide>*>(mean + i);
    const auto c = *reinterpret_cast<const simt::Vector<float, kWide>*>(center + i);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      const Sum difference = (Sum)centered<T, float>(x.at[e], middle.at[e]) - (Sum)c.at[e];
      sum += difference * difference;
    }
  }
  return sum;
}

// Returns the nearest of a row's candidates, or of all centers if the row has no candidates. Of equally near centers,
// returns the one with the lowest index. Compares float32 distances first, as assign/rescore.cuh does. The relative
// error of a float32 squared distance is at most (d + 3)·2⁻²⁴.
template <int kFeatures, typename T>
__device__ __forceinline__ int nearest_of_row(const T* row, const float* mean, const float* centers, int k,
                                              unsigned low, unsigned high) {
  const bool all = (low | high) == 0;
  const auto each = [&](auto take) {
    unsigned of_low = low, of_high = high;
    for (int j = all ? 0 : next_candidate(of_low, of_high, k); j < k;
         j = all ? j + 1 : next_candidate(of_low, of_high, k)) {
      take(j, centers + j * kFeatures);
    }
  };
  Surely surely;
  each([&](int j, const float* center) { surely.take(square_distance<float, kFeatures>(row, mean, center), j); });
  if (surely.is_so(32 * kFeatures)) return surely.center;
  Distant nearest = {kInfinity, 0};
  each([&](int j, const float* center) { nearest.take({square_distance<double, kFeatures>(row, mean, center), j}); });
  return nearest.center;
}

// Returns the number of lanes among which a row is split, four columns per lane: the smallest power of two that covers
// all columns.
template <int kFeatures>
constexpr int row_lanes() {
  int lanes = 1;
  while (4 * lanes < kFeatures) lanes *= 2;
  return lanes;
}

// Returns the byte offset of `at` from the start of dynamic shared memory. Functions that are not inlined take this
// offset, because a pointer argument would be a generic address.
__device__ __forceinline__ int shared_place(const void* at) {
  return (int)(static_cast<const unsigned char*>(at) - simt::dynamic_shared<unsigned char>());
}

// Rescoring of fewer than 32 rows by a warp. Each row is split among several lanes, which compare two candidates at a
// time while loads of the next rows are in flight. A single lane per row would wait for the cache at each load of a
// candidate's columns, up to 64, and the kernel would wait for the last rows of a warp. For 32 rows, the number of
// instructions matters more: one lane per row needs a third as many.
template <typename T, int kFeatures>
class CooperativeRescore {
 public:
  // Replaces `low` of `count` entries in shared memory by the index of the nearest candidate; of equally near
  // candidates, the lowest index. Rows without candidates are compared with all centers. `items` is the byte offset of
  // the entries (shared_place). Not inlined, to save registers of the loop over tiles.
  __device__ __noinline__ static void rescore(const T* X, const float* mean, const float* centers, int k, int items,
                                              int count) {
    auto* entries = reinterpret_cast<AmbiguousRow*>(simt::dynamic_shared<unsigned char>() + items);
    const int q = (int)threadIdx.x % 32 / kLanes, column = 4 * ((int)threadIdx.x % kLanes);
    float middle[4];
    load(mean, 0, column, middle);
    AmbiguousRow soon = entries[q < count ? q : 0];
    T next[4];
    load(X, soon.row, column, next);
#pragma unroll 1
    for (int first = 0; first < count; first += kTogether) {
      const AmbiguousRow entry = soon;
      const int i = first + q, later = i + kTogether;
      float x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = centered<T, float>(next[e], middle[e]);
      if (first + kTogether < count) {
        soon = entries[later < count ? later : 0];
        load(X, soon.row, column, next);
      }
      const int to = nearest(x, centers, column, i < count ? k : 0, entry);
      __syncwarp();  // all lanes have read the entries
      if (i < count && column == 0) entries[i].low = (unsigned)to;
    }
    __syncwarp();
  }

 private:
  static constexpr int kLanes = row_lanes<kFeatures>(), kTogether = 32 / kLanes;

  template <typename Any>
  __device__ static __forceinline__ void load(const Any* rows, unsigned row, int column, Any (&to)[4]) {
    constexpr Past kPast = 4 * kLanes == kFeatures ? Past::kNone : Past::kZero;
    load_some<kFeatures, kPast>(reinterpret_cast<const unsigned char*>(rows + (long long)row * kFeatures), 0, column,
                                to);
  }

  // Returns ‖x − c‖², summed over the lanes of a row, each with four columns. All lanes of the row get the same bits.
  template <typename Sum>
  __device__ static __forceinline__ Sum square(const float (&x)[4], const float (&c)[4]) {
    Sum sum = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const Sum difference = (Sum)x[e] - (Sum)c[e];
      sum += difference * difference;
    }
#pragma unroll
    for (int bits = kLanes / 2; bits > 0; bits /= 2) sum += simt::shuffle_xor(sum, bits);
    return sum;
  }

  // Returns the nearest candidate of `entry`. Compares float32 distances first, as assign/rescore.cuh does. If k is 0,
  // the lane has no row.
  __device__ static __forceinline__ int nearest(const float (&x)[4], const float* centers, int column, int k,
                                                const AmbiguousRow& entry) {
    const bool all = (entry.low | entry.high) == 0;
    // Calls `take` for two candidates in turn, where k stands for no candidate. All lanes take part until no row has a
    // candidate left.
    const auto each_two = [&](auto take) {
      unsigned low = entry.low, high = entry.high;
      const auto after = [&](int j) { return j >= k ? k : all ? j + 1 : next_candidate(low, high, k); };
      int one = all || k == 0 ? 0 : next_candidate(low, high, k);
      while (__any_sync(simt::every_lane, one < k)) {
        const int other = after(one);
        float c[2][4];
        load(centers, one < k ? one : 0, column, c[0]);
        load(centers, other < k ? other : 0, column, c[1]);
        take(one, c[0]);
        take(other, c[1]);
        one = after(other);
      }
    };
    Surely surely;
    each_two([&](int j, const float (&c)[4]) {
      const float distance = square<float>(x, c);
      if (j < k) surely.take(distance, j);
    });
    // A lane adds up four columns here, as it does if a whole warp computes a distance of 32 · 4 columns. So the error
    // bound for 32 · 4 columns holds.
    const bool sure = k == 0 || surely.is_so(32 * 4);
    if (!__any_sync(simt::every_lane, !sure)) return surely.center;
    Distant nearest = {kInfinity, 0};
    each_two([&](int j, const float (&c)[4]) {
      const double distance = square<double>(x, c);
      if (j < k) nearest.take({distance, j});
    });
    return sure ? surely.center : nearest.center;
  }
};

// Calls `body` with the first row of each tile of this warp. After every kTurns tiles, all threads of the block call
// `between`. kTogether adjacent warps have equally many tiles. So the last tiles may begin past the last row, but below
// 2³².
template <int kTile, int kWarps, int kTurns, int kTogether = 1, typename Between, typename Body>
__device__ __forceinline__ void each_tile(unsigned n, Between between, Body body) {
  static_assert(kWarps % kTogether == 0, "warps that go together are of one block");
  const unsigned whole = n / kTile + (n % kTile != 0), tiles = (whole + kTogether - 1) / kTogether * kTogether;
  const unsigned together = gridDim.x * kWarps;
  unsigned tile = blockIdx.x * kWarps + threadIdx.x / 32;
  for (unsigned begin = blockIdx.x * kWarps; begin < tiles; begin += kTurns * together) {
    if (begin >= kTurns * together) between();
    const unsigned end = tiles - begin > kTurns * together ? begin + kTurns * together : tiles;
    for (; tile < end; tile += together) body(tile * kTile);
  }
}

}  // namespace kmeans
