// S (m × n) = A (m × k) · Bᵀ (k × n) in float16 with float32 sums, never stored: an epilogue takes it out of the registers,
// 128 columns after 128 columns. Hopper (sm_90a). For an n so large that the tensor cores are the limit.
//
//             k                     n            A and B lie in slabs (slabs.cuh). A block has 128 rows of A in shared
//        ┌─────────┐         ┌────┬────┬────┐    memory while all of B streams by: in *chunks* of kSlabs slabs, which two
//    128 │  stays  │   ×   k │    │ →  │ →  │    warpgroups multiply, 64 rows each. The blocks of a cluster have other rows,
//        └─────────┘         └────┴────┴────┘    and the same chunks at the same time: each reads a part of every chunk
//                             streams by, 128    and sends it to all of them.
//
// A third warpgroup copies: one thread of it B, one A, into two rings; mbarriers say what is there and what is free. If
// the ring of A has no room for 128 rows, A streams by too, once for every 128 columns.
//
// Why it is fast: the tensor cores always have a chunk waiting. A warpgroup has two sets of sums: while one is being
// multiplied, the epilogue takes the other. Of the 6 bytes that 128 × 128 products of one slab read of shared memory for
// each clock of the tensor cores, 128 are there; and the cluster halves what is read from the level-2 cache (n · k for
// every 128 rows), which would be the limit.
#pragma once
#include "kernels/bulk.cuh"
#include "kernels/tsm2/simt.cuh"
#include "kernels/tsm2/slabs.cuh"
#include "kernels/warpgroup.cuh"

namespace tsm2 {

// An Epilogue has what a thread keeps of its rows, `Rows`, what it reads of them beforehand, `Fetched`, and
//
//   idle()                             whether there is nothing to do at all
//   open(), close()                    before and after all else, with a barrier of the block between
//   fetch(Fetched&, tile)              as soon as tile `tile` of 128 rows is begun; it may be past the last
//   begin(Rows&, Fetched)              before its first columns
//   take(Rows&, column tile, sums)     128 columns: the fragments (ptx.cuh) of 16 rows of this warp
//   end(Rows&, tile)                   after the last; the warp's rows are from 128·tile + 16·warp on
//
// All threads of a multiplying warp take part in the last four, and all of the block in open and close.
template <int kSlabs, int kStagesA, int kStagesB, int kPending, int kCluster, typename Epilogue>
class StreamedColumns {
 public:
  static constexpr int kGroup = 128, kMultipliers = 2 * kGroup, kThreads = kMultipliers + kGroup;
  static constexpr int kChunk = kSlabs * kSlabBytes, kRing = (kStagesA + kStagesB) * kChunk;
  static constexpr int kBarriers = 2 * (kStagesA + kStagesB);
  static constexpr int kSharedBytes = kRing + kBarriers * (int)sizeof(ptx::Mbarrier);
  static_assert(kPending < kStagesB, "what is being multiplied, and what is being copied");

  // A has `row_tiles` tiles of 128 rows, B `column_tiles`; both have kSlabs · `chunks` slabs, and chunks ≥ kPending.
  __device__ StreamedColumns(unsigned char* shared, const ptx::Half* A, const ptx::Half* B, int row_tiles,
                             int column_tiles, int chunks, const Epilogue& epilogue)
      : ring_a_(shared), ring_b_(shared + kStagesA * kChunk),
        full_a_(reinterpret_cast<ptx::Mbarrier*>(shared + kRing)), empty_a_(full_a_ + kStagesA),
        full_b_(empty_a_ + kStagesA), empty_b_(full_b_ + kStagesB), A_(reinterpret_cast<const unsigned char*>(A)),
        B_(reinterpret_cast<const unsigned char*>(B)), epilogue_(epilogue), column_tiles_(column_tiles),
        row_tiles_(row_tiles), chunks_(chunks), first_(blockIdx.x / kCluster * kCluster + ptx::rank_in_cluster()),
        turns_((row_tiles - (int)(blockIdx.x / kCluster) * kCluster + (int)gridDim.x - 1) / (int)gridDim.x),
        stays_(chunks <= kStagesA) {}

  __device__ __forceinline__ void run() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStagesA; ++i) {
        ptx::mbarrier_init(full_a_ + i, 1);
        ptx::mbarrier_init(empty_a_ + i, kMultipliers / 32);
      }
      for (int i = 0; i < kStagesB; ++i) {
        ptx::mbarrier_init(full_b_ + i, 1);
        ptx::mbarrier_init(empty_b_ + i, kCluster * kMultipliers / 32);
      }
      ptx::mbarrier_init_fence();
    }
    epilogue_.open();
    start_together();
    if (threadIdx.x >= kMultipliers) {
      ptx::fewer_registers<24>();
      if (threadIdx.x == kMultipliers) copy_b();
      if (threadIdx.x == kMultipliers + 32) copy_a();
      simt::sync_warp();
    } else {
      ptx::more_registers<240>();
      multiply();
    }
    // A block that has ended takes no copies and no arrivals.
    start_together();
    epilogue_.close();
  }

 private:
  struct Place {
    int stage = 0;
    unsigned parity = 0;  // of the phase in which the stage is filled
    template <int kStages>
    __device__ __forceinline__ void next() {
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
  };

  static __device__ __forceinline__ void start_together() {
    if constexpr (kCluster > 1) {
      ptx::cluster_sync();
    } else {
      __syncthreads();
    }
  }

  // Blocks of a cluster take as many turns; past the last tile, the last is read again.
  __device__ __forceinline__ int tile_of(int turn) const { return first_ + turn * (int)gridDim.x; }

  __device__ __forceinline__ void copy_a() const {
    Place to;
    for (int turn = 0; turn < turns_; ++turn) {
      const int tile = tile_of(turn) < row_tiles_ ? tile_of(turn) : row_tiles_ - 1;
      const unsigned char* from = A_ + (long long)tile * chunks_ * kChunk;
      for (int column = 0; column < (stays_ ? 1 : column_tiles_); ++column) {
#pragma unroll 1
        for (int chunk = 0; chunk < chunks_; ++chunk) {
          ptx::mbarrier_wait(empty_a_ + to.stage, to.parity ^ 1);
          ptx::mbarrier_arrive_expect(full_a_ + to.stage, kChunk);
          ptx::bulk_copy(ring_a_ + to.stage * kChunk, from + (long long)chunk * kChunk, kChunk, full_a_ + to.stage);
          to.template next<kStagesA>();
        }
      }
    }
  }

  __device__ __forceinline__ void copy_b() const {
    constexpr int kPart = kChunk / kCluster;
    const int rank = ptx::rank_in_cluster();
    const int all = column_tiles_ * chunks_;
    Place to;
    for (int turn = 0; turn < turns_; ++turn) {
#pragma unroll 1
      for (int chunk = 0; chunk < all; ++chunk) {
        ptx::mbarrier_wait(empty_b_ + to.stage, to.parity ^ 1);
        ptx::mbarrier_arrive_expect(full_b_ + to.stage, kChunk);
        unsigned char* stage = ring_b_ + to.stage * kChunk + rank * kPart;
        const unsigned char* from = B_ + (long long)chunk * kChunk + rank * kPart;
        if constexpr (kCluster > 1) {
          ptx::bulk_copy_to_all(stage, from, kPart, full_b_ + to.stage, (1u << kCluster) - 1);
        } else {
          ptx::bulk_copy(stage, from, kPart, full_b_ + to.stage);
        }
        to.template next<kStagesB>();
      }
    }
  }

  // What a warpgroup knows while it multiplies.
  struct State {
    Place a, a_before;         // of the next chunk; and where the rows that stay begin
    Place b;
    int free_a, free_b;        // the next stages to give back
    int turn, column;          // of the next tile of sums
    int done_turn, done_column;  // of the tile that the epilogue takes next
    typename Epilogue::Fetched fetched;
    typename Epilogue::Rows rows;
  };

  __device__ __forceinline__ void multiply() const {
    const int tiles = turns_ * column_tiles_;
    if (tiles <= 0) return;
    State state = {};
    float sums[2][16][4];
    for (int tile = 0; tile < tiles; tile += 2) {
      begin(state, sums[0]);
      if (tile > 0) finish(state, sums[1]);
      if (tile + 1 < tiles) {
        begin(state, sums[1]);
        finish(state, sums[0]);
      }
    }
    // The last is still being multiplied, and nobody waits for its stages.
    if (tiles % 2) {
      ptx::wgmma_wait<0>(sums[0]);
      finish(state, sums[0]);
    } else {
      ptx::wgmma_wait<0>(sums[1]);
      finish(state, sums[1]);
    }
  }

  // Begins the products of the next tile, and waits for those of the last.
  __device__ __forceinline__ void begin(State& state, float (&sums)[16][4]) const {
    const bool loads = state.column == 0 || !stays_;
    if (state.column == 0) {
      epilogue_.fetch(state.fetched, tile_of(state.turn));
      state.a_before = state.a;
    }
    if (stays_) state.a = state.a_before;
    begin_chunk<true>(state, sums, loads, 0);
    for (int chunk = 1; chunk < chunks_; ++chunk) begin_chunk<false>(state, sums, loads, chunk);
    if (++state.column == column_tiles_) state.column = 0, ++state.turn;
  }

  template <bool kFirst>
  __device__ __forceinline__ void begin_chunk(State& state, float (&sums)[16][4], bool loads, int chunk) const {
    if (loads) ptx::mbarrier_wait(full_a_ + state.a.stage, state.a.parity);
    ptx::mbarrier_wait(full_b_ + state.b.stage, state.b.parity);
    const unsigned char* a = ring_a_ + state.a.stage * kChunk + threadIdx.x / kGroup * (kSlabBytes / 2);
    const unsigned char* b = ring_b_ + state.b.stage * kChunk;
    ptx::wgmma_fence();
    ptx::wgmma_of_shared<kFirst>(sums, a, b);
#pragma unroll
    for (int slab = 1; slab < kSlabs; ++slab) {
      ptx::wgmma_of_shared<false>(sums, a + slab * kSlabBytes, b + slab * kSlabBytes);
    }
    ptx::wgmma_commit();
    state.a.template next<kStagesA>();
    state.b.template next<kStagesB>();
    ptx::wgmma_wait<kPending>();
    give_back(state, chunk);
  }

  // Gives back the stages of the chunk before the kPending latest, of which `chunk` is the last.
  __device__ __forceinline__ void give_back(State& state, int chunk) const {
    const bool first = state.turn == 0 && state.column == 0;
    if (first && chunk < kPending) return;
    const bool before = chunk < kPending;  // a chunk of the last tile
    const bool last_column = before ? state.column == 0 : state.column == column_tiles_ - 1;
    if (threadIdx.x % 32 < kCluster) {
      if constexpr (kCluster > 1) {
        ptx::mbarrier_arrive_at(empty_b_ + state.free_b, threadIdx.x % 32);
      } else {
        ptx::mbarrier_arrive(empty_b_ + state.free_b);
      }
    }
    state.free_b = state.free_b + 1 == kStagesB ? 0 : state.free_b + 1;
    if (last_column || !stays_) {
      if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty_a_ + state.free_a);
      state.free_a = state.free_a + 1 == kStagesA ? 0 : state.free_a + 1;
    }
  }

  // Gives a tile whose products are done to the epilogue.
  __device__ __forceinline__ void finish(State& state, float (&sums)[16][4]) const {
    ptx::wgmma_wait<kPending>(sums);
    const int tile = tile_of(state.done_turn);
    if (state.done_column == 0) epilogue_.begin(state.rows, state.fetched);
    epilogue_.take(state.rows, state.done_column, sums);
    if (++state.done_column == column_tiles_) {
      epilogue_.end(state.rows, tile);
      state.done_column = 0, ++state.done_turn;
    }
  }

  unsigned char *const ring_a_, *const ring_b_;
  ptx::Mbarrier *const full_a_, *const empty_a_, *const full_b_, *const empty_b_;
  const unsigned char *const A_, *const B_;
  const Epilogue& epilogue_;
  const int column_tiles_, row_tiles_, chunks_, first_, turns_;
  const bool stays_;
};

// Of a grid of whole clusters. `row_tiles` and `column_tiles` are at least 1.
template <int kSlabs, int kStagesA, int kStagesB, int kPending, int kCluster, typename Epilogue>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(384, 1)
    streamed_columns(const ptx::Half* A, const ptx::Half* B, int row_tiles, int column_tiles, int chunks,
                     const Epilogue epilogue) {
  if (epilogue.idle()) return;
  using Kernel = StreamedColumns<kSlabs, kStagesA, kStagesB, kPending, kCluster, Epilogue>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Kernel(shared, A, B, row_tiles, column_tiles, chunks, epilogue).run();
}

}  // namespace tsm2
