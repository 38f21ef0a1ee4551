// The blocks of words whose exact sums are not the expected ones.
//
//   found, expected (stripes × kCount × width)   →   list: stripe · width + column of each block of which a sum
//                                                differs, in no
//                                                    order;  count: how many
//
// Why it is fast: both are read once, by neighbouring threads from neighbouring columns, 2 · kCount loads of each at
// once; of a matrix that is as it was nothing is written.
#pragma once

namespace abft {

constexpr int kCompareThreads = 256;

// `count` is zero before.
template <int kCount>
__global__ void __launch_bounds__(kCompareThreads)
    list_mismatches(const unsigned long long* found, const unsigned long long* expected, long long width,
                    long long blocks, long long* list, unsigned long long* count) {
  const long long block = (long long)blockIdx.x * kCompareThreads + threadIdx.x;
  if (block >= blocks) return;
  const long long first = block / width * kCount * width + block % width;
  unsigned long long mismatch = 0;
#pragma unroll
  for (int k = 0; k < kCount; ++k) mismatch |= found[first + k * width] ^ expected[first + k * width];
  if (mismatch) list[atomicAdd(count, 1ull)] = block;
}

}  // namespace abft
