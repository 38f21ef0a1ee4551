// Incremental update of the cluster sums: scatter-add of reassigned rows, for small k and few reassigned rows. For few
// rows, sorting (sort_reassigned.cuh) costs more than it saves.
//
// entries  rescored rows (assign/rescore.cuh): each has a row, its label, and its new label as the only candidate bit
// sums     (k × (d + 1)), 64-bit integers (fixed_point.cuh)
//
// A block adds up `columns` columns of the sums of all clusters. In shared memory, each element of these sums has one
// 32-bit sum per limb. All limbs but the highest are in 0 … 65535. After at most kFlush rows, a block adds its sums to
// the 64-bit sums in global memory.
//
// Why it is fast: it takes one launch, while sorting takes three. Integer additions in shared memory need no lock and
// no order (6·10¹² per second). A warp has several rows in flight. The number of instructions limits the kernel. Sorted
// rows take fewer instructions, so plan.py selects sorting for many rows (sorts_rows).
#pragma once
#include "apps/kmeans/assign/rescore.cuh"
#include "apps/kmeans/update/fixed_point.cuh"
#include "kernels/ptx/dependent_launch.cuh"

namespace kmeans {

// kFlush: maximum number of rows between two flushes, so that sums of limbs do not overflow 32 bits. kPlane: maximum
// number of sums per limb that fit in a block's shared memory.
constexpr unsigned kFlush = 32768;
constexpr int kScatterWarps = 16;  // of a block
template <int kDigits>
constexpr int kPlane = 66 * 256 / kDigits;

// A block's sums of `columns` columns from `first` on, for all k clusters, in shared memory, which has room for kSums
// sums.
template <int kDigits, int kSums = kPlane<kDigits>>
class SharedSums {
 public:
  __device__ SharedSums(unsigned long long* sums, unsigned* digits, int k, int width, int first, int columns)
      : sums_(sums), digits_(digits), k_(k), width_(width), first_(first), columns_(columns) {}

  // Returns the index of a cluster's first sum. If `cluster` is negative (no cluster), the result is negative.
  __device__ __forceinline__ int place(int cluster) const { return cluster * columns_; }

  __device__ __forceinline__ void add(int place, int column, typename Integer<kDigits>::Number number) const {
    unsigned* to = digits_ + (place + column - first_);
#pragma unroll
    for (int digit = 0; digit + 1 < kDigits; ++digit) {
      atomicAdd(to, (unsigned)(number & 0xffff));
      to += kSums;
      number >>= 16;
    }
    atomicAdd(to, (unsigned)number);
  }

  __device__ __forceinline__ void clear() const {
    for (int i = threadIdx.x; i < kDigits * kSums; i += blockDim.x) digits_[i] = 0;
    __syncthreads();
  }

  // Adds the sums to those in global memory, and clears the sums in shared memory. All threads of the block take part.
  __device__ __forceinline__ void flush() const {
    const int size = k_ * columns_;
    __syncthreads();
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
      long long sum = 0;
#pragma unroll
      for (int digit = kDigits - 1; digit >= 0; --digit) {
        sum = sum * 65536 + (int)digits_[digit * kSums + i];
        digits_[digit * kSums + i] = 0;
      }
      if (sum != 0)
        atomicAdd(&sums_[(long long)(i / columns_) * width_ + first_ + i % columns_], (unsigned long long)sum);
    }
    __syncthreads();
  }

 private:
  unsigned long long* sums_;
  unsigned* digits_;
  const int k_, width_, first_, columns_;
};

// Adds the reassigned rows of up to 32 entries to a block's sums of columns `first` to `end` − 1, by a warp; returns
// their number. Each row is split among 2^log2_lanes lanes. The warps of the first columns also write the labels,
// those of the last columns also add up the weights.
template <typename T, typename Work, int kDigits, bool kWeighted>
__device__ __forceinline__ unsigned add_entries(const CenteredRows<T, Work>& rows,
                                                const typename Integer<kDigits>::Scale* scales,
                                                const SharedSums<kDigits>& here, int first, int end, int log2_lanes,
                                                const AmbiguousRow* entries, unsigned count, int* labels) {
  struct Reassignment {
    unsigned row;
    int from, to;
  };
  __shared__ Reassignment changes[kScatterWarps][32];
  const int lane = threadIdx.x % 32, lanes = 1 << log2_lanes, groups = 32 >> log2_lanes;
  Reassignment* mine = changes[threadIdx.x / 32];
  Reassignment change = {};
  if (lane < (int)count) {
    const AmbiguousRow entry = entries[lane];
    change = {entry.row, entry.label, first_center(entry.low, entry.high)};
  }
  const bool reassigned = change.from != change.to;
  const unsigned all = __ballot_sync(simt::every_lane, reassigned);
  __syncwarp();  // the warp has added the earlier entries
  if (reassigned) {
    mine[__popc(all & ((1u << lane) - 1))] = change;
    if (first == 0) labels[change.row] = change.to;
    if (end > rows.d) {
      const auto number = as_integer<Work>(kWeighted ? rows.weights[change.row] : Work(1), scales[rows.d]);
      here.add(here.place(change.to), rows.d, number);
      if (change.from >= 0) here.add(here.place(change.from), rows.d, -number);
    }
  }
  __syncwarp();
  const int waiting = __popc(all);
  // Each lane loads kTogether rows at a time. Past the last row it loads row 0, which is not added.
  constexpr int kTogether = kDigits == 2 ? 4 : 2;
  for (int i = lane >> log2_lanes; i < waiting; i += kTogether * groups) {
    const T* x[kTogether];
    int to[kTogether], from[kTogether];
    Work weight[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const bool present = i + j * groups < waiting;
      const Reassignment one = present ? mine[i + j * groups] : Reassignment{0, -1, -1};
      x[j] = rows.X + one.row * rows.leading;
      to[j] = here.place(one.to);
      from[j] = here.place(one.from);
      if (kWeighted) weight[j] = present ? rows.weights[one.row] : Work(0);
    }
#pragma unroll 2
    for (int column = first + (lane & (lanes - 1)); column < end && column < rows.d; column += lanes) {
      const Work mean = rows.mean[column];
      const auto scale = scales[column];
      Work value[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) value[j] = centered<T, Work>(x[j][column], mean);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (to[j] < 0) continue;
        const auto number = as_integer<Work>(kWeighted ? weight[j] * value[j] : value[j], scale);
        here.add(to[j], column, number);
        if (from[j] >= 0) here.add(from[j], column, -number);
      }
    }
  }
  return waiting;
}

// Block (x, y, z) adds `columns` columns, from z · columns on, of the rows of part y of list x, and their number to
// `n_reassigned`.
template <typename T, typename Work, int kDigits, bool kWeighted>
__global__ void __launch_bounds__(32 * kScatterWarps, 2)
    scatter_add(const CenteredRows<T, Work> rows, const typename Integer<kDigits>::Scale* scales, int k, int columns,
                int log2_lanes, const AmbiguousRow* entries, const unsigned* counts, long long capacity, int* labels,
                unsigned long long* sums, unsigned* n_reassigned, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (*stopped) return;
  const unsigned count = counts[blockIdx.x];
  if (blockIdx.y * blockDim.x >= count) return;
  const int first = blockIdx.z * columns, end = first + columns <= rows.d + 1 ? first + columns : rows.d + 1;
  const SharedSums<kDigits> here(sums, simt::dynamic_shared<unsigned>(), k, rows.d + 1, first, columns);
  here.clear();
  unsigned since = 0, changed = 0;
  const AmbiguousRow* const list = entries + blockIdx.x * capacity;
  for (unsigned begin = blockIdx.y * blockDim.x; begin < count; begin += gridDim.y * blockDim.x) {
    if (since + blockDim.x > kFlush) {
      here.flush();
      since = 0;
    }
    since += blockDim.x;
    const unsigned mine = begin + threadIdx.x / 32 * 32, left = mine < count ? count - mine : 0;
    changed +=
        add_entries<T, Work, kDigits, kWeighted>(rows, scales, here, first, end, log2_lanes, list + mine, left, labels);
  }
  here.flush();
  if (threadIdx.x % 32 == 0 && first == 0 && changed) atomicAdd(n_reassigned, changed);
}

}  // namespace kmeans
