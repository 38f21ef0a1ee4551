// Lloyd step by cuBLAS: arg-min of score rows, and sums of rows sorted by label. Each kernel reads its input once,
// coalesced. No kernel uses atomics, so all runs give the same bits.
//
// nearest       the arg-min of each row of scores
//   scores (rows × k, row-major)   −2·x·c for every row x of X and every center c, from cuBLAS
//   norms (k)                      ‖c‖², added here to save one read and write of the scores
// segment_sums  the sum of the rows with each label; X is a block of rows × d numbers, row-major
//
// Why it is fast: `nearest` splits a row of scores among a power-of-two number of lanes: half a warp for 16 clusters, a
// whole warp for 1000. For small k, `nearest` overwrites the scores with the one-hot label matrix, by which a GEMM then
// computes the cluster sums. For large k, that GEMM would double the arithmetic. `segment_sums` adds up the rows
// instead: row indices are sorted by label, and a block adds up the rows of one cluster in order.
#pragma once

#define FULL_WARP 0xffffffffu

template <typename T>
__global__ void nearest(T* scores, const T* norms, const T* weights, long long rows, int k, int log2_lanes,
                        bool one_hot, int* labels, T* best) {
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const int lanes = 1 << log2_lanes, lane = (int)thread & (lanes - 1);
  const bool present = thread >> log2_lanes < rows;
  // Threads past the last row process the last row again, because every lane of a warp must take part in the shuffles.
  const long long row = present ? thread >> log2_lanes : rows - 1;
  T* row_scores = scores + row * k;

  int label = lane < k ? lane : 0;
  T lowest = row_scores[label] + norms[label];
  for (int j = lane + lanes; j < k; j += lanes) {
    const T score = row_scores[j] + norms[j];
    if (score < lowest) {
      lowest = score;
      label = j;
    }
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(FULL_WARP, lowest, offset);
    const int other_label = __shfl_xor_sync(FULL_WARP, label, offset);
    if (other < lowest || (other == lowest && other_label < label)) {
      lowest = other;
      label = other_label;
    }
  }
  if (!present) return;
  if (lane == 0) {
    labels[row] = label;
    if (best) best[row] = lowest;
  }
  if (one_hot) {
    const T weight = weights ? weights[row] : T(1);
    for (int j = lane; j < k; j += lanes) row_scores[j] = j == label ? weight : T(0);
  }
}

// Block (j, f) of 32 × 8 threads sums features 32·f … 32·f + 31 of cluster j. Thread (x, y) adds up feature 32·f + x of
// the rows y, y + 8, … of the cluster, in double. Then thread (x, 0) adds up the eight partial sums in the order of y.
template <typename T>
__global__ void segment_sums(const T* X, const T* weights, const long long* order, const long long* starts, int d,
                             double* sums, double* totals) {
  __shared__ double partial[8][33];
  const int cluster = blockIdx.x, feature = blockIdx.y * 32 + threadIdx.x;
  double sum = 0;
  if (feature <= d) {  // feature d stands for the weights
    for (long long i = starts[cluster] + threadIdx.y; i < starts[cluster + 1]; i += 8) {
      const long long row = order[i];
      const double weight = weights ? (double)weights[row] : 1.0;
      sum += feature < d ? weight * (double)X[row * d + feature] : weight;
    }
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || feature > d) return;
  for (int y = 1; y < 8; ++y) sum += partial[y][threadIdx.x];
  if (feature < d) {
    sums[(long long)cluster * d + feature] = sum;
  } else {
    totals[cluster] = sum;
  }
}
