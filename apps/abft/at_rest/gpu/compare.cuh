// Lists the blocks of words with a non-zero syndrome: those whose exact sums differ from the expected ones.
//
//   found, expected (stripes × kCount × width)   →   list: stripe · width + column of each listed block, in no order
//                                                    count: number of listed blocks
//
// Block, stripe and width are those of at_rest/interleave.py; kCount is the number of sums per block.
//
// Why it is fast: both inputs are read once, coalesced, with 2 · kCount loads in flight per thread. For a clean matrix
// nothing is written.
#pragma once

namespace abft {

constexpr int kCompareThreads = 256;

// `count` is zero before the launch.
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
