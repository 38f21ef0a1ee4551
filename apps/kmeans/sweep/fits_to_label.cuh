// What the kernel of assign.cuh knows of each fit.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/sweep/share.cuh"

namespace kmeans {

// The epilogue of a fit, and its columns of the product in blocks of 8.
struct FitColumns {
  ArgminEpilogue epilogue;
  int first, blocks;
};

// Fit 0 has the first columns, and the offsets of all fits follow its own. The labels of fit i begin at labels[i ·
// stride], where stride is a multiple of 32.
struct FitsToLabel {
  FitColumns at[kMostFits];
  const int *stopped, *labels;
  long long stride;
  int count, padding;
};

// The bound of the rows of a tile in a fit: 2 E · kLarge = of_norm · (norm of the row) + always, if `norm`, the largest
// norm of a center, is not beyond the limit R = 2.2 · (norm of the row) + near (small_k.cuh).
struct alignas(16) FitBound {
  float of_norm, always, norm, near;
};

}  // namespace kmeans
