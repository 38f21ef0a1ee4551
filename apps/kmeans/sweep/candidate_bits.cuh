// Candidate bits of the rows of a tile in one fit of at most 32 clusters, from scores in registers.
//
//   lane (g, t)     scores of rows 8·q + g, q = 0 … 3, and columns 8·j + 2·t + i  →  a byte for each of these rows
//   ByteTranspose   lane (g, t)  →  the bytes of all four lanes for row 8·t + g
//
// Here g = lane / 4 and t = lane % 4. Bit 2·j + i of byte t stands for column 8·j + 2·t + i.
//
// Why it is fast: a score costs a maximum and two fused multiply-adds, as in candidates_near of small_k.cuh. Two
// shuffles transpose the bits of four rows.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"

namespace kmeans {

// Transposes 4 × 4 bytes among the four lanes of the same g.
class ByteTranspose {
 public:
  __device__ ByteTranspose()
      : first_(threadIdx.x % 2 ? 0x3715 : 0x6240), second_(threadIdx.x % 4 / 2 ? 0x3276 : 0x5410) {}
  __device__ __forceinline__ unsigned operator()(unsigned bytes) const {
    bytes = __byte_perm(bytes, simt::shuffle_xor(bytes, 1), first_);
    return __byte_perm(bytes, simt::shuffle_xor(bytes, 2), second_);
  }

 private:
  const unsigned first_, second_;
};

// Returns this lane's bytes. `errors[q]` is twice the error bound of row 8·q + g, times kLarge.
template <int kBlocks>
__device__ __forceinline__ unsigned candidate_bits(const float (&scores)[2][kBlocks][4], const float (&errors)[4]) {
  static_assert(kBlocks <= 4, "a byte has the candidates of four blocks");
  float best[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    best[q] = fmaxf(scores[q / 2][0][q % 2 * 2], scores[q / 2][0][q % 2 * 2 + 1]);
#pragma unroll
    for (int j = 1; j < kBlocks; ++j)
      best[q] = fmaxf(best[q], fmaxf(scores[q / 2][j][q % 2 * 2], scores[q / 2][j][q % 2 * 2 + 1]));
  }
#pragma unroll
  for (int bits = 1; bits < 4; bits *= 2)
#pragma unroll
    for (int q = 0; q < 4; ++q) best[q] = fmaxf(best[q], simt::shuffle_xor(best[q], bits));
  float sum[2] = {};
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float threshold = fmaf(-kLarge, best[q], errors[q]);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float above = __saturatef(fmaf(scores[q / 2][j][q % 2 * 2 + i], kLarge, threshold));
        sum[q / 2] = fmaf(above, (float)(1 << (8 * (q % 2) + 2 * j + i)), sum[q / 2]);
      }
  }
  return __byte_perm((unsigned)sum[0], (unsigned)sum[1], 0x5410);
}

}  // namespace kmeans
