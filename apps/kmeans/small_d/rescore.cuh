// What kernels that read few features from X itself have in common: the tiles of a warp, how rows are loaded, and how
// those are decided that several centers may be nearest to.
//
//   tiles     of kTile rows; those of a block's warps lie one after the other, those of the next turn a whole grid
//             further on
#pragma once
#include "apps/kmeans/assign/rescore.cuh"
#include "apps/kmeans/update/fixed_point.cuh"
#include "kernels/device/warp_queue.cuh"

namespace kmeans {

// Subtracted from the threshold, so that it is never zero: next to zero, scores differ by less than 1 / kLarge, and one
// above the threshold by so little would add a part of its bit. The bound has room for it: 2⁻⁴⁰ (place_constants,
// small_d_error_bound).
constexpr float kLeast = (float)(1 << 26);
// A float whose last places are a mask, with no bit set.
constexpr float kNoBits = (float)(1 << 23);
#define kNoBitsAsInteger 0x4b000000u

// The elements of a row that one load has: 16 bytes, or kMost elements, where rows are whole ones.
template <typename T, int kFeatures, int kMost = 16 / sizeof(T)>
constexpr int vector_width() {
  int wide = kMost;
  while (kFeatures % wide) wide /= 2;
  return wide;
}

// Loads a row; `swizzle` is combined with a byte's place in it, by exclusive or (TilePipeline).
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

// What load_some gives of columns past the last, where there may be any: zero, or what the row has elsewhere.
enum class Past { kNone, kZero, kAny };

// Some columns of a row, from `column` on: two or four.
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

// Two elements of 16 bits as a word of a product's operand.
template <typename T>
__device__ __forceinline__ unsigned word_of(T lower, T upper) {
  return lower.bits | (unsigned)upper.bits << 16;
}

// ‖x − c‖² in Sum of a row of X, by one thread, in the order of features.
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

// The nearest of a row's candidates, or of all centers if it has none: the first of equals. In float32 first, as in
// assign/rescore.cuh: a square is off by (d + 3)·2⁻²⁴ of itself at most.
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

// Lanes that share a row, four columns each: the power of two that has room for it.
template <int kFeatures>
constexpr int row_lanes() {
  int lanes = 1;
  while (4 * lanes < kFeatures) lanes *= 2;
  return lanes;
}

// Bytes from where the block's shared memory begins: a pointer that is handed on would be to any memory.
__device__ __forceinline__ int shared_place(const void* at) {
  return (int)(static_cast<const unsigned char*>(at) - simt::dynamic_shared<unsigned char>());
}

// The same of a few rows, by a warp: a row by as many lanes as share it, two candidates at a time, while the next rows
// are on their way. A lane by itself would take 64 columns of a candidate at the latency of a cache each time, and for
// a warp's last rows the whole kernel waits; of 32 rows it is instructions that count, and they are a third as many by
// a lane each.
template <typename T, int kFeatures>
class CooperativeRescore {
 public:
  // Of up to 32 entries at a place in shared memory the lower half becomes the nearest of the candidates, or of all
  // centers where there are none: the first of equals. A call of its own, for the registers of the loop of tiles.
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
      __syncwarp();  // entries are read that are now written
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

  // ‖x − c‖², where a lane has four columns; in each of a row's lanes the same.
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

  // In float32 first, as in assign/rescore.cuh; of no row if k is 0.
  __device__ static __forceinline__ int nearest(const float (&x)[4], const float* centers, int column, int k,
                                                const AmbiguousRow& entry) {
    const bool all = (entry.low | entry.high) == 0;
    // Calls `take` of pairs of candidates, and of k where there is none; by all lanes, as often as any row has some
    // left.
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
    // A lane adds up four of them.
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

// What the warps of a block do with their tiles: `body` of a tile's first row. `between` is called by all threads of
// the block, before any warp has more than kTurns tiles since the last time. kTogether warps, neighbours, have as many
// tiles as each other, of which the last may begin past the end. That is below 2³², wherever they begin.
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
