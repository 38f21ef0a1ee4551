// From one iteration to the next within a launch, for few features and few clusters: every block makes all centres of the sums,
// for itself.
//
//   sums (k × (d + 1), integers.cuh)   →   centres (k × d), offsets, extremes and halves (centers.cuh): of each block its own
//
//   blocks of an iteration   rows … sums │ all sums are there │ centres, and whether there is to be a next iteration │ rows …
//
// Eight lanes have a centre; a warp puts together what all of them found, in their order. All blocks find the same.
//
// Why it is fast: between the last row of an iteration and the first of the next lie one barrier and one read of the sums from
// the level-2 cache. No kernel ends or begins, and no block waits for another's centres.
#pragma once
#include "apps/kmeans/next_centre.cuh"
#include "kernels/tsm2/grid_barrier.cuh"

namespace kmeans {

// The iterations of a launch. What is a block's own lies `stride` bytes behind the previous block's; the first has what the next
// launch begins with, and what the host reads.
struct Iterations {
  unsigned* state;  // GridBarrier's
  float *centers, *offsets;
  Extremes* extremes;
  ptx::Half* halves;
  const double* units;  // what one stands for in each column of the sums
  Outcome* outcomes;    // of each iteration
  int* stopped;
  double tolerance;
  int stride, count;  // no iterations: labels alone are wanted
  float reach;
  int padding;

  template <typename T>
  __device__ __forceinline__ T* own(T* of_first) const {
    return (T*)((const unsigned char*)of_first + (long long)blockIdx.x * stride);
  }
};

// `kHalves`: whether centres in float16 are wanted, and what they lose.
template <int kFeatures, int kPadded, int kColumns, int kThreads, bool kHalves>
class NextCentres {
 public:
  // In shared memory, while iterations are not at work.
  static constexpr int kBytes = 8 * kColumns * (int)sizeof(OfCentre);

  __device__ __forceinline__ explicit NextCentres(const Iterations& of) : of_(of), grid_(of.state) {}

  // Begins with the first block's centres.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) *so_far() = {};
    if (blockIdx.x == 0) return;
    auto* to = reinterpret_cast<uint4*>(of_.own(of_.centers));
    const auto* from = reinterpret_cast<const uint4*>(of_.centers);
    for (int i = threadIdx.x; i < of_.stride / 16; i += kThreads) to[i] = from[i];
    __syncthreads();
  }

  // By thread 0 of a block that is about to add to the sums and to what moved: waits until the last iteration's have been read.
  __device__ __forceinline__ void before_sums() const {
    grid_.wait_left(so_far()->iterations);
  }

  // Waits for all sums; tells whether iterations end here.
  __device__ __forceinline__ bool make(const unsigned long long* sums, unsigned* moved, float scale, int k, void* shared) const {
    __shared__ bool ends;
    auto* found = static_cast<OfCentre*>(shared);
    grid_.wait(so_far()->iterations);
    const unsigned moved_now = simt::load_from_other_block(moved);
    const bool empty = each_centre(sums, scale, k, found);
    __syncthreads();
    if (threadIdx.x == kThreads - 1) grid_.leave();  // which is not of the warp that is waited for
    if (threadIdx.x < 32) {
      const bool last = put_together(found, k, empty, moved_now);
      if (threadIdx.x == 0) ends = last;
    }
    __syncthreads();
    if (!ends) return false;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      grid_.end(so_far()->iterations);
      *moved = 0;
    }
    return true;
  }

 private:
  static constexpr int kLanes = 8, kAtOnce = 4, kGroups = kThreads / kLanes;

  // Each block begins elsewhere, so that not all ask for the same sums at a time.
  __device__ static __forceinline__ int own_group() { return ((int)threadIdx.x / kLanes + (int)blockIdx.x * 4) % kGroups; }

  // In shared memory, where the loop of tiles has no register to spare.
  struct SoFar {
    unsigned moved;
    int iterations;
  };
  __device__ static __forceinline__ SoFar* so_far() {
    __shared__ SoFar here;
    return &here;
  }

  // What a lane has of its centre, in turns: so many columns at a time that registers have room for those that are on their way.
  struct Some {
    unsigned long long sums[kAtOnce];
    double units[kAtOnce];
    float centre[kAtOnce];
  };

  // The next centres, and what was found of each; tells whether a cluster is empty, and nothing is written then but that.
  __device__ __forceinline__ bool each_centre(const unsigned long long* sums, float scale, int k, OfCentre* found) const {
    constexpr int kSums = kFeatures + 1, kTurns = (kFeatures + kAtOnce * kLanes - 1) / (kAtOnce * kLanes);
    float* centers = of_.own(of_.centers);
    ptx::Half* halves = of_.own(of_.halves);
    const auto centre_of = [](int turn) { return turn / kTurns * kGroups + own_group(); };
    const auto column_of = [](int turn, int i) { return (turn % kTurns * kAtOnce + i) * kLanes + (int)threadIdx.x % kLanes; };
    const auto load = [&](int turn, Some& some) {
      const int j = centre_of(turn);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = column_of(turn, i);
        if (j >= k || column >= kFeatures) break;
        some.sums[i] = simt::load_from_other_block(sums + j * kSums + column);
        some.units[i] = of_.units[column];
        some.centre[i] = centers[j * kFeatures + column];
      }
    };
    Some next = {};
    load(0, next);
    const int own = threadIdx.x;
    const bool empty = __syncthreads_or(own < k && simt::load_from_other_block(sums + own * kSums + kFeatures) == 0);
    const int turns = (k + kGroups - 1) / kGroups * kTurns;
    OfCentre mine = {};
    double weight = 0, inverse = 0;
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
      const Some some = next;
      const int j = centre_of(turn);
      if (turn + 1 < turns) load(turn + 1, next);
      if (turn % kTurns == 0) {
        mine = {};
        weight = j < k ? (double)(long long)simt::load_from_other_block(sums + j * kSums + kFeatures) * of_.units[kFeatures] : 0;
        inverse = 1 / (weight != 0 ? weight : 1.0);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int column = column_of(turn, i);
        if (j >= k || column >= kFeatures) break;
        // As advance of centers.cuh has it, to the bit.
        const double sum = (double)(long long)some.sums[i] * some.units[i], old = (double)some.centre[i];
        const float mean = weight != 0 ? (float)(sum * inverse) : some.centre[i];
        const double c = (double)mean;
        mine.shift += (c - old) * (c - old);
        mine.potential += old * (weight * old - 2 * sum);
        if (!empty) centers[j * kFeatures + column] = mean;
        if (kHalves) {
          ptx::Half half;
          place(c, scale, &half, mine);
          if (!empty) halves[j * kPadded + column] = half;
        } else {
          mine.square += c * scale * (c * scale);
        }
      }
      if ((turn + 1) % kTurns != 0) continue;
      double* values = reinterpret_cast<double*>(&mine);
#pragma unroll
      for (int bits = kLanes / 2; bits > 0; bits /= 2)
#pragma unroll
        for (int i = 0; i < 4; ++i) values[i] += simt::shuffle_xor(values[i], bits);
      if (j < k && threadIdx.x % kLanes == 0) found[j] = mine;
    }
    return empty;
  }

  // Offsets and extremes, and the outcome for the host, by a warp; tells, lane 0, whether this was the last iteration.
  __device__ __forceinline__ bool put_together(const OfCentre* found, int k, bool empty, unsigned moved_now) const {
    constexpr int kOfLane = (8 * kColumns + 31) / 32;
    const auto over_warp = [](double value, auto op) {
#pragma unroll
      for (int bits = 16; bits > 0; bits /= 2) value = op(value, simt::shuffle_xor(value, bits));
      return value;
    };
    const auto sum_of = [](double a, double b) { return a + b; };
    const auto most = [](double a, double b) { return most_of(0, a, b); };
    const int lane = threadIdx.x;
    double shift = 0, potential = 0, least = kInfinity, square = 0, lost = 0;
    OfCentre mine[kOfLane];
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int j = 32 * i + lane;
      mine[i] = {};
      if (j >= k) break;
      mine[i] = found[j];
      shift += mine[i].shift, potential += mine[i].potential;
      if (mine[i].square < least) least = mine[i].square;
    }
    least = over_warp(least, [](double a, double b) { return b < a ? b : a; });
    bool some = false;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int j = 32 * i + lane;
      if (j >= k) break;
      const bool out = is_left_out(mine[i].square, least, of_.reach);
      of_.own(of_.offsets)[j] = out ? -kInfinity : -(float)(mine[i].square / 2);
      some |= out;
      if (out) continue;
      square = most_of(0, square, mine[i].square);
      lost = most_of(0, lost, mine[i].lost);
    }
    shift = over_warp(shift, sum_of), potential = over_warp(potential, sum_of);
    square = over_warp(square, most), lost = over_warp(lost, most);
    some = __any_sync(simt::every_lane, some);
    if (lane == 0) *of_.own(of_.extremes) = extremes_of(square, lost, some, of_.reach, false);
    if (lane != 0) return false;
    const SoFar before = *so_far();
    const unsigned moved = moved_now - before.moved;
    const bool stops = empty || moved == 0 || shift <= of_.tolerance;
    *so_far() = {moved_now, before.iterations + 1};
    if (blockIdx.x == 0) {
      of_.outcomes[before.iterations] = {stops, empty, moved, 0, shift, potential};
      if (stops) *of_.stopped = 1;
    }
    return stops || before.iterations + 1 == of_.count;
  }

  const Iterations& of_;
  const tsm2::GridBarrier grid_;
};

}  // namespace kmeans
