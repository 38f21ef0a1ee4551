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
// - Two fits share blocks of columns, four columns each: two lanes have all scores of a row and a fit, not four, so that
//   there is half of the shuffles, and of the waiting for them. Columns are rounded up to 4, not to 8.
// - The bound of a row's scores is linear in its norm, unless a center lies beyond the limit R of a row of the tile.
// - Norms of rows and labels of the first two fits are loaded one tile ahead, together with the tile, other labels two
//   fits ahead. Where they were loaded with the next tile on its way, a warp waited until the memory had that, too.
#pragma once
#include "apps/kmeans/sweep/fits_to_label.cuh"
#include "kernels/tsm2/gemm_mma.cuh"

namespace kmeans {

// A block of the kernel. No fit has more than kMostBlocks blocks of columns by itself, and no two paired fits more than
// kMostOfTwo.
template <typename Plan, int kMostBlocks, int kMostOfTwo>
class LabelFits : tsm2::GemmMma<Plan, ArgminEpilogue> {
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

  __device__ LabelFits(unsigned char* shared, const typename A::Source& a, const typename B::Source& b,
                       const tsm2::Work& work, const FitsToLabel& fits, Shared& here)
      : Product(shared, a, b, work, nullptr, nullptr, fits.first), fits_(fits), here_(here) {
    const int lane = threadIdx.x % 32;
    parts_ = simt::kept_shared(this->parts(0) + lane);
    biases_ = simt::kept_shared(here.biases[0] + lane % 4);
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
    RowsAhead ahead = rows_from(first * Plan::kTileM);
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
      tile.row = number * Plan::kTileM;
      const RowsAhead now = ahead;
      if (number + warps < tiles) ahead = rows_from((number + warps) * Plan::kTileM);
      fetch();
      label_tile(tile, now, going);
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
      const int fit = pair.fit_of(lane / 4), columns = (fits_.k[fit] + 7) / 8 * 8;
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
        const bool exists = c < (fits_.k[of] + 7) / 8 * 8;
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

  // Copies word `word` of this thread's lane of a column, whose elements begin at `from` (fragments.cuh); zeros past the
  // last word, and for columns that no center has.
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

  // Labels the rows of a tile in two fits, which have kPairBlocks blocks of columns together.
  template <int kPairBlocks>
  __device__ __forceinline__ void label_two(const FitPair& pair, const Tile& tile, const Labels& labels) const {
    const int lane = threadIdx.x % 32, fit = lane % 4 / 2 ? pair.fits[1] : pair.fits[0];
    float scores[kBlocks][kPairBlocks][4], errors[4];
    multiply(pair.first, true, tile, scores);
    twice_errors(fit, tile, errors);
    unsigned of_halves[2];
    candidate_bits<2>(scores, errors, of_halves);
    TwoRows bits = exchange_twelves(of_halves);
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
    unsigned place = 0;
    if ((lane & ~2) == 0)
      place = atomicAdd(here_.listed + fit, (unsigned)(__popc(first & members) + __popc(second & members)));
    place = simt::shuffle(place, lane & 2) + __popc(first & members & before);
    AmbiguousRow* const list = fits_.list(fit);
    const auto append = [&](int i, unsigned at) {
      const Candidates found = candidates_of_twelves(bits.at[i]);
      if (wanted[i]) list[at] = {row + 8 * i, labels.at[i], found.low, found.high};
    };
    append(0, place);
    append(1, place - __popc(first & members & before) + __popc(first & members) + __popc(second & members & before));
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
      unsigned of_halves[2];
      candidate_bits<1>(scores, errors, of_halves);
      unsigned bits = transpose_(__byte_perm(of_halves[0], of_halves[1], 0x5410));
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
      const float error = 1.0001f * bound_of_rows(of.center_stats[fit], false)(tile.own_norm);
      const ArgminEpilogue::OwnRow own = {row, label, tile.own_norm, present};
      of.label_32_rows(here_.listed + fit, own, error, here_.norm_limits[fit], scores, offset, find);
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
  const PartsOfTwo* parts_;  // this lane's
  const float4* biases_;
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
