// The centres as `nearest.cuh` wants them, and from one iteration to the next without the host.
//
//   centers (k × d)  →  halves (k × padded, float16) = fl16(c · scale), offsets = −‖c · scale‖²/2, and the extremes
//
// place_centers   of centres that are given; offsets are −infinite past the last, up to the columns of the product
// advance         of the means of the sums (integers.cuh), which become the next centres; and whether there is to be a next
//                 iteration: not if no label changed, if the centres moved by no more than `tolerance` in all (squared), or
//                 if a cluster is empty, which the host has to fill. What would follow then does nothing.
//                 With bounds (bounds.cuh), it keeps how far centres have moved too, and says what the next iteration does.
//
// A centre far away would widen the bound of every row. Where all rows are within `reach` of the mean but for a few, a centre
// more than 4·reach from it is the nearest of none of the others, as long as another centre is within 2·reach: it is
// left out (its offset is −infinite), and rows beyond the reach are left to decide.cuh.
//
// A block a centre, of which the last to arrive puts together what was found of each, in their order: the same bits always. Or
// all of it by the last block of the kernel that keeps the sums.
#pragma once
#include "apps/kmeans/bounds.cuh"
#include "apps/kmeans/nearest.cuh"
#include "apps/kmeans/shadow.cuh"
#include "kernels/tsm2/slabs.cuh"

namespace kmeans {

// What the host learns of an iteration.
struct Outcome {
  int stop, empty;
  unsigned moved;
  int padding;
  double shift, potential;  // Σ ‖new c − c‖²; Σ w·(‖c‖² − 2 x·c), at the centres that the labels are of
};

// What was found out about one centre; `empty` is 1 if no row is its.
struct OfCentre {
  double square, lost, shift, potential, empty;
};

constexpr int kCentreThreads = 256;

template <int count>
struct Doubles {
  double at[count];
};

// What another lane has, whose number differs in `bits`.
template <typename Numbers>
__device__ __forceinline__ Numbers shuffled(Numbers mine, int bits) {
  auto* numbers = reinterpret_cast<double*>(&mine);
#pragma unroll
  for (int i = 0; i < (int)(sizeof(Numbers) / sizeof(double)); ++i) numbers[i] = simt::shuffle_xor(numbers[i], bits);
  return mine;
}

// `mine`, combined with `other` by `op` (of which number, and two of them).
template <typename Numbers, typename Op>
__device__ __forceinline__ void combine(Numbers& mine, const Numbers& other, Op op) {
  auto* numbers = reinterpret_cast<double*>(&mine);
  const auto* others = reinterpret_cast<const double*>(&other);
#pragma unroll
  for (int i = 0; i < (int)(sizeof(Numbers) / sizeof(double)); ++i) numbers[i] = op(i, numbers[i], others[i]);
}

// Over groups of so many lanes, for all of them, in an order that is always the same. What runs once is no faster unrolled, as
// it has to be fetched.
template <typename Numbers, typename Op>
__device__ __forceinline__ Numbers over_lanes(int lanes, Numbers mine, Op op) {
#pragma unroll 1
  for (int bits = lanes / 2; bits > 0; bits /= 2) combine(mine, shuffled(mine, bits), op);
  return mine;
}

__device__ __forceinline__ double most_of(int, double a, double b) { return b > a ? b : a; }
__device__ __forceinline__ double least_of(int, double a, double b) { return b < a ? b : a; }
__device__ __forceinline__ double sum_of(int, double a, double b) { return a + b; }

// Who puts together what was found of all centres: a block, or a warp.
struct ByBlock {
  double* scratch;  // shared memory: for each warp, of up to 32, as many numbers as there are
  __device__ __forceinline__ int rank() const { return threadIdx.x; }
  __device__ __forceinline__ int size() const { return blockDim.x; }
  __device__ __forceinline__ void sync() const { __syncthreads(); }

  template <typename Numbers, typename Op>
  __device__ __forceinline__ Numbers over(Numbers mine, Op op) const {
    auto* of_warp = reinterpret_cast<Numbers*>(scratch);
    mine = over_lanes(32, mine, op);
    __syncthreads();  // what was here has been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = of_warp[0];
#pragma unroll 1
    for (int warp = 1; warp < (int)blockDim.x / 32; ++warp) combine(mine, of_warp[warp], op);
    return mine;
  }
};
struct ByWarp {
  __device__ __forceinline__ int rank() const { return threadIdx.x % 32; }
  __device__ __forceinline__ int size() const { return 32; }
  __device__ __forceinline__ void sync() const { __syncwarp(); }

  template <typename Numbers, typename Op>
  __device__ __forceinline__ Numbers over(Numbers mine, Op op) const {
    return over_lanes(32, mine, op);
  }
};
constexpr int kScratch = kCentreThreads / 32 * 5;

// Where centres in float16 go: `padded` columns a row, or slabs, of which there is one more, for −‖c‖²/2 (slabs.cuh).
struct Halves {
  ptx::Half* to;
  int padded, slabs, height;  // 0 slabs: rows; `height` centres are a tile

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

// Of the centres that are not left out, where `least` is the least square norm of all.
template <typename Group>
__device__ __forceinline__ void put_together(const Group& group, const OfCentre* found, int k, double least, float reach,
                                             float* offsets, const Halves& halves, Extremes* extremes) {
  const double far = 16.1 * reach * reach;  // norms of rows are of what was rounded
  Doubles<3> most = {};
#pragma unroll 1
  for (int j = group.rank(); j < k; j += group.size()) {
    // What is no number is far.
    if (!(found[j].square <= far) && least <= far / 4) {
      set_offset(offsets, halves, j, -kInfinity);
      // Its scores would be no numbers, where it is infinite in float16.
      for (int i = 0; halves.slabs && i < halves.padded; ++i) *halves.at(j, i) = {0};
      most.at[2] = 1;
      continue;
    }
    combine(most, Doubles<3>{found[j].square, found[j].lost}, most_of);
  }
  most = group.over(most, most_of);
  if (group.rank() != 0) return;
  // Rounded up; an infinity stays one.
  const double square = most.at[0];
  const float norm = (float)(sqrt(square) * 1.000001), lost = (float)(sqrt(most.at[1]) * 1.000001);
  // Products past 2²⁷ would overflow in the epilogue, and a centre that is infinite in float16 has none; nor has −‖c‖²/2 of
  // a norm past 2¹⁵ room in slabs.
  const bool holds = lost < kInfinity && (halves.slabs == 0 || norm < (float)(1 << 15));
  const float within = holds ? (float)(1 << 27) / norm : -1.0f;
  *extremes = {norm, lost, (float)(square / 2 * 1.000001), most.at[2] != 0 && reach < within ? reach : within};
}

// What `advance` has of an iteration, and what it is for. `units` are what one stands for in each column of the sums, powers of
// two. `outcome` is this iteration's; `stopped` is set with its `stop` and stays. Of nothing, `outcome` is null.
template <typename Work>
struct Advance {
  const unsigned long long* sums;
  const double* units;
  const Work* centers;
  Work* next;
  OfCentre* found;
  float* offsets;
  Extremes* extremes;
  unsigned *arrived, *moved, *counts;  // left at zero
  int* stopped;
  Outcome* outcome;
  Halves halves;
  Motion motion;
  double tolerance;
  int k, d, lists;
  float scale, reach;
  int padding;
};

// Begins: places centres that are given, which may lie with the host, as those to come next; nothing has moved or stopped.
template <typename Work>
__global__ void __launch_bounds__(kCentreThreads, 4) place_centers(const Work* __restrict__ given, const Advance<Work> of) {
  ptx::after_previous();
  __shared__ double scratch[kScratch];
  const int j = blockIdx.x, k = of.k, d = of.d;
  OfCentre mine = {};
#pragma unroll 4
  for (int i = threadIdx.x; j < k && i < of.halves.padded; i += blockDim.x) {
    Work c = 0;
    if (i < d) of.next[(long long)j * d + i] = c = given[(long long)j * d + i];
    place((double)c, of.scale, of.halves.at(j, i), mine);
  }
  const ByBlock group{scratch};
  mine = group.over(mine, sum_of);
  if (threadIdx.x == 0) {
    if (j < k) of.found[j] = mine;
    set_offset(of.offsets, of.halves, j, j < k ? -(float)(mine.square / 2) : -kInfinity);
  }
  if (!simt::last_to_arrive(of.arrived, gridDim.x)) return;
  Doubles<1> least = {kInfinity};
#pragma unroll 1
  for (int i = threadIdx.x; i < k; i += blockDim.x) combine(least, Doubles<1>{of.found[i].square}, least_of);
  put_together(group, of.found, k, group.over(least, least_of).at[0], of.reach, of.offsets, of.halves, of.extremes);
  if (threadIdx.x == 0) *of.moved = 0, *of.stopped = 0;
  for (int i = threadIdx.x; i < of.lists; i += blockDim.x) of.counts[i] = 0;
}

// What has moved, after the shifts of all centres were found.
template <typename Group>
__device__ __forceinline__ void follow(const Group& group, const Motion& motion, const OfCentre* found, int k, double scale) {
  Doubles<1> movement = {};
  for (int j = group.rank(); j < k; j += group.size()) {
    const double mine = sqrt(found[j].shift) * scale * (1 + 1.0 / (1 << 18)) + 1e-18;
    motion.moved[j] += mine;
    combine(movement, Doubles<1>{mine}, most_of);
  }
  movement = group.over(movement, most_of);
  const double most = motion.watch->most + movement.at[0];
  for (int j = group.rank(); j < k; j += group.size()) motion.limits[j] = limit_of(motion.moved[j], most);
  group.sync();  // the last sum has been read
  if (group.rank() != 0) return;
  motion.watch->most = most;
  motion.watch->plan_next(movement.at[0]);
}

// Makes a centre of its sums, every `lanes`-th column by one of as many threads; what each found is to be added up.
template <typename Work>
__device__ __forceinline__ OfCentre next_centre(const Advance<Work>& of, int j, int lane, int lanes) {
  const int d = of.d;
  const unsigned long long* sums = of.sums + (long long)j * (d + 1);
  const double weight = (double)(long long)simt::load_from_other_block(sums + d) * of.units[d];
  const double inverse = 1 / (weight != 0 ? weight : 1.0);
  OfCentre mine = {};
  mine.empty = lane == 0 && weight == 0 ? 1 : 0;
  // Columns are loaded before any is written.
  constexpr int kAtOnce = 4;
  for (int begin = lane; begin < of.halves.padded; begin += kAtOnce * lanes) {
    unsigned long long column[kAtOnce] = {};
    double unit[kAtOnce] = {};
    Work before[kAtOnce] = {};
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * lanes;
      if (i >= d) break;
      column[r] = simt::load_from_other_block(sums + i);
      unit[r] = of.units[i];
      before[r] = of.centers[(long long)j * d + i];
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      const int i = begin + r * lanes;
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
  return mine;
}

// What follows of all centres, where their offsets are set.
template <typename Group, typename Work>
__device__ __forceinline__ void conclude(const Group& group, const OfCentre* found, const Advance<Work>& of) {
  unsigned moved = 0;
  if (group.rank() == 0) moved = simt::load_from_other_block(of.moved);
  Doubles<4> all = {0, 0, 0, kInfinity};
  const auto op = [](int i, double a, double b) { return i < 3 ? a + b : least_of(i, a, b); };
#pragma unroll 1
  for (int j = group.rank(); j < of.k; j += group.size()) {
    combine(all, Doubles<4>{found[j].shift, found[j].potential, found[j].empty, found[j].square}, op);
  }
  all = group.over(all, op);
  put_together(group, found, of.k, all.at[3], of.reach, of.offsets, of.halves, of.extremes);
  if (of.motion.watch != nullptr) follow(group, of.motion, found, of.k, of.scale);
  if (group.rank() == 0) {
    const double shift = all.at[0];
    const bool empty = all.at[2] != 0, stops = empty || moved == 0 || shift <= of.tolerance;
    *of.outcome = {stops, empty, moved, 0, shift, all.at[1]};
    *of.stopped = stops;
    *of.moved = 0;
  }
  for (int i = group.rank(); i < of.lists; i += group.size()) of.counts[i] = 0;
}

template <typename Work>
__global__ void __launch_bounds__(kCentreThreads, 4) advance(const Advance<Work> of) {
  ptx::after_previous();
  if (*of.stopped) return;
  __shared__ double scratch[kScratch];
  const ByBlock group{scratch};
  const OfCentre found = group.over(next_centre(of, blockIdx.x, threadIdx.x, kCentreThreads), sum_of);
  if (threadIdx.x == 0) {
    of.found[blockIdx.x] = found;
    set_offset(of.offsets, of.halves, blockIdx.x, -(float)(found.square / 2));
  }
  if (simt::last_to_arrive(of.arrived, gridDim.x)) conclude(group, of.found, of);
}

// The same at the end of a kernel whose blocks add to the sums, by the last of them: some lanes of a warp have a centre, and a
// warp puts together what they found, in shared memory. Of centres as rows, without bounds and lists: there is no code of
// what is not there.
template <typename Work>
__device__ __forceinline__ void advance_by_block(OfCentre* found, const Advance<Work>& given) {
  Advance<Work> of = given;
  of.halves.slabs = 0, of.motion = {}, of.lists = 0;
  int lanes = 32;
  while (lanes > 1 && lanes * of.k > (int)blockDim.x) lanes /= 2;
#pragma unroll 1
  for (int first = 0; first < of.k; first += blockDim.x / lanes) {
    const int j = first + threadIdx.x / lanes, lane = threadIdx.x % lanes;
    OfCentre mine = {};
    if (j < of.k) mine = next_centre(of, j, lane, lanes);
    mine = over_lanes(lanes, mine, sum_of);
    if (j >= of.k || lane != 0) continue;
    found[j] = mine;
    of.offsets[j] = -(float)(mine.square / 2);
  }
  __syncthreads();
  if (threadIdx.x < 32) conclude(ByWarp{}, found, of);
}

}  // namespace kmeans
