// Turns of a block of gemm_wgmma_streamed.cuh: which row tiles its warpgroups multiply in each turn, and by which B.
//
//   OneProduct     A · Bᵀ. The blocks take turns in rotation: neighbouring row tiles are copied at the same time.
//   ManyProducts   A_i · B_iᵀ for several i, of the same shape. A block takes successive turns, so that B_i rarely
//                  changes from one turn to the next. The row tiles of A_i come before those of A_(i + 1) in memory, and
//                  are a multiple of kGroups: all row tiles of a turn belong to one product. B_i likewise.
#pragma once

namespace tsm2 {

struct OneProduct {
  int row_tiles;  // of A, at least 1
};

struct ManyProducts {
  const int *products, *count;  // the products to compute, and their number
  int turns_each;               // number of turns of a product
};

template <typename Products, int kGroups>
class Turns;

template <int kGroups>
class Turns<OneProduct, kGroups> {
 public:
  static constexpr bool kOneB = true;

  __device__ explicit Turns(const OneProduct& of)
      : count_((of.row_tiles - (int)blockIdx.x * kGroups + (int)gridDim.x * kGroups - 1) / ((int)gridDim.x * kGroups)),
        row_tiles_(of.row_tiles) {}

  // The number of turns of this block.
  __device__ __forceinline__ int count() const { return count_; }
  // The row tile that a warpgroup multiplies in a turn. It may lie beyond the end of A.
  __device__ __forceinline__ int row_tile(int turn, int group) const {
    return (turn * (int)gridDim.x + (int)blockIdx.x) * kGroups + group;
  }
  // The row tile that is copied for it: beyond the end of A, the last.
  __device__ __forceinline__ int copied_tile(int turn, int group) const {
    const int tile = row_tile(turn, group);
    return tile < row_tiles_ ? tile : row_tiles_ - 1;
  }
  // The product that a turn belongs to.
  __device__ __forceinline__ int product(int) const { return 0; }

 private:
  const int count_, row_tiles_;
};

template <int kGroups>
class Turns<ManyProducts, kGroups> {
 public:
  static constexpr bool kOneB = false;

  // At least one product is to be computed.
  __device__ explicit Turns(const ManyProducts& of)
      : of_(of), all_(*of.count * of.turns_each), begin_(first_of(blockIdx.x)), end_(first_of(blockIdx.x + 1)) {}

  __device__ __forceinline__ int count() const { return end_ - begin_; }
  // `turn` may be past the last.
  __device__ __forceinline__ int row_tile(int turn, int group) const {
    const int one = turn_of_all(turn), place = one / of_.turns_each;
    return ((of_.products[place] - place) * of_.turns_each + one) * kGroups + group;
  }
  __device__ __forceinline__ int copied_tile(int turn, int group) const { return row_tile(turn, group); }
  __device__ __forceinline__ int product(int turn) const { return of_.products[turn_of_all(turn) / of_.turns_each]; }

 private:
  __device__ __forceinline__ int first_of(unsigned block) const { return (int)((long long)all_ * block / gridDim.x); }
  __device__ __forceinline__ int turn_of_all(int turn) const { return begin_ + turn < all_ ? begin_ + turn : all_ - 1; }

  const ManyProducts& of_;
  const int all_, begin_, end_;
};

}  // namespace tsm2
