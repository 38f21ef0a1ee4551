// Labels of the rows in several fits: a tall-and-skinny product with the centers of all fits side by side, and for each
// fit the arg-min of small_k.cuh over its columns.
//
//              depth        columns of fit 0, fit 1, …, whole blocks of 8
//            ┌───────┐    ┌─────┬─────┬────────┬─────────────┐
//            ├───────┤    │     │     │        │             │     The centers stay in shared memory, as fragments.
//   32 rows  │ tile  │ ×  │     │     │        │             │     A warp multiplies a tile by the columns of one fit
//            ├───────┤    │     │     │        │             │     after the other. It holds the tile's fragments and
//            │       │    └─────┴─────┴────────┴─────────────┘     the sums of one fit in registers.
//            └───────┘
//
// The half-precision copy of X is read once for all fits. Of each fit, the kernel reads the labels, and writes the list
// of rows that are ambiguous or have a new label (AmbiguousRow). Fits that have ended take no time.
//
// The sums of a fit with at most 32 clusters begin with −‖c‖²/2, so that they are scores. The tensor cores add this
// term with the relative error γ with which they add products: E of small_k.cuh grows by γ H.
//
// Why it is fast: for few clusters, a product by itself takes as long as reading the copy does, whatever their number.
// Here, each further fit takes only its multiplications and its epilogue, of which instructions limit the rate:
//
// - A score costs a maximum and two fused multiply-adds (candidate_bits.cuh). Offsets cost nothing.
// - The bound of a row's scores is linear in its norm, unless a center lies beyond the limit R of a row of the tile.
// - Labels are loaded one fit ahead, and prefetched one tile ahead.
#pragma once
#include "apps/kmeans/sweep/candidate_bits.cuh"
#include "apps/kmeans/sweep/fits_to_label.cuh"
#include "kernels/tsm2/gemm_mma.cuh"

namespace kmeans {

// A block of the kernel. No fit has more than kMostBlocks blocks of columns.
template <typename Plan, int kMostBlocks>
class LabelFits : tsm2::GemmMma<Plan, ArgminEpilogue> {
 public:
  using Product = tsm2::GemmMma<Plan, ArgminEpilogue>;
  using Product::kBlocks, Product::kEights, Product::kStage, Product::kThreads, Product::kTeam, Product::kPairs;
  using Product::kTileColumnBlocks;
  using typename Product::A, typename Product::B, typename Product::Unit, typename Product::Depths;
  using typename Product::Parts, typename Product::PartsOfTwo;
  static_assert(Plan::kKeepB && kTeam == 1 && Plan::kInterval == 0 && kBlocks == 2, "a warp labels 32 rows at a time");

  // Static shared memory of a block. biases[j][t] has the offsets of columns 8·j + 2·t and the next, twice.
  struct Shared {
    FitBound bounds[kMostFits];
    float4 biases[kTileColumnBlocks][4];
    float norm_limits[kMostFits];
    unsigned listed[kMostFits];
  };

  __device__ LabelFits(unsigned char* shared, const typename A::Source& a, const typename B::Source& b,
                       const tsm2::Work& work, const FitsToLabel& fits, Shared& here)
      : Product(shared, a, b, work, nullptr, nullptr, fits.at[0].epilogue), fits_(fits), here_(here) {
    const int lane = threadIdx.x % 32;
    parts_ = simt::kept_shared(this->parts(0) + lane);
    biases_ = simt::kept_shared(here.biases[0] + lane % 4);
  }

  // Fills the shared memory for the fits `going`. A barrier must follow.
  __device__ __forceinline__ void open(unsigned going) const {
    const int thread = threadIdx.x;
    for (unsigned left = going; left != 0; left &= left - 1) {
      const FitColumns& of = fits_.at[__ffs(left) - 1];
      for (int i = thread; i < kPairs * of.blocks * 32; i += kThreads) {
        const int pair = i / 32 / of.blocks, block = of.first + i / 32 % of.blocks;
        PartsOfTwo* const to = this->parts(0) + (pair * kTileColumnBlocks + block) * 32 + i % 32;
        *to = {{fragment(block, 2 * pair), fragment(block, 2 * pair + 1)}};
      }
      for (int i = 4 * of.first + thread; i < 4 * (of.first + of.blocks); i += kThreads) {
        const float* const from = any().offsets + 2 * i;
        here_.biases[i / 4][i % 4] = {from[0], from[1], from[0], from[1]};
      }
    }
    if (thread >= fits_.count) return;
    const CenterStats& most = *fits_.at[thread].epilogue.center_stats;
    const Bound bound = bound_of_rows(fits_.at[thread].epilogue, true).up_to(most.norm);
    here_.bounds[thread] = {kTwice * bound.of_norm, kTwice * bound.always, most.norm, most.near};
    here_.norm_limits[thread] = most.norm_limit;
    here_.listed[thread] = 0;
  }

  // Labels this block's tiles in the fits `going`, a bit for each. All of the block's threads take part.
  __device__ __forceinline__ void run(unsigned going) {
    // Tiles go to warps in turn, to the first warps of all blocks first.
    const unsigned tiles = (unsigned)((this->work_.m + Plan::kTileM - 1) / Plan::kTileM);
    const unsigned warps = gridDim.x * Plan::kTeams, first = this->team_ * gridDim.x + blockIdx.x;
    typename A::template Reader<32> a(this->a_, threadIdx.x % 32);
    unsigned next = first;
    int free = 0, slot = 0;  // the next stage to fill, and to multiply
    const auto fetch = [&] {
      if (next < tiles) {
        a.move_to((long long)next * Plan::kTileM, 0);
        a.copy(this->pipeline_ + free * kStage);
      }
      next += warps;
      free = free + 1 == Plan::kStages ? 0 : free + 1;
      ptx::cp_async_commit();
    };
    for (int i = 0; i < kAhead; ++i) fetch();
    open(going);
    __syncthreads();
    for (unsigned number = first; number < tiles; number += warps) {
      ptx::cp_async_wait<kAhead - 1>();
      simt::sync_warp();
      Tile tile;
      tile.stage = this->pipeline_ + slot * kStage;
      if (kHolds) {
#pragma unroll
        for (int pair = 0; pair < kHeld; ++pair) load(tile.parts[pair], tile.stage, pair);
        if (kAhead == Plan::kStages) simt::sync_warp();  // the tile has left its stage
      }
      fetch();
      label_tile(tile, number * Plan::kTileM, going);
      slot = slot + 1 == Plan::kStages ? 0 : slot + 1;
    }
  }

 private:
  // Twice kLarge, and more than all roundings of E.
  static constexpr float kTwice = 2 * kLarge * 1.0001f;
  // Fragments of a tile that stay in registers, if they are few enough; of longer rows, each fit reads them again.
  static constexpr bool kHolds = kPairs * kBlocks <= 16;
  static constexpr int kHeld = kHolds ? kPairs : 1;
  // Number of tiles of which copies are in flight. A tile in registers needs its stage no more.
  static constexpr int kAhead = kHolds && Plan::kStages == 1 ? 1 : Plan::kStages - 1;
  static_assert(kAhead > 0, "one stage is enough only for tiles in registers");
  // A tile. Lane (g, t) = (lane / 4, lane % 4) holds sums of rows g, g + 8, g + 16 and g + 24, of which `norms` are the
  // norms. It labels row 8·t + g, which is `own`. `least_norm` is that of all rows.
  struct Tile {
    const unsigned char* stage;
    Parts parts[kHeld][kBlocks][4];
    float norms[4], least_norm;
    ArgminEpilogue::OwnRow own;
  };

  __device__ __forceinline__ const ArgminEpilogue& any() const { return fits_.at[0].epilogue; }

  // `with_offsets` says whether the tensor cores add the offsets.
  static __device__ __forceinline__ RowBound bound_of_rows(const ArgminEpilogue& fit, bool with_offsets) {
    const float of_half_square = 1.0f / (1 << 22) + (with_offsets ? fit.tensor_error : 0.0f);
    return RowBound(*fit.center_stats, fit.tensor_error, fit.rounding, of_half_square);
  }

  // Returns word `word` of this thread's lane of a block of columns (fragments.cuh); zeros past the last word.
  __device__ __forceinline__ Parts fragment(int block, int word) const {
    const int lane = threadIdx.x % 32, depth = Depths::first(word) + lane % 4 * Depths::step(word);
    if (word >= Depths::kWords || depth >= Plan::kDepth) return Parts{};
    const auto* from = this->b_.data + (8 * block + lane / 4) * this->b_.leading + depth;
    return Unit::parts(*reinterpret_cast<const typename B::Word*>(from));
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

  __device__ __forceinline__ void label_tile(Tile& tile, unsigned row, unsigned going) const {
    const int lane = threadIdx.x % 32;
    const unsigned mine = row + lane % 4 * 8 + lane / 4, n = any().n, soon = row + any().ahead;
    const bool present = mine < n;
    int fit = __ffs(going) - 1, label = present ? fits_.at[fit].epilogue.labels[mine] : 0;
    if (going >> lane & 1 && soon < n) ptx::prefetch(fits_.labels + lane * fits_.stride + soon);
    tile.own = {mine, 0, present ? any().norms[mine] : 0.0f, present};
#pragma unroll
    for (int q = 0; q < 4; ++q) tile.norms[q] = simt::shuffle(tile.own.norm, lane / 4 * 4 + q);
    tile.least_norm = tile.own.norm;
#pragma unroll
    for (int bits = 1; bits < 32; bits *= 2)
      tile.least_norm = fminf(tile.least_norm, simt::shuffle_xor(tile.least_norm, bits));
    for (unsigned left = going;;) {
      left &= left - 1;
      const int next = __ffs(left) - 1;
      tile.own.label = label;
      if (left != 0 && present) label = fits_.at[next].epilogue.labels[mine];
      dispatch<1>(fit, tile);
      if (left == 0) break;
      fit = next;
    }
  }

  // Calls label<blocks of the fit>.
  template <int kFitBlocks>
  __device__ __forceinline__ void dispatch(int fit, const Tile& tile) const {
    if constexpr (kFitBlocks < kMostBlocks) {
      if (fits_.at[fit].blocks != kFitBlocks) return dispatch<kFitBlocks + 1>(fit, tile);
    }
    label<kFitBlocks>(fit, tile);
  }

  // Labels the rows of a tile in a fit that has kFitBlocks blocks of columns.
  template <int kFitBlocks>
  __device__ __forceinline__ void label(int fit, const Tile& tile) const {
    constexpr bool kBytes = kFitBlocks <= 4;  // a lane has at most 8 candidates of a row
    const FitColumns& of = fits_.at[fit];
    float sums[kBlocks][kFitBlocks][4];
#pragma unroll
    for (int j = 0; j < kFitBlocks; ++j) {
      float4 bias = {};
      if (kBytes) bias = biases_[4 * (of.first + j)];
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) memcpy(sums[i][j], &bias, sizeof bias);
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      Parts again[kBlocks][4];
      if (!kHolds) load(again, tile.stage, pair);
      const Parts(*a)[4] = kHolds ? tile.parts[kHolds ? pair : 0] : again;
#pragma unroll
      for (int j = 0; j < kFitBlocks; ++j) {
        const PartsOfTwo two = parts_[(pair * kTileColumnBlocks + of.first + j) * 32];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) Unit::multiply(0, sums[i][j], a[i], two.at);
      }
    }
    if constexpr (kBytes) {
      list_by_bytes<kFitBlocks>(fit, tile, sums);
    } else {
      const ArgminEpilogue& to = of.epilogue;
      float offset[kFitBlocks][2];
      ArgminEpilogue::load_columns(to.offsets, offset);
      const auto find = [&](const float (&of_rows)[kFitBlocks][4], int half, const float (&of_columns)[kFitBlocks][2],
                            float error) { return to.candidates(of_rows, half, of_columns, error); };
      const float error = 1.0001f * bound_of_rows(to, false)(tile.own.norm);
      to.label_32_rows(here_.listed + fit, tile.own, error, here_.norm_limits[fit], sums, offset, find);
    }
  }

  // Lists those rows of a tile that are ambiguous or have a new label, from their scores.
  template <int kFitBlocks>
  __device__ __forceinline__ void list_by_bytes(int fit, const Tile& tile,
                                                const float (&scores)[kBlocks][kFitBlocks][4]) const {
    float errors[4];
    twice_errors(fit, tile, errors);
    unsigned bits = transpose_(candidate_bits(scores, errors));
    if (!(tile.own.norm <= here_.norm_limits[fit])) bits = 0;
    const int label = tile.own.label;
    const unsigned place = (label & 6) << 2 | (label >> 2 & 6) | (label & 1);
    const bool wanted = tile.own.present && (label < 0 || bits != 1u << place);
    const unsigned low = __byte_perm(bits, 0, 0x4140), high = __byte_perm(bits, 0, 0x4342);
    fits_.at[fit].epilogue.append(here_.listed + fit, wanted, {tile.own.row, label, low, high});
  }

  // Returns twice the error bound of each row of which this lane holds scores, times kLarge.
  __device__ __forceinline__ void twice_errors(int fit, const Tile& tile, float (&errors)[4]) const {
    const FitBound bound = here_.bounds[fit];
    if (bound.norm <= fmaf(2.2f, tile.least_norm, bound.near)) {
#pragma unroll
      for (int q = 0; q < 4; ++q) errors[q] = fmaf(bound.of_norm, tile.norms[q], bound.always);
    } else {
      const float own = kTwice * bound_of_rows(fits_.at[fit].epilogue, true)(tile.own.norm);
#pragma unroll
      for (int q = 0; q < 4; ++q) errors[q] = simt::shuffle(own, threadIdx.x % 32 / 4 * 4 + q);
    }
  }

  const FitsToLabel& fits_;
  Shared& here_;
  const PartsOfTwo* parts_;  // this lane's
  const float4* biases_;
  const ByteTranspose transpose_;
};

// Lists, for every fit that goes on, the rows of the half-precision copy `a` that are ambiguous or have a new label.
// `b` has the centers of all fits.
template <typename Plan, int kMostBlocks>
__global__ void __launch_bounds__(LabelFits<Plan, kMostBlocks>::kThreads, Plan::kBlocksAMultiprocessor)
    label_fits(const typename Plan::A::Source a, const typename Plan::B::Source b, const tsm2::Work work,
               const FitsToLabel fits) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  using Block = LabelFits<Plan, kMostBlocks>;
  __shared__ typename Block::Shared here;
  const unsigned going = fits_that_go_on(fits.stopped, fits.count);
  if (going == 0) return;
  Block block(simt::dynamic_shared<unsigned char>(), a, b, work, fits, here);
  block.run(going);
  __syncthreads();
  if ((int)threadIdx.x < fits.count && here.listed[threadIdx.x] != 0) {
    fits.at[threadIdx.x].epilogue.counts[blockIdx.x] = here.listed[threadIdx.x];
  }
}

}  // namespace kmeans
