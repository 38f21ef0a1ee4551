// The rows that `small_k.cuh` could not decide: the nearest of their candidates.
//
//   entries   a list for each block of that kernel: a row, its label, and the centers that can be its nearest
//   X         the rows themselves (n × d, any dtype), of which only these are read
//
// A row with several candidates keeps the one at the least distance, the first of equals; distances are summed in
// float64, from differences, so that a label is the float64 arg-min. A row with no candidate (its scores were no
// numbers) is compared with every center.
//
// Why it is fast: of float32, distances are summed in float32 first. They are off by (d / 32 + 12)·2⁻²⁴ of themselves
// at most, a thousandth of what left the row undecided (long rows of 16 bits: about as much, but few are), so that
// nearly all rows are decided by that; float64 would be bound by converting to it, a quarter of a thread's clock each.
// While a row is decided, the next one that has to be is on its way to the level-2 cache, and so are the entries after
// the next.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/data/half_copy.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/memory.cuh"

namespace kmeans {

// What is read of X.
template <typename T, typename Work>
struct Rows {
  const T* X;
  long long leading;
  int d;
  const Work* mean;
  const Work* weights;  // null: all 1
};

// The most entries that a warp takes at a time.
constexpr int kMostEntries = 32;

// Takes a candidate; k if there is none left.
__device__ __forceinline__ int next_candidate(unsigned& low, unsigned& high, int k) {
  if ((low | high) == 0) return k;
  const int center = first_center(low, high);
  if (low)
    low &= low - 1;
  else
    high &= high - 1;
  return center;
}

// ‖x − c‖² of a row and some centers in Sum, by a warp: the same bits in every lane.
template <typename Sum, int kCenters, typename T, typename Work>
__device__ __forceinline__ void square_distances(const Rows<T, Work>& rows, const Work* centers, long long row,
                                                 const int (&which)[kCenters], Sum (&squares)[kCenters]) {
  constexpr int kWide = kVector<Work>;
  const T* x = rows.X + row * rows.leading;
  Sum sum[kCenters] = {};
  auto add = [&](int c, Work one, Work of_center) {
    const Sum difference = (Sum)one - (Sum)of_center;
    sum[c] += difference * difference;
  };
  int begin = 0;
  // Whole vectors, where every row and center begins with one.
  if (rows.d % kWide == 0 && rows.leading % kWide == 0 &&
      reinterpret_cast<unsigned long long>(rows.X) % (kWide * sizeof(T)) == 0) {
    begin = rows.d;
#pragma unroll(4 / kCenters)
    for (int j = kWide * (threadIdx.x % 32); j < rows.d; j += 32 * kWide) {
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
  for (int j = begin + threadIdx.x % 32; j < rows.d; j += 32) {
    const Work one = centered<T, Work>(x[j], rows.mean[j]);
#pragma unroll
    for (int c = 0; c < kCenters; ++c) add(c, one, centers[(long long)which[c] * rows.d + j]);
  }
#pragma unroll
  for (int c = 0; c < kCenters; ++c) squares[c] = simt::warp_sum(sum[c]);
}

// A center and how far it is; the nearer of two, the first of equals.
struct Distant {
  double square;
  int center;

  __device__ __forceinline__ void take(const Distant& other) {
    if (other.square < square || (other.square == square && other.center < center)) *this = other;
  }
};

// The nearest by distances in float32, and the next: whether the first is so for certain.
struct Surely {
  float best = kInfinity, next = kInfinity;
  int center = 0;

  __device__ __forceinline__ void take(float square, int other) {
    next = fminf(next, fmaxf(best, square));
    if (square < best) best = square, center = other;
  }
  // By twice what either is off by; and squares may be too small to be as exact.
  __device__ __forceinline__ bool is_so(int d) const {
    return next - best > next * ((float)(d / 32 + 16) / (1 << 23)) + 1e-30f;
  }
};

// The nearest of a row's candidates, by a warp. `pairs` calls what it is given with two of them at a time, of which the
// second may be the first again; if there is none, the label is `otherwise`.
template <typename T, typename Work, typename Pairs>
__device__ __forceinline__ int nearest_of(const Rows<T, Work>& rows, const Work* centers, long long row, int otherwise,
                                          const Pairs& pairs) {
  if constexpr (sizeof(Work) == sizeof(float)) {
    Surely nearest;
    pairs([&](int first, int second) {
      float squares[2];
      square_distances(rows, centers, row, {first, second}, squares);
      nearest.take(squares[0], first);
      if (second != first) nearest.take(squares[1], second);
    });
    if (nearest.is_so(rows.d)) return nearest.center;
  }
  Distant nearest = {kInfinity, otherwise};
  pairs([&](int first, int second) {
    double squares[2];
    square_distances(rows, centers, row, {first, second}, squares);
    nearest.take({squares[0], first});
    nearest.take({squares[1], second});
  });
  return nearest.center;
}

// Block (x, y): part y of list x. Leaves one candidate in every entry.
template <typename T, typename Work>
__global__ void __launch_bounds__(256, 3)
    rescore(const Rows<T, Work> rows, const Work* centers, int k, AmbiguousRow* entries, const unsigned* counts,
            long long capacity, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  AmbiguousRow* list = entries + blockIdx.x * capacity;
  const unsigned count = counts[blockIdx.x], warps = blockDim.x / 32 * gridDim.y, lane = threadIdx.x % 32;
  const unsigned even = (count + warps - 1) / warps, each = even < kMostEntries ? even : kMostEntries;
  // This lane's entry of those that begin there; past the last, one that is decided.
  auto entry_of = [&](unsigned begin) {
    return lane < each && begin < count && begin + lane < count ? list[begin + lane] : AmbiguousRow{0, 0, 1, 0};
  };
  auto ambiguous = [&](const AmbiguousRow& entry) {
    return __ballot_sync(simt::every_lane, __popc(entry.low) + __popc(entry.high) != 1);
  };
  // Asks for the row that is the first of some to be decided, for it to be in the level-2 cache.
  auto ask_for = [&](const AmbiguousRow& entry, unsigned waiting) {
    if (waiting == 0) return;
    const long long row = simt::shuffle(entry.row, __ffs(waiting) - 1);
    const char* x = reinterpret_cast<const char*>(rows.X + row * rows.leading);
    for (long long byte = 128 * lane; byte < rows.d * (long long)sizeof(T); byte += 32 * 128) ptx::prefetch(x + byte);
  };
  const unsigned start = (blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) * each;
  AmbiguousRow soon = entry_of(start), later = entry_of(start + warps * each);
  for (unsigned begin = start; begin < count; begin += warps * each) {
    AmbiguousRow mine = soon;
    soon = later;
    ask_for(soon, ambiguous(soon));
    later = entry_of(begin + 2 * warps * each);
    for (unsigned waiting = ambiguous(mine); waiting;) {
      const int one = __ffs(waiting) - 1;
      waiting &= waiting - 1;
      ask_for(mine, waiting);
      const unsigned row = simt::shuffle(mine.row, one);
      const unsigned every_low = simt::shuffle(mine.low, one), every_high = simt::shuffle(mine.high, one);
      const bool all = (every_low | every_high) == 0;
      const int label = nearest_of(rows, centers, row, 0, [&](auto take) {
        unsigned low = every_low, high = every_high;
        auto next = [&](int center) { return all ? center + 1 : next_candidate(low, high, k); };
        for (int first = all ? 0 : next(0); first < k; first = next(first)) {
          const int second = next(first);
          take(first, second < k ? second : first);
          if (all) ++first;
        }
      });
      if ((int)lane != one) continue;
      const int bit = bit_of_center((unsigned)label);
      mine.low = bit < 32 ? 1u << bit : 0;
      mine.high = bit < 32 ? 0 : 1u << (bit - 32);
      list[begin + lane] = mine;
    }
  }
}

}  // namespace kmeans
