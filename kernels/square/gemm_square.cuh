// GEMM by wgmma on Hopper (sm_90a) for matrices of which no dimension is small: C (m × n) = A (m × k) · Bᵀ, B (n × k).
// All are row-major, with 16-bit elements, and sums are float32. The tensor cores limit the speed.
//
//               k                    n           A block computes a *tile* of C, 128 × 256, in *chunks* of 64 elements
//        ┌────┬────┬────┐      ┌────────┬───     along k. Two blocks, a cluster, compute the two tiles of a *pair*,
//    128 │chunk    │    │block0│  tile  │        which have the same columns. Each copies its rows of A, and half of
//        ├────┼────┼────┤      ├────────┤        the columns' rows of B, which go to both blocks.
//    128 │chunk    │    │block1│  tile  │
//        └────┴────┴────┘      └────────┴───     Each of two consumer warpgroups multiplies 64 rows of the tile.
//
// One thread issues all copies to a pipeline of stages (square_pipeline.cuh). A warpgroup writes its part of C by
// tensor copies from shared memory, 32 columns at a time, while it goes on.
//
// The epilogue sees all elements of C in registers. It may have products with eight more columns, the *side*: those of
// A with a matrix (8 × k), for some chunks only; see below.
//
// Why it is fast: for the products of a chunk, 1024 clocks of the tensor cores, a cluster reads 64 KB from the level-2
// cache; without multicast it would be 96 KB, more than the cache delivers to all blocks. What an epilogue has to begin
// and to end runs while the tensor cores multiply the first chunk of the next tile. Pairs that run at the same time
// share rows and columns, which stay in the level-2 cache.
#pragma once
#include "kernels/device/element.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/warp_specialization.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/square/square_pipeline.cuh"

namespace tsm2 {

// An Epilogue defines `kSharedBytes`, memory of a warpgroup, a multiple of 16; `Rows`, the state of a thread for its
// two rows of a tile (ptx/mma.cuh); and:
//
//   begin(Rows&, shared, row, column)    starts a tile: the thread has rows `row` and `row` + 8, and `column` is the
//                                        tile's first column. It may issue cp_async copies
//   take(Rows&, column, lower, upper, words)  gets the sums of sixteen columns of the tile, two fragments of d, and
//                                        returns in `words` the elements as they are stored, a fragment of a. The
//                                        thread's columns are `column`, + 1, + 8 and + 9. The copies have landed
//   end(Rows&, side, tile)               ends a tile, of column tile `tile`; `side` is a fragment of the products with
//                                        the side
//
// All threads of a warpgroup call them. The chunks of the side of a column tile are those of `side_chunks`.
template <typename T, int kStages, int kBuffers, typename Epilogue>
class GemmSquare {
  using Pipeline = SquarePipeline<kStages>;
  static constexpr int kGroupThreads = 128, kStoreColumns = 32, kStoreBytes = kGroupRows * 2 * kStoreColumns;
  static_assert(kBuffers >= 2, "a part of C is written to a buffer while the previous one is stored");

 public:
  static constexpr int kConsumers = 2 * kGroupThreads, kThreads = kConsumers + 128;
  static constexpr int kStoresAt = Pipeline::kBytes, kScratchAt = kStoresAt + 2 * kBuffers * kStoreBytes;
  static constexpr int kBarriersAt = kScratchAt + 2 * Epilogue::kSharedBytes;
  static constexpr int kSharedBytes = kBarriersAt + Pipeline::kBarrierBytes;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static_assert(kSharedBytes <= 227 << 10, "a multiprocessor's shared memory");

  __device__ GemmSquare(unsigned char* shared, const SquareOperands& of, const ptx::TensorMap& C,
                        const Epilogue& epilogue)
      : pipeline_(shared, shared + kBarriersAt, of), of_(of), C_(C), epilogue_(epilogue), shared_(shared) {}

  __device__ __forceinline__ void run() const {
    pipeline_.set_up();
    if (threadIdx.x == 0) ptx::prefetch_map(C_);
    ptx::cluster_sync_of_barriers();
    ptx::griddepcontrol_wait();
    if (threadIdx.x >= kConsumers) {
      ptx::fewer_registers<kProducerRegisters>();
      if (threadIdx.x == kConsumers) pipeline_.copy();
    } else {
      ptx::more_registers<kConsumerRegisters>();
      multiply();
    }
    simt::sync_warp();
    ptx::cluster_sync();
  }

 private:
  __device__ __forceinline__ void multiply() const {
    // A shuffle tells the compiler that all lanes have the same value.
    const int group = simt::shuffle((int)threadIdx.x / kGroupThreads, 0);
    unsigned char* const scratch = shared_ + kScratchAt + group * Epilogue::kSharedBytes;
    const int chunks = of_.chunks();
    SquareStage<kStages> stage;
    int buffer = 0, before = 0;
    bool is_first = true;
    SquareTiles tiles(of_);
    SquareTile tile = tiles.tile(), done = tile;
    typename Epilogue::Rows rows = {};
    float of_side[4] = {};
#pragma unroll 1
    while (tiles.has_tile()) {
      float sums[kTileColumns / 8][4] = {}, side[1][4] = {};
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        ptx::mbarrier_wait(pipeline_.full + stage.index, stage.parity);
        const auto a = ptx::swizzled_matrix_at(pipeline_.of_a(stage.index) + group * kGroupRows * 128);
        if (tile.side.has(chunk)) {  // first: the products that all chunks have then end the group
          ptx::wgmma_fence(side);
          multiply(side, a, ptx::swizzled_matrix_at(pipeline_.of_side(stage.index)));
        }
        ptx::wgmma_fence(sums);
        multiply(sums, a, ptx::swizzled_matrix_at(pipeline_.of_b(stage.index)));
        ptx::wgmma_commit();
        if (chunk == 0) {  // while the tensor cores work
          if (!is_first) epilogue_.end(rows, of_side, done.column_tile);
          epilogue_.begin(rows, scratch, tile.row + group * kGroupRows + fragment_row(),
                          tile.column_tile * kTileColumns);
          ptx::cp_async_commit();
        } else {  // Wait for the products of the previous chunk, and release its stage in both blocks.
          ptx::wgmma_wait<1>();
          pipeline_.release(before);
        }
        before = stage.index;
        stage.next();
      }
      is_first = false, done = tile;
      tiles.next();
      tile = tiles.tile();
      ptx::wgmma_wait<0>(sums);
      ptx::wgmma_wait<0>(side);
      pipeline_.release(before);
      store(rows, sums, group, done, buffer);
#pragma unroll
      for (int i = 0; i < 4; ++i) of_side[i] = side[0][i];
    }
    if (!is_first) epilogue_.end(rows, of_side, done.column_tile);
    if (threadIdx.x % kGroupThreads == 0) ptx::tensor_store_wait<0>();
  }

  // Adds the products of a chunk.
  template <int blocks, typename Matrix>
  static __device__ __forceinline__ void multiply(float (&sums)[blocks][4], Matrix a, Matrix b) {
#pragma unroll
    for (int i = 0; i < kChunk / 16; ++i)
      ptx::wgmma<false, T>(sums, ptx::matrix_after(a, 32 * i), ptx::matrix_after(b, 32 * i));
  }

  // The first of this thread's rows, g of its warp's 16, among those of its warpgroup.
  static __device__ __forceinline__ int fragment_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

  // Hands the sums of a warpgroup to the epilogue, and stores what it returns. `buffer` is the buffer to use next.
  __device__ __forceinline__ void store(typename Epilogue::Rows& rows, const float (&sums)[kTileColumns / 8][4],
                                        int group, const SquareTile& tile, int& buffer) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32, t = lane % 4;
    const bool issues = threadIdx.x % kGroupThreads == 0;
    ptx::cp_async_wait<0>();  // the epilogue's
    ptx::barrier_sync(1 + group, kGroupThreads);
#pragma unroll
    for (int part = 0; part < kTileColumns / kStoreColumns; ++part) {
      unsigned char* const to = shared_ + kStoresAt + (group * kBuffers + buffer) * kStoreBytes;
      unsigned words[kStoreColumns / 16][4];
#pragma unroll
      for (int pair = 0; pair < kStoreColumns / 16; ++pair) {
        const int block = kStoreColumns / 8 * part + 2 * pair;
        epilogue_.take(rows, 8 * block + 2 * t, sums[block], sums[block + 1], words[pair]);
      }
#pragma unroll
      for (int pair = 0; pair < kStoreColumns / 16; ++pair) {
        const int place = ptx::swizzled_offset<2 * kStoreColumns>(16 * warp + lane % 16, 2 * pair + lane / 16);
        ptx::stmatrix_x4(to + place, words[pair]);
      }
      ptx::async_fence();
      // After the barrier, the store that used the next buffer before has read it.
      if (issues) ptx::tensor_store_wait<kBuffers - 2>();
      ptx::barrier_sync(1 + group, kGroupThreads);
      if (issues) {
        const int column = tile.column_tile * kTileColumns + part * kStoreColumns;
        ptx::tensor_store(C_, column, tile.row + group * kGroupRows, to);
        ptx::tensor_store_commit();
      }
      if (++buffer == kBuffers) buffer = 0;
    }
  }

  const Pipeline pipeline_;
  const SquareOperands& of_;
  const ptx::TensorMap& C_;
  const Epilogue& epilogue_;
  unsigned char* const shared_;
};

// In clusters of two blocks.
template <typename T, int kStages, int kBuffers, typename Epilogue>
__global__ void __launch_bounds__(384, 1)
    gemm_square(const __grid_constant__ SquareOperands of, const __grid_constant__ ptx::TensorMap C,
                const __grid_constant__ Epilogue epilogue) {
  ptx::griddepcontrol_launch_dependents();
  using Kernel = GemmSquare<T, kStages, kBuffers, Epilogue>;
  Kernel(simt::dynamic_shared<unsigned char>(), of, C, epilogue).run();
}

}  // namespace tsm2
