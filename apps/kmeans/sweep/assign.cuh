// Labels of the rows in several fits: a tall-and-skinny product with the centers of all fits side by side, and for each
// fit the arg-min of small_k.cuh over its columns.
//
//              depth        columns of the fits, two at a time
//            ┌───────┐    ┌────────┬────────┬─────┬─────┐
//            ├───────┤    │        │        │     │     │     The centers stay in shared memory, as fragments. A warp
//   32 rows  │ tile  │ ×  │        │        │     │     │     multiplies a tile by the columns of two fits after those
//            ├───────┤    │        │        │     │     │     of the two before. It holds the tile's fragments and the
//            │       │    └────────┴────────┴─────┴─────┘     sums of two fits in registers.
//            └───────┘
//
// The half-precision copy of X is read once for all fits. Of each fit, the kernel reads the labels, and writes the list
// of rows that are ambiguous or have a new label (AmbiguousRow). Fits that have ended take no time: each launch pairs
// those that go on (fits_to_label.cuh).
//
// The sums of a fit with at most 32 clusters begin with −‖c‖²/2, so that they are scores. The tensor cores add this
// term with the relative error γ with which they add products: E of small_k.cuh grows by γ H.
//
// Why it is fast: for few clusters, a product by itself takes as long as reading the copy does, whatever their number.
// Here, each further fit takes only its multiplications and its epilogue, of which instructions limit the rate:
//
// - A score costs a maximum and two fused multiply-adds (candidate_bits.cuh). Offsets cost nothing.
// - Two fits share blocks of columns, four columns each: two lanes, not four, have all scores of a row and a fit, so
//   that there are fewer shuffles, and less waiting for them. Columns are rounded up to 4, not to 8.
// - The bound of a row's scores is linear in its norm, unless a center lies beyond the limit R of a row of the tile.
// - Norms of rows and labels of the first two fits are loaded one tile ahead, together with the tile, other labels two
//   fits ahead. Where they were loaded with the next tile on its way, a warp waited until the memory had that, too.
#pragma once
#include "apps/kmeans/sweep/product_of_fits.cuh"

namespace kmeans {

// A block of the kernel. No fit has more than kMostBlocks blocks of columns by itself, and no two paired fits more than
// kMostOfTwo.
template <typename Plan, int kMostBlocks, int kMostOfTwo>
class LabelFits : ProductOfFits<Plan> {
 public:
  using Product = ProductOfFits<Plan>;
  using Product::Product, Product::kThreads;
  using typename Product::Shared;

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
    this->open(going);
    RowsAhead ahead = rows_from(first * Plan::kTileM);
    for (unsigned number = first; number < tiles; number += warps) {
      ptx::cp_async_wait<kAhead - 1>();
      simt::sync_warp();
      Tile tile;
      tile.stage = this->pipeline_ + slot * kStage;
      if (kHolds) {
#pragma unroll
        for (int pair = 0; pair < kHeld; ++pair) this->load(tile.parts[pair], tile.stage, pair);
        if (kAhead == Plan::kStages) simt::sync_warp();  // the tile has left its stage
      }
      tile.row = number * Plan::kTileM;
      const RowsAhead now = ahead;
      if (number + warps < tiles) ahead = rows_from((number + warps) * Plan::kTileM);
      fetch();
      label_tile(tile, now, going);
      slot = slot + 1 == Plan::kStages ? 0 : slot + 1;
    }
  }

 private:
  using Product::fits_, Product::here_, Product::multiply, Product::twice_errors;
  using Product::kBlocks, Product::kStage, Product::kHolds, Product::kHeld, Product::kAhead;
  using typename Product::A, typename Product::Tile;

  // Labels of the rows of this lane in a pair: of its fit, rows 16·p + g and 16·p + 8 + g, where p = lane % 2. In one
  // fit alone, of row 8·t + g. Negative past the last row.
  struct Labels {
    int at[2];
  };
  // What is loaded one tile ahead: the norm of row 8·t + g, and labels in the first pair.
  struct RowsAhead {
    float norm;
    Labels labels;
  };
  // The first row of this lane in a tile, and the second 8 rows after it if there are two (Labels).
  static __device__ __forceinline__ unsigned row_of_lane(bool is_pair) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    return is_pair ? t % 2 * 16 + g : 8 * t + g;
  }

  __device__ __forceinline__ Labels labels_of(const FitPair& pair, unsigned row) const {
    const unsigned n = fits_.first.n, one = row + row_of_lane(pair.is_pair());
    const int* const from = fits_.labels(pair.fit_of(2 * (threadIdx.x % 4))) + one;
    return {{one < n ? from[0] : -1, pair.is_pair() && one + 8 < n ? from[8] : -1}};
  }

  __device__ __forceinline__ RowsAhead rows_from(unsigned row) const {
    const unsigned own = row + row_of_lane(false);
    return {own < fits_.first.n ? fits_.first.norms[own] : 0.0f, labels_of(here_.pairs[0], row)};
  }

  __device__ __forceinline__ void label_tile(Tile& tile, const RowsAhead& rows, unsigned going) const {
    const int lane = threadIdx.x % 32;
    const unsigned soon = tile.row + fits_.first.ahead;
    if (going >> lane & 1 && soon < fits_.first.n) ptx::prefetch(fits_.labels(lane) + soon);
    tile.own_norm = tile.least_norm = rows.norm;
#pragma unroll
    for (int q = 0; q < 4; ++q) tile.norms[q] = simt::shuffle(rows.norm, lane / 4 * 4 + q);
#pragma unroll
    for (int bits = 1; bits < 32; bits *= 2)
      tile.least_norm = fminf(tile.least_norm, simt::shuffle_xor(tile.least_norm, bits));
    FitPair pair = here_.pairs[0];
    Labels labels = rows.labels;
    const int count = here_.pair_count;
    for (int i = 1;; ++i) {
      const FitPair next = here_.pairs[i < count ? i : 0];
      const Labels now = labels;
      if (i < count) labels = labels_of(next, tile.row);
      if (pair.is_pair()) {
        dispatch_two<kMostOfTwo>(pair, tile, now);
      } else {
        dispatch<kMostBlocks>(pair, tile, now.at[0]);
      }
      if (i >= count) break;
      pair = next;
    }
  }

  // Calls label_two<blocks of the pair>. Fits of most clusters go on longest, so their blocks come first.
  template <int kPairBlocks>
  __device__ __forceinline__ void dispatch_two(const FitPair& pair, const Tile& tile, const Labels& labels) const {
    if constexpr (kPairBlocks > 1) {
      if (pair.blocks != kPairBlocks) return dispatch_two<kPairBlocks - 1>(pair, tile, labels);
    }
    label_two<kPairBlocks>(pair, tile, labels);
  }

  // Calls label_one<blocks of the fit>.
  template <int kFitBlocks>
  __device__ __forceinline__ void dispatch(const FitPair& pair, const Tile& tile, int label) const {
    if constexpr (kFitBlocks > 1) {
      if (pair.blocks != kFitBlocks) return dispatch<kFitBlocks - 1>(pair, tile, label);
    }
    label_one<kFitBlocks>(pair, tile, label);
  }

  // Labels the rows of a tile in two fits, which have kPairBlocks blocks of columns together.
  template <int kPairBlocks>
  __device__ __forceinline__ void label_two(const FitPair& pair, const Tile& tile, const Labels& labels) const {
    const int lane = threadIdx.x % 32, fit = lane % 4 / 2 ? pair.fits[1] : pair.fits[0];
    float scores[kBlocks][kPairBlocks][4], errors[4];
    multiply(pair.first, true, tile, scores);
    twice_errors(fit, tile, errors);
    unsigned words[2];
    candidate_bits<2>(scores, errors, words);
    TwoRows bits = exchange_twelves(words);
    bool wanted[2];
    const unsigned row = tile.row + row_of_lane(true);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float norm = lane % 2 ? tile.norms[2 + i] : tile.norms[i];
      if (!(norm <= here_.norm_limits[fit])) bits.at[i] = 0;
      // A row without a label is wanted: only_bits[p][31] are bits that no row has.
      wanted[i] = row + 8 * i < fits_.first.n && bits.at[i] != here_.only_bits[lane % 2][labels.at[i] & 31];
    }
    const unsigned members = 0x33333333u << (lane & 2), before = (1u << lane) - 1;  // lanes of the same fit
    const unsigned first = __ballot_sync(simt::every_lane, wanted[0]),
                   second = __ballot_sync(simt::every_lane, wanted[1]);
    if ((first | second) == 0) return;
    unsigned begin = 0;
    if ((lane & ~2) == 0)
      begin = atomicAdd(here_.listed + fit, (unsigned)(__popc(first & members) + __popc(second & members)));
    begin = simt::shuffle(begin, lane & 2);
    AmbiguousRow* const list = fits_.list(fit);
    const auto append = [&](int i, unsigned at) {
      const Candidates found = candidates_of_twelves(bits.at[i]);
      if (wanted[i]) list[at] = {row + 8 * i, labels.at[i], found.low, found.high};
    };
    append(0, begin + __popc(first & members & before));
    append(1, begin + __popc(first & members) + __popc(second & members & before));
  }

  // Labels the rows of a tile in a fit that has kFitBlocks blocks of columns by itself.
  template <int kFitBlocks>
  __device__ __forceinline__ void label_one(const FitPair& pair, const Tile& tile, int label) const {
    constexpr bool kBytes = kFitBlocks <= kMostByteBlocks;
    const int fit = pair.fits[0];
    const unsigned row = tile.row + row_of_lane(false);
    const bool present = row < fits_.first.n;
    ArgminEpilogue of = fits_.first;
    of.entries = fits_.list(fit) - blockIdx.x * of.capacity;
    float scores[kBlocks][kFitBlocks][4];
    multiply(pair.first, kBytes, tile, scores);
    if constexpr (kBytes) {
      float errors[4];
      twice_errors(fit, tile, errors);
      unsigned words[2];
      candidate_bits<1>(scores, errors, words);
      unsigned bits = transpose_(__byte_perm(words[0], words[1], 0x5410));
      if (!(tile.own_norm <= here_.norm_limits[fit])) bits = 0;
      const unsigned place = (label & 6) << 2 | (label >> 2 & 6) | (label & 1);
      const bool wanted = present && (label < 0 || bits != 1u << place);
      const unsigned low = __byte_perm(bits, 0, 0x4140), high = __byte_perm(bits, 0, 0x4342);
      of.append(here_.listed + fit, wanted, {row, label, low, high});
    } else {
      float offset[kFitBlocks][2];
      ArgminEpilogue::load_columns(of.offsets + 8 * fits_.first_block[fit], offset);
      const auto find = [&](const float (&of_rows)[kFitBlocks][4], int half, const float (&of_columns)[kFitBlocks][2],
                            float error) { return of.candidates(of_rows, half, of_columns, error); };
      const float error = 1.0001f * this->bound_of_rows(of.center_stats[fit], false)(tile.own_norm);
      const ArgminEpilogue::OwnRow own = {row, label, tile.own_norm, present};
      of.label_32_rows(here_.listed + fit, own, error, here_.norm_limits[fit], scores, offset, find);
    }
  }

  const ByteTranspose transpose_;
};

// Lists, for every fit that goes on, the rows of the half-precision copy `a` that are ambiguous or have a new label.
// `b` has the centers of all fits. The lengths of the lists, and their sum (share.cuh), are zero before.
template <typename Plan, int kMostBlocks, int kMostOfTwo>
__global__ void __launch_bounds__(LabelFits<Plan, kMostBlocks, kMostOfTwo>::kThreads, Plan::kBlocksAMultiprocessor)
    label_fits(const typename Plan::A::Source a, const typename Plan::B::Source b, const tsm2::Work work,
               const FitsToLabel fits) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  using Block = LabelFits<Plan, kMostBlocks, kMostOfTwo>;
  __shared__ typename Block::Shared here;
  const unsigned going = fits_that_go_on(fits.first.stopped, fits.count);
  if (going == 0) return;
  Block block(simt::dynamic_shared<unsigned char>(), a, b, work, fits, here);
  block.run(going);
  __syncthreads();
  const int fit = threadIdx.x;
  if (fit >= fits.count || here.listed[fit] == 0) return;
  unsigned* const counts = fits.first.counts + fit * (gridDim.x + 1);
  counts[blockIdx.x] = here.listed[fit];
  atomicAdd(counts + gridDim.x, here.listed[fit]);
}

}  // namespace kmeans
