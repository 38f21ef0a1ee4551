// What a block of assign.cuh multiplies: tiles of 32 rows of the half-precision copy by the columns of fits, in pairs.
//
//   shared memory   pairs     which fits are multiplied together (fits_to_label.cuh)
//                   parts     their centers, as fragments, in blocks of 8 columns
//                   biases    −‖c‖²/2 of the columns, with which sums begin
//                   bounds    of the errors of scores, for each fit
//
// Why it is fast: threads do not wait for the centers that they copy. The fragments of a tile are in registers for all
// fits, if they are few enough.
#pragma once
#include "apps/kmeans/sweep/fits_to_label.cuh"
#include "kernels/tsm2/gemm_mma.cuh"

namespace kmeans {

template <typename Plan>
class ProductOfFits : public tsm2::GemmMma<Plan, ArgminEpilogue> {
 public:
  using Product = tsm2::GemmMma<Plan, ArgminEpilogue>;
  using Product::kBlocks, Product::kEights, Product::kStage, Product::kThreads, Product::kTeam, Product::kPairs;
  using Product::kTileColumnBlocks;
  using typename Product::A, typename Product::B, typename Product::Unit, typename Product::Depths;
  using typename Product::Parts, typename Product::PartsOfTwo;
  static_assert(Plan::kKeepB && kTeam == 1 && Plan::kInterval == 0 && kBlocks == 2, "a warp labels 32 rows at a time");
  static_assert(sizeof(Parts) == sizeof(typename B::Word), "words are copied as they are");

  // Static shared memory of a block. biases[b][t] has the offsets of the columns of lane t of block b, twice.
  // only_bits[p][label] has the bits of a row whose only candidate is its label (candidate_bits.cuh), and no bits of a
  // row for a label that no row has.
  struct Shared {
    FitBound bounds[kMostFits];
    float4 biases[kTileColumnBlocks][4];
    FitPair pairs[kMostFits];
    float norm_limits[kMostFits];
    unsigned listed[kMostFits], only_bits[2][32];
    int pair_count;
  };

  __device__ ProductOfFits(unsigned char* shared, const typename A::Source& a, const typename B::Source& b,
                           const tsm2::Work& work, const FitsToLabel& fits, Shared& here)
      : Product(shared, a, b, work, nullptr, nullptr, fits.first), fits_(fits), here_(here) {
    const int lane = threadIdx.x % 32;
    parts_ = simt::kept_shared(this->parts(0) + lane);
    biases_ = simt::kept_shared(here.biases[0] + lane % 4);
  }

 protected:
  // Twice kLarge, and more than all roundings of E.
  static constexpr float kTwice = 2 * kLarge * 1.0001f;
  // Fragments of a tile that stay in registers, if they are few enough; of longer rows, each fit reads them again.
  static constexpr bool kHolds = kPairs * kBlocks <= 16;
  static constexpr int kHeld = kHolds ? kPairs : 1;
  // Number of tiles of which copies are in flight. A tile in registers needs its stage no more.
  static constexpr int kAhead = kHolds && Plan::kStages == 1 ? 1 : Plan::kStages - 1;
  static_assert(kAhead > 0, "one stage is enough only for tiles in registers");
  // A tile. Lane (g, t) = (lane / 4, lane % 4) holds sums of rows g, g + 8, g + 16 and g + 24, of which `norms` are the
  // norms. `own_norm` is that of row 8·t + g, and `least_norm` the smallest of all.
  struct Tile {
    const unsigned char* stage;
    Parts parts[kHeld][kBlocks][4];
    float norms[4], own_norm, least_norm;
    unsigned row;
  };

  // Fills the shared memory for the fits `going`.
  __device__ __forceinline__ void open(unsigned going) const {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    if (warp == 0) {
      const int count = pair_fits(fits_, going, here_.pairs);
      if (lane == 0) here_.pair_count = count;
    }
    if (thread < 64)
      here_.only_bits[thread % 2][thread / 2] = thread / 2 < 24 ? 1u << place_of_twelves(thread / 2) : ~0u;
    if (thread < fits_.count) open_fit(thread);
    __syncthreads();
    for (int i = 0; i < here_.pair_count; ++i) {
      const FitPair pair = here_.pairs[i];
      const int fit = pair.fit_of(lane / 4), columns = 8 * fits_.blocks(fit);
      for (int part = warp; part < kPairs * pair.blocks; part += kThreads / 32) {
        const int words = part % kPairs, block = part / kPairs, center = pair.center_of(block, lane / 4);
        const auto* const from = this->b_.data + (8 * fits_.first_block[fit] + center) * this->b_.leading;
        PartsOfTwo* const to = this->parts(0) + (words * kTileColumnBlocks + pair.first + block) * 32 + lane;
#pragma unroll
        for (int word = 0; word < 2; ++word) copy_word(&to->at[word], from, 2 * words + word, center < columns);
      }
      if (thread < 4 * pair.blocks) {
        const int block = thread / 4, of = pair.fit_of(2 * (thread % 4)), c = pair.center_of(block, 2 * (thread % 4));
        const float* const from = fits_.first.offsets + 8 * fits_.first_block[of] + c;
        const bool exists = c < 8 * fits_.blocks(of);
        const float one = exists ? from[0] : -kInfinity, two = exists ? from[1] : -kInfinity;
        here_.biases[pair.first + block][thread % 4] = {one, two, one, two};
      }
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  __device__ __forceinline__ void open_fit(int fit) const {
    const CenterStats& most = fits_.first.center_stats[fit];
    const Bound bound = bound_of_rows(most, true).up_to(most.norm);
    here_.bounds[fit] = {kTwice * bound.of_norm, kTwice * bound.always, most.norm, most.near};
    here_.norm_limits[fit] = most.norm_limit;
    here_.listed[fit] = 0;
  }

  // Copies word `word` of this thread's lane of a column, whose elements begin at `from` (fragments.cuh). Past the last
  // word, and for columns that no center has, it writes zeros.
  template <typename Element>
  __device__ __forceinline__ void copy_word(Parts* to, const Element* from, int word, bool exists) const {
    const int depth = Depths::first(word) + threadIdx.x % 4 * Depths::step(word);
    const bool present = exists && word < Depths::kWords && depth < Plan::kDepth;
    ptx::cp_async<4>(to, present ? from + depth : this->b_.data, present ? 4 : 0);
  }

  // `with_offsets` says whether the tensor cores add the offsets.
  __device__ __forceinline__ RowBound bound_of_rows(const CenterStats& most, bool with_offsets) const {
    const float of_half_square = 1.0f / (1 << 22) + (with_offsets ? fits_.first.tensor_error : 0.0f);
    return RowBound(most, fits_.first.tensor_error, fits_.first.rounding, of_half_square);
  }

  __device__ __forceinline__ void load(Parts (&to)[kBlocks][4], const unsigned char* stage, int pair) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      typename A::Word words[4];
      A::template words<Depths, kEights>(words, stage, 0, 2 * i, 0, 2 * pair);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i][j] = Unit::parts(words[j]);
    }
  }

  // Multiplies a tile by kColumnBlocks blocks of columns from block `first` on.
  template <int kColumnBlocks>
  __device__ __forceinline__ void multiply(int first, bool with_offsets, const Tile& tile,
                                           float (&sums)[kBlocks][kColumnBlocks][4]) const {
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j) {
      float4 bias = {};
      if (with_offsets) bias = biases_[4 * (first + j)];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) memcpy(sums[i][j], &bias, sizeof bias);
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      Parts again[kBlocks][4];
      if (!kHolds) load(again, tile.stage, pair);
      const Parts(*a)[4] = kHolds ? tile.parts[kHolds ? pair : 0] : again;
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
        const PartsOfTwo two = parts_[(pair * kTileColumnBlocks + first + j) * 32];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) Unit::multiply(0, sums[i][j], a[i], two.at);
      }
    }
  }

  // Returns twice the error bound of each row of which this lane holds scores, times kLarge.
  __device__ __forceinline__ void twice_errors(int fit, const Tile& tile, float (&errors)[4]) const {
    const FitBound bound = here_.bounds[fit];
    if (bound.norm <= fmaf(2.2f, tile.least_norm, bound.near)) {
#pragma unroll
      for (int q = 0; q < 4; ++q) errors[q] = fmaf(bound.of_norm, tile.norms[q], bound.always);
    } else {
      const RowBound of_rows = bound_of_rows(fits_.first.center_stats[fit], true);
#pragma unroll
      for (int q = 0; q < 4; ++q) errors[q] = kTwice * of_rows(tile.norms[q]);
    }
  }

  const FitsToLabel& fits_;
  Shared& here_;

 private:
  const PartsOfTwo* parts_;  // this lane's
  const float4* biases_;
};

}  // namespace kmeans
