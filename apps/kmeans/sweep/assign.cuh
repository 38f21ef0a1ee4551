// Labels of the rows in several fits: a tall-and-skinny product with the centers of all fits side by side, and the
// arg-min epilogue of small_k.cuh for each fit's columns.
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
// of rows that are ambiguous or have a new label. Fits that have ended take no time.
//
// Why it is fast: for few clusters, a product by itself takes as long as reading the copy does, whatever their number.
// Here, each further fit takes only its multiplications and its epilogue. Labels are loaded before the multiplications
// that they wait for, and prefetched one tile ahead.
#pragma once
#include "apps/kmeans/assign/small_k.cuh"
#include "apps/kmeans/sweep/share.cuh"
#include "kernels/tsm2/gemm_mma.cuh"

namespace kmeans {

// The epilogue of a fit, and its columns of the product in blocks of 8.
struct FitColumns {
  ArgminEpilogue epilogue;
  int first, blocks;
};

struct FitsToLabel {
  FitColumns at[kMostFits];
  const int* stopped;
  int count, padding;
};

// A block of the kernel. No fit has more than kMostBlocks blocks of columns.
template <typename Plan, int kMostBlocks>
class LabelFits : tsm2::GemmMma<Plan, ArgminEpilogue> {
 public:
  using Product = tsm2::GemmMma<Plan, ArgminEpilogue>;
  using typename Product::A, typename Product::B, typename Product::Unit, typename Product::Depths;
  using typename Product::Parts, typename Product::PartsOfTwo;
  using Product::kBlocks, Product::kEights, Product::kStage, Product::kThreads, Product::kTeam, Product::kArrivesAt;
  using Product::kArrivesBeside, Product::kTileColumnBlocks, Product::kPairs;
  static_assert(Plan::kKeepB && kTeam == 1 && Plan::kInterval == 0 && kBlocks % 2 == 0, "a warp labels whole tiles");

  __device__ LabelFits(unsigned char* shared, const typename A::Source& a, const typename B::Source& b,
                       const tsm2::Work& work, const FitsToLabel& fits, unsigned* listed)
      : Product(shared, a, b, work, nullptr, nullptr, fits.at[0].epilogue), fits_(fits), listed_(listed) {}

  // Labels this block's tiles in the fits `going`, a bit for each. All of the block's threads take part.
  __device__ __forceinline__ void run(unsigned going) {
    typename B::template Reader<kThreads> b(this->b_, threadIdx.x);
    b.move_to(0, 0);
    b.copy(this->shared_ + kArrivesAt);
    ptx::cp_async_commit();
    if (!kArrivesBeside) this->template share_kept_b<0>();
    const long long teams = (long long)gridDim.x * Plan::kTeams, units = (this->work_.m + Plan::kTileM - 1) / Plan::kTileM;
    const long long begin = this->team_ * (long long)gridDim.x + blockIdx.x;
    const long long end = begin + (units - begin + teams - 1) / teams;
    tsm2::TileLoader<Plan, 32, kThreads, false> reader(this->a_, this->b_, this->work_, begin, threadIdx.x % 32,
                                                       threadIdx.x);
    long long fetched = begin;
    int free = 0, slot = 0;  // the next stage to fill, and to multiply
    const auto fetch = [&] {
      if (fetched++ < end) reader.copy(this->pipeline_ + free * kStage);
      free = free + 1 == Plan::kStages ? 0 : free + 1;
      ptx::cp_async_commit();
    };
    for (int i = 0; i < Plan::kStages - 1; ++i) fetch();
    if (kArrivesBeside) this->template share_kept_b<Plan::kStages - 1>();
    tsm2::WorkIterator<Plan> now(this->work_, begin);
    for (long long unit = begin; unit < end; ++unit) {
      ptx::cp_async_wait<Plan::kStages - 2>();
      simt::sync_warp();
      fetch();
      label_tile(this->pipeline_ + slot * kStage, (unsigned)(*now).row, going);
      slot = slot + 1 == Plan::kStages ? 0 : slot + 1;
      now.next();
    }
  }

 private:
  // Fragments of a tile that stay in registers, if they are few enough; of longer rows, each fit reads them again.
  static constexpr bool kHolds = kPairs * kBlocks <= 16;
  static constexpr int kHeld = kHolds ? kPairs : 1;
  struct Tile {
    const unsigned char* stage;
    Parts parts[kHeld][kBlocks][4];
    ArgminEpilogue::OwnRow own[kBlocks / 2];  // without the labels
  };

  __device__ __forceinline__ void load(Parts (&to)[kBlocks][4], const unsigned char* stage, int pair) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      typename A::Word words[4];
      A::template words<Depths, kEights>(words, stage, 0, 2 * i, 0, 2 * pair);
#pragma unroll
      for (int j = 0; j < 4; ++j) to[i][j] = Unit::parts(words[j]);
    }
  }

  __device__ __forceinline__ void label_tile(const unsigned char* stage, unsigned row, unsigned going) const {
    Tile tile;
    tile.stage = stage;
    if (kHolds) {
#pragma unroll
      for (int pair = 0; pair < kHeld; ++pair) load(tile.parts[pair], stage, pair);
    }
    const ArgminEpilogue& any = fits_.at[0].epilogue;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kBlocks / 2; ++i) {
      const unsigned mine = row + 32 * i + lane % 4 * 8 + lane / 4;
      const bool present = mine < any.n;
      tile.own[i] = {mine, 0, present ? any.norms[mine] : 0.0f, present};
    }
    for (unsigned left = going; left != 0; left &= left - 1) {
      const int fit = __ffs(left) - 1;
      dispatch<1>(fits_.at[fit], tile, listed_ + fit);
    }
  }

  // Calls label<blocks of the fit>.
  template <int kFitBlocks>
  __device__ __forceinline__ void dispatch(const FitColumns& fit, const Tile& tile, unsigned* listed) const {
    if constexpr (kFitBlocks < kMostBlocks) {
      if (fit.blocks != kFitBlocks) return dispatch<kFitBlocks + 1>(fit, tile, listed);
    }
    label<kFitBlocks>(fit, tile, listed);
  }

  // Labels the rows of a tile in one fit, which has kFitBlocks blocks of columns.
  template <int kFitBlocks>
  __device__ __forceinline__ void label(const FitColumns& fit, const Tile& tile, unsigned* listed) const {
    const ArgminEpilogue& to = fit.epilogue;
    int labels[kBlocks / 2];
#pragma unroll
    for (int i = 0; i < kBlocks / 2; ++i) {
      const typename ArgminEpilogue::OwnRow& own = tile.own[i];
      labels[i] = own.present ? to.labels[own.row] : 0;
      const unsigned soon = own.row + to.ahead;
      if (soon % 32 == 0 && soon < to.n) ptx::prefetch(to.labels + soon);
    }
    float sums[kBlocks][kFitBlocks][4] = {};
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      Parts again[kBlocks][4];
      if (!kHolds) load(again, tile.stage, pair);
      const Parts(*a)[4] = kHolds ? tile.parts[kHolds ? pair : 0] : again;
#pragma unroll
      for (int j = 0; j < kFitBlocks; ++j) {
        const PartsOfTwo two =
            this->parts(0)[(pair * kTileColumnBlocks + fit.first + j) * 32 + (int)threadIdx.x % 32];
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) Unit::multiply(0, sums[i][j], a[i], two.at);
      }
    }
    float offset[kFitBlocks][2];
    ArgminEpilogue::load_columns(to.offsets, offset);
    const RowBound bound(*to.center_stats, to.tensor_error, to.rounding, 1.0f / (1 << 22));
    const float norm_limit = to.center_stats->norm_limit;
    const auto find = [&](const float(&of_rows)[kFitBlocks][4], int half, const float(&of)[kFitBlocks][2], float error) {
      return to.candidates(of_rows, half, of, error);
    };
#pragma unroll
    for (int i = 0; i < kBlocks / 2; ++i) {
      typename ArgminEpilogue::OwnRow own = tile.own[i];
      own.label = labels[i];
      to.label_32_rows(listed, own, 1.0001f * bound(own.norm), norm_limit, &sums[2 * i], offset, find);
    }
  }

  const FitsToLabel& fits_;
  unsigned* const listed_;
};

// Lists, for every fit that goes on, the rows of the half-precision copy `a` that are ambiguous or have a new label.
// `b` has the centers of all fits.
template <typename Plan, int kMostBlocks>
__global__ void __launch_bounds__(LabelFits<Plan, kMostBlocks>::kThreads, Plan::kBlocksAMultiprocessor)
    label_fits(const typename Plan::A::Source a, const typename Plan::B::Source b, const tsm2::Work work,
               const FitsToLabel fits) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ unsigned listed[kMostFits];
  if (threadIdx.x < kMostFits) listed[threadIdx.x] = 0;
  const unsigned going = fits_that_go_on(fits.stopped, fits.count);
  if (going == 0) return;
  __syncthreads();
  LabelFits<Plan, kMostBlocks>(simt::dynamic_shared<unsigned char>(), a, b, work, fits, listed).run(going);
  __syncthreads();
  if ((int)threadIdx.x < fits.count && listed[threadIdx.x] != 0) {
    fits.at[threadIdx.x].epilogue.counts[blockIdx.x] = listed[threadIdx.x];
  }
}

}  // namespace kmeans
