// Rescoring of ambiguous rows (small_k.cuh): the arg-min over their candidate centers, by float64 distances.
//
// entries  one list per block of the GEMM; an entry has a row, its label, and its candidate centers
// X        the rows (n × d, any dtype); only ambiguous rows are read
//
// The candidate with the smallest distance becomes the label; of equally near candidates, the one with the lowest
// index. Distances are float64 sums of squared differences, so a label is the float64 arg-min. A row has no candidates
// if its scores are NaN or its norm is above norm_limit. Such a row is compared with every center.
//
// Why it is fast: float32 distances certify nearly all labels (row_distances.cuh), because their error is about a
// thousandth of the score error bound that made the row ambiguous. (For large d and 16-bit types, it is about as large,
// but few rows are ambiguous.) A warp has several short rows at a time. Meanwhile, it prefetches its next ambiguous
// rows to L2. It loads list entries two batches ahead.
#pragma once
#include "apps/kmeans/assign/row_distances.cuh"
#include "apps/kmeans/assign/small_k.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/memory.cuh"

namespace kmeans {

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

// Returns the nearest of the candidates of this lane's entry, `mine`, if it is `waiting` and float32 distances certify
// the result; −1 otherwise. Groups of kRowLanes lanes compare a row each, so that a warp has many rows at a time.
template <int kRowLanes, typename T>
__device__ __forceinline__ int surely_nearest(const CenteredRows<T, float>& rows, const float* centers, int k,
                                              const AmbiguousRow& mine, unsigned waiting) {
  constexpr int kRowsAtOnce = 32 / kRowLanes;
  const int lane = threadIdx.x % 32, number = __popc(waiting);
  const int own = waiting >> lane & 1 ? __popc(waiting & ((1u << lane) - 1)) : -32;
  int label = -1;
#pragma unroll 1
  for (int first = 0; first < number; first += kRowsAtOnce) {
    const bool present = first + lane / kRowLanes < number;
    const int one = simt::bit_number(waiting, first + lane / kRowLanes) % 32;
    const unsigned row = simt::shuffle(mine.row, one);
    unsigned low = simt::shuffle(mine.low, one), high = simt::shuffle(mine.high, one);
    if (!present) low = high = 0;
    Surely nearest;
#pragma unroll 1
    while (__any_sync(simt::every_lane, (low | high) != 0)) {
      const int center = next_candidate(low, high, k), other = next_candidate(low, high, k);
      float squares[2];
      square_distances<kRowLanes>(rows, centers, row, {center < k ? center : 0, other < k ? other : 0}, squares);
      if (center < k) nearest.take(squares[0], center);
      if (other < k) nearest.take(squares[1], other);
    }
    // A lane adds d / kRowLanes terms.
    const int sure = nearest.is_so(32 / kRowLanes * rows.d) ? nearest.center : -1;
    const int found = simt::shuffle(sure, (own - first) * kRowLanes & 31);
    if (first <= own && own < first + kRowsAtOnce) label = found;
  }
  return label;
}

// Rescores the ambiguous rows among `count` entries, by all threads of a block. In each entry, it replaces the
// candidates by one candidate, the new label.
template <typename T, typename Work, int kLanes>
__device__ __forceinline__ void rescore_list(const CenteredRows<T, Work>& rows, const Work* centers, int k,
                                             AmbiguousRow* list, unsigned count) {
  constexpr int kGroups = 32 / kLanes;
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
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
  // Prefetches the first rows to L2: long rows one at a time, by all lanes; otherwise all, each by its own lane.
  // `waiting` has a bit for each entry that is still to be rescored.
  auto ask_for = [&](const AmbiguousRow& entry, unsigned waiting) {
    if (waiting == 0) return;
    const bool is_mine = waiting >> lane & 1;
    const long long row = kGroups > 1 ? entry.row : simt::shuffle(entry.row, __ffs(waiting) - 1);
    const char* x = reinterpret_cast<const char*>(rows.X + row * rows.leading);
    const int bytes = rows.d * (int)sizeof(T), step = kGroups > 1 ? 128 : 32 * 128;
    for (int byte = kGroups > 1 ? 0 : 128 * lane; byte < bytes && (is_mine || kGroups == 1); byte += step)
      ptx::prefetch(x + byte);
    if (kGroups > 1 && is_mine) ptx::prefetch(x + bytes - 1);
  };
  const unsigned start = threadIdx.x / 32 * each;
  AmbiguousRow soon = entry_of(start), later = entry_of(start + warps * each);
  if (kGroups > 1) ask_for(soon, ambiguous(soon));
  for (unsigned begin = start; begin < count; begin += warps * each) {
    AmbiguousRow mine = soon;
    soon = later;
    ask_for(soon, ambiguous(soon));
    later = entry_of(begin + 2 * warps * each);
    const unsigned listed = ambiguous(mine);
    unsigned waiting = listed;
    int label = 0;  // of this lane's entry
    if constexpr (kGroups > 1 && sizeof(Work) == sizeof(float)) {
      unsigned with_all = waiting & __ballot_sync(simt::every_lane, (mine.low | mine.high) == 0);
      for (; with_all; with_all &= with_all - 1) {
        const int one = __ffs(with_all) - 1;
        const int found = nearest_of_every(rows, centers, k, simt::shuffle(mine.row, one));
        if (found >= 0) waiting &= ~(1u << one);
        if ((int)lane == one) label = found;
      }
    }
    if constexpr (kGroups > 1 && kLanes >= 4 && sizeof(Work) == sizeof(float)) {
      const int found = surely_nearest<kLanes / 4>(rows, centers, k, mine, waiting);
      if (found >= 0) label = found;
      waiting &= ~__ballot_sync(simt::every_lane, found >= 0);
    }
    // Waiting entries are numbered. This lane's entry is number `own`; entry number `lane` is that of lane `source`.
    const int number = __popc(waiting), source = simt::bit_number(waiting, lane);
    const int own = waiting >> lane & 1 ? __popc(waiting & ((1u << lane) - 1)) : -32;
#pragma unroll 1
    for (int first = 0; first < number; first += kGroups) {
      if (kGroups == 1) ask_for(mine, waiting &= waiting - 1);
      const bool present = first + group < number;
      const int one = simt::shuffle(source, (first + group) % 32);
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
      const int found = simt::shuffle(nearest, (own - first) * kLanes & 31);
      if (first <= own && own < first + kGroups) label = found;
    }
    if (listed >> lane & 1) {
      const int bit = bit_of_center((unsigned)label);
      mine.low = bit < 32 ? 1u << bit : 0;
      mine.high = bit < 32 ? 0 : 1u << (bit - 32);
      list[begin + lane] = mine;
    }
  }
}

// Rescores the ambiguous rows. Block (x, y) processes part y of list x.
template <typename T, typename Work, int kLanes>
__global__ void __launch_bounds__(256, 3)
    rescore(const CenteredRows<T, Work> rows, const Work* centers, int k, AmbiguousRow* entries, const unsigned* counts,
            long long capacity, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  const unsigned length = counts[blockIdx.x], size = (length + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * size;
  if (begin >= length) return;
  AmbiguousRow* const list = entries + blockIdx.x * capacity + begin;
  rescore_list<T, Work, kLanes>(rows, centers, k, list, begin + size <= length ? size : length - begin);
}

}  // namespace kmeans
