// New centers from the fixed-point cluster sums, the stopping test, and the float16 centers of the next assignment,
// without host synchronisation.
//
//   centers (k × d)  →  centers_half (k × padded, float16) = fl16(c · scale), offsets = −‖c · scale‖²/2, center_stats
//
// prepare_centers  converts given centers to float16. For GEMM columns past the last center, offsets are −infinite. If
//                  wanted, computes an error coefficient per center (ArgminEpilogueLargeD).
// update_centers   computes the cluster means (fixed_point.cuh), which become the next centers, and the stopping test.
//                  It sets `stopped` if no label changed, if the squared center shift is at most `tolerance`, or if a
//                  cluster is empty. Then later launches do nothing, except that those of relocate.cuh relocate empty
//                  clusters; without them, the host does. With bounds (bounds/state.cuh), it accumulates the drift of
//                  the centers and selects the next pass. In panels, it sorts columns by the norms of the previous
//                  centers; another launch of prepare_centers can sort them by those of the new ones
//                  (update/column_order.cuh).
//
// A distant center would widen the error bound of every row. If some center is within 2·norm_limit of the mean, a
// center beyond 4·norm_limit is not the nearest of any row within norm_limit. Such a center is *excluded*: its bias is
// −infinite. assign/rescore.cuh labels the few rows beyond norm_limit.
//
// Why it is fast: one block processes one center. The last block to arrive reduces the results of all blocks, in a
// fixed order, so the results always have the same bits.
#pragma once
#include "kernels/device/block_reduce.cuh"
#include "apps/kmeans/bounds/state.cuh"
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/data/stopped.cuh"
#include "apps/kmeans/data/half_copy.cuh"
#include "apps/kmeans/update/column_order.cuh"
#include "apps/kmeans/update/empty_clusters.cuh"
#include "apps/kmeans/update/half_centers.cuh"

namespace kmeans {

// The result of an iteration that the host reads. `empty` is the number of empty clusters; if launches of relocate.cuh
// relocate them, it is zero, and `relocated` is their number.
struct Outcome {
  int stop, empty;
  unsigned n_reassigned;
  int relocated;
  double shift, potential;  // Σ ‖new c − c‖²; Σ w·(‖c‖² − 2 x·c), c being the old centers
};

// Adds up `mine` over the threads of a block. Only thread 0 gets the result.
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

// Arguments of both kernels. units[j], a power of two, is the value of the integer 1 in column j of the sums. `outcome`
// is the result of this iteration; its `stop` is copied to `stopped`. If `error_coefficients` is not null, it receives
// of_norm · ‖c‖ + of_lost · ‖c − ĉ‖ for each center c.
template <typename Work>
struct UpdateCenters {
  const unsigned long long* sums;
  const double* units;
  const Work* centers;
  Work* next;
  CenterFound* found;
  float *offsets, *error_coefficients;
  CenterStats* center_stats;
  unsigned *arrived, *n_reassigned, *counts;  // zero after each kernel, but `n_reassigned` if clusters are empty
  int *stopped, *empty;                       // `empty`: the empty clusters, up to kMostRelocated
  Outcome* outcome;
  HalfCenters centers_half;
  ColumnOrder order;
  DriftArgs drift;
  double tolerance;
  int k, d, lists;
  float scale, norm_limit, of_norm, of_lost;
  // If set, the next kernel may start before `update_centers` ends. The next assignment kernel has one block per
  // multiprocessor.
  int lets_begin;
  int certifies;  // whether row norms are bounds that certify the labels
  int relocates;  // if set, this launch follows a relocation of empty clusters (relocate.cuh), or does nothing

  // Stores the results of center j. If j is a column past the last center, stores its bias, −infinity.
  __device__ __forceinline__ void keep(int j, int column, const CenterFound& mine) const {
    const bool there = j < k;
    if (there) found[j] = mine;
    if (there && centers_half.panels) order.keep(j, column, (float)sqrt(mine.square));
    set_offset(offsets, centers_half, column, there ? -(float)(mine.square / 2) : -kInfinity);
    if (error_coefficients == nullptr) return;
    error_coefficients[j] = there ? (float)((sqrt(mine.square) * of_norm + sqrt(mine.lost) * of_lost) * 1.0002) : 0.0f;
  }
};

// Reduces the results of all centers to `center_stats`, and excludes distant centers. `least` is the smallest squared
// norm of any center. All threads of a block take part.
template <typename Work>
__device__ __forceinline__ void put_together(const UpdateCenters<Work>& of, double least) {
  const CenterFound* found = of.found;
  const HalfCenters& centers_half = of.centers_half;
  const double far = 16.1 * of.norm_limit * of.norm_limit;  // more than 16, since row norms are those of rounded values
  double square = 0, lost = 0, some = 0;
#pragma unroll 4
  for (int j = threadIdx.x; j < of.k; j += blockDim.x) {
    if (found[j].is_excluded(least, far)) {
      exclude(of.offsets, centers_half, of.order.stored_column(j));
      some = 1;
      continue;
    }
    square = most_of(0, square, found[j].square);
    lost = most_of(0, lost, found[j].lost);
  }
  if (centers_half.panels) bound_tiles(found, of.k, least, far, centers_half.height, of.order);
  const Doubles<3> most = over_block(Doubles<3>{square, lost, some}, most_of);
  square = most.at[0], lost = most.at[1], some = most.at[2];
  if (threadIdx.x != 0) return;
  // Rounded up; infinity remains infinity. Row norms that do not certify labels give no limit R (small_k.cuh).
  const float near_norm = (float)(sqrt(least) * 1.000001), norm = (float)(sqrt(square) * 1.000001),
              of_lost = (float)(sqrt(lost) * 1.000001);
  const float within = most_row_norm(norm, of_lost, centers_half.panels != 0);
  *of.center_stats = {norm,
                      of_lost,
                      (float)(square / 2 * 1.000001),
                      some != 0 && of.norm_limit < within ? of.norm_limit : within,
                      near_norm,
                      of.certifies ? 1.05f * near_norm + 1 : kInfinity};
}

// Prepares center j, or a column past the last center, by all threads of one of `blocks` blocks; see prepare_centers.
template <typename Work>
__device__ __forceinline__ void prepare_center(const Work* __restrict__ given, const UpdateCenters<Work>& of,
                                               bool sorts, int j, unsigned blocks) {
  const int k = of.k, d = of.d;
  const int column = sorts && j < k ? column_of(of.order, k, j) : j;
  const bool repeated = sorts && j < k && k <= kMostSorted && repeats(given, d, of.order, j);
  CenterFound mine = {};
  ptx::Half* const to = of.centers_half.of(column);
#pragma unroll 4
  for (int i = threadIdx.x; j < k && i < of.centers_half.padded; i += blockDim.x) {
    Work c = 0;
    if (i < d) c = given[(long long)j * d + i];
    if (i < d && !sorts) of.next[(long long)j * d + i] = c;
    of.centers_half.place((double)c, of.scale, to, i, mine);
  }
  if (of.centers_half.second != 0 && j < k)
    mine.lost = place_second(of.next + (long long)j * d, d, of.scale, of.centers_half, j);
  mine = block_sum(mine);
  if (threadIdx.x == 0) of.keep(j, column, mine);
  if (threadIdx.x == 0 && repeated) set_offset(of.offsets, of.centers_half, column, -kInfinity);
  if (!simt::last_to_arrive(of.arrived, blocks)) return;
  const auto least_of = [](int, double a, double b) { return b < a ? b : a; };
  double least = kInfinity;
#pragma unroll 4
  for (int i = threadIdx.x; i < k; i += blockDim.x) least = least_of(0, least, of.found[i].square);
  least = over_block(Doubles<1>{least}, least_of).at[0];
  put_together(of, least);
  if (sorts) return;
  if (threadIdx.x == 0) *of.n_reassigned = 0, *of.stopped = 0;
  for (int i = threadIdx.x; i < of.lists; i += blockDim.x) of.counts[i] = 0;
}

// Copies given centers, which may be in host memory, to `next`, and converts them (head of this file). Resets the count
// of reassigned rows and the stop flag.
//
// If `sorts`, converts centers again whose norms an earlier launch computed, with the columns sorted by these norms. It
// then copies and resets nothing, and does nothing after the last iteration. A center that equals an earlier one is
// excluded: otherwise all rows of both would be ambiguous.
template <typename Work>
__global__ void __launch_bounds__(kCenterThreads, 3)
    prepare_centers(const Work* __restrict__ given, const UpdateCenters<Work> of, bool sorts) {
  ptx::griddepcontrol_wait();
  if (sorts && *of.stopped) return;
  prepare_center(given, of, sorts, blockIdx.x, gridDim.x);
}

// Updates the drift (bounds/state.cuh) by the shifts of all centers, in the last block of update_centers. `rows` is the
// number of reassigned rows. `stops` is true if this iteration is the last.
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
  __syncthreads();  // earlier reads of the reduction are done
  if (threadIdx.x != 0) return;
  drift.state->most = most;
  drift.state->plan_next(movement, rows < drift.begin_limit, !stops);
}

// Computes new center j from the sums, and in the last block the stopping test (head of this file). All threads of a
// block take part.
template <typename Work>
__device__ __forceinline__ void update_center(const UpdateCenters<Work>& of, int j) {
  const int k = of.k, d = of.d;
  const unsigned long long* sums = of.sums + (long long)j * (d + 1);
  // `stopped` is tested only after the first columns are loaded, so that all these loads are in flight together.
  const int state = *of.stopped, relocated = of.relocates ? clusters_to_relocate(state) : 0;
  const bool stopped = of.relocates ? relocated == 0 : state != 0;
  const unsigned n_reassigned = *of.n_reassigned;
  // A cluster that is empty after relocation gets the mean of the heaviest, as in scikit-learn.
  if (relocated && sums[d] == 0) sums = of.sums + (long long)heaviest_cluster(of.sums, k, d) * (d + 1);
  const double weight = (double)(long long)sums[d] * of.units[d];
  const double inverse = 1 / (weight != 0 ? weight : 1.0);
  CenterFound mine = {};
  // In shared memory, since registers are few.
  __shared__ int own_column;
  const int rank = column_of(of.order, k, j);
  if (threadIdx.x == 0) own_column = rank;
  __syncthreads();
  ptx::Half* const to = of.centers_half.of(own_column);
  // Loads kAtOnce columns before it writes any of them.
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
        mine.shift += simt::rounded_product(c - old, c - old);
        mine.potential += old * (weight * old - 2 * sum);
      }
      of.centers_half.place(c, of.scale, to, i, mine);
    }
  }
  if (stopped) return;
  if (of.centers_half.second != 0)
    mine.lost = place_second(of.next + (long long)j * d, d, of.scale, of.centers_half, j);
  mine = block_sum(mine);
  if (threadIdx.x == 0) of.keep(j, own_column, mine);
  if (!simt::last_to_arrive(of.arrived, k)) return;
  double shift = 0, potential = 0, empty = 0, least = kInfinity;
#pragma unroll 4
  for (int i = threadIdx.x; i < k; i += blockDim.x) {
    shift += of.found[i].shift;
    potential += of.found[i].potential;
    if (of.sums[(long long)i * (d + 1) + d] == 0) empty += 1;
    if (of.found[i].square < least) least = of.found[i].square;
  }
  const auto op = [](int i, double a, double b) { return i < 3 ? a + b : b < a ? b : a; };
  const Doubles<4> of_all = over_block(Doubles<4>{shift, potential, empty, least}, op);
  shift = of_all.at[0], potential = of_all.at[1];
  const int n_empty = relocated ? 0 : (int)of_all.at[2];
  const bool stops = n_empty != 0 || n_reassigned == 0 || shift <= of.tolerance;
  // One thread sends the outcome to the host while the other threads continue. The potential is that of the sums before
  // rows are moved.
  if (threadIdx.x == blockDim.x - 1) {
    if (relocated) potential = of.outcome->potential;
    *of.outcome = {stops, n_empty, n_reassigned, relocated, shift, potential};
    *of.stopped = stops + n_empty;
    if (n_empty == 0) *of.n_reassigned = 0;
  }
  if (n_empty != 0) {
    list_empty_clusters(of.sums, k, d, of.empty);
    // The launches of the next iteration do nothing, whatever their pass.
    if (threadIdx.x == 0 && of.drift.state != nullptr) of.drift.state->skip_full_assign = 1;
  } else {
    put_together(of, of_all.at[3]);
    if (of.drift.state != nullptr) follow(of.drift, of.found, k, of.scale, n_reassigned, stops);
  }
  for (int i = threadIdx.x; i < of.lists; i += blockDim.x) of.counts[i] = 0;
}

// Block j computes new center j.
template <typename Work>
__global__ void __launch_bounds__(kCenterThreads, 3) update_centers(const UpdateCenters<Work> of) {
  if (of.lets_begin) ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  update_center(of, blockIdx.x);
}

}  // namespace kmeans
