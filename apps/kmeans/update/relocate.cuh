// Relocation of empty clusters: moves a row from its cluster to each empty cluster, and later back.
//
//   found (count)    the rows that are farthest from their centers (farthest_rows.cuh)
//   empty (count)    the empty clusters, in increasing order; row number i moves to empty[i]
//   sums             fixed-point cluster sums (fixed_point.cuh)
//
// An iteration that leaves clusters empty has these launches:
//
//   update_centers        lists the empty clusters, and writes their number to `stopped` (stopped.cuh)
//   own_distances         computes the distance of every row to its center (data/passes.cuh)
//   select_digit          once per digit of the keys of rows
//   list_farthest_rows
//   relocate              moves the rows
//   update_centers        computes the new centers from the sums, and lets the run go on
//   relocate              moves the rows back
//
// The labels remain those of the assignment, as in scikit-learn. So the running sums must be those of the labels again
// when the next iteration updates them. They are integers, so moving rows there and back leaves the same bits. If all
// distances are zero, there are fewer distinct rows than clusters, and no row moves.
//
// Why it is fast: the host takes no part. If no cluster is empty, each launch only reads `stopped`.
#pragma once
#include "apps/kmeans/assign/row_distances.cuh"
#include "apps/kmeans/update/farthest_rows.cuh"
#include "apps/kmeans/update/fixed_point.cuh"

namespace kmeans {

constexpr int kRelocateThreads = 128;

// Moves rows to the empty clusters. With `back`, moves back the rows that the last launch moved. `n_relocated` keeps
// their number. Block i moves every gridDim.x-th row.
template <typename T, typename Work, int kDigits, typename Label = int>
__global__ void __launch_bounds__(kRelocateThreads)
    relocate(const FarRow* found, const int* empty, const CenteredRows<T, Work> rows, const Label* labels,
             const typename Integer<kDigits>::Scale* scales, unsigned long long* sums, const int* stopped, bool back,
             int* n_relocated) {
  ptx::griddepcontrol_wait();
  int count = back ? *n_relocated : clusters_to_relocate(*stopped);
  if (!back && count > 0 && found[0].distance == 0) count = 0;
  if (!back && blockIdx.x == 0 && threadIdx.x == 0) *n_relocated = count;
  const int width = rows.d + 1;
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const long long row = found[i].row, to = (long long)empty[i] * width, from = (long long)labels[row] * width;
    const T* const x = rows.X + row * rows.leading;
    const Work weight = rows.weights != nullptr ? rows.weights[row] : Work(1);
    for (int j = threadIdx.x; j < width; j += kRelocateThreads) {
      const Work value = j < rows.d ? weight * centered<T, Work>(x[j], rows.mean[j]) : weight;
      const long long number = as_integer<Work>(value, scales[j]), change = back ? -number : number;
      atomicAdd(&sums[to + j], (unsigned long long)change);
      atomicAdd(&sums[from + j], (unsigned long long)-change);
    }
  }
}

}  // namespace kmeans
