// The `count` rows with the largest distance to their own center, in the order of decreasing distance; of equal
// distances, the lower row index comes first.
//
//   distances (n)  →  found (count × (4 + d)), double: row index, distance, label, weight (1 without weights), and the
//                     d elements of the row minus `mean`, computed in `Work`
//
// A *list* holds the first 32 rows in this order, one per lane of a warp. The order is total, so the result does not
// depend on the order in which rows enter a list. A launch finds up to 32 rows; further launches find those that come
// after them. X has any dtype, and is converted to `Work`, the working type.
//
// Why it is fast: distances are read once, coalesced. A ballot tells whether any of 32 rows enters the list of a warp,
// which is rare except at the start. Each block merges the lists of its warps. The last block to arrive merges the
// lists of all blocks, which are as many as multiprocessors, and copies the rows. So there is one launch, and the host
// needs one copy.
#pragma once
#include "kernels/device/element.cuh"

namespace kmeans {

constexpr int kFarthestThreads = 512;
// Maximum number of rows that a launch finds; and number of elements of `found` before those of X.
constexpr int kMostFarthest = 32, kFarthestFields = 4;

template <typename Work>
struct FarRow {
  Work distance;
  long long row;

  // An entry that comes after all rows.
  static __device__ __forceinline__ FarRow none() { return {Work(-1), 0}; }
  __device__ __forceinline__ bool is_before(const FarRow& other) const {
    return distance > other.distance || (distance == other.distance && row < other.row);
  }
  __device__ __forceinline__ FarRow of_lane(int lane) const {
    return {simt::shuffle(distance, lane), simt::shuffle(row, lane)};
  }
};

// Inserts those of a warp's 32 entries, one per lane, into its list `kept` that are among the first `count`.
template <typename Work>
__device__ __forceinline__ void enter(FarRow<Work>& kept, const FarRow<Work>& mine, int count) {
  const int lane = simt::lane();
  unsigned entering = __ballot_sync(simt::every_lane, mine.is_before(kept.of_lane(count - 1)));
  for (; entering != 0; entering &= entering - 1) {
    const FarRow<Work> one = mine.of_lane(__ffs(entering) - 1);
    const int place = __popc(__ballot_sync(simt::every_lane, kept.is_before(one)));
    const FarRow<Work> previous = {simt::shuffle_up(kept.distance, 1), simt::shuffle_up(kept.row, 1)};
    if (lane >= place) kept = lane == place ? one : previous;
  }
}

// Merges the lists of the warps of a block into the list of warp 0.
template <typename Work>
__device__ __forceinline__ void merge_warps(FarRow<Work>& kept, int count) {
  constexpr int kWarps = kFarthestThreads / 32;
  __shared__ FarRow<Work> lists[kWarps * kMostFarthest];
  const int lane = simt::lane(), warp = threadIdx.x / 32;
  __syncthreads();  // earlier reads of `lists` are done
  if (lane < count) lists[warp * count + lane] = kept;
  __syncthreads();
  for (int first = count; warp == 0 && first < kWarps * count; first += 32)
    enter(kept, first + lane < kWarps * count ? lists[first + lane] : FarRow<Work>::none(), count);
}

// Finds `count` rows, those from number `first` of `found` on; earlier launches have found the rows before them.
// `lists` has room for `count` entries of each block. `arrived` is zero before and after. `weights` may be null. Of
// distances that are not numbers, only memory safety is guaranteed.
template <typename T, typename Work>
__global__ void __launch_bounds__(kFarthestThreads)
    farthest_rows(const Work* distances, const T* X, const Work* mean, const int* labels, const Work* weights,
                  long long n, int d, int first, int count, FarRow<Work>* lists, unsigned* arrived, double* found) {
  constexpr int kTogether = 8;  // distances that a thread has in flight
  const int lane = simt::lane(), fields = kFarthestFields + d;
  const long long together = (long long)gridDim.x * kFarthestThreads;
  found += (long long)first * fields;
  const FarRow<Work> last = {first ? (Work)found[1 - fields] : 0, first ? (long long)found[-fields] : 0};
  FarRow<Work> kept = FarRow<Work>::none();
  for (long long begin = (long long)blockIdx.x * kFarthestThreads + threadIdx.x; begin - lane < n;
       begin += kTogether * together) {
    Work distance[kTogether];
#pragma unroll
    for (int r = 0; r < kTogether; ++r) distance[r] = begin + r * together < n ? distances[begin + r * together] : 0;
#pragma unroll
    for (int r = 0; r < kTogether; ++r) {
      const FarRow<Work> one = {distance[r] > 0 ? distance[r] : 0, begin + r * together};
      enter(kept, one.row < n && (first == 0 || last.is_before(one)) ? one : FarRow<Work>::none(), count);
    }
  }
  merge_warps(kept, count);
  if ((int)threadIdx.x < count) lists[(long long)blockIdx.x * count + lane] = kept;
  if (!simt::last_to_arrive(arrived, gridDim.x)) return;
  kept = FarRow<Work>::none();
  const int entries = gridDim.x * count;
  for (int i = threadIdx.x; i - lane < entries; i += kFarthestThreads) {
    FarRow<Work> one = FarRow<Work>::none();
    if (i < entries) {
      one.distance = simt::load_from_other_block(&lists[i].distance);
      one.row = simt::load_from_other_block(&lists[i].row);
    }
    enter(kept, one, count);
  }
  merge_warps(kept, count);
  __shared__ long long rows[kMostFarthest];
  if ((int)threadIdx.x < count) {
    rows[lane] = kept.row;
    double* const to = found + (long long)lane * fields;
    to[0] = (double)kept.row, to[1] = (double)kept.distance, to[2] = labels[kept.row];
    to[3] = weights != nullptr ? (double)weights[kept.row] : 1.0;
  }
  __syncthreads();
#pragma unroll 4
  for (int i = threadIdx.x; i < count * d; i += kFarthestThreads) {
    const int which = i / d, j = i % d;
    const Work x = (Work)tsm2::Element<T>::value(X[rows[which] * d + j]);
    found[(long long)which * fields + kFarthestFields + j] = (double)(x - mean[j]);
  }
}

}  // namespace kmeans
