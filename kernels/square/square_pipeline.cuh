// Shared-memory pipeline of gemm_square.cuh, the order of its tiles, and the copies of its operands.
//
//   stage            A (128 × 64)   B (256 × 64)   side (8 × 64)         each swizzled (ptx/tensor_copy.cuh)
//   copied by        this block     half by each   this block, if        `full` counts the bytes in each block
//                                   block, to both the tile needs it
//   released by      the consumers of both blocks, in both blocks        `empty` counts their warps
//
// Tile, pair, chunk and side: see gemm_square.cuh.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/tensor_copy.cuh"

namespace tsm2 {

// A tile, the part of a consumer warpgroup, and a chunk; the rows of the side.
constexpr int kTileRows = 128, kTileColumns = 256, kGroupRows = 64, kChunk = 64, kSideRows = 8;
// Pairs are taken by columns within groups of so many column tiles: 64 pairs that run at the same time then have 2048
// rows and 2048 columns.
constexpr int kColumnGroup = 8;

// The chunks [begin, end) of a column tile that are also multiplied by the side.
struct SideChunks {
  int begin, end;
  __device__ __forceinline__ bool has(int chunk) const { return begin <= chunk && chunk < end; }
};

// The operands of a product. Boxes of A have kTileRows rows, boxes of B half as many as a tile has columns, boxes of
// the side kSideRows; all have kChunk columns.
struct SquareOperands {
  ptx::TensorMap A, B, side;
  int m, n, k;
  int has_side;

  __device__ __forceinline__ int chunks() const { return (k + kChunk - 1) / kChunk; }
  __device__ __forceinline__ int column_tiles() const { return (n + kTileColumns - 1) / kTileColumns; }
  __device__ __forceinline__ int pairs_down() const { return (m + 2 * kTileRows - 1) / (2 * kTileRows); }
  // Every chunk belongs to one column tile: then the side's products with a row are those of all its tiles together.
  __device__ __forceinline__ SideChunks side_chunks(int column_tile) const {
    const long long all = has_side ? chunks() : 0, tiles = column_tiles();
    return {(int)(all * column_tile / tiles), (int)(all * (column_tile + 1) / tiles)};
  }
};

// A tile: its first row, its number among those of a row, and the chunks that are also multiplied by the side.
struct SquareTile {
  int row, column_tile;
  SideChunks side;
};

// The tiles of this block, in order.
class SquareTiles {
 public:
  __device__ explicit SquareTiles(const SquareOperands& of)
      : of_(of), columns_(of.column_tiles()), rows_(of.pairs_down()), step_(gridDim.x / 2), at_(blockIdx.x / 2) {}

  __device__ __forceinline__ bool has_tile() const { return at_ < rows_ * columns_; }
  __device__ __forceinline__ void next() { at_ += step_; }
  // The current tile; past the last, that one.
  __device__ __forceinline__ SquareTile tile() const {
    const int at = at_ < rows_ * columns_ ? at_ : rows_ * columns_ - 1;
    const int group = at / (kColumnGroup * rows_), first = group * kColumnGroup;
    const int width = columns_ - first < kColumnGroup ? columns_ - first : kColumnGroup;
    const int in_group = at - first * rows_, column_tile = first + in_group % width;
    return {(2 * (in_group / width) + (int)ptx::cluster_rank()) * kTileRows, column_tile, of_.side_chunks(column_tile)};
  }

 private:
  const SquareOperands& of_;
  const int columns_, rows_, step_;
  int at_;
};

// A position in the pipeline: the stage, and the parity of the phase that fills it.
template <int kStages>
struct SquareStage {
  int index = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void next() {
    if (++index == kStages) index = 0, parity ^= 1;
  }
};

template <int kStages>
class SquarePipeline {
 public:
  static constexpr int kA = kTileRows * 128, kB = kTileColumns * 128, kSide = kSideRows * 128;
  static constexpr int kBytes = kStages * (kA + kB + kSide), kBarrierBytes = 2 * kStages * (int)sizeof(ptx::Mbarrier);
  static constexpr int kReleases = 2 * 8;  // of the consumer warps of both blocks

  // `shared` is a multiple of 1024.
  __device__ SquarePipeline(unsigned char* shared, unsigned char* barriers, const SquareOperands& of)
      : full(reinterpret_cast<ptx::Mbarrier*>(barriers)), empty(full + kStages), shared_(shared), of_(of) {}

  // Initializes the barriers. All threads of the block call it; a barrier of the cluster must follow.
  __device__ __forceinline__ void set_up() const {
    if (threadIdx.x != 0) return;
    ptx::prefetch_map(of_.A), ptx::prefetch_map(of_.B);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(full + i, 1);
      ptx::mbarrier_init(empty + i, kReleases);
    }
    ptx::mbarrier_init_fence();
  }

  __device__ __forceinline__ unsigned char* of_a(int stage) const { return shared_ + stage * kA; }
  __device__ __forceinline__ unsigned char* of_b(int stage) const { return shared_ + kStages * kA + stage * kB; }
  __device__ __forceinline__ unsigned char* of_side(int stage) const {
    return shared_ + kStages * (kA + kB) + stage * kSide;
  }

  // Issues all copies of this block. One thread calls it.
  __device__ __forceinline__ void copy() const {
    const int rank = (int)ptx::cluster_rank(), chunks = of_.chunks();
    constexpr int kHalf = kTileColumns / 2;
    SquareStage<kStages> stage;
#pragma unroll 1
    for (SquareTiles tiles(of_); tiles.has_tile(); tiles.next()) {
      const SquareTile tile = tiles.tile();
      const int column = tile.column_tile * kTileColumns + rank * kHalf;
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk, stage.next()) {
        ptx::Mbarrier* const barrier = full + stage.index;
        ptx::mbarrier_wait(empty + stage.index, stage.parity ^ 1);
        ptx::mbarrier_arrive_expect(barrier, kA + kB + (tile.side.has(chunk) ? kSide : 0));
        ptx::tensor_load(of_a(stage.index), of_.A, chunk * kChunk, tile.row, barrier);
        ptx::tensor_load_to_blocks(of_b(stage.index) + rank * kHalf * 128, of_.B, chunk * kChunk, column, barrier, 3);
        if (tile.side.has(chunk)) ptx::tensor_load(of_side(stage.index), of_.side, chunk * kChunk, 0, barrier);
      }
    }
  }

  // Releases a stage in both blocks. All lanes of every consumer warp call it.
  __device__ __forceinline__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    if (lane < 2) ptx::mbarrier_arrive_in_block(empty + stage, lane);
  }

  ptx::Mbarrier *const full, *const empty;

 private:
  unsigned char* const shared_;
  const SquareOperands& of_;
};

}  // namespace tsm2
