// Inertia: Σ w·‖x − c‖² over all samples, c being the center of a sample's label.
//
//   X (n × d, any dtype), mean (d), centers (k × d), labels (n), weights (n, or none)   →   sums, one float64 per chunk
//                                                                                       total, one float64
//
// x is a row of X minus `mean`, rounded to `Work`, the working type. Differences and sums of at most four squares are
// in `Work`, all further sums in double. In float32, a square has two roundings from its difference, up to four from
// its sum and one from its weight. All round to nearest, so the relative error of the total is at most 2⁻²¹. It is far
// smaller in practice, since the errors of many rows cancel. A difference beyond 10¹⁹ has an infinite square, as in
// scikit-learn.
//
// a tile   kInertiaRows · 32 / lanes rows: each row is split among `lanes` = 2^log2_lanes lanes of a warp, and these
//          lanes process kInertiaRows rows together
// a chunk  consecutive tiles: one warp sums them; each lane has a sum in double, and the warp adds these at the end
//
// The chunks are distributed over the warps in turn. The last block to arrive adds up the sums of the chunks in order.
// The rows of a chunk do not depend on the grid, so the total has the same bits for any grid and on every GPU. If X is
// distributed over several launches or GPUs at multiples of a chunk, add_chunks adds up the sums of all chunks in the
// same order. So the total has the same bits then too. No product is fused with an addition, so that the CPU computes
// the same bits (host_inertia.py).
//
// Why it is fast: a warp loads the data of its next step before it adds up those of the current step. A step
// (InertiaStep) is 64 bytes of X per lane, and labels. So the 20 warps of a multiprocessor keep 40 KB in flight. Lanes
// do not communicate within a chunk. Centers are in shared memory if L1 remains large enough (kShared). A row of 128
// float32 takes about 64 warp instructions, and one conversion to double per four squares. A multiprocessor makes only
// 16 such conversions per clock. The Freivalds check of the running sums (protect/freivalds.cuh) raises the 64
// instructions to about 100, about as many as fit the time of reading X. Variants that need more registers per thread
// than a block of 640 threads allows have fewer threads.
#pragma once
#include "apps/kmeans/protect/freivalds.cuh"
#include "kernels/device/vector_load.cuh"

namespace kmeans {

constexpr int kInertiaThreads = 640, kInertiaRows = 4;

// The data that a lane processes in one step: a vector of each of its kInertiaRows rows, and the labels and weights of
// these rows.
template <typename T, typename Work, bool kVectors, bool kWeighted>
struct InertiaStep {
  static constexpr int kWide = kVectors ? 16 / (int)sizeof(T) : 1;
  Packed<T, kWide> x[kInertiaRows];
  int label[kInertiaRows];
  Work weight[kInertiaRows];

  // Loads a vector at `column` of each of rows `row`, `row` + groups, …. Past the last row or column, loads other
  // elements of X instead, which `sum` ignores.
  __device__ __forceinline__ void read(const T* X, const int* labels, const Work* weights, long long n, int d,
                                       long long row, int groups, int column) {
    row = row < n ? row : n - 1;
    const int more = n - row < kInertiaRows * groups ? (int)(n - row) - 1 : kInertiaRows * groups;
    const T* from = X + row * d + (column < d ? column : 0);
#pragma unroll
    for (int r = 0; r < kInertiaRows; ++r) {
      const int below = r * groups < more ? r * groups : more;
      x[r].load(from + (long long)below * d);
      label[r] = labels[row + below];
      if (kWeighted) weight[r] = weights[row + below];
    }
  }

  // Returns Σ w·(x − mean − c)² over the elements of this step, without rows past `n`. Adds the rows to `difference`,
  // the difference of the two sides of the Freivalds check.
  template <typename Difference>
  __device__ __forceinline__ double sum(const Work* mean, const Work* centers, long long n, int d, long long row,
                                        int groups, int column, Difference& difference) const {
    constexpr int kVector = kWide < 4 ? kWide : 4;
    double found = 0;
    if (column >= d) return found;
    // Rows past `n` get weight 0 instead of a branch. A branch between a product and its operands would keep the
    // compiler from making each product one instruction.
    int weight_of_row[kInertiaRows];
#pragma unroll
    for (int r = 0; r < kInertiaRows; ++r) {
      const int of_cluster = difference.weight_of(label[r]);
      weight_of_row[r] = row + r * groups < n ? of_cluster : 0;
    }
#pragma unroll
    for (int part = 0; part < kWide; part += kVector) {
      using Some = simt::Vector<Work, kVector>;
      const Some middle = *reinterpret_cast<const Some*>(mean + column + part);
      const auto columns = difference.template columns<kVector>(column + part);
      Work partial = 0;
#pragma unroll
      for (int r = 0; r < kInertiaRows; ++r) {
        const auto elements = x[r].elements();
        const Some center = *reinterpret_cast<const Some*>(centers + (long long)label[r] * d + column + part);
        Work squares = 0;
        auto some = difference.row();
        if (part == 0) some.add_weight(kWeighted ? weight[r] : Work(1), columns);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const Work value = (Work)tsm2::Element<T>::value(elements.at[part + i]) - middle.at[i];
          const Work delta = value - center.at[i];
          squares += simt::rounded_product(delta, delta);
          some.add(kWeighted ? weight[r] * value : value, columns, i);
        }
        difference.add(some, weight_of_row[r]);
        if (row + r * groups >= n) squares = 0;
        partial += kWeighted ? simt::rounded_product(weight[r], squares) : squares;
        // With single elements (kVector = 1), the squares of all rows are added up before the conversion.
        if (kVector > 1 || r == kInertiaRows - 1) {
          found += (double)partial;
          partial = 0;
        }
      }
    }
    return found;
  }
};

// Adds up the sums of all chunks in the order that kInertiaThreads threads have, so that the number of threads per
// block, kThreads, does not change the bits.
template <int kThreads>
__device__ __forceinline__ void add_sums(const double* sums, int chunks, double* total) {
  constexpr int kParts = kInertiaThreads / 32;
  __shared__ double of_parts[kParts];
  const auto sum_of_part = [&](int first) {
    double part = 0;
#pragma unroll 8
    for (int chunk = first; chunk < chunks; chunk += kInertiaThreads) part += simt::load_from_other_block(sums + chunk);
    part = simt::warp_sum(part);
    if (simt::lane() == 0) of_parts[first / 32] = part;
    return part;
  };
  double sum = sum_of_part(threadIdx.x);
  if constexpr (kThreads < kInertiaThreads) {
    for (int first = threadIdx.x + kThreads; first < kInertiaThreads; first += kThreads) sum_of_part(first);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int other = 1; other < kParts; ++other) sum += of_parts[other];
  *total = sum;
}

// Computes `total` from the sums of all chunks of X; one block.
__global__ void __launch_bounds__(kInertiaThreads, 1) add_chunks(const double* sums, int chunks, double* total) {
  add_sums<kInertiaThreads>(sums, chunks, total);
}

// Computes the sums of the chunks of n rows, each of `chunk` rows, and their total unless `total` is null. The launch
// has at most one block per multiprocessor. `arrived` is zero before and after. `kept` is a RunningSums for the
// Freivalds check, or empty.
template <typename T, typename Work, bool kVectors, bool kShared, bool kWeighted, int kThreads = kInertiaThreads,
          typename... Kept>
__global__ void __launch_bounds__(kThreads, 1)
    add_inertia(const T* X, const Work* mean, const Work* centers, const int* labels, const Work* weights, long long n,
                int k, int d, int log2_lanes, int chunk, int chunks, double* sums, unsigned* arrived, double* total,
                Kept... kept) {
  using Step = InertiaStep<T, Work, kVectors, kWeighted>;
  constexpr int kWarps = kThreads / 32;
  if constexpr (kShared) {
    Work* shared = simt::dynamic_shared<Work>();
#pragma unroll 4
    for (int i = threadIdx.x; i < (k + 1) * d; i += kThreads) shared[i] = i < d ? mean[i] : centers[i - d];
    __syncthreads();
    mean = shared;
    centers = shared + d;
  }
  Difference<Work, Kept...> difference(k, d, kept...);
  const int lane = simt::lane(), warp = (int)threadIdx.x / 32, groups = 32 >> log2_lanes;
  const int column = Step::kWide * (lane & ((1 << log2_lanes) - 1)), stride = Step::kWide << log2_lanes;
  const int tile = kInertiaRows * groups;
  for (int here = (int)blockIdx.x * kWarps + warp; here < chunks; here += (int)gridDim.x * kWarps) {
    long long begin = (long long)here * chunk;
    const long long end = n - begin < chunk ? n : begin + chunk, in_tile = lane >> log2_lanes;
    int first = 0;
    double sum = 0;
    Step now, next;
    now.read(X, labels, weights, n, d, begin + in_tile, groups, column);
    while (begin < end) {
      const bool ends = first + stride >= d;
      const long long later = ends ? begin + tile : begin;
      const int following = ends ? 0 : first + stride;
      if (later < end) next.read(X, labels, weights, n, d, later + in_tile, groups, following + column);
      for (int& label : now.label) label = difference.readable(label);
      sum += now.sum(mean, centers, n, d, begin + in_tile, groups, first + column, difference);
      now = next;
      begin = later;
      first = following;
    }
    sum = simt::warp_sum(sum);
    if (lane == 0) sums[here] = sum;
  }
  difference.tell();
  if (total == nullptr || !simt::last_to_arrive(arrived, gridDim.x)) return;
  add_sums<kThreads>(sums, chunks, total);
}

}  // namespace kmeans
