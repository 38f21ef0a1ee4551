// An iteration for few features and few clusters, by fused multiply-adds on X itself: the label of every row, and the rows
// that change theirs moved from one cluster's sums to another's, in one launch.
//
//   X (n × d, float32 or 16 bits, row by row)      labels (n)      sums (k × (d + 1)), 64-bit integers (integers.cuh)
//
//   a warp's tile       lane 0   1   2 …  31         a lane has kRows rows of a tile in its registers; the next
//     rows   0 …  31    ████████████████████         tile is asked for (to level 2) before this one is computed
//     rows  32 …  63    ████████████████████
//     …                                              rows in doubt or with another label → the warp's queue → 32 at a
//                                                    time are decided, written and added to
//
//   sums in shared memory   [cluster][column, digit][replica]: a lane adds to its own replica, so in its own bank
//
// The nearest centre is the one of the largest score x·c − ‖c‖²/2: d fused multiply-adds, of which the first adds the
// offset. With u = 2⁻²⁴, ‖x‖ ≤ M for all rows, C = max ‖c‖ and O = max |offset|, a score is off by no more than
//
//   E = (d + 4) u (M C + O)      d roundings of what is no more than M C + O; of the offset; of x − mean; of the threshold
//
// Candidates are, as in nearest.cuh, what is above the best score less 2 E, a bit each. A row with one candidate is decided;
// others are compared in float64, with every centre and from differences, the first of equals: labels are the float64
// arg-min. Scores are in units of the data's: all that is multiplied with x is scaled by a power of two squared, so that M
// is about 2¹⁰ and no score overflows below; where centres are so far away that one could, the threshold is no number, and
// every row is compared in float64.
//
// Where the mean is small beside the data, what the scores have of it is in the offsets, −‖c‖²/2 − mean·c, and x is not
// centred (M is then a bound of ‖x‖ as it is). What is compared and added up in the queue is centred, always.
//
// Why it is fast: X is read once and nothing is written but labels that change. Centres are operands in constant memory,
// which go through uniform registers, so that no score waits for shared memory. M is of all rows, so no row's norm is
// computed. Lane instructions a row, as compiled for sm_90a, with d = 4 and k = 16, four rows a lane, and with d = 16 and
// k = 16, two rows:
//
//                                                                 4 × 16     16 × 16
//   scores        d k multiply-adds                                 64         256
//                 centres to uniform registers, shared by rows       8          66
//   maximum       k − 1, at half rate                               15          15
//   threshold     2                                                  2           2
//   candidates    2 k multiply-adds: a mask in a float's mantissa   32          32
//   the rest      loads, addresses, one comparison, the tile's loop  8          11
//   in all                                                         129         382
//
// Of 28·10¹² a second, 100M rows of 4 take 0.46 ms of instructions, beside 0.43 of reading, and 50M of 16 take 0.68 and
// 0.73. Subtracting the mean, where it is far away, is d more. A row that changes its label costs 10 instructions to queue
// and some 80 to settle, all lanes at work.
#pragma once
#include "apps/kmeans/few_constants.cuh"
#include "apps/kmeans/few_rows.cuh"
#include "apps/kmeans/few_sums.cuh"

namespace kmeans {

// A row that is not done: its label, and its new one, negative if it is to be decided.
struct alignas(8) Waiting {
  unsigned row;
  short from, to;
};

// The nearest centre in float64, by one thread: the first of equals.
template <int kFeatures>
__device__ __forceinline__ int nearest_in_double(const float (&x)[kFeatures], const float* centers, int k) {
  Distant nearest = {kInfinity, 0};
  for (int j = 0; j < k; ++j) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) {
      const double difference = (double)x[i] - (double)centers[j * kFeatures + i];
      sum += difference * difference;
    }
    nearest.take({sum, j});
  }
  return nearest.centre;
}

// Of the centres, in chunks of 16: the candidates of one chunk, bit j for centre 16 · chunk + j, and the chunk from bit 16
// on; no bit where several chunks have candidates.
constexpr int kChunk = 16;

template <int kFeatures, int kClusters, int kRows>
__device__ __forceinline__ void find_candidates(const float (&x)[kRows][kFeatures], unsigned (&found)[kRows]) {
  float best[kRows];
#pragma unroll
  for (int first = 0; first < kClusters; first += kChunk) {
    constexpr int kLast = (kClusters - 1) % kChunk + 1;  // in the last chunk
    float score[kRows][kChunk];
#pragma unroll
    for (int j = 0; j < kChunk; ++j) {
      if (first + j >= kClusters) break;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float sum = few_constants.offsets[first + j];
#pragma unroll
        for (int i = 0; i < kFeatures; ++i) sum = fmaf(x[r][i], few_constants.centers[(first + j) * kFeatures + i], sum);
        score[r][j] = sum;
      }
    }
    const int here = first + kChunk <= kClusters ? kChunk : kLast;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float most = score[r][0];
#pragma unroll
      for (int j = 1; j < kChunk; ++j) {
        if (j < here) most = fmaxf(most, score[r][j]);
      }
      if (first > 0) most = fmaxf(most, best[r]);
      const float threshold = fmaf(most, -kLarge, few_constants.threshold) - kLeast;
      float sum = kNoBits;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        if (j < here) sum = fmaf(__saturatef(fmaf(score[r][j], kLarge, threshold)), (float)(1 << j), sum);
      }
      const unsigned now = __float_as_uint(sum) ^ kNoBitsAsInteger;
      if (first == 0) {
        found[r] = now;
      } else {
        const bool keeps = fmaf(best[r], kLarge, threshold) > 0;
        const unsigned these = now | (unsigned)(first / kChunk) << 16;
        found[r] = !keeps ? these : now == 0 ? found[r] : 0u;
      }
      best[r] = most;
    }
  }
}

// What was found of a row that has one candidate, which is its label.
template <int kClusters>
__device__ __forceinline__ unsigned found_of(int label) {
  // Of no cluster, what no row has.
  if (kClusters <= kChunk) return 1u << (label & 31);
  return 1u << (label & (kChunk - 1)) | (unsigned)(label >> 4) << 16;
}

// The cluster that was found; negative if it is in doubt.
__device__ __forceinline__ int cluster_of(unsigned found) {
  const unsigned bits = found & 0xffff;
  return bits != 0 && (bits & (bits - 1)) == 0 ? (int)(found >> 16) * kChunk + __ffs(bits) - 1 : -1;
}

// kClusters is k rounded up to whole fours. kShifts: scores are of centred rows. Digits of kMostAdded rows add up within 32
// bits.
template <typename T, int kFeatures, int kClusters, int kRows, bool kShifts, int kReplicas, int kThreads, int kBlocks,
          int kMostAdded = 32768>
__global__ void __launch_bounds__(kThreads, kBlocks) assign_rows(const T* X, const float* centers, int k, long long n,
                                                                 int* labels, unsigned long long* sums, unsigned* moved,
                                                                 const int* stopped) {
  static_assert(kFeatures <= kMostFeatures && kClusters <= kMostOfFew && kFeatures * kClusters <= kMostElements);
  constexpr int kWarps = kThreads / 32, kTile = 32 * kRows;
  // A warp settles no more than kRows times a tile, and once more; then at most 32 / kReplicas lanes add to the same.
  constexpr int kTiles = (kMostAdded / (kWarps * (32 / kReplicas)) - 1) / kRows;
  static_assert(kTiles >= 1, "the digits of one tile would overflow");
  if (*stopped) return;
  unsigned* digits = simt::dynamic_shared<unsigned>();
  const FewSums<kFeatures, kReplicas> here(sums, digits, k);
  here.clear();
  const int lane = threadIdx.x % 32;
  Queue<Waiting, kTile> queue(digits + kClusters * here.kPlanes * kReplicas);
  unsigned changed = 0;
  const auto settle = [&](const Waiting* items, int count) {
    if (lane >= count) return;
    const Waiting one = items[lane];
    T again[kFeatures];
    load_row<kFeatures>(X + (long long)one.row * kFeatures, again);
    float value[kFeatures];
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) value[i] = centred<T, float>(again[i], few_constants.mean[i]);
    const int to = one.to >= 0 ? one.to : nearest_in_double<kFeatures>(value, centers, k);
    if (to == one.from) return;
    labels[one.row] = to;
    int numbers[kFeatures];
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) numbers[i] = as_integer<float>(value[i], few_constants.scales[i]);
    here.move(numbers, to, one.from);
    ++changed;
  };
  each_tile<kTile, kWarps, kTiles>(n, [&] { here.flush(); }, [&](long long first, long long ahead, bool more) {
    const int rows = n - first < kTile ? (int)(n - first) : kTile;
    const T* x_of_lane = X + (first + lane) * kFeatures;
    const int* label_of_lane = labels + first + lane;
    T raw[kRows][kFeatures];
    int label[kRows];
    if (rows == kTile) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        load_row<kFeatures>(x_of_lane + 32 * r * kFeatures, raw[r]);
        label[r] = label_of_lane[32 * r];
      }
    } else {
      // Past the end, the last row again, of which nothing is queued.
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const long long row = 32 * r + lane < rows ? first + 32 * r + lane : n - 1;
        load_row<kFeatures>(X + row * kFeatures, raw[r]);
        label[r] = labels[row];
      }
    }
    if (first + ahead + kTile <= n) prefetch_tile<kFeatures, kTile>(X, labels, first + ahead);
    float x[kRows][kFeatures];
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int i = 0; i < kFeatures; ++i) {
        x[r][i] = kShifts ? centred<T, float>(raw[r][i], few_constants.mean[i]) : tsm2::Element<T>::value(raw[r][i]);
      }
    unsigned found[kRows];
    find_candidates<kFeatures, kClusters, kRows>(x, found);
    bool any = false;
#pragma unroll
    for (int r = 0; r < kRows; ++r) any |= found[r] != found_of<kClusters>(label[r]);
    if (__any_sync(simt::every_lane, any)) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const bool waits = found[r] != found_of<kClusters>(label[r]) && 32 * r + lane < rows;
        queue.add(waits, {(unsigned)(first + 32 * r + lane), (short)label[r], (short)cluster_of(found[r])});
      }
    }
    // The last of a warp's tiles leaves nothing.
    queue.drain(more ? 32 : 1, settle);
  });
  here.flush();
  changed = simt::warp_sum(changed);
  if (lane == 0 && changed) atomicAdd(moved, changed);
}

}  // namespace kmeans
