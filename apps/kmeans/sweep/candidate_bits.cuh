// Candidate bits of the rows of a tile in one fit of at most 32 clusters, or in each of two fits of at most 24, from
// scores in registers. Lane (g, t) = (lane / 4, lane % 4) has scores of rows 8·q + g, q = 0 … 3; p = t % 2.
//
//   one fit    columns 8·b + 2·t + i of block b       →  a byte for each row, with bit 2·b + i
//              ByteTranspose                          →  the bytes of all four lanes for row 8·t + g
//   two fits   columns 4·b + 2·p + i of fit t / 2     →  12 bits for each row, with bit 6·(b % 2) + b / 2 · 2 + i
//              exchange_twelves                       →  those of lanes t and t ^ 1 for rows 16·p + g and 16·p + 8 + g
//
// Byte t of a row in one fit, and six bits of a row in two fits, have the order of AmbiguousRow (ambiguous_row.cuh).
//
// Why it is fast: a score costs a maximum and two fused multiply-adds, as in candidates_near of small_k.cuh. Two
// shuffles transpose the bits of four rows in one fit; one shuffle exchanges those of four rows in two fits.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"

namespace kmeans {

// Most blocks of columns of one fit, and of two: the bits of two rows are exact in a float.
constexpr int kMostByteBlocks = 4, kMostPairBlocks = 6;

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

// The candidate bits of two rows: of this lane in the lower 12 bits, of lane t ^ 1 in the next 12.
struct TwoRows {
  unsigned at[2];
};

// Returns the bits of rows 16·p + g and 16·p + 8 + g. `words` has those of this lane: of rows g and g + 8, and of rows
// g + 16 and g + 24, 12 bits each.
__device__ __forceinline__ TwoRows exchange_twelves(const unsigned (&words)[2]) {
  const bool upper = threadIdx.x % 2;
  const unsigned mine = upper ? words[1] : words[0], sent = upper ? words[0] : words[1];
  const unsigned other = simt::shuffle_xor(sent, 1);
  return {{(mine & 0xfff) | (other << 12 & 0xfff000), mine >> 12 | (other & 0xfff000)}};
}

// The place of the bit of center `label` among the 24 bits of a row.
__device__ __forceinline__ unsigned place_of_twelves(unsigned label) {
  return 6 * (label / 4 % 2) + label / 8 * 2 + label % 2 + (label / 2 % 2 != threadIdx.x % 2 ? 12 : 0);
}

// Returns the 24 bits of a row as in AmbiguousRow.
__device__ __forceinline__ Candidates candidates_of_twelves(unsigned bits) {
  const bool upper = threadIdx.x % 2;
  const unsigned first = upper ? bits >> 12 : bits, second = upper ? bits : bits >> 12;
  return {(first & 63) | (second & 63) << 16, (first >> 6 & 63) | (second >> 6 & 63) << 16};
}

// Sets words[h] to this lane's bits of rows 16·h + g and 16·h + 8 + g. errors[q] is twice the error bound of row
// 8·q + g, times kLarge.
template <int kFits, int kBlocks>
__device__ __forceinline__ void candidate_bits(const float (&scores)[2][kBlocks][4], const float (&errors)[4],
                                               unsigned (&words)[2]) {
  static_assert(kBlocks <= (kFits == 1 ? kMostByteBlocks : kMostPairBlocks), "bits of a row overlap those of the next");
  constexpr int kApart = kFits == 1 ? 8 : 12;
  const auto place = [](int b, int i) { return kFits == 1 ? 2 * b + i : 6 * (b % 2) + b / 2 * 2 + i; };
  float best[4], sums[4];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    best[q] = fmaxf(scores[q / 2][0][q % 2 * 2], scores[q / 2][0][q % 2 * 2 + 1]);
#pragma unroll
    for (int b = 1; b < kBlocks; ++b)
      best[q] = fmaxf(best[q], fmaxf(scores[q / 2][b][q % 2 * 2], scores[q / 2][b][q % 2 * 2 + 1]));
  }
#pragma unroll
  for (int bits = 1; bits < 4 / kFits; bits *= 2)
#pragma unroll
    for (int q = 0; q < 4; ++q) best[q] = fmaxf(best[q], simt::shuffle_xor(best[q], bits));
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const float threshold = fmaf(-kLarge, best[q], errors[q]);
    sums[q] = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float above = __saturatef(fmaf(scores[q / 2][b][q % 2 * 2 + i], kLarge, threshold));
        sums[q] = fmaf(above, (float)(1 << (kApart * (q % 2) + place(b, i))), sums[q]);
      }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) words[h] = (unsigned)(sums[2 * h] + sums[2 * h + 1]);
}

}  // namespace kmeans
