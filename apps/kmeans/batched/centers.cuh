// Batched centers: new centers and the stopping test of every problem, without host synchronisation. Sizes b, d, k: see
// problem.cuh.
//
//   sums (b × k × (d + 1))  →  centers, centers_half, half_squares, center_stats, status
//
// Why it is fast: one block computes one problem, a warp one center at a time. The last block to arrive lists the
// problems that go on, so that the next product (assign_streamed.cuh) is shared evenly among its blocks.
#pragma once
#include "apps/kmeans/batched/problem.cuh"
#include "apps/kmeans/update/half_centers.cuh"

namespace batched {

// The float16 centers of a problem, as rows or panels.
template <typename T>
__device__ __forceinline__ kmeans::HalfCenters half_centers_of(const Batch<T>& batch, int problem) {
  const int depth = batch.panels ? (batch.panels + 1) * tsm2::kPanelDepth : batch.padded;
  return {batch.centers_half + (long long)problem * batch.columns * depth,
          batch.padded,
          batch.panels,
          batch.tile_columns,
          0,
          0,
          0};
}

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
template <int kThreads, bool kFromSums, typename T>
__device__ __forceinline__ double place(const Batch<T>& batch, int problem) {
  __shared__ Found of_warp[kThreads / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = batch.d;
  const double scale = batch.half_copy_scales[problem];
  const double* units = batch.sum_units + (long long)problem * d;
  // Largest ‖c‖²/2 that is never excluded: ‖c‖ is about four norm limits (update/centers.cuh). The factor is 16.1
  // instead of 16, because row norms are norms of rounded values.
  const float beyond = 16.1f / 2 * batch.norm_limit * batch.norm_limit;
  const kmeans::HalfCenters half_centers = half_centers_of(batch, problem);
  // The distance of the elements of a center that are 32 columns apart.
  const int further = batch.panels ? 32 * batch.tile_columns : 32;
  float* half_squares = batch.half_squares + (long long)problem * batch.columns;
  Found& found = of_warp[warp];  // in shared memory, since registers are few
  if (lane == 0) found = {{}, {}, kInfinity, 0};
  for (int j = warp; j < batch.k; j += kThreads / 32) {
    const long long which = (long long)problem * batch.k + j;
    const unsigned long long* sums = batch.sums + which * (d + 1);
    float* center = batch.centers + which * d;
    ptx::Half* to = half_centers.at(half_centers.of(j), lane);
    double inverse = 0, square = 0, lost = 0, shift = 0;
    if constexpr (kFromSums) inverse = 1 / (double)sums[d];
    // kColumns columns per lane are loaded before the first of them is written.
    constexpr int kColumns = 4;
    for (int first = lane; first < batch.padded; first += 32 * kColumns, to += kColumns * further) {
      float before[kColumns];
      double after[kColumns];
#pragma unroll
      for (int at = 0; at < kColumns; ++at) {
        const int i = first + 32 * at;
        before[at] = i < d ? center[i] : 0.0f;
        if constexpr (kFromSums) {
          after[at] = i < d ? (double)(long long)sums[i] * units[i] : 0.0;
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
        to[at * further] = half;
        const double rest = scaled - ptx::to_float(half);
        square += scaled * scaled;
        lost += rest * rest;
      }
    }
    square = simt::warp_sum(square);
    lost = simt::warp_sum(lost);
    shift = simt::warp_sum(shift);
    const float half_square = (float)(square / 2);
    if (lane != 0) continue;
    half_squares[j] = half_square;
    (half_square <= beyond ? found.near : found.far).add({square, lost});
    found.least = square < found.least ? square : found.least;
    found.shift += shift;
  }
  __syncthreads();
  double least = kInfinity;
  for (int i = 0; i < kThreads / 32; ++i) least = of_warp[i].least < least ? of_warp[i].least : least;
  const bool leaves_out = least / 2 <= beyond / 4;
  for (int j = threadIdx.x; j < batch.columns; j += kThreads) {
    const bool excluded = leaves_out && j < batch.k && !(half_squares[j] <= beyond);
    if (excluded) half_squares[j] = kInfinity;
    if (batch.panels == 0) continue;
    if (excluded) {
      kmeans::exclude(nullptr, half_centers, j);
    } else {
      kmeans::set_offset(nullptr, half_centers, j, -half_squares[j]);
    }
  }
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / 32; ++i) {
      found.near.add(of_warp[i].near);
      found.far.add(of_warp[i].far);
      found.shift += of_warp[i].shift;
    }
    const float near_norm = (float)(sqrt(least) * 1.000001);
    const bool some = leaves_out && found.far.square > 0;
    if (!leaves_out) found.near.add(found.far);
    const float norm = (float)(sqrt(found.near.square) * 1.000001), lost = (float)(sqrt(found.near.lost) * 1.000001);
    const float within = batch.panels ? kmeans::most_row_norm(norm, lost, true) : kInfinity;
    batch.center_stats[problem] = {norm,
                                   lost,
                                   (float)(found.near.square / 2 * 1.000001),
                                   some && batch.norm_limit < within ? batch.norm_limit : within,
                                   near_norm,
                                   1.05f * near_norm + 1};
  }
  return found.shift;
}

// Writes the list of the problems that are kRunning, in the last of the blocks of all problems to arrive. All threads
// of a block must call it after they have written their problem's status.
template <typename T>
__device__ __forceinline__ void list_running(const Batch<T>& batch) {
  if (batch.running == nullptr || !simt::last_to_arrive(batch.arrived, gridDim.y)) return;
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int problem = threadIdx.x; problem < (int)gridDim.y; problem += blockDim.x) {
    if (batch.status[problem] == kRunning) batch.running[atomicAdd(&count, 1)] = problem;
  }
  __syncthreads();
  if (threadIdx.x == 0) *batch.n_running = count;
}

// Block (0, problem) prepares the centers that the host has set, for problems of status kPlace.
template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) prepare_centers(const Batch<T> batch) {
  const int problem = blockIdx.y;
  if (batch.status[problem] == kPlace) {
    place<kThreads, false>(batch, problem);
    __syncthreads();  // all threads have read the status
    if (threadIdx.x == 0) batch.status[problem] = kRunning;
  }
  list_running(batch);
}

// Ends an iteration of a problem: computes the new centers and the status.
template <int kThreads, typename T>
__device__ __forceinline__ void end_iteration(const Batch<T>& batch, int problem) {
  __shared__ bool empty;
  if (threadIdx.x == 0) empty = false;
  __syncthreads();
  for (int j = threadIdx.x; j < batch.k; j += kThreads) {
    const long long which = (long long)problem * batch.k + j;
    if (batch.sums[which * (batch.d + 1) + batch.d] == 0) empty = true;
  }
  __syncthreads();
  const double shift = empty ? 0.0 : place<kThreads, true>(batch, problem);
  if (threadIdx.x != 0) return;
  const unsigned n_reassigned = batch.counts[problem];
  const int iterations = ++batch.iterations[problem];
  const bool ends = shift <= batch.tolerances[problem] || iterations >= batch.max_iter;
  batch.status[problem] = empty ? kEmpty : n_reassigned == 0 ? kStrict : ends ? kEnded : kRunning;
  batch.n_reassigned[problem] = n_reassigned;
  batch.counts[problem] = 0;
}

// Block (0, problem) ends an iteration of the problem.
template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) update_centers(const Batch<T> batch) {
  if (batch.status[blockIdx.y] == kRunning) end_iteration<kThreads>(batch, blockIdx.y);
  list_running(batch);
}

}  // namespace batched
