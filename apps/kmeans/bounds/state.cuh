// Hamerly bounds: selects the active rows. A row is active if its nearest center may have changed since the row was
// last scored; otherwise it is safe.
//
// row bounds (n)  for each row, the drift of centers up to which its label is certainly correct
// limits (k)      for each center, the drift so far: a row with label a is safe while its row bound exceeds limits[a]
//
// When a row is scored, its nearest center is closer than any other by a gap of at least g. P is the sum of all shifts
// of this center so far. M is the sum, over the iterations so far, of the largest shift of any center. Since the row
// was scored, its center has drifted by at most the increase ΔP of P, and every other center by at most the increase ΔM
// of M. The label remains correct while g > ΔP + ΔM, that is while
//
//   row bound = g + P(then) + M(then)  >  P(now) + M(now) = limits[label]
//
// (Hamerly, "Making k-means even faster", SDM 2010. Hamerly's upper and lower bound of a row are one number here.) The
// test reads a row's bound (4 bytes) and label, and writes nothing. An ambiguous row is active in the next iteration.
// Lengths are in the scaled units of the centers (update/centers.cuh).
//
// Rounding. Drifts are rounded up, by a relative 2⁻¹⁸ and by 10⁻¹⁸. A gap is reduced by 2⁻³⁰ of the sum of both
// distances (assign.cuh). So the squared distance of a safe row to the center of its label is less than that to any
// other center by more than a relative 2⁻³³. Float64 distances (`assign/rescore.cuh`) could not give another label.
//
// The GPU selects the pass of the next iteration, so the host need not synchronize. `select_active_rows` counts and
// lists the active rows. If active rows are few, the next kernel scores only these (`assign_active_rows` of assign.cuh,
// or small_d/iteration_bounded.cuh). Otherwise a kernel scores all rows. Bounds start only when few rows were
// reassigned, because many times more rows are active than were reassigned.
//
// A selection fails if it finds too many active rows, and no selection has succeeded since row bounds were computed.
// After the n-th consecutive failure, 2ⁿ iterations run without bounds. Then bounds start again only when the largest
// shift of a center is at least a quarter smaller than before the failure.
//
// Why it is fast: the selection reads 5 or 8 bytes per row, with few registers. Scoring a row reads its half-precision
// copy: 256 bytes at d = 128.
#pragma once
#include "apps/kmeans/data/labels.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/device/simt.cuh"

namespace kmeans {

// The pass that labels the rows in an iteration.
enum Pass : int {
  kPlain,       // scores all rows without bounds
  kWithBounds,  // scores all rows and writes their row bounds
  kSelect,      // select_active_rows selects kActive, kWithBounds or kPlain
  kActive       // scores the listed rows
};

// Maximum of `failures`. The cooldown is 2^failures iterations, so at most 32.
constexpr int kMostFailures = 5;
// After a failed selection, bounds start again only if the largest shift of a center is at most this fraction of
// `failed_drift`.
constexpr double kLess = 0.75;

// State of bounds, and the pass of the current iteration.
struct BoundsState {
  double most;  // M (head of this file)
  // Largest shift of a center in the last iteration, and in the iteration before the last failed selection.
  double last_drift, failed_drift;
  int pass;
  unsigned active;  // number of active rows
  // `cooldown`: number of iterations left without bounds. `failures`: number of consecutive failed selections.
  // `paid_off`: whether a selection succeeded since row bounds were last computed for all rows.
  int cooldown, failures, paid_off;
  // If set, the kernel of pass kPlain does nothing: other kernels label the rows, or the fit ended.
  int skip_full_assign;
  // Totals for reports: the selections after which only the listed rows were scored, and the number of these rows.
  unsigned long long screened, examined;

  // Selects the pass after `select_active_rows` found `found` active rows. If these are at most `capacity`, only they
  // are scored.
  __device__ __forceinline__ void choose(unsigned found, unsigned capacity) {
    if (found <= capacity) {
      examined += found;
      ++screened;
      failures = 0;
      paid_off = 1;
      pass = kActive;
    } else if (paid_off) {
      // A selection has succeeded with these row bounds, so row bounds are computed again.
      paid_off = 0;
      pass = kWithBounds;
    } else {
      failed_drift = last_drift;
      failures = failures < kMostFailures ? failures + 1 : failures;
      cooldown = 1 << failures;
      pass = kPlain;
    }
    skip_full_assign = pass != kPlain;
  }

  // Selects the pass of the next iteration. `movement` is the largest shift of a center in this iteration. Bounds may
  // start only if `may_begin`. `is_next` is false if this iteration is the last.
  __device__ __forceinline__ void plan_next(double movement, bool may_begin, bool is_next) {
    last_drift = movement;
    active = 0;
    if (pass != kPlain) {
      pass = kSelect;
    } else if (--cooldown <= 0 && may_begin && !(movement > kLess * failed_drift)) {
      pass = kWithBounds;
      paid_off = 0;
    }
    skip_full_assign = pass != kPlain || !is_next;
  }
};

// The arguments with which update/centers.cuh updates the drift of the centers. Without bounds, `state` is null.
struct DriftArgs {
  double* center_drift;  // P of every center (head of this file)
  float* limits;
  BoundsState* state;
  // Bounds start only if fewer rows than this were reassigned.
  unsigned begin_limit, padding;
};

// limit_of returns P + M of a center (head of this file), rounded up by at most a relative 2⁻²¹. below_limit returns a
// lower bound of P + M from the result of limit_of.
__device__ __forceinline__ float limit_of(double center_drift, double most) {
  return (float)((center_drift + most) * (1 + 1.0 / (1 << 22)));
}
__device__ __forceinline__ float below_limit(float limit) { return limit * (1 - 1.0f / (1 << 20)); }

constexpr int kSelectThreads = 256;

// kSelectedAtOnce: number of rows per vector load. kVectors: number of vectors that a thread loads at a time. kListed:
// maximum number of rows that a warp lists in shared memory before it reserves space for them in `active`. A warp
// reserves space for many rows at once because all warps use one atomic counter.
constexpr int kSelectedAtOnce = 4, kVectors = 2, kListed = 1024;

// Writes the indices of the active rows to `active`, in any order, and selects the pass that labels rows. A warp stops
// when the list exceeds `capacity`. `row_bounds` and `labels` are aligned to 16 bytes; labels are int or Label.
template <typename Labels>
__global__ void __launch_bounds__(kSelectThreads, 6)
    select_active_rows(const float* row_bounds, const Labels* labels, long long rows, const float* limits,
                       unsigned* active, unsigned capacity, BoundsState* state, unsigned* arrived, const int* stopped) {
  ptx::griddepcontrol_wait();
  // If bounds begin in an iteration that is not to be, their state does not say so yet.
  if (*stopped && blockIdx.x == 0 && threadIdx.x == 0) state->skip_full_assign = 1;
  if (*stopped || state->pass != kSelect) return;
  __shared__ unsigned listed[kSelectThreads / 32][kListed];
  unsigned* mine = listed[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  constexpr int kVectorStride = kSelectThreads * kSelectedAtOnce;  // rows from a thread's vector to its next
  const long long each = (long long)gridDim.x * kVectorStride * kVectors;
  unsigned waiting = 0;
  // Appends the rows that the warp listed in shared memory to `active`. Returns true if all of them fit.
  auto list_active = [&] {
    unsigned begin = 0;
    if (lane == 0) begin = atomicAdd(&state->active, waiting);
    begin = simt::shuffle(begin, 0);
    __syncwarp();
    for (unsigned i = lane; i < waiting && begin + i < capacity; i += 32) active[begin + i] = mine[i];
    __syncwarp();
    const bool fits = begin <= capacity && waiting <= capacity - begin;
    waiting = 0;
    return fits;
  };
  const long long first = (long long)blockIdx.x * kVectorStride * kVectors + threadIdx.x * kSelectedAtOnce;
  for (long long begin = first; begin - kSelectedAtOnce * lane < rows; begin += each) {
    simt::Vector<float, kSelectedAtOnce> row_bound[kVectors] = {};
    simt::Vector<Labels, kSelectedAtOnce> label[kVectors] = {};
    int there[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const long long row = begin + v * kVectorStride;
      there[v] = row + kSelectedAtOnce <= rows ? kSelectedAtOnce : row < rows ? (int)(rows - row) : 0;
      if (there[v] == kSelectedAtOnce) {
        row_bound[v] = *reinterpret_cast<const simt::Vector<float, kSelectedAtOnce>*>(row_bounds + row);
        label[v] = *reinterpret_cast<const simt::Vector<Labels, kSelectedAtOnce>*>(labels + row);
      } else {
#pragma unroll
        for (int i = 0; i < kSelectedAtOnce; ++i) {
          if (i < there[v]) row_bound[v].at[i] = row_bounds[row + i], label[v].at[i] = labels[row + i];
        }
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int i = 0; i < kSelectedAtOnce; ++i) {
        const bool expired = i < there[v] && !(row_bound[v].at[i] > limits[label[v].at[i]]);
        const unsigned all = __ballot_sync(simt::every_lane, expired);
        if (expired) mine[waiting + __popc(all & ((1u << lane) - 1))] = (unsigned)(begin + v * kVectorStride + i);
        waiting += __popc(all);
      }
    if (waiting > kListed - 32 * kSelectedAtOnce * kVectors && !list_active()) break;
  }
  if (waiting) list_active();
  if (!simt::last_to_arrive(arrived, gridDim.x) || threadIdx.x != 0) return;
  state->choose(simt::load_from_other_block(&state->active), capacity);
}

}  // namespace kmeans
