// Streamed GEMM by mma, for GPUs from sm_80 on: S (m × n) = A (m × k) · Bᵀ (k × n) + bias (a number per column), in
// float16 with float32 accumulators. S is never stored: an epilogue consumes it from registers, one column tile at a
// time. This is gemm_wgmma_streamed.cuh, with its terms, operands and epilogues, for GPUs without wgmma.
//
//               k                     n            In a turn, each of kG = kGroups warpgroups multiplies kTogether row
//          ┌─────────┐         ┌────┬────┬────┐    tiles of 64 rows by all of B: a warp, 16 rows of each. So a fragment
//  128 · kG│row tiles│   ×   k │    │ →  │ →  │    of B, once it is in registers, is multiplied kTogether times.
//          └─────────┘         └────┴────┴────┘
//                           B: copied every turn, in column tiles and chunks (mma_streamed_pipeline.cuh)
//
// Why it is fast: on an H200 a product m16n8k16 takes a scheduler 6.2 clocks, and every other instruction takes one
// more, from whichever warp it comes: they do not overlap. So there are few others: copies and loads have their
// distances in the instructions, a fragment of B is multiplied twice, and biases are products of the tensor cores. A
// core matrix of the layout is 128 contiguous bytes, so ldmatrix has no bank conflicts.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/tsm2/mma_streamed_pipeline.cuh"

namespace tsm2 {

// Template constants are those of mma_streamed_pipeline.cuh. Epilogue: see gemm_wgmma_streamed.cuh; without levels.
template <int kColumns, int kPanels, int kChunks, int kGroups, int kBuffersA, int kStages, bool kBulk,
          typename Products, typename Epilogue>
class GemmMmaStreamed {
  static constexpr int kTogether = kMmaTogether, kFragments = kColumns / 8;
  static_assert(!Epilogue::kLevels && kColumns % 16 == 0, "sums begin with biases alone; B is loaded by 16 columns");
  using Pipelines = MmaStreamedPipelines<kColumns, kPanels, kChunks, kGroups, kBuffersA, kStages, kBulk, Products>;
  using Sums = float[kTogether][kFragments][4];

 public:
  static constexpr int kThreads = Pipelines::kThreads, kSharedBytes = Pipelines::kSharedBytes;

  // B has `column_tiles` column tiles.
  __device__ GemmMmaStreamed(unsigned char* shared, const ptx::Half* A, const ptx::Half* B, const Products& products,
                             int column_tiles, const Epilogue& epilogue)
      : pipelines_(shared, A, B, products, column_tiles), epilogue_(epilogue) {}

  __device__ __forceinline__ void run() {
    pipelines_.set_up();
    epilogue_.open();
    __syncthreads();
    multiply();
    __syncthreads();
    epilogue_.close();
  }

 private:
  __device__ __forceinline__ void multiply() {
    // A shuffle tells the compiler that all lanes have the same value.
    const int group = simt::shuffle((int)threadIdx.x / 128, 0), column_tiles = pipelines_.column_tiles;
    typename Epilogue::Rows rows[kTogether];
    auto at = pipelines_.first_turn;
    const auto row = [&](const auto& turn, int i) {
      return (long long)turn.row_tile(group * kTogether + i) * kPanelRows;
    };
    pipelines_.begin(group);
    {
      typename Epilogue::Fetched fetched[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) epilogue_.fetch(fetched[i], row(at, i), at.product());
      begin_rows(rows, fetched);
    }
#pragma unroll 1
    for (int turn = 0; turn < pipelines_.turns; ++turn) {
      const unsigned char* const stays = Pipelines::kStays ? pipelines_.begin_turn(group, turn) : nullptr;
#pragma unroll 1
      for (int column_tile = 0; column_tile < column_tiles; ++column_tile) {
        Sums sums;
#pragma unroll 1
        for (int chunk = 0; chunk < kChunks; ++chunk) {
          const unsigned char* const stage = pipelines_.next_stage();
          const unsigned char* const of_a = Pipelines::kStays
                                                ? stays + chunk * Pipelines::kPiece
                                                : stage + Pipelines::kPiecesAt + group * kTogether * Pipelines::kPiece;
          if (chunk == 0) begin_sums(sums, stage);
          multiply_chunk(sums, of_a, stage + Pipelines::kPanelB);
          pipelines_.release();
        }
        if (Pipelines::kStays && column_tile == column_tiles - 1) pipelines_.end_turn(group);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) epilogue_.take(rows[i], column_tile, sums[i]);
      }
      const auto ended = at;
      at.next();
      typename Epilogue::Fetched fetched[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        epilogue_.fetch(fetched[i], row(at, i), at.product());
        epilogue_.end(rows[i], row(ended, i));
      }
      begin_rows(rows, fetched);
    }
  }

  __device__ __forceinline__ void begin_rows(typename Epilogue::Rows (&rows)[kTogether],
                                             const typename Epilogue::Fetched (&fetched)[kTogether]) const {
    float levels[2];  // not used
#pragma unroll
    for (int i = 0; i < kTogether; ++i) epilogue_.begin(rows[i], fetched[i], levels);
  }

  // Sets the sums to the biases of a column tile, whose parts are in the first eight columns of B's first panel.
  __device__ __forceinline__ void begin_sums(Sums& sums, const unsigned char* of_b) const {
    const int lane = threadIdx.x % 32;
    const unsigned scales = scales_of_parts(), ones[2] = {scales, scales};  // rows g and g + 8 of A
#pragma unroll
    for (int j = 0; j < kFragments; j += 4) {
      unsigned parts[4];
      // Past the last group of eight columns, lanes read it again.
      const int group = j + lane / 8 < kFragments ? j + lane / 8 : kFragments - 1;
      ptx::ldmatrix_x4(parts, of_b + group * kPanelGroup + lane % 8 * 16);
#pragma unroll
      for (int each = 0; each < 4 && j + each < kFragments; ++each) {
        const unsigned part[1] = {parts[each]};
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          float (&sum)[4] = sums[i][j + each];
          sum[0] = sum[1] = sum[2] = sum[3] = 0;
          ptx::mma_m16n8k8_f16(sum, ones, part);
        }
      }
    }
  }

  // Adds the products of a chunk: this warp's 16 rows of each row tile, by all columns.
  __device__ __forceinline__ void multiply_chunk(Sums& sums, const unsigned char* of_a,
                                                 const unsigned char* of_b) const {
    constexpr int kBetween = Pipelines::kStays ? Pipelines::kRowTile : Pipelines::kPiece;  // bytes from tile to tile
    of_a += simt::opaque(lane_of_a()), of_b += simt::opaque(lane_of_b());
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      unsigned a[kTogether][4];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) ptx::ldmatrix_x4(a[i], of_a + i * kBetween + panel * Pipelines::kPanelA);
#pragma unroll
      for (int j = 0; j < kFragments; j += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4(b, of_b + panel * Pipelines::kPanelB + j * kPanelGroup);
        const unsigned one[2] = {b[0], b[1]}, other[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          ptx::mma_m16n8k16_f16(sums[i][j], a[i], one);
          ptx::mma_m16n8k16_f16(sums[i][j + 1], a[i], other);
        }
      }
    }
  }

  // The offset in a panel of the 16 bytes that this lane passes to ldmatrix. A: rows 0–7 and 8–15 of the first eight
  // columns, then of the others, of this warp's 16 rows.
  static __device__ __forceinline__ int lane_of_a() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    return (2 * warp + lane / 8 % 2) * kPanelGroup + lane / 16 * (kPanelGroup / 2) + lane % 8 * 16;
  }
  // B: the columns of a group of eight, then of the next, both in the order of memory.
  static __device__ __forceinline__ int lane_of_b() { return threadIdx.x % 32 * 16; }

  // The multipliers of the parts of a bias in this lane's columns of A.
  static __device__ __forceinline__ unsigned scales_of_parts() {
    const unsigned first = ptx::to_half_pair(kPartScale[0], kPartScale[1]), third = ptx::to_half_pair(kPartScale[2], 0);
    const int columns = threadIdx.x % 4;
    return columns == 0 ? first : columns == 1 ? third : 0;
  }

  Pipelines pipelines_;
  const Epilogue& epilogue_;
};

// `column_tiles` is at least 1.
template <int kColumns, int kPanels, int kChunks, int kGroups, int kBuffersA, int kStages, bool kBulk,
          typename Products, typename Epilogue>
__global__ void __launch_bounds__(128 * kGroups, 1)
    gemm_mma_streamed(const ptx::Half* A, const ptx::Half* B, const Products products, int column_tiles,
                      const Epilogue epilogue) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (epilogue.idle()) return;
  using Kernel = GemmMmaStreamed<kColumns, kPanels, kChunks, kGroups, kBuffersA, kStages, kBulk, Products, Epilogue>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Kernel(shared, A, B, products, column_tiles, epilogue).run();
}

}  // namespace tsm2
