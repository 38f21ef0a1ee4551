// Rescoring of ambiguous rows (small_k.cuh): the arg-min over their candidate centers, by float64 distances.
//
// entries  one list per block of the GEMM; an entry has a row, its label, and its candidate centers
// X        the rows (n × d, any dtype); only ambiguous rows are read
//
// The candidate with the smallest distance becomes the label; of equally near candidates, the one with the lowest
// index. Distances are float64 sums of squared differences, so a label is the float64 arg-min. A row has no candidates
// if its scores are NaN or its norm is above norm_limit. Such a row is compared with every center.
//
// Why it is fast: if the working type is float32, a warp first sums distances in float32. Their relative error is at
// most (d / 32 + 12)·2⁻²⁴, about a thousandth of the score error bound that made the row ambiguous. So float32
// certifies nearly all labels. (For large d and 16-bit types, the float32 error is about as large as the score error
// bound, but few rows are ambiguous.) Conversions to float64 would limit the speed: a multiprocessor makes only 16 per
// clock. Short rows take only a *group* of kLanes lanes each (lanes_of_row in data/plan.py), so a warp rescores several rows
// at a time. Meanwhile, it prefetches its next ambiguous rows to L2. It loads list entries two batches ahead.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/data/half_copy.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/memory.cuh"

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

// Maximum number of list entries in a batch: a warp processes one batch at a time.
constexpr int kMostEntries = 32;

// Removes the lowest candidate bit and returns its center; returns k if no bit is set.
__device__ __forceinline__ int next_candidate(unsigned& low, unsigned& high, int k) {
  if ((low | high) == 0) return k;
  const int center = first_center(low, high);
  if (low)
    low &= low - 1;
  else
    high &= high - 1;
  return center;
}

// Computes ‖x − c‖² of one row x and each center c listed in `which`. A group of kLanes lanes sums in type Sum, and all
// its lanes get the same bits. All groups of the warp take part, each for its own row.
template <int kLanes = 32, typename Sum, int kCenters, typename T, typename Work>
__device__ __forceinline__ void square_distances(const CenteredRows<T, Work>& rows, const Work* centers, long long row,
                                                 const int (&which)[kCenters], Sum (&squares)[kCenters]) {
  constexpr int kWide = kVector<Work>;
  const T* x = rows.X + row * rows.leading;
  Sum sum[kCenters] = {};
  auto add = [&](int c, Work one, Work of_center) {
    const Sum difference = (Sum)one - (Sum)of_center;
    sum[c] += difference * difference;
  };
  int begin = 0;
  // Uses vector loads if all rows and centers are aligned and d is a whole number of vectors.
  if (rows.d % kWide == 0 && rows.leading % kWide == 0 &&
      reinterpret_cast<unsigned long long>(rows.X) % (kWide * sizeof(T)) == 0) {
    begin = rows.d;
#pragma unroll(4 / kCenters)
    for (int j = kWide * (threadIdx.x % kLanes); j < rows.d; j += kLanes * kWide) {
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
  for (int j = begin + threadIdx.x % kLanes; j < rows.d; j += kLanes) {
    const Work one = centered<T, Work>(x[j], rows.mean[j]);
#pragma unroll
    for (int c = 0; c < kCenters; ++c) add(c, one, centers[(long long)which[c] * rows.d + j]);
  }
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

// Returns the nearest of a row's candidates, computed by a warp; without candidates, returns `otherwise`. `pairs` calls
// its argument with two candidates at a time. The second candidate may repeat the first.
template <typename T, typename Work, typename Pairs>
__device__ __forceinline__ int nearest_of(const CenteredRows<T, Work>& rows, const Work* centers, long long row,
                                          int otherwise, const Pairs& pairs) {
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

// Returns the position of set bit number n of a mask, counted from 0; at most 31 if the mask has fewer bits.
__device__ __forceinline__ int bit_number(unsigned mask, int n) {
  int position = 0;
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    const int below = __popc(mask >> position & ((1u << half) - 1));
    if (below <= n) n -= below, position += half;
  }
  return position;
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

// Rescores the ambiguous rows. Block (x, y) processes part y of list x. In each entry, it replaces the candidates by
// one candidate, the new label.
template <typename T, typename Work, int kLanes>
__global__ void __launch_bounds__(256, 3)
    rescore(const CenteredRows<T, Work> rows, const Work* centers, int k, AmbiguousRow* entries, const unsigned* counts,
            long long capacity, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  constexpr int kGroups = 32 / kLanes;
  AmbiguousRow* list = entries + blockIdx.x * capacity;
  const unsigned count = counts[blockIdx.x], warps = blockDim.x / 32 * gridDim.y, lane = threadIdx.x % 32;
  const unsigned even = (count + warps - 1) / warps, each = even < kMostEntries ? even : kMostEntries;
  const int group = lane / kLanes;
  // Returns this lane's entry of the batch that starts at `begin`. Past the end of the list, returns an entry with one
  // candidate, which needs no rescoring.
  auto entry_of = [&](unsigned begin) {
    return lane < each && begin < count && begin + lane < count ? list[begin + lane] : AmbiguousRow{0, 0, 1, 0};
  };
  auto ambiguous = [&](const AmbiguousRow& entry) {
    return __ballot_sync(simt::every_lane, __popc(entry.low) + __popc(entry.high) != 1);
  };
  // Prefetches to L2 the first row of each group. `waiting` has a bit for each entry that is still to be rescored.
  auto ask_for = [&](const AmbiguousRow& entry, unsigned waiting) {
    if (waiting == 0) return;
    const long long row = simt::shuffle(entry.row, bit_number(waiting, group));
    const char* x = reinterpret_cast<const char*>(rows.X + row * rows.leading);
    const int bytes = group < __popc(waiting) ? rows.d * (int)sizeof(T) : 0;
    for (int byte = 128 * (lane % kLanes); byte < bytes; byte += kLanes * 128) ptx::prefetch(x + byte);
  };
  const unsigned start = (blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32) * each;
  AmbiguousRow soon = entry_of(start), later = entry_of(start + warps * each);
  for (unsigned begin = start; begin < count; begin += warps * each) {
    AmbiguousRow mine = soon;
    soon = later;
    ask_for(soon, ambiguous(soon));
    later = entry_of(begin + 2 * warps * each);
    for (unsigned waiting = ambiguous(mine); waiting;) {
      const bool present = group < __popc(waiting);
      const int one = bit_number(waiting, group), place = __popc(waiting & ((1u << lane) - 1));
      const bool is_mine = waiting >> lane & 1 && place < kGroups;
      waiting = __popc(waiting) <= kGroups ? 0 : waiting & ~0u << bit_number(waiting, kGroups);
      ask_for(mine, waiting);
      const unsigned row = simt::shuffle(mine.row, one);
      const unsigned every_low = simt::shuffle(mine.low, one), every_high = simt::shuffle(mine.high, one);
      const bool all = (every_low | every_high) == 0;
      const int candidates = !present ? 0 : all ? k : __popc(every_low) + __popc(every_high);
      const int nearest = nearest_of_group<kLanes, 2>(rows, centers, row, candidates, 0, [&] {
        return [all, low = every_low, high = every_high, center = 0, k]() mutable {
          const int next = all ? center++ : next_candidate(low, high, k);
          return next < k ? next : 0;
        };
      });
      const int label = simt::shuffle(nearest, place % kGroups * kLanes);
      if (!is_mine) continue;
      const int bit = bit_of_center((unsigned)label);
      mine.low = bit < 32 ? 1u << bit : 0;
      mine.high = bit < 32 ? 0 : 1u << (bit - 32);
      list[begin + lane] = mine;
    }
  }
}

}  // namespace kmeans
