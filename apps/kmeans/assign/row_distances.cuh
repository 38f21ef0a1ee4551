// Distances between a row of X and centers, and the nearest center: for kernels that rescore or check labels.
//
//   a row x, some centers  →  the center with the least ‖x − c‖² in float64; of equally near ones, the lowest index
//
// If the working type is float32, float32 distances come first. Their relative error is at most (d / 32 + 12)·2⁻²⁴,
// which certifies nearly all results. Conversions to float64 would limit the speed: a multiprocessor makes only 16 per
// clock.
//
// Why it is fast: a long row is split among the lanes of a warp. A short row takes only a *group* of kLanes lanes
// (lanes_of_row in data/plan.py), so a warp has several rows at a time; or, if it is compared with all centers, each
// lane has centers of its own.
#pragma once
#include "apps/kmeans/assign/error_bound.cuh"
#include "apps/kmeans/data/half_copy.cuh"
#include "kernels/device/simt.cuh"

namespace kmeans {

// The rows of X, their weights, and the mean to subtract from each row. `leading` is the distance between the starts of
// adjacent rows in elements.
template <typename T, typename Work>
struct CenteredRows {
  const T* X;
  long long leading;
  int d;
  const Work* mean;
  const Work* weights;  // null: all 1
};

// True if rows and centers can be loaded as vectors: all are aligned, and d is a whole number of vectors.
template <typename T, typename Work>
__device__ __forceinline__ bool is_whole_vectors(const CenteredRows<T, Work>& rows) {
  constexpr int kWide = kVector<Work>;
  return rows.d % kWide == 0 && rows.leading % kWide == 0 &&
         reinterpret_cast<unsigned long long>(rows.X) % (kWide * sizeof(T)) == 0;
}

// Adds to `sum` one thread's part of ‖x − c‖², for one row x and each center c listed in `which`. The features of a row
// are shared among kThreads threads.
template <int kThreads, typename Sum, int kCenters, typename T, typename Work>
__device__ __forceinline__ void add_square_differences(const CenteredRows<T, Work>& rows, const Work* centers,
                                                       long long row, const int (&which)[kCenters],
                                                       Sum (&sum)[kCenters]) {
  constexpr int kWide = kVector<Work>;
  const T* x = rows.X + row * rows.leading;
  auto add = [&](int c, Work one, Work of_center) {
    const Sum difference = (Sum)one - (Sum)of_center;
    sum[c] += difference * difference;
  };
  int begin = 0;
  if (is_whole_vectors(rows)) {
    begin = rows.d;
#pragma unroll(kThreads < 8 ? 1 : 4 / kCenters)
    for (int j = kWide * (threadIdx.x % kThreads); j < rows.d; j += kThreads * kWide) {
      const auto value = *reinterpret_cast<const simt::Vector<T, kWide>*>(x + j);
      const auto mean = *reinterpret_cast<const simt::Vector<Work, kWide>*>(rows.mean + j);
      simt::Vector<Work, kWide> center[kCenters];
#pragma unroll
      for (int c = 0; c < kCenters; ++c) {
        center[c] = *reinterpret_cast<const simt::Vector<Work, kWide>*>(centers + (long long)which[c] * rows.d + j);
      }
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const Work one = centered<T, Work>(value.at[i], mean.at[i]);
#pragma unroll
        for (int c = 0; c < kCenters; ++c) add(c, one, center[c].at[i]);
      }
    }
  }
#pragma unroll 1
  for (int j = begin + threadIdx.x % kThreads; j < rows.d; j += kThreads) {
    const Work one = centered<T, Work>(x[j], rows.mean[j]);
#pragma unroll
    for (int c = 0; c < kCenters; ++c) add(c, one, centers[(long long)which[c] * rows.d + j]);
  }
}

// Computes ‖x − c‖² of one row x and each center c listed in `which`. A group of kLanes lanes sums in type Sum, and all
// its lanes get the same bits. All groups of the warp take part, each for its own row.
template <int kLanes = 32, typename Sum, int kCenters, typename T, typename Work>
__device__ __forceinline__ void square_distances(const CenteredRows<T, Work>& rows, const Work* centers, long long row,
                                                 const int (&which)[kCenters], Sum (&squares)[kCenters]) {
  Sum sum[kCenters] = {};
  add_square_differences<kLanes>(rows, centers, row, which, sum);
#pragma unroll
  for (int c = 0; c < kCenters; ++c) {
    squares[c] = sum[c];
#pragma unroll
    for (int bits = kLanes / 2; bits > 0; bits /= 2) squares[c] += simt::shuffle_xor(squares[c], bits);
  }
}

// A center and its squared distance to a row. `take` replaces it by `other` if `other` is nearer, or if it is equally
// near and has a lower index.
struct Distant {
  double square;
  int center;

  __device__ __forceinline__ void take(const Distant& other) {
    if (other.square < square || (other.square == square && other.center < center)) *this = other;
  }
};

// The center with the smallest float32 squared distance to a row (`best`), and the second smallest distance (`next`).
struct Surely {
  float best = kInfinity, next = kInfinity;
  int center = 0;

  __device__ __forceinline__ void take(float square, int other) {
    next = fminf(next, fmaxf(best, square));
    if (square < best) best = square, center = other;
  }
  // Takes the two nearest centers of another set.
  __device__ __forceinline__ void take(const Surely& other) {
    take(other.best, other.center);
    next = fminf(next, other.next);
  }
  // True if `center` is certainly the nearest: `best` and `next` differ by more than twice the error of either. The
  // constant 1e-30 covers squares that are too small for this relative error.
  __device__ __forceinline__ bool is_so(int d) const {
    return next - best > next * ((float)(d / 32 + 16) / (1 << 23)) + 1e-30f;
  }
};

// Returns the nearest of a row's candidates; without candidates, returns `otherwise`. `pairs` calls its argument with
// two candidates at a time. The second candidate may repeat the first. `distances` computes the squared distances of
// two centers, in the type of its second argument and with the same bits in all threads that take part.
template <typename Work, typename Pairs, typename Distances>
__device__ __forceinline__ int nearest_by(const Distances& distances, int d, int otherwise, const Pairs& pairs) {
  if constexpr (sizeof(Work) == sizeof(float)) {
    Surely nearest;
    pairs([&](int first, int second) {
      float squares[2];
      distances({first, second}, squares);
      nearest.take(squares[0], first);
      if (second != first) nearest.take(squares[1], second);
    });
    if (nearest.is_so(d)) return nearest.center;
  }
  Distant nearest = {kInfinity, otherwise};
  pairs([&](int first, int second) {
    double squares[2];
    distances({first, second}, squares);
    nearest.take({squares[0], first});
    nearest.take({squares[1], second});
  });
  return nearest.center;
}

// As above, computed by a warp.
template <typename T, typename Work, typename Pairs>
__device__ __forceinline__ int nearest_of(const CenteredRows<T, Work>& rows, const Work* centers, long long row,
                                          int otherwise, const Pairs& pairs) {
  const auto distances = [&](const int (&which)[2], auto& squares) {
    square_distances(rows, centers, row, which, squares);
  };
  return nearest_by<Work>(distances, rows.d, otherwise, pairs);
}

// Returns the nearest of the `count` candidates of a row, for each group of kLanes lanes of a warp; without candidates,
// returns `otherwise`. `begin()` returns a function whose every call returns the next candidate, and after the last one
// any center. kCenters candidates are compared at a time.
template <int kLanes, int kCenters, typename T, typename Work, typename Begin>
__device__ __forceinline__ int nearest_of_group(const CenteredRows<T, Work>& rows, const Work* centers, long long row,
                                                int count, int otherwise, const Begin& begin) {
  int most = count;
#pragma unroll
  for (int bits = kLanes; bits < 32; bits *= 2) {
    const int other = simt::shuffle_xor(most, bits);
    most = other > most ? other : most;
  }
  Surely surely;
  if constexpr (sizeof(Work) == sizeof(float)) {
    auto next = begin();
#pragma unroll 1
    for (int j = 0; j < most; j += kCenters) {
      int which[kCenters];
      float squares[kCenters];
#pragma unroll
      for (int c = 0; c < kCenters; ++c) which[c] = next();
      square_distances<kLanes>(rows, centers, row, which, squares);
#pragma unroll
      for (int c = 0; c < kCenters; ++c) {
        if (j + c < count) surely.take(squares[c], which[c]);
      }
    }
    if (count == 0) surely = {0, 1, otherwise};
    if (__all_sync(simt::every_lane, surely.is_so(rows.d))) return surely.center;
  }
  Distant nearest = {kInfinity, otherwise};
  auto next = begin();
#pragma unroll 1
  for (int j = 0; j < most; j += 2) {
    int which[2];
    double squares[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) which[c] = next();
    square_distances<kLanes>(rows, centers, row, which, squares);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      if (j + c < count) nearest.take({squares[c], which[c]});
    }
  }
  return sizeof(Work) == sizeof(float) && surely.is_so(rows.d) ? surely.center : nearest.center;
}

// Returns the nearest of all centers to a short row, by a warp; −1 if float32 does not certify it. Each lane computes
// the distances to every 32nd center.
template <typename T>
__device__ __forceinline__ int nearest_of_every(const CenteredRows<T, float>& rows, const float* centers, int k,
                                                long long row) {
  constexpr int kWide = kVector<float>;
  const T* x = rows.X + row * rows.leading;
  Surely mine;
#pragma unroll 1
  for (int center = threadIdx.x % 32; center < k; center += 32) {
    const float* c = centers + (long long)center * rows.d;
    float sums[kWide] = {};
    const auto add = [&](float one, float other, float& sum) {
      const float difference = one - other;
      sum = fmaf(difference, difference, sum);
    };
    int j = 0;
    if (is_whole_vectors(rows)) {
#pragma unroll 2
      for (; j < rows.d; j += kWide) {
        const auto value = *reinterpret_cast<const simt::Vector<T, kWide>*>(x + j);
        const auto mean = *reinterpret_cast<const simt::Vector<float, kWide>*>(rows.mean + j);
        const auto of_center = *reinterpret_cast<const simt::Vector<float, kWide>*>(c + j);
#pragma unroll
        for (int i = 0; i < kWide; ++i) add(centered<T, float>(value.at[i], mean.at[i]), of_center.at[i], sums[i]);
      }
    }
    for (; j < rows.d; ++j) add(centered<T, float>(x[j], rows.mean[j]), c[j], sums[0]);
    mine.take((sums[0] + sums[1]) + (sums[2] + sums[3]), center);
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    const Surely other = {simt::shuffle_xor(mine.best, bits), simt::shuffle_xor(mine.next, bits),
                          simt::shuffle_xor(mine.center, bits)};
    mine.take(other);
  }
  return mine.is_so(32 * rows.d) ? mine.center : -1;  // a lane adds d terms, 32 times as many as elsewhere
}

}  // namespace kmeans
