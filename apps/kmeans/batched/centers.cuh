// Batched centers: new centers and the stopping test of every problem, without host synchronisation. Sizes b, d, k: see
// problem.cuh.
//
//   sums (b × k × (d + 1))  →  centers, centers_half, half_squares, center_stats, status
//
// Several blocks compute the centers of a problem, a warp one center at a time. The last of them to arrive computes
// what depends on all centers. Of the blocks of all problems, the last lists the problems that go on.
//
// Why it is fast: blocks of all problems fill the GPU. The list lets the next product (candidates.cuh) share the rows
// of the problems that go on evenly among its blocks.
#pragma once
#include "apps/kmeans/batched/problem.cuh"
#include "apps/kmeans/update/half_centers.cuh"
#include "kernels/device/block_reduce.cuh"

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

// Converts this block's share of the centers of a problem to float16, and writes `placed`. With kFromSums, it first
// computes them as means of the sums.
template <int kThreads, bool kFromSums, typename T>
__device__ __forceinline__ void place(const Batch<T>& batch, int problem) {
  constexpr int kWarps = kThreads / 32;
  const int lane = threadIdx.x % 32, d = batch.d;
  const double scale = batch.half_copy_scales[problem];
  const double* units = batch.sum_units + (long long)problem * d;
  const kmeans::HalfCenters half_centers = half_centers_of(batch, problem);
  // The distance of the elements of a center that are 32 columns apart.
  const int further = batch.panels ? 32 * batch.tile_columns : 32;
  for (int j = blockIdx.x * kWarps + threadIdx.x / 32; j < batch.k; j += gridDim.x * kWarps) {
    const long long which = (long long)problem * batch.k + j;
    const unsigned long long* sums = batch.sums + which * (d + 1);
    float* center = batch.centers + which * d;
    ptx::Half* to = half_centers.at(half_centers.of(j), lane);
    double inverse = 0;
    Placed placed = {0, 0, 0};
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
        placed.shift += (c - before[at]) * (c - before[at]);
        const double scaled = c * scale;
        const ptx::Half half = ptx::to_half((float)scaled);
        to[at * further] = half;
        const double rest = scaled - ptx::to_float(half);
        placed.square += scaled * scaled;
        placed.lost += rest * rest;
      }
    }
    placed = {simt::warp_sum(placed.square), simt::warp_sum(placed.lost), simt::warp_sum(placed.shift)};
    if (lane == 0) batch.placed[which] = placed;
  }
}

// Writes half_squares and center_stats of a problem by `placed`, excludes distant centers (update/centers.cuh), and
// returns the squared center shift. All threads of one block call it, after all centers are placed.
template <int kThreads, typename T>
__device__ __forceinline__ double put_together(const Batch<T>& batch, int problem) {
  const Placed* placed = batch.placed + (long long)problem * batch.k;
  float* half_squares = batch.half_squares + (long long)problem * batch.columns;
  const kmeans::HalfCenters half_centers = half_centers_of(batch, problem);
  // Largest ‖c‖² that is never excluded. The factor is 16.1 instead of 16, because row norms are norms of rounded
  // values.
  const double far = 16.1 * batch.norm_limit * batch.norm_limit;
  // Number 0: smallest squared norm. 1: squared center shift.
  kmeans::Doubles<2> all = {{kInfinity, 0}};
  for (int j = threadIdx.x; j < batch.k; j += kThreads) {
    all.at[0] = placed[j].square < all.at[0] ? placed[j].square : all.at[0];
    all.at[1] += placed[j].shift;
  }
  all = kmeans::over_block<kThreads>(all, [](int i, double a, double b) { return i == 1 ? a + b : b < a ? b : a; });
  const double least = all.at[0];
  // Number 0: largest ‖c‖². 1: largest ‖c − ĉ‖², both of centers that are not excluded. 2: whether any is excluded.
  kmeans::Doubles<3> most = {{0, 0, 0}};
  for (int j = threadIdx.x; j < batch.columns; j += kThreads) {
    const bool there = j < batch.k, excluded = there && least <= far / 4 && !(placed[j].square <= far);
    const float half_square = there && !excluded ? (float)(placed[j].square / 2) : kInfinity;
    half_squares[j] = half_square;
    if (there && !excluded) {
      most.at[0] = kmeans::most_of(0, most.at[0], placed[j].square);
      most.at[1] = kmeans::most_of(0, most.at[1], placed[j].lost);
    }
    if (excluded) most.at[2] = 1;
    if (batch.panels == 0) continue;
    if (excluded) {
      kmeans::exclude(nullptr, half_centers, j);
    } else {
      kmeans::set_offset(nullptr, half_centers, j, -half_square);
    }
  }
  most = kmeans::over_block<kThreads>(most, kmeans::most_of);
  if (threadIdx.x == 0) {
    // Rounded up; infinity remains infinity.
    const float norm = (float)(sqrt(most.at[0]) * 1.000001), lost = (float)(sqrt(most.at[1]) * 1.000001);
    const float within = batch.panels ? kmeans::most_row_norm(norm, lost, true) : kInfinity;
    const float near_norm = (float)(sqrt(least) * 1.000001);
    batch.center_stats[problem] = {norm,
                                   lost,
                                   (float)(most.at[0] / 2 * 1.000001),
                                   most.at[2] != 0 && batch.norm_limit < within ? batch.norm_limit : within,
                                   near_norm,
                                   1.05f * near_norm + 1};
  }
  return all.at[1];
}

// Writes the list of the problems that are kRunning, in the last of the blocks of all problems to arrive. All threads
// of a block must call it after they have written their problem's status.
template <typename T>
__device__ __forceinline__ void list_running(const Batch<T>& batch) {
  if (batch.running == nullptr || !simt::last_to_arrive(batch.arrived + gridDim.y, gridDim.x * gridDim.y)) return;
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int problem = threadIdx.x; problem < (int)gridDim.y; problem += blockDim.x) {
    if (batch.status[problem] == kRunning) batch.running[atomicAdd(&count, 1)] = problem;
  }
  __syncthreads();
  if (threadIdx.x == 0) *batch.n_running = count;
}

// Blocks (x, problem) prepare the current centers of problems of status `which`, which then are kRunning.
template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) prepare_centers(const Batch<T> batch, int which) {
  const int problem = blockIdx.y;
  if (batch.status[problem] == which) {
    place<kThreads, false>(batch, problem);
    if (simt::last_to_arrive(batch.arrived + problem, gridDim.x)) {
      put_together<kThreads>(batch, problem);
      if (threadIdx.x == 0) batch.status[problem] = kRunning;
    }
  }
  list_running(batch);
}

// True if a cluster of a problem is empty.
template <int kThreads, typename T>
__device__ __forceinline__ bool has_empty(const Batch<T>& batch, int problem) {
  __shared__ bool empty;
  if (threadIdx.x == 0) empty = false;
  __syncthreads();
  for (int j = threadIdx.x; j < batch.k; j += kThreads) {
    const long long which = (long long)problem * batch.k + j;
    if (batch.sums[which * (batch.d + 1) + batch.d] == 0) empty = true;
  }
  __syncthreads();
  return empty;
}

// Blocks (x, problem) end an iteration of the problem: they compute the new centers and the status.
template <typename T, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) update_centers(const Batch<T> batch) {
  const int problem = blockIdx.y;
  if (batch.status[problem] == kRunning) {
    const bool empty = has_empty<kThreads>(batch, problem);
    if (!empty) place<kThreads, true>(batch, problem);
    if (simt::last_to_arrive(batch.arrived + problem, gridDim.x)) {
      const double shift = empty ? 0.0 : put_together<kThreads>(batch, problem);
      if (threadIdx.x == 0) {
        const unsigned n_reassigned = batch.counts[problem];
        const int iterations = ++batch.iterations[problem];
        const bool ends = shift <= batch.tolerances[problem] || iterations >= batch.max_iter;
        batch.status[problem] = empty ? kEmpty : n_reassigned == 0 ? kStrict : ends ? kEnded : kRunning;
        batch.n_reassigned[problem] = n_reassigned;
        batch.counts[problem] = 0;
      }
    }
  }
  list_running(batch);
}

}  // namespace batched
