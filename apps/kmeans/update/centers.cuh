// The centres as `assign/small_k.cuh` wants them, and from one iteration to the next without the host.
//
//   centers (k × d)  →  halves (k × padded, float16) = fl16(c · scale), offsets = −‖c · scale‖²/2, and the extremes
//
// place_centers   of centres that are given; offsets are −infinite past the last, up to the columns of the product; and what
//                 scores may be off by, for each centre, where that is wanted (NearestOfLong)
// advance         of the means of the sums (fixed_point.cuh), which become the next centres; and whether there is to be a next
//                 iteration: not if no label changed, if the centres moved by no more than `tolerance` in all (squared), or
//                 if a cluster is empty, which the host has to fill. What would follow then does nothing.
//                 With bounds (bounds/state.cuh), it keeps how far centres have moved too, and says what the next iteration does.
//
// A centre far away would widen the bound of every row. Where all rows are within `reach` of the mean but for a few, a centre
// more than 4·reach from it is the nearest of none of the others, as long as another centre is within 2·reach: it is
// left out (its offset is −infinite), and rows beyond the reach are left to assign/rescore.cuh.
//
// A block a centre; the last block to arrive puts together what the others found, in their order: the same bits always.
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
  unsigned moved;
  int padding;
  double shift, potential;  // Σ ‖new c − c‖²; Σ w·(‖c‖² − 2 x·c), at the centres that the labels are of
};

// What one block found out about its centre.
struct OfCentre {
  double square, lost, shift, potential;
};

// Sums over a block, in thread 0.
__device__ __forceinline__ OfCentre block_sum(OfCentre mine) {
  __shared__ OfCentre of_warp[kCentreThreads / 32];
  double* values = reinterpret_cast<double*>(&mine);
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = simt::warp_sum(values[i]);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
  __syncthreads();
  for (int warp = 1; threadIdx.x == 0 && warp < kCentreThreads / 32; ++warp) {
    mine.square += of_warp[warp].square, mine.lost += of_warp[warp].lost;
    mine.shift += of_warp[warp].shift, mine.potential += of_warp[warp].potential;
  }
  return mine;
}

// Where centres in float16 go: `padded` columns a row, or slabs, of which there is one more, for −‖c‖²/2 (core_matrix_layout.cuh). Of
// rows there may be second parts (assign/small_k.cuh), from row `second` on, if that is not 0.
struct Halves {
  ptx::Half* to;
  int padded, slabs, height, second;  // 0 slabs: rows; `height` centres are a tile

  __device__ __forceinline__ ptx::Half* at(int centre, int column) const {
    if (slabs == 0) return to + (long long)centre * padded + column;
    return to + tsm2::slab_offset(centre, column + tsm2::kSlabDepth, slabs + 1, height);
  }
};

// −‖c‖²/2 of a centre.
__device__ __forceinline__ void set_offset(float* offsets, const Halves& halves, int centre, float value) {
  if (halves.slabs) {
    tsm2::place_parts(halves.to, centre, halves.slabs + 1, halves.height, value);
  } else {
    offsets[centre] = value;
  }
}

// One element of a centre to float16.
__device__ __forceinline__ void place(double c, float scale, ptx::Half* half, OfCentre& found) {
  const double scaled = c * scale;
  *half = ptx::to_half((float)scaled);
  const double lost = scaled - ptx::to_float(*half);
  found.square += scaled * scaled;
  found.lost += lost * lost;
}

// The second parts of a centre, (d,), and the square of what both parts lose, of which a thread has some: by a block, of which each
// thread has written the columns that it now reads.
template <typename Work>
__device__ __forceinline__ double place_second(const Work* centre, int d, float scale, const Halves& halves, int j) {
  double all = 0;
  constexpr int kAtOnce = 4;
  for (int begin = threadIdx.x; begin < d; begin += kAtOnce * kCentreThreads) {
    Work some[kAtOnce];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCentreThreads;
      some[r] = i < d ? centre[i] : (Work)0;
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCentreThreads;
      if (i >= d) break;
      const double scaled = (double)some[r] * scale, rest = scaled - ptx::to_float(ptx::to_half((float)scaled));
      // Of what is infinite in float16 there is no rest.
      const ptx::Half second = ptx::to_half(fabs(rest) < kInfinity ? (float)(rest * kSecondScale) : 0.0f);
      *halves.at(halves.second + j, i) = second;
      const double lost = rest - ptx::to_float(second) / kSecondScale;
      all += lost * lost;
    }
  }
  return all;
}

// Of the centres that are not left out, where `least` is the least square norm of all; by a block.
__device__ __forceinline__ void put_together(const OfCentre* found, int k, double least, float reach, float* offsets,
                                             const Halves& halves, Extremes* extremes) {
  const double far = 16.1 * reach * reach;  // norms of rows are of what was rounded
  double square = 0, lost = 0, some = 0;
#pragma unroll 4
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    // What is no number is far.
    if (!(found[j].square <= far) && least <= far / 4) {
      set_offset(offsets, halves, j, -kInfinity);
      // Its scores would be no numbers, where it is infinite in float16.
      for (int i = 0; halves.slabs && i < halves.padded; ++i) *halves.at(j, i) = {0};
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
  // Products past 2²⁷ would overflow in the epilogue, and a centre that is infinite in float16 has none; nor has −‖c‖²/2 of
  // a norm past 2¹⁵ room in slabs.
  const bool holds = of_lost < kInfinity && (halves.slabs == 0 || norm < (float)(1 << 15));
  const float within = holds ? (float)(1 << 27) / norm : -1.0f;
  *extremes = {norm, of_lost, (float)(square / 2 * 1.000001), some != 0 && reach < within ? reach : within};
}

// An iteration's centres, sums and results, for both kernels here. `units` are what one stands for in each column of the sums,
// powers of two. `outcome` is this iteration's; `stopped` is set with its `stop` and stays. A centre's margin, if there is one, is
// of_norm · ‖c‖ + of_lost · ‖c − ĉ‖.
template <typename Work>
struct Advance {
  const unsigned long long* sums;
  const double* units;
  const Work* centers;
  Work* next;
  OfCentre* found;
  float *offsets, *margins;
  Extremes* extremes;
  unsigned *arrived, *moved, *counts;  // left at zero
  int* stopped;
  Outcome* outcome;
  Halves halves;
  Motion motion;
  double tolerance;
  int k, d, lists;
  float scale, reach, of_norm, of_lost;
  int lets_begin;  // whether blocks of the next kernel may come before `advance` ends: of one block a multiprocessor

  // What a block found out about centre j, or about a column that is none's.
  __device__ __forceinline__ void keep(int j, const OfCentre& mine) const {
    const bool there = j < k;
    if (there) found[j] = mine;
    set_offset(offsets, halves, j, there ? -(float)(mine.square / 2) : -kInfinity);
    if (margins == nullptr) return;
    margins[j] = there ? (float)((sqrt(mine.square) * of_norm + sqrt(mine.lost) * of_lost) * 1.0002) : 0.0f;
  }
};

// Begins: places centres that are given, which may lie with the host, and keeps them as `next`; nothing has moved or stopped.
template <typename Work>
__global__ void __launch_bounds__(kCentreThreads, 4) place_centers(const Work* __restrict__ given, const Advance<Work> of) {
  ptx::after_previous();
  const int j = blockIdx.x, k = of.k, d = of.d;
  OfCentre mine = {};
#pragma unroll 4
  for (int i = threadIdx.x; j < k && i < of.halves.padded; i += blockDim.x) {
    Work c = 0;
    if (i < d) of.next[(long long)j * d + i] = c = given[(long long)j * d + i];
    place((double)c, of.scale, of.halves.at(j, i), mine);
  }
  if (of.halves.second != 0 && j < k) mine.lost = place_second(of.next + (long long)j * d, d, of.scale, of.halves, j);
  mine = block_sum(mine);
  if (threadIdx.x == 0) of.keep(j, mine);
  if (!simt::last_to_arrive(of.arrived, gridDim.x)) return;
  const auto least_of = [](int, double a, double b) { return b < a ? b : a; };
  double least = kInfinity;
#pragma unroll 4
  for (int i = threadIdx.x; i < k; i += blockDim.x) least = least_of(0, least, of.found[i].square);
  least = over_block(Doubles<1>{least}, least_of).at[0];
  put_together(of.found, k, least, of.reach, of.offsets, of.halves, of.extremes);
  if (threadIdx.x == 0) *of.moved = 0, *of.stopped = 0;
  for (int i = threadIdx.x; i < of.lists; i += blockDim.x) of.counts[i] = 0;
}

// What has moved, after the shifts of all centres were found; by a block, the last of its iteration. `rows` have moved, and the
// iteration stops or not.
__device__ __forceinline__ void follow(const Motion& motion, const OfCentre* found, int k, double scale, unsigned rows,
                                       bool stops) {
  double movement = 0;
  for (int j = threadIdx.x; j < k; j += blockDim.x) {
    const double mine = sqrt(found[j].shift) * scale * (1 + 1.0 / (1 << 18)) + 1e-18;
    motion.moved[j] += mine;
    movement = most_of(0, movement, mine);
  }
  movement = over_block(Doubles<1>{movement}, most_of).at[0];
  const double most = motion.watch->most + movement;
  for (int j = threadIdx.x; j < k; j += blockDim.x) motion.limits[j] = limit_of(motion.moved[j], most);
  __syncthreads();  // the last sum has been read
  if (threadIdx.x != 0) return;
  motion.watch->most = most;
  motion.watch->plan_next(movement, rows < motion.few, !stops);
}

template <typename Work>
__global__ void __launch_bounds__(kCentreThreads, 4) advance(const Advance<Work> of) {
  if (of.lets_begin) ptx::next_may_begin();
  ptx::after_previous();
  const int j = blockIdx.x, k = of.k, d = of.d;
  const unsigned long long *sums = of.sums + (long long)j * (d + 1), weights = sums[d];
  // Looked at when the first columns have been asked for too.
  const bool stopped = *of.stopped;
  const unsigned moved = *of.moved;
  const double weight = (double)(long long)weights * of.units[d];
  const double inverse = 1 / (weight != 0 ? weight : 1.0);
  OfCentre mine = {};
  // Columns are loaded before any is written.
  constexpr int kAtOnce = 4;
  for (int begin = threadIdx.x; begin < of.halves.padded; begin += kAtOnce * kCentreThreads) {
    unsigned long long column[kAtOnce] = {};
    double unit[kAtOnce] = {};
    Work before[kAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCentreThreads;
      if (i >= d) break;
      column[r] = sums[i], unit[r] = of.units[i], before[r] = of.centers[(long long)j * d + i];
    }
    if (stopped) return;
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * kCentreThreads;
      if (i >= of.halves.padded) break;
      double c = 0;
      if (i < d) {
        const double sum = (double)(long long)column[r] * unit[r], old = (double)before[r];
        const Work mean = weight != 0 ? (Work)(sum * inverse) : before[r];
        of.next[(long long)j * d + i] = mean;
        c = (double)mean;
        mine.shift += (c - old) * (c - old);
        mine.potential += old * (weight * old - 2 * sum);
      }
      place(c, of.scale, of.halves.at(j, i), mine);
    }
  }
  if (stopped) return;
  if (of.halves.second != 0) mine.lost = place_second(of.next + (long long)j * d, d, of.scale, of.halves, j);
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
  const bool stops = empty != 0 || moved == 0 || shift <= of.tolerance;
  // On its way to the host while the others go on.
  if (threadIdx.x == blockDim.x - 1) {
    *of.outcome = {stops, empty != 0, moved, 0, shift, potential};
    *of.stopped = stops;
    *of.moved = 0;
  }
  put_together(of.found, k, of_all.at[3], of.reach, of.offsets, of.halves, of.extremes);
  if (of.motion.watch != nullptr) follow(of.motion, of.found, k, of.scale, moved, stops);
  for (int i = threadIdx.x; i < of.lists; i += blockDim.x) of.counts[i] = 0;
}

}  // namespace kmeans
