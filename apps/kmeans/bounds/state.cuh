// Rows that need not be looked at: those whose nearest center cannot have changed since they were last scored.
//
//   expiries (n)   of every row, how far centers may move before its label has to be proved again
//   limits (k)     how far they have moved: a row of label a is safe as long as its expiry is above limits[a]
//
// A row is scored once: its nearest center is then closer than any other by a gap g or more. Later its own center has
// moved by ΔP at most, and every other center by ΔM at most, where P is the sum of all movements of that center and M
// the sum of the largest movement of any, iteration by iteration. So its label stands while g > ΔP + ΔM, that is while
//
//   expiry = g + P(then) + M(then)  >  P(now) + M(now) = limits[label]
//
// (Hamerly, "Making k-means even faster", SDM 2010, with his two bounds in one number): 4 bytes of a row and its label
// are read and none is written. A row that is not decided when it is scored expires at once. Lengths are in the units
// that centers are scaled to (update/centers.cuh).
//
// Rounding. Movements are rounded up, by 2⁻¹⁸ of themselves and 10⁻¹⁸; gaps are less by 2⁻³⁰ of the distances that they
// lie between (assign.cuh). So the two squared distances of a safe row still differ by more than 2⁻³³ of themselves,
// and float64, which is what `assign/rescore.cuh` sums them in, could not find another label.
//
// What runs is decided here, for the host to ask nothing: `select_active_rows` counts the rows that are not safe and
// lists them. If they are few, they alone are scored (`assign_active_rows`, assign.cuh; small_d/iteration_bounded.cuh);
// else all rows are. Bounds begin where few rows have moved, as more than those are not safe, and where they do not pay
// they turn themselves off: after the n-th screen in a row that found too many, 2ⁿ iterations run without bounds, and
// more of them until the largest movement is a quarter less than it was.
//
// Why it is fast: one pass over 5 or 8 bytes a row, with few registers, where the copy of a row is 256 bytes at 128
// features.
#pragma once
#include "apps/kmeans/data/labels.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/device/simt.cuh"

namespace kmeans {

// What gives rows their labels in an iteration.
enum Pass : int {
  kPlain,       // all rows are scored, without bounds
  kWithBounds,  // all rows are scored, and their expiries written
  kSelect,      // not known before they are screened: then kWithBounds, kPlain, or
  kActive       // the rows that were listed are scored
};

// Iterations without bounds after a screen that found too many rows: twice as many after each, up to 2⁵.
constexpr int kMostFailures = 5;
// The part of the movement at the last such screen that the largest movement has to fall to.
constexpr double kLess = 0.75;

// What is known of an iteration's rows, and what is to be done in it.
struct BoundsState {
  double most;  // M
  // The largest movement in the last iteration, and before the last screen that found too many.
  double last_drift, failed_drift;
  int pass;
  unsigned active;  // rows that are not safe
  // Iterations without bounds to come; screens in a row that found too many; whether one did not.
  int cooldown, failures, paid_off;
  // Whether what scores all rows without bounds has nothing to do: others have, or nothing follows.
  int skip_full_assign;
  // In all, for who wants to know: screens after which only listed rows were scored, and those rows.
  unsigned long long screened, examined;

  // After a screen: whether listed rows are scored, of which there is room for `capacity`.
  __device__ __forceinline__ void choose(unsigned found, unsigned capacity) {
    if (found <= capacity) {
      examined += found;
      ++screened;
      failures = 0;
      paid_off = 1;
      pass = kActive;
    } else if (paid_off) {
      // Expiries were of use, and are renewed.
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

  // After an iteration in which the center that moved most did so by `movement`: what the next is to do, if there
  // `is_next`. Bounds may begin if `may_begin`.
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

// How far centers have moved, and what follows from it; without bounds, `state` is null.
struct DriftArgs {
  double* center_drift;  // of every center, P
  float* limits;
  BoundsState* state;
  // Of how many rows that moved on bounds may not begin.
  unsigned begin_limit, padding;
};

// No less than P + M of a center, nor more by 2⁻²¹; and no more than it, of such a limit.
__device__ __forceinline__ float limit_of(double center_drift, double most) {
  return (float)((center_drift + most) * (1 + 1.0 / (1 << 22)));
}
__device__ __forceinline__ float below_limit(float limit) { return limit * (1 - 1.0f / (1 << 20)); }

constexpr int kSelectThreads = 256;

// Rows of a vector, the vectors of a thread that are on their way together, and what a warp lists before it asks for
// room: so much, as all who ask do so at one place.
constexpr int kSelectedAtOnce = 4, kVectors = 2, kListed = 1024;

// Lists the rows that are not safe, in no order; beyond `capacity` of them it gives up. `row_bounds` and `labels` begin
// at multiples of 16 bytes; labels are int, or Label.
template <typename Labels>
__global__ void __launch_bounds__(kSelectThreads, 6)
    select_active_rows(const float* row_bounds, const Labels* labels, long long rows, const float* limits,
                       unsigned* active, unsigned capacity, BoundsState* state, unsigned* arrived, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped || state->pass != kSelect) return;
  __shared__ unsigned listed[kSelectThreads / 32][kListed];
  unsigned* mine = listed[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  constexpr int kVectorStride = kSelectThreads * kSelectedAtOnce;  // from vector to vector of a thread
  const long long each = (long long)gridDim.x * kVectorStride * kVectors;
  unsigned waiting = 0;
  // Returns whether there is room for more.
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
