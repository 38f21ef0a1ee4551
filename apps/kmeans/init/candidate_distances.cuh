// Squared distances of rows to a few points, Σ (x − p)², by groups of lanes that share a row.
//
//   x (kRows rows of d elements)      read once, in place
//   points (kPoints × width)          in shared or global memory
//   at[r][h]                          ‖x_r − p‖² of point p = first_point() + h, in each of a row's kLanes lanes
//
// Distances are sums of squared differences in T, so never negative. For large d, T adds up 1024 columns at a time, and
// double adds up these sums. The order of additions does not depend on the number of points or rows, so a distance has
// the same bits wherever it is computed.
//
// Why it is fast: one load of a point is used for kRows rows. The reduction over lanes leaves each lane with the sums
// of its own points; kPoints sums in every lane would take three times the shuffles.
#pragma once
#include "kernels/ptx/memory.cuh"
#include "kernels/device/simt.cuh"

namespace kmeans {

// kTogether: vectors of each row that a lane loads at a time. kAhead: a lane prefetches to L2 the vector that it loads
// this many vectors later (0: none).
constexpr int kTogether = 1, kAhead = 4;
// For large d, a whole warp shares a row, and T accumulates squares over intervals of at most this many columns.
constexpr int kInterval = 1024;

// The accumulation type of squared distances.
template <typename T, bool kLong>
struct Total {
  using type = T;
};
template <typename T>
struct Total<T, true> {
  using type = double;
};

// Every lane adds up the squares of its columns; then each lane has the sums of kHeld points, from `first_point` on.
template <typename T, int kPoints, int kRows, int kLanes, bool kAligned>
class Distances {
 public:
  static constexpr bool kLong = kLanes == 32;
  static constexpr int kOfRow = kLanes;  // lanes that share a row
  static constexpr int kWide = kAligned ? 16 / (int)sizeof(T) : 1;
  // Number of lanes that end with different points: a power of two.
  static constexpr int taking() {
    int lanes = 1;
    while (lanes < kLanes && lanes < kPoints) lanes *= 2;
    return lanes;
  }
  static constexpr int kAlike = kLanes / taking(), kHeld = (kPoints + taking() - 1) / taking();

  typename Total<T, kLong>::type at[kRows][kHeld] = {};

  static __device__ __forceinline__ int member() { return simt::lane() & (kLanes - 1); }
  static __device__ __forceinline__ int first_point() { return member() / kAlike * kHeld; }

  // Adds columns begin … end − 1. `points` starts at column `begin`; points are `width` elements apart. Near the end of
  // a row, prefetches the row `below` elements further on, unless `below` is 0.
  __device__ __forceinline__ void add(const T* const (&x)[kRows], const T* points, int width, int begin, int end, int d,
                                      long long below) {
    for (int part = begin; part < end; part += kInterval) {
      const int stop = kLong && part + kInterval < end ? part + kInterval : end;
      T sums[kRows][kPadded] = {};
#pragma unroll 1
      for (int j = part + kWide * member(); j < stop; j += kTogether * kStep) {
        simt::Vector<T, kWide> some[kTogether][kRows] = {};
#pragma unroll
        for (int u = 0; u < kTogether; ++u)
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            if (j + u * kStep < stop) some[u][r] = simt::load_streaming<kWide>(x[r] + j + u * kStep);
          }
        if (kAhead > 0) {
#pragma unroll
          for (int u = 0; u < kTogether; ++u) {
            const int here = j + u * kStep, later = here + kAhead * kStep;
            const long long soon = later < d ? later : below + (later - d < d ? later - d : here);
            if ((later >= d && below == 0) || here >= stop) continue;
#pragma unroll
            for (int r = 0; r < kRows; ++r) ptx::prefetch(x[r] + soon);
          }
        }
#pragma unroll
        for (int u = 0; u < kTogether; ++u) {
          if (j + u * kStep >= stop) continue;
#pragma unroll
          for (int p = 0; p < kPoints; ++p) {
            const T* from = points + p * width + (j + u * kStep - begin);
            const auto point = *reinterpret_cast<const simt::Vector<T, kWide>*>(from);
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
              for (int i = 0; i < kWide; ++i) {
                const T delta = some[u][r].at[i] - point.at[i];
                sums[r][p] += delta * delta;
              }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        share<kLanes / 2>(sums[r]);
#pragma unroll
        for (int h = 0; h < kHeld; ++h) at[r][h] = kLong ? at[r][h] + sums[r][h] : sums[r][h];
      }
      if (!kLong) return;
    }
  }

 private:
  static constexpr int kPadded = kHeld * taking(), kStep = kWide * kLanes;

  // Reduces over the lanes of a row, in an order that does not depend on the points. A lane with several sums sends one
  // half of them to another lane.
  template <int kBits>
  static __device__ __forceinline__ void share(T (&sums)[kPadded]) {
    if constexpr (kBits >= kAlike) {
      constexpr int kHalf = kHeld * kBits / kAlike;
      const bool upper = member() & kBits;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const T low = sums[i], high = sums[kHalf + i];
        sums[i] = (upper ? high : low) + simt::shuffle_xor(upper ? low : high, kBits);
      }
    } else if constexpr (kBits > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) sums[i] += simt::shuffle_xor(sums[i], kBits);
    }
    if constexpr (kBits > 1) share<kBits / 2>(sums);
  }
};

}  // namespace kmeans
