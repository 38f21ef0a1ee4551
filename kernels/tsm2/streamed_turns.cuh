// Turns of a block of gemm_wgmma_streamed.cuh: which row tiles its warpgroups multiply in each turn, and by which B.
//
//   OneProduct     A · Bᵀ. The blocks take turns in rotation: neighbouring row tiles are copied at the same time.
//   ManyProducts   A_i · B_iᵀ for several i, of the same shape. A block takes successive turns, so that B_i rarely
//                  changes from one turn to the next. The row tiles of A_i come before those of A_(i + 1) in memory,
//                  and are a multiple of kGroups: all row tiles of a turn belong to one product. B_i likewise.
//
// `Turns` is the number of turns of a block, and a position among them, which starts at the first. A position past the
// last turn repeats it or lies beyond the end of A.
#pragma once

namespace tsm2 {

struct OneProduct {
  int row_tiles;  // of A, at least 1
};

struct ManyProducts {
  const int *products, *count;  // the products to compute, and their number, at least 1
  int turns_each;               // number of turns of a product
};

template <typename Products, int kGroups>
class Turns;

template <int kGroups>
class Turns<OneProduct, kGroups> {
 public:
  static constexpr bool kOneB = true;

  __device__ explicit Turns(const OneProduct& of)
      : step_((int)gridDim.x * kGroups), row_tiles_(of.row_tiles), tile_((int)blockIdx.x * kGroups) {}

  __device__ __forceinline__ int count() const { return (row_tiles_ - (int)blockIdx.x * kGroups + step_ - 1) / step_; }
  __device__ __forceinline__ void next() { tile_ += step_; }
  // The row tile that a warpgroup multiplies. It may lie beyond the end of A.
  __device__ __forceinline__ int row_tile(int group) const { return tile_ + group; }
  // The row tile that is copied for it: beyond the end of A, the last.
  __device__ __forceinline__ int copied_tile(int group) const {
    return row_tile(group) < row_tiles_ ? row_tile(group) : row_tiles_ - 1;
  }
  __device__ __forceinline__ int product() const { return 0; }

 private:
  const int step_, row_tiles_;
  int tile_;
};

template <int kGroups>
class Turns<ManyProducts, kGroups> {
 public:
  static constexpr bool kOneB = false;

  __device__ explicit Turns(const ManyProducts& of)
      : of_(of), all_(*of.count * of.turns_each), at_(first_of(blockIdx.x)) {
    const int first = at_ < all_ ? at_ : all_ - 1;  // a block without turns
    place_ = first / of.turns_each;
    turn_ = first % of.turns_each;
    product_ = of.products[place_];
  }

  __device__ __forceinline__ int count() const { return first_of(blockIdx.x + 1) - first_of(blockIdx.x); }
  __device__ __forceinline__ void next() {
    if (++at_ >= all_) return;
    if (++turn_ == of_.turns_each) turn_ = 0, product_ = of_.products[++place_];
  }
  __device__ __forceinline__ int row_tile(int group) const {
    return (product_ * of_.turns_each + turn_) * kGroups + group;
  }
  __device__ __forceinline__ int copied_tile(int group) const { return row_tile(group); }
  // The product that the turn belongs to.
  __device__ __forceinline__ int product() const { return product_; }

 private:
  __device__ __forceinline__ int first_of(unsigned block) const { return (int)((long long)all_ * block / gridDim.x); }

  const ManyProducts& of_;
  const int all_;
  int at_, place_, turn_, product_;
};

}  // namespace tsm2
