// Terms of the inertia of rows x from the running cluster sums, without a pass over the rows:
//
//   Σ‖x − c‖² = Σ‖x‖² − 2·Σ c·s + Σ m·‖c‖²     center c has the cluster sum s and m rows
//
//   sums (k × (d + 1), fixed_point.cuh), units (d + 1), centers (k × d)   →   terms (k × 4): m, c·s, ‖c‖², Σ |c_i|·u_i
//
// The last term bounds how much the rounding of rows to units u changes c·x. All is in double, without fused
// multiply-adds, so that the CPU computes the same bits (host_inertia.py).
//
// Why it is fast: one block per cluster reads its sums once. Only 32 bytes per cluster go to the host, not the sums.
#pragma once
#include "kernels/device/block_reduce.cuh"

namespace kmeans {

template <typename Work>
__global__ void __launch_bounds__(kCenterThreads)
    sum_terms(const long long* sums, const double* units, const Work* centers, int d, double* terms) {
  const long long* const of_cluster = sums + (long long)blockIdx.x * (d + 1);
  const Work* const center = centers + (long long)blockIdx.x * d;
  Doubles<3> mine = {};
#pragma unroll 4
  for (int i = threadIdx.x; i < d; i += kCenterThreads) {
    const double c = (double)center[i], unit = units[i];
    mine.at[0] += simt::rounded_product(c, (double)of_cluster[i] * unit);
    mine.at[1] += simt::rounded_product(c, c);
    mine.at[2] += simt::rounded_product(c < 0 ? -c : c, unit);
  }
  mine = over_block(mine, [](int, double a, double b) { return a + b; });
  if (threadIdx.x != 0) return;
  double* const found = terms + 4 * (long long)blockIdx.x;
  found[0] = (double)of_cluster[d] * units[d];
#pragma unroll
  for (int i = 0; i < 3; ++i) found[1 + i] = mine.at[i];
}

}  // namespace kmeans
