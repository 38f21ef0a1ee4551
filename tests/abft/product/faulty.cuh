// The epilogue of a protected product, with faults in the sums that it is given.
#pragma once
#include "apps/abft/product/detect.cuh"

namespace faulty {

// `by` is added to the sum of an element in the registers of its lane.
struct Fault {
  long long row, column;
  double by;
};

template <typename Sum, typename Epilogue>
struct Faulty : Epilogue {
  const Fault* faults;
  long long n_faults;

  template <int kBlocks>
  __device__ void fragments(long long from, int rows, long long column, int columns, const Sum (&d)[kBlocks][4]) const {
    Sum changed[kBlocks][4];
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int j = 0; j < kBlocks; ++j)
      for (int i = 0; i < 4; ++i) {
        changed[j][i] = d[j][i];
        for (long long f = 0; f < n_faults; ++f)
          if (from + 8 * (i / 2) + g == faults[f].row && 8 * j + 2 * t + i % 2 == faults[f].column)
            changed[j][i] += (Sum)faults[f].by;
      }
    Epilogue::fragments(from, rows, column, columns, changed);
  }
};

}  // namespace faulty
