// What the kernel of assign.cuh knows of each fit, and which fits a warp multiplies together.
#pragma once
#include "apps/kmeans/sweep/candidate_bits.cuh"
#include "apps/kmeans/sweep/share.cuh"

namespace kmeans {

// `first` is the epilogue of fit 0. Each fit's arrays follow those of the fit before it: labels after `tiles_apart`
// tiles of 32 rows, the other arrays without gaps. The offsets are those of the columns of all fits, of which fit i has
// whole blocks of 8 from block first_block[i] on.
struct FitsToLabel {
  ArgminEpilogue first;
  int k[kMostFits], first_block[kMostFits];
  int count, tiles_apart;

  // Number of blocks of columns that a fit has alone.
  __device__ __forceinline__ int blocks(int fit) const { return (k[fit] + 7) / 8; }
  __device__ __forceinline__ const int* labels(int fit) const {
    return first.labels + 32ull * (unsigned)(fit * tiles_apart);
  }
  // The list of this block; the grid has as many blocks as a fit has lists.
  __device__ __forceinline__ AmbiguousRow* list(int fit) const {
    return first.entries + (unsigned long long)(fit * gridDim.x + blockIdx.x) * (unsigned)first.capacity;
  }
};

// The bound of the rows of a tile in a fit: 2 E · kLarge = of_norm · (norm of the row) + always, if `norm`, the largest
// norm of a center, is not beyond the limit R = 2.2 · (norm of the row) + near (small_k.cuh).
struct alignas(16) FitBound {
  float of_norm, always, norm, near;
};

// Fits whose columns a warp multiplies together: one, or two of at most 24 clusters (then fits[1] ≥ 0). They have
// `blocks` blocks of 8 columns in shared memory, from block `first` on. With two, columns 0 … 3 of block b are those of
// centers 4·b … 4·b + 3 of the first fit, and columns 4 … 7 those of the second.
struct alignas(16) FitPair {
  int first, blocks, fits[2];

  __device__ __forceinline__ bool is_pair() const { return fits[1] >= 0; }
  __device__ __forceinline__ int fit_of(int column) const { return is_pair() && column % 8 >= 4 ? fits[1] : fits[0]; }
  __device__ __forceinline__ int center_of(int block, int column) const {
    return is_pair() ? 4 * block + column % 4 : 8 * block + column;
  }
};

// Pairs the fits `going`, a bit for each, in their order; returns the number of pairs. Fits of which a pair would have
// more blocks than both have alone remain single. All lanes of a warp take part.
__device__ __forceinline__ int pair_fits(const FitsToLabel& fits, unsigned going, FitPair* to) {
  const int lane = threadIdx.x % 32, k = fits.k[lane];
  const unsigned below = going & ((1u << lane) - 1), above = going & ~below & ~(1u << lane);
  const bool takes_part = going >> lane & 1, is_first = __popc(below) % 2 == 0;
  const int other = is_first ? __ffs(above) - 1 : 31 - __clz(below);
  const int its_k = simt::shuffle(k, other < 0 ? lane : other), most = k > its_k ? k : its_k;
  const int alone = (k + 7) / 8, together = (most + 3) / 4;
  const bool paired = other >= 0 && together <= kMostPairBlocks && together <= alone + (its_k + 7) / 8;
  const bool leads = takes_part && (is_first || !paired);
  const int blocks = !leads ? 0 : paired ? together : alone;
  const unsigned leaders = __ballot_sync(simt::every_lane, leads);
  const int end = simt::warp_running_sum(blocks);
  if (leads) to[__popc(leaders & ((1u << lane) - 1))] = {end - blocks, blocks, {lane, paired ? other : -1}};
  return __popc(leaders);
}

}  // namespace kmeans
