// Lists the code blocks with a non-zero syndrome: the blocks of words whose exact sums differ from the expected sums.
//
//   found, expected (stripes × kCount × width)   →   list: stripe · width + column of each listed block, in no order
//                                                    count: number of listed blocks
//
// at_rest/interleave.py defines block, stripe and width; kCount is the number of sums per block. A thread compares the
// sums of one block.
//
// Why it is fast: found and expected sums are read once, coalesced, with 2 · kCount loads in flight per thread. For a
// clean matrix nothing is written.
#pragma once

namespace abft {

constexpr int kCompareThreads = 256;

// `blocks` is the number of blocks, stripes · width. The caller sets `count` to zero before the launch.
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
