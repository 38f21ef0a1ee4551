// The centers of an iteration as assign/small_k.cuh reads them, and the next centers from the sums, without the host.
//
//   centers (k × d)  →  centers_half (k × padded, float16) = fl16(c · scale), offsets = −‖c · scale‖²/2, center_stats
//
// prepare_centers  places given centers. Offsets are −infinite past the last, up to the columns of the product. It also
//                  computes the error coefficient of each center, where that is wanted (ArgminEpilogueLargeD).
// update_centers   computes the means of the sums (fixed_point.cuh), which become the next centers, and the stopping
//                  test: no label changed, or the centers moved by no more than `tolerance` in all (squared), or a
//                  cluster is empty, which the host has to fill. Later launches then do nothing. With bounds
//                  (bounds/state.cuh), it adds up the drift of the centers and decides what the next iteration does.
//
// A center far away would widen the bound of every row. A center more than 4·norm_limit from the mean is the nearest of
// no row within norm_limit, as long as another center is within 2·norm_limit. So it is excluded (its offset is
// −infinite), and assign/rescore.cuh decides the few rows beyond norm_limit.
//
// A block a center; the last block to arrive puts together what the others found, in their order: the same bits always.
#pragma once
#include "kernels/device/block_reduce.cuh"
#include "apps/kmeans/bounds/state.cuh"
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/data/half_copy.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace kmeans {

// What the host learns of an iteration.
struct Outcome {
  int stop, empty;
  unsigned n_reassigned;
  int padding;
  double shift, potential;  // Σ ‖new c − c‖²; Σ w·(‖c‖² − 2 x·c), at the centers that the labels are of
};

// What one block found out about its center.
struct CenterFound {
  double square, lost, shift, potential;
};

// Sums over a block, in thread 0.
__device__ __forceinline__ CenterFound block_sum(CenterFound mine) {
  __shared__ CenterFound of_warp[kCenterThreads / 32];
  double* values = reinterpret_cast<double*>(&mine);
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = simt::warp_sum(values[i]);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  for (int warp = 1; threadIdx.x == 0 && warp < kCenterThreads / 32; ++warp) {
    mine.square += of_warp[warp].square, mine.lost += of_warp[warp].lost;
    mine.shift += of_warp[warp].shift, mine.potential += of_warp[warp].potential;
  }
  return mine;
}

// Where centers in float16 go: `padded` columns a row, or panels, of which there is one more, for −‖c‖²/2
// (core_matrix_layout.cuh). Of rows there may be second parts (assign/small_k.cuh), from row `second` on, if that is
// not 0.
struct HalfCenters {
  ptx::Half* to;
  int padded, panels, height, second;  // 0 panels: rows; `height` centers are a tile

  __device__ __forceinline__ ptx::Half* at(int center, int column) const {
    if (panels == 0) return to + (long long)center * padded + column;
    return to + tsm2::panel_offset(center, column + tsm2::kPanelDepth, panels + 1, height);
  }
};

// −‖c‖²/2 of a center.
__device__ __forceinline__ void set_offset(float* offsets, const HalfCenters& centers_half, int center, float value) {
  if (centers_half.panels) {
    tsm2::place_parts(centers_half.to, center, centers_half.panels + 1, centers_half.height, value);
  } else {
    offsets[center] = value;
  }
}

// One element of a center to float16.
__device__ __forceinline__ void place(double c, float scale, ptx::Half* half, CenterFound& found) {
  const double scaled = c * scale;
  *half = ptx::to_half((float)scaled);
  const double lost = scaled - ptx::to_float(*half);
  found.square += scaled * scaled;
  found.lost += lost * lost;
}

// The second parts of a center, (d,), and the square of what both parts lose, of which a thread has some: by a block,
// of which each thread has written the columns that it now reads.
template <typename Work>
__device__ __forceinline__ double place_second(const Work* center, int d, float scale, const HalfCenters& centers_half,
                                               int j) {
  double all = 0;
  constexpr int kAtOnce = 4;
  for (int begin = threadIdx.x; begin < d; begin += kAtOnce * kCenterThreads) {
    Work some[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCenterThreads;
      some[r] = i < d ? center[i] : (Work)0;
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCenterThreads;
      if (i >= d) break;
      const double scaled = (double)some[r] * scale, rest = scaled - ptx::to_float(ptx::to_half((float)scaled));
      // Of what is infinite in float16 there is no rest.
      const ptx::Half second = ptx::to_half(fabs(rest) < kInfinity ? (float)(rest * kSecondScale) : 0.0f);
      *centers_half.at(centers_half.second + j, i) = second;
      const double lost = rest - ptx::to_float(second) / kSecondScale;
      all += lost * lost;
    }
  }
  return all;
}

// Of the centers that are not left out, where `least` is the least square norm of all; by a block.
__device__ __forceinline__ void put_together(const CenterFound* found, int k, double least, float norm_limit,
                                             float* offsets, const HalfCenters& centers_half,
                                             CenterStats* center_stats) {
  const double far = 16.1 * norm_limit * norm_limit;  // norms of rows are of what was rounded
  double square = 0, lost = 0, some = 0;
#pragma unroll 4
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    // What is no number is far.
    if (!(found[j].square <= far) && least <= far / 4) {
      set_offset(offsets, centers_half, j, -kInfinity);
      // Its scores would be no numbers, where it is infinite in float16.
      for (int i = 0; centers_half.panels && i < centers_half.padded; ++i) *centers_half.at(j, i) = {0};
      some = 1;
      continue;
    }
    square = most_of(0, square, found[j].square);
    lost = most_of(0, lost, found[j].lost);
  }
  const Doubles<3> most = over_block(Doubles<3>{square, lost, some}, most_of);
  square = most.at[0], lost = most.at[1], some = most.at[2];
  if (threadIdx.x != 0) return;
  // Rounded up; an infinity stays one.
  const float norm = (float)(sqrt(square) * 1.000001), of_lost = (float)(sqrt(lost) * 1.000001);
  // Products past 2²⁷ would overflow in the epilogue, and a center that is infinite in float16 has none; nor has
  // −‖c‖²/2 of a norm past 2¹⁵ room in panels.
  const bool holds = of_lost < kInfinity && (centers_half.panels == 0 || norm < (float)(1 << 15));
  const float within = holds ? (float)(1 << 27) / norm : -1.0f;
  *center_stats = {norm, of_lost, (float)(square / 2 * 1.000001),
                   some != 0 && norm_limit < within ? norm_limit : within};
}

// An iteration's centers, sums and results, for both kernels here. `units` are what one stands for in each column of
// the sums, powers of two. `outcome` is this iteration's; `stopped` is set with its `stop` and stays. A center's
// margin, if there is one, is of_norm · ‖c‖ + of_lost · ‖c − ĉ‖.
template <typename Work>
struct UpdateCenters {
  const unsigned long long* sums;
  const double* units;
  const Work* centers;
  Work* next;
  CenterFound* found;
  float *offsets, *error_coefficients;
  CenterStats* center_stats;
  unsigned *arrived, *n_reassigned, *counts;  // left at zero
  int* stopped;
  Outcome* outcome;
  HalfCenters centers_half;
  DriftArgs drift;
  double tolerance;
  int k, d, lists;
  float scale, norm_limit, of_norm, of_lost;
  // Whether blocks of the next kernel may come before `update_centers` ends: of one block a multiprocessor.
  int lets_begin;

  // What a block found out about center j, or about a column that is none's.
  __device__ __forceinline__ void keep(int j, const CenterFound& mine) const {
    const bool there = j < k;
    if (there) found[j] = mine;
    set_offset(offsets, centers_half, j, there ? -(float)(mine.square / 2) : -kInfinity);
    if (error_coefficients == nullptr) return;
    error_coefficients[j] = there ? (float)((sqrt(mine.square) * of_norm + sqrt(mine.lost) * of_lost) * 1.0002) : 0.0f;
  }
};

// Begins: places centers that are given, which may lie with the host, and keeps them as `next`; nothing has moved or
// stopped.
template <typename Work>
__global__ void __launch_bounds__(kCenterThreads, 4)
    prepare_centers(const Work* __restrict__ given, const UpdateCenters<Work> of) {
  ptx::griddepcontrol_wait();
  const int j = blockIdx.x, k = of.k, d = of.d;
  CenterFound mine = {};
#pragma unroll 4
  for (int i = threadIdx.x; j < k && i < of.centers_half.padded; i += blockDim.x) {
    Work c = 0;
    if (i < d) of.next[(long long)j * d + i] = c = given[(long long)j * d + i];
    place((double)c, of.scale, of.centers_half.at(j, i), mine);
  }
  if (of.centers_half.second != 0 && j < k)
    mine.lost = place_second(of.next + (long long)j * d, d, of.scale, of.centers_half, j);
  mine = block_sum(mine);
  if (threadIdx.x == 0) of.keep(j, mine);
  if (!simt::last_to_arrive(of.arrived, gridDim.x)) return;
  const auto least_of = [](int, double a, double b) { return b < a ? b : a; };
  double least = kInfinity;
#pragma unroll 4
  for (int i = threadIdx.x; i < k; i += blockDim.x) least = least_of(0, least, of.found[i].square);
  least = over_block(Doubles<1>{least}, least_of).at[0];
  put_together(of.found, k, least, of.norm_limit, of.offsets, of.centers_half, of.center_stats);
  if (threadIdx.x == 0) *of.n_reassigned = 0, *of.stopped = 0;
  for (int i = threadIdx.x; i < of.lists; i += blockDim.x) of.counts[i] = 0;
}

// What has moved, after the shifts of all centers were found; by a block, the last of its iteration. `rows` have moved,
// and the iteration stops or not.
__device__ __forceinline__ void follow(const DriftArgs& drift, const CenterFound* found, int k, double scale,
                                       unsigned rows, bool stops) {
  double movement = 0;
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const double mine = sqrt(found[j].shift) * scale * (1 + 1.0 / (1 << 18)) + 1e-18;
    drift.center_drift[j] += mine;
    movement = most_of(0, movement, mine);
  }
  movement = over_block(Doubles<1>{movement}, most_of).at[0];
  const double most = drift.state->most + movement;
  for (int j = threadIdx.x; j < k; j += blockDim.x) drift.limits[j] = limit_of(drift.center_drift[j], most);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x != 0) return;
  drift.state->most = most;
  drift.state->plan_next(movement, rows < drift.begin_limit, !stops);
}

template <typename Work>
__global__ void __launch_bounds__(kCenterThreads, 4) update_centers(const UpdateCenters<Work> of) {
  if (of.lets_begin) ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int j = blockIdx.x, k = of.k, d = of.d;
  const unsigned long long *sums = of.sums + (long long)j * (d + 1), weights = sums[d];
  // Looked at when the first columns have been asked for too.
  const bool stopped = *of.stopped;
  const unsigned n_reassigned = *of.n_reassigned;
  const double weight = (double)(long long)weights * of.units[d];
  const double inverse = 1 / (weight != 0 ? weight : 1.0);
  CenterFound mine = {};
  // Columns are loaded before any is written.
  constexpr int kAtOnce = 4;
  for (int begin = threadIdx.x; begin < of.centers_half.padded; begin += kAtOnce * kCenterThreads) {
    unsigned long long column[kAtOnce] = {};
    double unit[kAtOnce] = {};
    Work before[kAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCenterThreads;
      if (i >= d) break;
      column[r] = sums[i], unit[r] = of.units[i], before[r] = of.centers[(long long)j * d + i];
    }
    if (stopped) return;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCenterThreads;
      if (i >= of.centers_half.padded) break;
      double c = 0;
      if (i < d) {
        const double sum = (double)(long long)column[r] * unit[r], old = (double)before[r];
        const Work mean = weight != 0 ? (Work)(sum * inverse) : before[r];
        of.next[(long long)j * d + i] = mean;
        c = (double)mean;
        mine.shift += (c - old) * (c - old);
        mine.potential += old * (weight * old - 2 * sum);
      }
      place(c, of.scale, of.centers_half.at(j, i), mine);
    }
  }
  if (stopped) return;
  if (of.centers_half.second != 0)
    mine.lost = place_second(of.next + (long long)j * d, d, of.scale, of.centers_half, j);
  mine = block_sum(mine);
  if (threadIdx.x == 0) of.keep(j, mine);
  if (!simt::last_to_arrive(of.arrived, gridDim.x)) return;
  double shift = 0, potential = 0, empty = 0, least = kInfinity;
#pragma unroll 4
  for (int i = threadIdx.x; i < k; i += blockDim.x) {
    shift += of.found[i].shift;
    potential += of.found[i].potential;
    if (of.sums[(long long)i * (d + 1) + d] == 0) empty = 1;
    if (of.found[i].square < least) least = of.found[i].square;
  }
  const auto op = [](int i, double a, double b) { return i < 2 ? a + b : i == 2 ? most_of(i, a, b) : b < a ? b : a; };
  const Doubles<4> of_all = over_block(Doubles<4>{shift, potential, empty, least}, op);
  shift = of_all.at[0], potential = of_all.at[1], empty = of_all.at[2];
  const bool stops = empty != 0 || n_reassigned == 0 || shift <= of.tolerance;
  // On its way to the host while the others go on.
  if (threadIdx.x == blockDim.x - 1) {
    *of.outcome = {stops, empty != 0, n_reassigned, 0, shift, potential};
    *of.stopped = stops;
    *of.n_reassigned = 0;
  }
  put_together(of.found, k, of_all.at[3], of.norm_limit, of.offsets, of.centers_half, of.center_stats);
  if (of.drift.state != nullptr) follow(of.drift, of.found, k, of.scale, n_reassigned, stops);
  for (int i = threadIdx.x; i < of.lists; i += blockDim.x) of.counts[i] = 0;
}

}  // namespace kmeans
