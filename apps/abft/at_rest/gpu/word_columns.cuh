// Exact sums of words (at_rest/exact_code.py) of any number of bytes and any width, by additions of integers: for what
// encode.cuh does not support, because it copies 16 bytes at a time.
//
//   words (rows × width, the last row may end early)   →   sums (stripes × kCount × width)
//
//              column 0 … width − 1
//   row 0      x₀      …              a thread reads one column of a stripe, one row after the other: the 32 words of a
//   row 1      x_width …              warp are consecutive
//
// The weights of S₁, S₂ and S₃ are binomial coefficients, so each sum is the running sum of the one before: S₀ += x,
// S₁ += S₀, S₂ += S₁, S₃ += S₂. S₄ takes a multiplication by a hash, of which shared memory has a table.
//
// Why it is fast: a word takes nine 32-bit additions and a multiply-add, about as many as an SM does in the time that
// the memory takes to deliver it; kAhead loads per thread are in flight.
#pragma once
#include "apps/abft/at_rest/gpu/last_weight.cuh"

namespace abft {

constexpr int kColumnThreads = 256, kColumnRows = 512, kColumnSums = 5, kAhead = 8;

// Word number `index` of `n_bytes` bytes; bytes and words beyond them are zero.
__device__ __forceinline__ unsigned word_at(const unsigned char* data, long long n_bytes, long long index) {
  const long long at = 4 * index, left = n_bytes - at;
  if (left >= 4) return *reinterpret_cast<const unsigned*>(data + at);
  unsigned word = 0;
  for (int i = 0; i < left; ++i) word |= (unsigned)data[at + i] << 8 * i;
  return word;
}

// One thread per block of words: columns · stripes threads, in blocks of kColumnThreads. `data` is aligned to 4 bytes.
__global__ void __launch_bounds__(kColumnThreads) sum_columns(const unsigned char* data, unsigned long long* sums,
                                                              long long n_bytes, long long width, long long n_blocks) {
  __shared__ unsigned weights[kColumnRows + 1];
  for (int r = threadIdx.x; r <= kColumnRows; r += kColumnThreads) weights[r] = last_weight(r);
  __syncthreads();
  const long long block = (long long)blockIdx.x * kColumnThreads + threadIdx.x;
  if (block >= n_blocks) return;
  const long long stripe = block / width, column = block % width, n_words = (n_bytes + 3) / 4;
  const long long first = stripe * kColumnRows * width, left = (n_words - first + width - 1) / width;
  const int rows = left < kColumnRows ? (int)left : kColumnRows;
  unsigned long long s[kColumnSums] = {};
  auto add = [&](unsigned x, int r) {
    s[0] += x, s[1] += s[0], s[2] += s[1], s[3] += s[2];
    s[4] += (unsigned long long)weights[r] * x;
  };
  int row = 0;
  for (; row + kAhead < rows; row += kAhead) {  // none of these words is the last one
    unsigned x[kAhead];
    const unsigned* at = reinterpret_cast<const unsigned*>(data) + first + row * width + column;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) x[i] = at[i * width];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) add(x[i], rows - row - i);
  }
  for (; row < rows; ++row) add(word_at(data, n_bytes, first + row * width + column), rows - row);
#pragma unroll
  for (int k = 0; k < kColumnSums; ++k) sums[(stripe * kColumnSums + k) * width + column] = s[k];
}

}  // namespace abft
