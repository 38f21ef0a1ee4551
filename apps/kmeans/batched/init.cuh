// Batched init: greedy k-means++ of many problems with scikit-learn's draws; and the inertia of the clusterings. Sizes
// b, n, d, k: see problem.cuh.
//
// sample_candidates    before step s: the best candidate of step s − 1 becomes center s − 1. Draws the candidates of
//                      step s: rows at which the running sum of squared distances reaches uniform · potential.
// candidate_distances  for each candidate and row x: minimum of ‖x − candidate‖² and the squared distance of x to the
//                      nearest center; and the sum of these minima, the potential of the candidate
// inertias             Σ ‖x − c‖² over the rows x and the centers c of their labels; and which labels occur
//
// Distances are summed in double and rounded to float. The running sum accumulates in float in the order of the rows,
// as in scikit-learn, because the last bits of the sum decide which row a uniform number selects.
//
// Why it is fast: a step takes two launches for all problems. One warp per problem computes the running sum: n
// sequential additions of 4 cycles each, 0.18 ms for 75,000 rows. Reading these rows for 132 problems with 128 float32
// features takes about six times as long. A distance takes 2·d double-precision instructions, at 14·10¹² a second. A
// row is split among 4 lanes.
#pragma once
#include "apps/kmeans/batched/problem.cuh"

namespace batched {

constexpr int kSeedThreads = 256, kSeedRows = 512, kMostTrials = 16;
// Maximum number of candidates that are compared with a row at a time.
constexpr int kCandidates = 8;

struct PlusPlusArgs {
  const double* uniforms;  // b × (k − 1) × trials
  unsigned* candidates;    // b × trials: row indices
  float* distances;        // 2 × b × trials × n: of even and of odd steps
  double* potentials;      // b × tiles × trials: sums of the distances of kSeedRows rows
  int* best;               // b: index of the best previous candidate
  int trials, tiles;

  template <typename T>
  __device__ __forceinline__ float* distances_of(const Batch<T>& batch, int step, int problem, int candidate) const {
    const long long which = step % 2 ? (long long)gridDim.y + problem : problem;
    return distances + (which * trials + candidate) * batch.n;
  }
};

// Block (0, problem) chooses center step − 1 and draws the candidates of step `step`, 1 ≤ step ≤ k. At step 1 there is
// only one candidate to choose from; at step k none are drawn.
template <typename T>
__global__ void __launch_bounds__(256, 4)
    sample_candidates(const Batch<T> batch, const PlusPlusArgs plusplus, int step) {
  __shared__ double potentials[kMostTrials];
  const int problem = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, trials = plusplus.trials;
  const int count = step == 1 ? 1 : trials;
  for (int candidate = warp; candidate < count; candidate += kSeedThreads / 32) {
    double sum = 0;
    for (int tile = lane; tile < plusplus.tiles; tile += 32) {
      sum += plusplus.potentials[((long long)problem * plusplus.tiles + tile) * trials + candidate];
    }
    sum = simt::warp_sum(sum);
    if (lane == 0) potentials[candidate] = sum;
  }
  __syncthreads();
  int best = 0;
  for (int candidate = 1; candidate < count; ++candidate)
    best = potentials[candidate] < potentials[best] ? candidate : best;
  const T* chosen = batch.row(problem, plusplus.candidates[problem * trials + best]);
  const float* mean = batch.means + (long long)problem * batch.d;
  float* center = batch.centers + ((long long)problem * batch.k + step - 1) * batch.d;
  for (int j = threadIdx.x; j < batch.d; j += kSeedThreads) center[j] = batch.centered(chosen[j], mean[j]);
  if (threadIdx.x == 0) plusplus.best[problem] = best;
  __syncthreads();  // all threads have read the candidates
  if (step == batch.k || warp != 0) return;

  // Each lane has one draw, uniform · potential, and counts the rows whose running sum is less than the draw. The draw
  // is rounded up to a float, which gives the same results of comparisons with floats as the exact draw.
  float draw = 0;
  if (lane < trials) {
    const long long row = (long long)problem * (batch.k - 1) + step - 1;
    const double wanted = plusplus.uniforms[row * trials + lane] * (double)(float)potentials[best];
    draw = (float)wanted;
    if ((double)draw < wanted) draw = __uint_as_float(__float_as_uint(draw) + 1);
  }
  const float* closest = plusplus.distances_of(batch, step - 1, problem, best);
  float running = 0, next = lane < batch.n ? closest[lane] : 0.0f;
  long long before = 0;
  for (long long row = 0; row < batch.n; row += 32) {
    const float now = next;
    next = row + 32 + lane < batch.n ? closest[row + 32 + lane] : 0.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      running += simt::shuffle(now, i);
      before += running < draw;
    }
    if (__ballot_sync(simt::every_lane, running < draw) == 0) break;
  }
  if (lane < trials) {
    // Through rounding, a draw can exceed the whole running sum; it then selects the last row.
    plusplus.candidates[problem * trials + lane] = (unsigned)(before < batch.n ? before : batch.n - 1);
  }
}

// Block (x, problem) processes kSeedRows rows, from row kSeedRows · x on. Step 0 has a single candidate, and no center
// to compare with.
template <typename T>
__global__ void __launch_bounds__(256, 2)
    candidate_distances(const Batch<T> batch, const PlusPlusArgs plusplus, int step) {
  __shared__ double of_warp[kSeedThreads / 32][kCandidates];
  double* points = simt::dynamic_shared<double>();  // kCandidates × d
  const int problem = blockIdx.y, lane = threadIdx.x % 4, d = batch.d, trials = plusplus.trials;
  const int count = step == 0 ? 1 : trials;
  const float* mean = batch.means + (long long)problem * d;
  const float* closest = step == 0 ? nullptr : plusplus.distances_of(batch, step - 1, problem, plusplus.best[problem]);
  const long long begin = (long long)blockIdx.x * kSeedRows;
  const long long end = begin + kSeedRows < batch.n ? begin + kSeedRows : batch.n;
  for (int first = 0; first < count; first += kCandidates) {
    const int some = count - first < kCandidates ? count - first : kCandidates;
    __syncthreads();
    for (int i = threadIdx.x; i < kCandidates * d; i += kSeedThreads) {
      const int candidate = i / d, j = i % d;
      if (candidate < some) {
        const unsigned row = plusplus.candidates[problem * trials + first + candidate];
        points[i] = batch.centered(batch.row(problem, row)[j], mean[j]);
      } else {
        points[i] = 0;
      }
    }
    __syncthreads();
    double partial[kCandidates] = {};
    for (long long group = begin; group < end; group += kSeedThreads / 4) {
      const long long mine = group + threadIdx.x / 4, row = mine < end ? mine : end - 1;
      const T* x = batch.row(problem, row);
      double sums[kCandidates] = {};
#pragma unroll 2
      for (int j = lane; j < d; j += 4) {
        const double value = batch.centered(x[j], mean[j]);
#pragma unroll
        for (int i = 0; i < kCandidates; ++i) {
          const double delta = value - points[i * d + j];
          sums[i] += delta * delta;
        }
      }
      const float least = closest ? closest[row] : kInfinity;
#pragma unroll
      for (int i = 0; i < kCandidates; ++i) {
        sums[i] += simt::shuffle_xor(sums[i], 1);
        sums[i] += simt::shuffle_xor(sums[i], 2);
        if (i % 4 != lane || i >= some || mine >= end) continue;
        const float distance = fminf((float)sums[i], least);
        plusplus.distances_of(batch, step, problem, first + i)[row] = distance;
        partial[i] += distance;
      }
    }
#pragma unroll
    for (int i = 0; i < kCandidates; ++i) {
      const double sum = simt::warp_sum(partial[i]);
      if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32][i] = sum;
    }
    __syncthreads();
    if ((int)threadIdx.x < some) {
      double sum = 0;
      for (int warp = 0; warp < kSeedThreads / 32; ++warp) sum += of_warp[warp][threadIdx.x];
      plusplus.potentials[((long long)problem * gridDim.x + blockIdx.x) * trials + first + threadIdx.x] = sum;
    }
  }
}

// Block (x, problem) processes kSeedRows rows, from row kSeedRows · x on, and writes their sum to `parts` (b ×
// gridDim.x). Sets used[problem · k + j] for every label j that occurs.
template <typename T, bool kAligned, int kRows>
__global__ void __launch_bounds__(256, 4) inertias(const Batch<T> batch, double* parts, bool* used) {
  __shared__ double of_warp[kSeedThreads / 32];
  using Lanes = LanesOfRows<kRows>;
  const int problem = blockIdx.y, d = batch.d;
  const float* mean = batch.means + (long long)problem * d;
  const long long begin = (long long)blockIdx.x * kSeedRows;
  const long long end = begin + kSeedRows < batch.n ? begin + kSeedRows : batch.n;
  double sum = 0;
  for (long long row = begin + threadIdx.x / 32 * kRows + Lanes::row(); row < end; row += kSeedThreads / 32 * kRows) {
    const T* x = batch.row(problem, row);
    const long long label = (long long)problem * batch.k + batch.labels[problem * batch.n + row];
    if (Lanes::column() == 0) used[label] = true;
    const float* center = batch.centers + label * d;
#pragma unroll 2
    for (int j = Lanes::column(); j < d; j += Lanes::kStride) {
      float some[8];
      load_centered<kAligned>(x, mean, j, d, some);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const double delta = (double)some[i] - (double)(kAligned || j + i < d ? center[j + i] : 0.0f);
        sum += delta * delta;
      }
    }
  }
  sum = simt::warp_sum(sum);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kSeedThreads / 32; ++warp) sum += of_warp[warp];
  parts[(long long)problem * gridDim.x + blockIdx.x] = sum;
}

}  // namespace batched
