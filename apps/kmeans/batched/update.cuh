// Batched update: updates fixed-point cluster sums by the reassigned rows, and computes the new centers of every
// problem, without host synchronisation. Sizes b, d, k: see problem.cuh.
//
//   changes (assign.cuh)  →  sums (b × k × (d + 1), 64-bit integers)
//                         →  centers, centers_half, half_squares, center_stats
//
// A fixed-point element is round((x − mean) · scale). Sums are exact and independent of the order of additions, so
// every grid gives the same bits. If the k·(d + 1) sums fit in shared memory, elements have 30 bits. A block then sums
// the two 16-bit limbs of elements separately, in 32 bits, for at most kFlush rows. Otherwise elements have 46 bits,
// and blocks add them directly in global memory. The last block of a problem to finish computes the new centers and the
// stopping test.
//
// Why it is fast: a row that is not reassigned costs nothing, and after the first iterations few rows are reassigned. A
// reassigned row costs a read of X and 2·d additions (4·d additions of limbs), about 10·d instructions of a lane: 50 ps
// per row at d = 128 if all rows are reassigned.
#pragma once
#include "apps/kmeans/batched/problem.cuh"
#include "kernels/ptx/types.cuh"

namespace batched {

// kFlush: maximum number of rows between two additions of the limbs to the global sums. kLeastShare: minimum number of
// rows that a block processes.
constexpr int kUpdateThreads = 512;
constexpr unsigned kFlush = 32768, kLeastShare = 256;

// Adds elements to the cluster sums of a problem: with kShared in shared memory until `flush`, else in global memory.
template <bool kShared>
struct ProblemSums {
  unsigned long long* sums;
  unsigned* digits;  // limbs: two planes of k × (d + 1)
  int width, size;

  __device__ __forceinline__ void add(int cluster, int column, float value, double scale) const {
    if constexpr (kShared) {
      add_integer(cluster, column, __float2int_rn(value * (float)scale));
    } else {
      add_integer(cluster, column, __double2ll_rn((double)value * scale));
    }
  }
  template <typename Integer>
  __device__ __forceinline__ void add_integer(int cluster, int column, Integer number) const {
    if constexpr (kShared) {
      const int place = cluster * width + column;
      atomicAdd(&digits[place], (unsigned)(number & 0xffff));
      atomicAdd(&digits[size + place], (unsigned)(number >> 16));
    } else {
      atomicAdd(&sums[(long long)cluster * width + column], (unsigned long long)(long long)number);
    }
  }
  __device__ __forceinline__ void clear() const {
    if constexpr (kShared) {
      for (int i = threadIdx.x; i < 2 * size; i += kUpdateThreads) digits[i] = 0;
      __syncthreads();
    }
  }
  __device__ __forceinline__ void flush() const {
    if constexpr (kShared) {
      __syncthreads();
      for (int i = threadIdx.x; i < size; i += kUpdateThreads) {
        const long long sum = (long long)(int)digits[size + i] * 65536 + digits[i];
        if (sum != 0) atomicAdd(&sums[i], (unsigned long long)sum);
        digits[i] = digits[size + i] = 0;
      }
      __syncthreads();
    }
  }
};

// The largest ‖c‖² (`square`) and ‖c − ĉ‖² (`lost`) of several scaled centers c and their float16 values ĉ.
struct Largest {
  double square, lost;

  __device__ __forceinline__ void add(const Largest& other) {
    square = square < other.square ? other.square : square;
    lost = lost < other.lost ? other.lost : lost;
  }
};

// Statistics of the centers of a warp, then of all centers. `near`: of centers with a norm that is not excluded
// (update/centers.cuh); `far`: of the other centers. `least`: smallest squared norm. `shift`: squared center shift.
struct Found {
  Largest near, far;
  double least, shift;
};

// Converts the centers of a problem to float16, and writes their half_squares and center_stats. With kFromSums, it
// first computes the centers as means of the sums. All threads of a block must call it; thread 0 gets the squared
// center shift.
template <typename T, bool kFromSums>
__device__ __forceinline__ double place(const Batch<T>& batch, int problem) {
  __shared__ Found of_warp[kUpdateThreads / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = batch.d;
  const double scale = batch.half_copy_scales[problem];
  const double* units = batch.sum_units + (long long)problem * d;
  // Largest ‖c‖²/2 that is never excluded: ‖c‖ is about four norm limits (update/centers.cuh). The factor is 16.1
  // instead of 16, because row norms are norms of rounded values.
  const float beyond = 16.1f / 2 * batch.norm_limit * batch.norm_limit;
  float* half_squares = batch.half_squares + (long long)problem * batch.columns;
  Found found = {{}, {}, kInfinity, 0};
  for (int j = warp; j < batch.k; j += kUpdateThreads / 32) {
    const long long which = (long long)problem * batch.k + j;
    const unsigned long long* sums = batch.sums + which * (d + 1);
    float* center = batch.centers + which * d;
    ptx::Half* centers_half = batch.centers_half + ((long long)problem * batch.columns + j) * batch.padded;
    double inverse = 0, square = 0, lost = 0, shift = 0;
    if constexpr (kFromSums) inverse = 1 / (double)simt::load_from_other_block(sums + d);
    // kColumns columns per lane are loaded before the first of them is written.
    constexpr int kColumns = 4;
    for (int first = lane; first < batch.padded; first += 32 * kColumns) {
      float before[kColumns];
      double after[kColumns];
#pragma unroll
      for (int at = 0; at < kColumns; ++at) {
        const int i = first + 32 * at;
        before[at] = i < d ? center[i] : 0.0f;
        if constexpr (kFromSums) {
          after[at] = i < d ? (double)(long long)simt::load_from_other_block(sums + i) * units[i] : 0.0;
        }
      }
#pragma unroll
      for (int at = 0; at < kColumns; ++at) {
        const int i = first + 32 * at;
        if (i >= batch.padded) break;
        float now = before[at];
        if constexpr (kFromSums) {
          now = (float)(after[at] * inverse);
          if (i < d) center[i] = now;
        }
        const double c = now;
        shift += (c - before[at]) * (c - before[at]);
        const double scaled = c * scale;
        const ptx::Half half = ptx::to_half((float)scaled);
        centers_half[i] = half;
        const double rest = scaled - ptx::to_float(half);
        square += scaled * scaled;
        lost += rest * rest;
      }
    }
    square = simt::warp_sum(square);
    lost = simt::warp_sum(lost);
    shift = simt::warp_sum(shift);
    const float half_square = (float)(square / 2);
    if (lane == 0) half_squares[j] = half_square;
    if (half_square <= beyond) {
      found.near.add({square, lost});
    } else {
      found.far.add({square, lost});
    }
    found.least = square < found.least ? square : found.least;
    found.shift += shift;
  }
  if (lane == 0) of_warp[warp] = found;
  __syncthreads();
  double least = kInfinity;
  for (int i = 0; i < kUpdateThreads / 32; ++i) least = of_warp[i].least < least ? of_warp[i].least : least;
  const bool leaves_out = least / 2 <= beyond / 4;
  for (int j = threadIdx.x; leaves_out && j < batch.k; j += kUpdateThreads) {
    if (!(half_squares[j] <= beyond)) half_squares[j] = kInfinity;
  }
  if (threadIdx.x == 0) {
    for (int i = 1; i < kUpdateThreads / 32; ++i) {
      found.near.add(of_warp[i].near);
      found.far.add(of_warp[i].far);
      found.shift += of_warp[i].shift;
    }
    const float near_norm = (float)(sqrt(least) * 1.000001);
    const bool some = leaves_out && found.far.square > 0;
    if (!leaves_out) found.near.add(found.far);
    batch.center_stats[problem] = {(float)(sqrt(found.near.square) * 1.000001),
                                   (float)(sqrt(found.near.lost) * 1.000001),
                                   (float)(found.near.square / 2 * 1.000001),
                                   some ? batch.norm_limit : kInfinity,
                                   near_norm,
                                   1.05f * near_norm + 1};
  }
  return found.shift;
}

// Block (0, problem) prepares the centers that the host has set, for problems of status kPlace.
template <typename T>
__global__ void __launch_bounds__(512, 2) prepare_centers(const Batch<T> batch) {
  if (batch.status[blockIdx.y] != kPlace) return;
  place<T, false>(batch, blockIdx.y);
  __syncthreads();
  if (threadIdx.x == 0) batch.status[blockIdx.y] = kRunning;
}

// Ends an iteration of a problem: computes the new centers and the status. The last block of the problem to finish
// calls it.
template <typename T>
__device__ __forceinline__ void update_centers(const Batch<T>& batch, int problem) {
  __shared__ bool empty;
  if (threadIdx.x == 0) empty = false;
  __syncthreads();
  for (int j = threadIdx.x; j < batch.k; j += kUpdateThreads) {
    const long long which = (long long)problem * batch.k + j;
    if (simt::load_from_other_block(batch.sums + which * (batch.d + 1) + batch.d) == 0) empty = true;
  }
  __syncthreads();
  const double shift = empty ? 0.0 : place<T, true>(batch, problem);
  if (threadIdx.x != 0) return;
  const unsigned n_reassigned = batch.counts[problem];
  const int iterations = ++batch.iterations[problem];
  const bool ends = shift <= batch.tolerances[problem] || iterations >= batch.max_iter;
  batch.status[problem] = empty ? kEmpty : n_reassigned == 0 ? kStrict : ends ? kEnded : kRunning;
  batch.n_reassigned[problem] = n_reassigned;
  batch.counts[problem] = 0;
}

// Block (x, problem) adds part x of the problem's reassigned rows to the sums, and subtracts the rows from the sums of
// their old clusters.
template <typename T, bool kShared>
__global__ void __launch_bounds__(512, kShared ? 2 : 1) update(const Batch<T> batch) {
  const int problem = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = batch.d;
  if (batch.status[problem] != kRunning) return;
  const unsigned count = batch.counts[problem], even = (count + gridDim.x - 1) / gridDim.x;
  const unsigned share = even < kLeastShare ? kLeastShare : even;
  const unsigned long long begin = (unsigned long long)share * blockIdx.x;
  const unsigned long long end = begin + share < count ? begin + share : count;
  const ProblemSums<kShared> here{batch.sums + (long long)problem * batch.k * (d + 1), simt::dynamic_shared<unsigned>(),
                                  d + 1, batch.k * (d + 1)};
  const float* mean = batch.means + (long long)problem * d;
  const double* scales = batch.sum_scales + (long long)problem * d;
  if (begin < end) here.clear();
  for (unsigned long long some = begin; some < end; some += kFlush) {
    const unsigned long long last = some + kFlush < end ? some + kFlush : end;
    for (unsigned long long first = some + 32 * warp; first < last; first += kUpdateThreads) {
      const int rows = last - first < 32 ? (int)(last - first) : 32;
      Change change = {0, -1};
      int label = -1;
      if (lane < rows) {
        change = batch.changes[problem * batch.n + first + lane];
        label = batch.labels[problem * batch.n + change.row];
        here.add_integer(label, d, 1);
        if (change.from >= 0) here.add_integer(change.from, d, -1);
      }
      // A warp loads kTogether rows before it adds any of them.
      constexpr int kTogether = kShared ? 4 : 2;
      for (int i = 0; i < rows; i += kTogether) {
        const T* x[kTogether];
        int to[kTogether], from[kTogether];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          const int source = i + j < rows ? i + j : i;
          x[j] = batch.row(problem, simt::shuffle(change.row, source));
          to[j] = i + j < rows ? simt::shuffle(label, source) : -1;
          from[j] = simt::shuffle(change.from, source);
        }
        for (int column = lane; column < d; column += 32) {
          const float middle = mean[column];
          const double scale = scales[column];
          float value[kTogether];
#pragma unroll
          for (int j = 0; j < kTogether; ++j) value[j] = batch.centered(x[j][column], middle);
#pragma unroll
          for (int j = 0; j < kTogether; ++j) {
            if (to[j] < 0) continue;
            here.add(to[j], column, value[j], scale);
            if (from[j] >= 0) here.add(from[j], column, -value[j], scale);
          }
        }
      }
    }
    here.flush();
  }
  if (simt::last_to_arrive(&batch.arrived[problem], gridDim.x)) update_centers(batch, problem);
}

}  // namespace batched
