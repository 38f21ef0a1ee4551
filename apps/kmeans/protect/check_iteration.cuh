// ABFT check of an iteration's results, after `update_centers` (update/centers.cuh) and before the next iteration.
//
// sums (k × (d + 1))  fixed-point cluster sums: a column's total over the clusters is constant; column d holds weights
// next (k × d)        new centers: equal to the means of the sums, or to the old center of a cluster without samples
// centers (k × d)     old centers: equal to the `next` that the previous check accepted, by a hash of each column
// labels (n)          checked for rows `first`, `first` + `stride`, …: no center is nearer than the center of the label
//
// Sums are integers modulo 2⁶⁴, so column totals are compared exactly: a wrong addition changes a total permanently.
// The first iteration, in which every row gets its first label, sets the expected totals. A fault sets `stopped`, and
// then `update_centers` of later launches does nothing, so the centers of the faulty iteration remain. (With bounds,
// later launches may have changed labels and sums; the host recomputes them.) The host reads the faults from `seen`.
//
// Why it is fast: it reads the sums, the old and new centers and few rows of X, and writes only one hash per column. No
// block waits for another. A block checks either some columns of all sums, or a group of rows against a part of the
// centers. A thread compares four rows with eight centers: 32 sums from 13 loads, in float32 unless X is float64. A
// warp rescores uncertified rows, as assign/rescore.cuh does.
#pragma once
#include "apps/kmeans/assign/row_distances.cuh"
#include "kernels/device/vector_load.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/memory.cuh"

namespace kmeans {

// Fault bits; bit i is reported in seen[i].
constexpr unsigned kWrongSums = 1, kWrongCenters = 2, kWrongLabels = 4, kChangedCenters = 8;
constexpr int kFaults = 4, kCheckThreads = 128;
// Numbers of columns of the sums that a block checks, and of rows and centers that a thread compares at a time.
constexpr int kCheckColumns = 16, kCheckRows = 4, kCheckCenters = 8, kPairs = kCheckRows * kCheckCenters;

// The checked labels. A row is split among 2^log2_threads threads, at least 4. A block compares up to `each` centers.
template <typename Label>
struct Checked {
  const Label* labels;
  long long n, stride;
  int k, log2_threads, each;
};

// The hash of a column of centers is Σ h(bits) · (2 · cluster + 1) · kHashFactor modulo 2⁶⁴; hash_word computes a term.
// h is one to one, factors are odd: one changed element, or an exchange of two float32 elements, changes the hash.
constexpr unsigned long long kHashFactor = 0x9E3779B97F4A7C15ULL;
__device__ __forceinline__ unsigned long long hash_word(float center, unsigned long long odd) {
  return (unsigned long long)__float_as_uint(center) * odd;
}
__device__ __forceinline__ unsigned long long hash_word(double center, unsigned long long odd) {
  const unsigned long long bits = (unsigned long long)__double_as_longlong(center);
  return (bits ^ bits >> 32) * odd;
}

// Hashes of the columns of the centers (d): those expected of `centers`, and those of `next`, which the kernel writes.
struct Hashes {
  const unsigned long long* of_centers;
  unsigned long long* of_next;
};

// Checks kCheckColumns columns of the sums and centers, from column `begin` on; returns fault bits. `totals` (d + 1)
// are the expected column totals. Unless `known`, only the last total is valid; the others are written.
template <typename Work>
__device__ __forceinline__ unsigned wrong_columns(int begin, const unsigned long long* sums, const double* units,
                                                  const Work* centers, const Work* next, int k, int d, bool known,
                                                  unsigned long long* totals, const Hashes& hashes) {
  __shared__ unsigned long long of_warp[3][kCheckThreads / 32][kCheckColumns];
  const int column = begin + threadIdx.x % kCheckColumns;
  unsigned wrong = 0;
  // Total of the column of sums, and the hashes of the columns of `centers` and `next`.
  unsigned long long total[3] = {};
  if (column <= d) {
    const double of_weight = units[d], unit = units[column];
#pragma unroll 4
    for (int cluster = threadIdx.x / kCheckColumns; cluster < k; cluster += kCheckThreads / kCheckColumns) {
      const unsigned long long* of_cluster = sums + (long long)cluster * (d + 1);
      const unsigned long long sum = of_cluster[column];
      total[0] += sum;
      if (column == d) continue;
      // The same operations as in `update_centers`, for the same bits.
      const double in_cluster = (double)(long long)of_cluster[d] * of_weight;
      const double inverse = 1 / (in_cluster != 0 ? in_cluster : 1.0);
      const long long place = (long long)cluster * d + column;
      const Work mean = (Work)((double)(long long)sum * unit * inverse);
      const Work now = centers[place], after = next[place];
      if (after != (in_cluster != 0 ? mean : now)) wrong |= kWrongCenters;
      const unsigned long long odd = (2ULL * cluster + 1) * kHashFactor;
      total[1] += hash_word(now, odd);
      total[2] += hash_word(after, odd);
    }
  }
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    total[i] += simt::shuffle_xor(total[i], kCheckColumns);
    if (simt::lane() < kCheckColumns) of_warp[i][threadIdx.x / 32][simt::lane()] = total[i];
  }
  __syncthreads();
  if (threadIdx.x >= kCheckColumns || column > d) return wrong;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    total[i] = 0;
    for (int warp = 0; warp < kCheckThreads / 32; ++warp) total[i] += of_warp[i][warp][threadIdx.x];
  }
  if (column < d) {
    if (!known) totals[column] = total[0];
    if (total[1] != hashes.of_centers[column]) wrong |= kChangedCenters;
    hashes.of_next[column] = total[2];
  }
  return total[0] == totals[column] ? wrong : wrong | kWrongSums;
}

// Adds the squared differences of kCheckRows rows and kCheckCenters centers, over this thread's columns, to `sums`.
template <bool kAligned, typename T, typename Work>
__device__ __forceinline__ void add_squares(const T* const (&x)[kCheckRows], const Work* mean, const Work* centers,
                                            const int (&which)[kCheckCenters], int d, int member, int threads,
                                            Work (&sums)[kPairs]) {
  constexpr int kWide = kAligned ? kVector<Work> : 1;
  using Some = simt::Vector<Work, kWide>;
#pragma unroll 1
  for (int j = kWide * member; j < d; j += kWide * threads) {
    const Some middle = *reinterpret_cast<const Some*>(mean + j);
    Some one[kCheckRows];
#pragma unroll
    for (int r = 0; r < kCheckRows; ++r) {
      using Read = Packed<T, kWide>;
      const auto value = Read{*reinterpret_cast<const typename Read::Bits*>(x[r] + j)}.elements();
#pragma unroll
      for (int i = 0; i < kWide; ++i) one[r].at[i] = centered<T, Work>(value.at[i], middle.at[i]);
    }
#pragma unroll
    for (int c = 0; c < kCheckCenters; ++c) {
      const Some of_center = *reinterpret_cast<const Some*>(centers + (long long)which[c] * d + j);
#pragma unroll
      for (int r = 0; r < kCheckRows; ++r)
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const Work difference = one[r].at[i] - of_center.at[i];
          sums[kCheckCenters * r + c] += difference * difference;
        }
    }
  }
}

// Sums each of kPairs values over 4 to 32 lanes. Lane i ends with kPairs / lanes totals, from i · kPairs / lanes on.
template <int kCount = kPairs, typename Sum>
__device__ __forceinline__ void share_pairs(Sum (&sums)[kPairs], int member, int lanes) {
  if constexpr (kCount > 1) {
    if (lanes == 1) return;
    halve_sums<kCount>(sums, member, lanes);
    share_pairs<kCount / 2>(sums, member, lanes / 2);
  }
}

// The kCheckRows rows of X that are split among the same 2^log2_threads threads. Rows past the end become row `first`.
template <typename T, typename Work, typename Label>
class CheckedRows {
 public:
  __device__ __forceinline__ CheckedRows(long long group, const CenteredRows<T, Work>& rows, const Checked<Label>& of,
                                         long long first)
      : rows_(rows), n_(of.n), stride_(of.stride), first_(first) {
    begin_ = (group * (kCheckThreads >> of.log2_threads) + (threadIdx.x >> of.log2_threads)) * kCheckRows;
  }

  __device__ __forceinline__ long long row(int r) const {
    const long long row = first_ + (begin_ + r) * stride_;
    return row < n_ ? row : first_;
  }
  __device__ __forceinline__ const T* at(int r) const { return rows_.X + row(r) * rows_.leading; }

  // Prefetches the rows to L2, by 2^log2_threads threads.
  __device__ __forceinline__ void prefetch(int log2_threads) const {
    const int threads = 1 << log2_threads, member = threadIdx.x & (threads - 1);
#pragma unroll
    for (int r = 0; r < kCheckRows; ++r) {
      for (int j = kVector<Work> * member; j < rows_.d; j += kVector<Work> * threads) ptx::prefetch(at(r) + j);
    }
  }

 private:
  const CenteredRows<T, Work>& rows_;
  const long long n_, stride_, first_;
  long long begin_;
};

// True if one of this thread's rows has an invalid label, or a center in [from, to) that is nearer than the center of
// its label. Centers are compared eight at a time; the first four are the centers of the labels of the four rows.
template <bool kAligned, typename T, typename Work, typename Label>
__device__ __forceinline__ bool wrong_labels(const CheckedRows<T, Work, Label>& samples, int from, int to,
                                             const CenteredRows<T, Work>& rows, const Work* centers,
                                             const Checked<Label>& of) {
  constexpr bool kNarrow = sizeof(Work) == sizeof(float);
  __shared__ Work of_warps[2][kCheckThreads];
  const int threads = 1 << of.log2_threads, member = threadIdx.x & (threads - 1), lanes = threads < 32 ? threads : 32;
  const int lane = member % 32, pairs = kPairs / lanes, mine = lane * pairs / kCheckCenters;
  const T* x[kCheckRows];
  int label[kCheckRows], own = 0;
#pragma unroll
  for (int r = 0; r < kCheckRows; ++r) {
    label[r] = of.labels[samples.row(r)];
    x[r] = samples.at(r);
  }
  bool wrong = false;
#pragma unroll
  for (int r = 0; r < kCheckRows; ++r) {
    const bool is_none = label[r] < 0 || label[r] >= of.k;
    wrong |= is_none;
    if (is_none) label[r] = 0;
    if (r == mine) own = label[r];
  }

  // Squared distances of this lane's row: minimum to other centers, and to its label's center (in one lane per row).
  Work best = kNarrow ? (Work)3.4e38 : (Work)1.7e308, of_own = 0;
  auto center_of = [&](int turn, int c) {
    const int center = from + kCheckCenters * turn + c - kCheckRows;
    return center < to ? center : to - 1;
  };
  int which[kCheckCenters];
#pragma unroll
  for (int c = 0; c < kCheckCenters; ++c) which[c] = c < kCheckRows ? label[c % kCheckRows] : center_of(0, c);
  for (int turn = 0; kCheckCenters * turn < kCheckRows + to - from; ++turn) {
    Work sums[kPairs] = {};
    add_squares<kAligned>(x, rows.mean, centers, which, rows.d, member, threads, sums);
    share_pairs(sums, lane, lanes);
    if (threads > 32) {
      Work* shared = of_warps[turn % 2];
      shared[threadIdx.x] = sums[0];
      __syncthreads();
      sums[0] = 0;
      for (int other = 0; other < threads; other += 32) sums[0] += shared[threadIdx.x - member + other + lane];
    }
#pragma unroll
    for (int i = 0; i < kCheckCenters; ++i) {
      if (i >= pairs) break;
      const int c = (lane * pairs + i) % kCheckCenters;
      if (turn == 0 && c < kCheckRows) {
        if (c == mine) of_own = sums[i];
      } else if (center_of(turn, c) != own) {
        best = sums[i] < best ? sums[i] : best;
      }
    }
#pragma unroll
    for (int c = 0; c < kCheckCenters; ++c) which[c] = center_of(turn + 1, c);
  }
  for (int bits = lanes / (2 * kCheckRows); bits > 0; bits /= 2) {
    const Work other = simt::shuffle_xor(best, bits);
    best = other < best ? other : best;
    of_own += simt::shuffle_xor(of_own, bits);
  }
  // A float32 squared distance has a relative error of at most (d / 32 + 20)·2⁻²⁴. A label is certified if the gap
  // between the two distances exceeds twice that. 1e-30 covers squares too small for this bound.
  bool certified;
  if constexpr (kNarrow)
    certified = of_own < best * (1 - (float)(rows.d / 32 + 20) / (1 << 23)) - 1e-30f;
  else
    certified = of_own <= best * (1 + 1.0 / (1 << 30));

  const bool speaks = member < 32 && lane % (lanes / kCheckRows) == 0;
  for (unsigned waiting = __ballot_sync(simt::every_lane, speaks && !certified); waiting; waiting &= waiting - 1) {
    const int one = __ffs(waiting) - 1, its = simt::shuffle(own, one);
    const long long row = simt::shuffle(samples.row(mine), one);
    const int nearest = nearest_of(rows, centers, row, its, [&](auto take) {
      for (int center = from; center < to; center += 2) take(center, center + 1 < to ? center + 1 : center);
    });
    if (nearest == its) continue;
    double squares[2];
    square_distances(rows, centers, row, {its, nearest}, squares);
    // If float64 cannot order the distances to two centers, both labels are accepted.
    if (!(squares[0] <= squares[1] * (1 + 1.0 / (1 << 30)))) wrong = true;
  }
  return wrong;
}

// Each of the first blocks checks a group of rows against a part of the centers; each of the others checks
// kCheckColumns columns. Rows are `first` and every stride-th after it. `number` counts checks from 1. `*over` is the
// number of the last check, or 0 while unknown; later checks do nothing. `seen` is initially zero.
template <bool kAligned, typename T, typename Work, typename Label>
__global__ void __launch_bounds__(kCheckThreads, sizeof(Work) == sizeof(float) ? 3 : 2)
    check(const CenteredRows<T, Work> rows, const Work* centers, const Work* next, const Checked<Label> of,
          const unsigned long long* sums, const double* units, unsigned long long* totals, int known, long long first,
          long long number, long long* over, int* stopped, unsigned* seen, const Hashes hashes) {
  const int strips = rows.d / kCheckColumns + 1, strip = (int)blockIdx.x + strips - (int)gridDim.x;
  const int parts = (of.k + of.each - 1) / of.each;
  const CheckedRows samples((long long)(blockIdx.x / parts), rows, of, first);
  if (strip < 0) samples.prefetch(of.log2_threads);
  ptx::griddepcontrol_wait();
  const long long ended = *over;
  if (ended != 0 && ended != number) return;
  unsigned wrong;
  if (strip >= 0) {
    wrong = wrong_columns(strip * kCheckColumns, sums, units, centers, next, of.k, rows.d, known != 0, totals, hashes);
  } else {
    const int from = (int)blockIdx.x % parts * of.each, to = from + of.each < of.k ? from + of.each : of.k;
    wrong = wrong_labels<kAligned>(samples, from, to, rows, centers, of) ? kWrongLabels : 0;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && *stopped) *over = number;
  if (wrong == 0) return;
  // Several threads may write here, all the same value.
  *stopped = 1;
  *over = number;
  for (int i = 0; i < kFaults; ++i) {
    if (wrong >> i & 1) seen[i] = 1;
  }
}

}  // namespace kmeans
