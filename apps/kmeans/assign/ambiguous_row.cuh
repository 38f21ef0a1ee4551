// Rows that small_k.cuh lists for rescore.cuh, and their candidate centers, one bit each.
#pragma once
#include "kernels/device/simt.cuh"

namespace kmeans {

// An ambiguous row, or a row with a new label. `low` and `high` are the lower and upper 32 of its 64 candidate bits.
// Bit 16·s + p (0 ≤ p < 16) stands for center 8·(p / 2) + 2·s + p % 2.
struct alignas(16) AmbiguousRow {
  unsigned row;
  int label;  // before this iteration
  unsigned low, high;
};

__device__ __forceinline__ int center_of_bit(unsigned bit) { return (int)(bit % 16 / 2 * 8 + bit / 16 * 2 + bit % 2); }
__device__ __forceinline__ int bit_of_center(unsigned center) {
  return (int)(center % 8 / 2 * 16 + center / 8 * 2 + center % 2);
}
// Returns the center of the lowest candidate bit.
__device__ __forceinline__ int first_center(unsigned low, unsigned high) {
  return center_of_bit(low ? __ffs(low) - 1 : 31 + __ffs(high));
}

// The candidate bits of a row, as in AmbiguousRow.
struct Candidates {
  unsigned low, high;

  // True if `label` is the only candidate.
  __device__ __forceinline__ bool is(int label) const {
    const unsigned long long one = 1ull << (bit_of_center((unsigned)label) & 63);
    return (label >= 0) & (low == (unsigned)one) & (high == (unsigned)(one >> 32));
  }
};

// Transposes candidate bits among the four lanes that hold the scores of the same rows. Lane (g, t) = (lane / 4, lane %
// 4) passes 16 bits of each of rows g, g + 8, g + 16 and g + 24, in the lower halves of four words. It receives all 64
// candidate bits of row 8·t + g.
__device__ __forceinline__ Candidates candidates_of_own_row(const unsigned (&bits)[4]) {
  const int t = threadIdx.x % 4;
  const unsigned two[2] = {__byte_perm(bits[0], bits[1], 0x5410), __byte_perm(bits[2], bits[3], 0x5410)};
  // Each lane keeps the bits of row 8·t + g and of the row of lane t ^ 1, and sends the bits of the other two rows.
  const unsigned kept = t < 2 ? two[0] : two[1];
  const unsigned got = simt::shuffle_xor(t < 2 ? two[1] : two[0], 2);
  const unsigned across = simt::shuffle_xor(__byte_perm(kept, got, t % 2 ? 0x5410 : 0x7632), 1);
  // `ours` has the bits from lanes t and t ^ 1, `theirs` those from lanes t ^ 2 and t ^ 3. The bits from the lower of
  // two lanes are in the lower half.
  const unsigned ours = __byte_perm(kept, across, t % 2 ? 0x3254 : 0x5410);
  const unsigned theirs = __byte_perm(got, across, t % 2 ? 0x3276 : 0x7610);
  return {t < 2 ? ours : theirs, t < 2 ? theirs : ours};
}

}  // namespace kmeans
