// Squared distances ‖x − p‖² of rows x to a few points p. Each row is split among a group of kLanes lanes.
//
//   x (kRows rows of d elements)      in global memory; each element is read once
//   points (kPoints × width)          in shared or global memory
//   at[r][h]                          in each lane of a group: ‖x_r − p‖² of point p = first_point() + h
//
// Distances are sums of squared differences, so never negative. Sums are in type T. For large d, sums of 1024 columns
// are in T, and a sum in double adds them. The order of additions does not depend on the number of points or rows, and
// squares are rounded before they are added, so a distance has the same bits in every kernel, and in NumPy
// (plusplus_order.py).
//
// Why it is fast: a lane uses each loaded point for kRows rows. The reduction over a group leaves each lane with the
// sums of a part of the points. If every lane received the sums of all points, it would take three times the shuffles.
#pragma once
#include "kernels/ptx/memory.cuh"
#include "kernels/device/simt.cuh"

namespace kmeans {

// If lanes load one vector of each row at a time, a lane prefetches to L2 the vector that it will load kAhead vectors
// later.
constexpr int kAhead = 4;
// For large d, a row is split among a whole warp. kInterval is the maximum number of columns that one sum in T covers.
constexpr int kInterval = 1024;

// The type of accumulated squared distances: double for large d (kLong), otherwise T.
template <typename T, bool kLong>
struct Total {
  using type = T;
};
template <typename T>
struct Total<T, true> {
  using type = double;
};

// Computes squared distances. Every lane first sums the squares of its columns for all points; it loads kTogether
// vectors of each row at a time. After the reduction over the lanes of a row, a lane has the complete sums of kHeld
// points, from `first_point` on.
template <typename T, int kPoints, int kRows, int kLanes, bool kAligned, int kTogether = 1>
class Distances {
 public:
  static constexpr bool kLong = kLanes == 32;
  static constexpr int kOfRow = kLanes;  // number of lanes among which a row is split
  static constexpr int kWide = kAligned ? 16 / (int)sizeof(T) : 1;
  // Number of lanes of a row that receive the sums of different points: a power of two.
  static constexpr int taking() {
    int lanes = 1;
    while (lanes < kLanes && lanes < kPoints) lanes *= 2;
    return lanes;
  }
  static constexpr int kAlike = kLanes / taking(), kHeld = (kPoints + taking() - 1) / taking();

  typename Total<T, kLong>::type at[kRows][kHeld] = {};

  static __device__ __forceinline__ int member() { return simt::lane() & (kLanes - 1); }
  static __device__ __forceinline__ int first_point() { return member() / kAlike * kHeld; }

  // Adds the squared differences of columns begin … end − 1. `points` points to column `begin` of the first point; the
  // next point is `width` elements later. Near the end of a row x, prefetches the start of the row at x + below, unless
  // `below` is 0.
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
        if (kTogether == 1) {
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
                sums[r][p] += simt::rounded_product(delta, delta);
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

  // Reduces `sums` over the lanes of a row, in an order that does not depend on the number of points. While a lane has
  // sums of several points, it exchanges half of them with another lane.
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
