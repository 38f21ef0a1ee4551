// Batched assignment: labels of all rows of many problems by GEMM with an arg-min epilogue, and the list of reassigned
// rows. Sizes b, n, d, k, padded, columns: see problem.cuh.
//
//   half copy (b × n × padded, float16)  ·  centers_half (b × columns × padded)ᵀ  →  labels (b × n), changes
//
//            a block: 128 rows of a problem               a warp: 32 rows
//     ┌─────────────── padded ───────────────┐      ┌────────────── kWidth ───────────────┐
//     │ rows, in shared memory for as long   │  ×   │ a chunk of centers, in shared       │ → scores in registers
//     │ as the block runs                    │      │ memory; the next is in flight       │
//     └──────────────────────────────────────┘      └─────────────────────────────────────┘
//
// A score is x̂·ĉ − ‖c‖²/2, with an error of at most E (symbols: assign/small_k.cuh). Accumulators start at −‖c‖²/2:
//
//   E = norm·(ρ C + δ + γ(C + δ)) + (γ + 2⁻²¹) H
//
// Candidates are centers with scores of at least the best score minus 2E. Four lanes store the candidates of a row as
// bit masks, 16 bits per lane and chunk, of up to four chunks. A chunk whose best score is more than 2E above the best
// score so far replaces all stored chunks. A chunk whose best score is more than 2E below it is not stored. A single
// candidate certifies the label. Several candidates are compared by float64 distances from X; of equally near
// candidates, the one of lowest index becomes the label. If five chunks have candidates, or E is not finite, all
// centers are compared. That costs a warp more than all products of its tile, but it is rare (docs/notes/lloyd.md).
//
// Why it is fast: a score costs d/16 · 1/128 mma of a warp and a maximum. In a chunk whose best score is within 2E of
// the row's best score, a score also costs a comparison and a mask bit. At d = 128, a warp takes about 800 instructions
// for 32 rows by 64 centers: 176 for products, 300 for scores, 100 to initialize the accumulators, 110 to copy the next
// chunk. Float32 FMA would take 8,192. For 16 columns of X, a warp needs 2 + kWidth / 16 ldmatrix.x4 and kWidth / 4
// mma.
#pragma once
#include "apps/kmeans/batched/rescore.cuh"
#include "apps/kmeans/batched/problem.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace batched {

constexpr int kTileRows = 128, kAssignThreads = 128;

// Copies `count` float16 rows of `padded` elements from global memory, where rows are contiguous, to shared memory,
// where rows are padded + 8 elements apart. Rows from number `present` on become zeros.
template <bool kAllPresent>
__device__ __forceinline__ void copy_rows(ptx::Half* to, const ptx::Half* from, int count, int present, int padded) {
  const int quads = padded / 8, down = kAssignThreads / quads, right = kAssignThreads % quads;
  const int row = (int)threadIdx.x / quads;
  int quad = (int)threadIdx.x % quads;
  const ptx::Half* source = from + 8 * (int)threadIdx.x;
  to += 8 * ((int)threadIdx.x + row);
  for (int i = threadIdx.x; i < count * quads; i += kAssignThreads) {
    const bool there = kAllPresent || i < present * quads;
    ptx::cp_async<16>(to, there ? source : from, there ? 16 : 0);
    source += 8 * kAssignThreads;
    to += 8 * (kAssignThreads + down);
    quad += right;
    if (quad >= quads) quad -= quads, to += 8;
  }
}

// kFurther: maximum number of chunks with candidates that are stored for a row besides the first. kTooMany: value of
// Known::further if there are more such chunks, or if the error bound is not finite.
constexpr int kFurther = 3, kTooMany = kFurther + 1;

// State of one row in one lane. `best`: best score. `first`: lower half: mask of the candidates among this
// lane's columns of the first stored chunk; upper half: number of that chunk, from 1 on. `further`: number of further
// stored chunks; their masks are in shared memory.
struct Known {
  float best;
  unsigned first;
  int further;
};

// Updates `known` and `further` by this lane's scores d of a chunk for a row: row 8·half + g of a 16-row mma tile. Bit
// 2·j + i of the mask is column 8·j + 2·t + i of the chunk (lane = 4·g + t). `error_bound` is 2E.
template <int kBlocks>
__device__ __forceinline__ void look(const float (&d)[kBlocks][4], int half, float error_bound, int chunk, Known& known,
                                     unsigned* further) {
  float best = -kInfinity;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) best = fmaxf(best, fmaxf(d[j][2 * half], d[j][2 * half + 1]));
  best = fmaxf(best, simt::shuffle_xor(best, 1));
  best = fmaxf(best, simt::shuffle_xor(best, 2));
  if (!(best >= known.best - error_bound)) return;
  const float least = best - error_bound;
  unsigned bits = (unsigned)(chunk + 1) << 16;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) bits |= d[j][2 * half + i] >= least ? 1u << (2 * j + i) : 0u;
  if (least > known.best) {
    known = {best, bits, 0};
  } else {
    if (known.further < kFurther) further[known.further * 4 * kAssignThreads] = bits;
    known.further = known.further < kFurther ? known.further + 1 : kTooMany;
    known.best = fmaxf(known.best, best);
  }
}

// Block (x, problem) labels 128 rows of the problem, from row 128·x on. kWidth is the number of centers per chunk: 16,
// 32 or 64, a divisor of `columns`.
template <typename T, int kWidth>
__global__ void __launch_bounds__(128, 3) assign(const Batch<T> batch) {
  constexpr int kBlocks = kWidth / 8;
  const int problem = blockIdx.y;
  if (batch.status[problem] != kRunning) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int padded = batch.padded, chunks = batch.columns / kWidth;
  const int stride = padded + 8;  // so that ldmatrix reads eight rows from different banks
  const long long begin = (long long)blockIdx.x * kTileRows, from = problem * batch.n + begin;
  const int present = batch.n - begin < kTileRows ? (int)(batch.n - begin) : kTileRows;
  // Masks of further chunks: kFurther entries for each of the four rows of each thread.
  unsigned* lists = simt::dynamic_shared<unsigned>();
  float* offsets = reinterpret_cast<float*>(lists + kFurther * 4 * kAssignThreads);  // ‖c‖²/2, for both buffers
  ptx::Half* rows = reinterpret_cast<ptx::Half*>(offsets + 2 * kWidth);
  ptx::Half* buffers = rows + kTileRows * stride;
  const ptx::Half* centers_half = batch.centers_half + (long long)problem * batch.columns * padded;
  copy_rows<false>(rows, batch.half_copy + from * padded, kTileRows, present, padded);
  copy_rows<true>(buffers, centers_half, kWidth, kWidth, padded);
  const float* half_squares = batch.half_squares + (long long)problem * batch.columns + 4 * threadIdx.x;
  if (threadIdx.x < kWidth / 4) ptx::cp_async<16>(offsets + 4 * threadIdx.x, half_squares);
  ptx::cp_async_commit();

  const CenterStats most = batch.center_stats[problem];
  const RowBound bound(most, batch.tensor_error, batch.roundings[problem] + 1.0f / (1 << 22),
                       batch.tensor_error + 1.0f / (1 << 21));
  // Row r of a lane's four rows is row 16·(r / 2) + 8·(r % 2) + g of the warp's 32.
  Known known[4];
  float error_bound[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = 32 * warp + 16 * (r / 2) + 8 * (r % 2) + g;
    const float norm = row < present ? batch.norms[from + row] : 0.0f;
    error_bound[r] = norm <= most.norm_limit ? 2.0002f * bound(norm) : kInfinity;
    known[r] = {-kInfinity, 0, error_bound[r] < kInfinity ? 0 : kTooMany};
  }
  const ptx::Half* mine = rows + (32 * warp + lane % 16) * stride + lane / 16 * 8;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // this chunk has arrived, and all warps have read the previous chunk
    if (chunk + 1 < chunks) {
      centers_half += kWidth * padded;
      copy_rows<true>(buffers + (chunk + 1) % 2 * kWidth * stride, centers_half, kWidth, kWidth, padded);
      half_squares += kWidth;
      if (threadIdx.x < kWidth / 4)
        ptx::cp_async<16>(offsets + (chunk + 1) % 2 * kWidth + 4 * threadIdx.x, half_squares);
      ptx::cp_async_commit();
    }
    // One address per ldmatrix; all addresses advance along the columns of X together.
    const ptx::Half *a_at[2] = {mine, mine + 16 * stride}, *b_at[kBlocks / 2];
#pragma unroll
    for (int j = 0; j < kBlocks / 2; ++j) {
      b_at[j] = buffers + (chunk % 2 * kWidth + 16 * j + lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
    }
    const float* offset = offsets + chunk % 2 * kWidth + 2 * t;
    float d[2][kBlocks][4];
#pragma unroll
    for (int j = 0; j < kBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) d[0][j][i] = d[1][j][i] = -offset[8 * j + i % 2];
    const auto step = [&](int depth) {
      unsigned a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4(a[i], a_at[i] + depth);
#pragma unroll
      for (int j = 0; j < kBlocks; j += 2) {
        unsigned b[4];
        ptx::ldmatrix_x4(b, b_at[j / 2] + depth);
        const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          ptx::mma_m16n8k16_f16(d[i][j], a[i], left);
          ptx::mma_m16n8k16_f16(d[i][j + 1], a[i], right);
        }
      }
    };
    // The loop exits from the middle, so that it is never empty. For an unrolled loop with a remainder, which may be
    // empty, the compiler would copy the initial accumulators.
#pragma unroll 1
    for (int depth = 0;; depth += 32) {
      step(depth);
      if (depth + 16 >= padded) break;
      step(depth + 16);
      if (depth + 32 >= padded) break;
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      look(d[r / 2], r % 2, error_bound[r], chunk, known[r], lists + r * kAssignThreads + threadIdx.x);
    }
  }
  simt::sync_warp();  // a warp reads only lists that its own lanes wrote

  // The four lanes (g, 0) to (g, 3) hold the same four rows; lane (g, t) labels row r = t of them.
  const int own = 32 * warp + 16 * (t / 2) + 8 * (t % 2) + g;
  int label = 0;
  bool certified = true;
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const unsigned bits = known[r].first & 0xffff;
    int found = __popc(bits), center = 0;
    if (bits) {
      const int bit = __ffs(bits) - 1;
      center = (int)((known[r].first >> 16) - 1) * kWidth + bit / 2 * 8 + 2 * t + bit % 2;
    }
#pragma unroll
    for (int other = 1; other < 4; other *= 2) {
      found += simt::shuffle_xor(found, other);
      center += simt::shuffle_xor(center, other);
    }
    if (r == t) {
      label = center;
      certified = found == 1 && known[r].further == 0;
    }
  }
  unsigned waiting = __ballot_sync(simt::every_lane, own < present && !certified);
  for (; waiting; waiting &= waiting - 1) {
    const int one = __ffs(waiting) - 1, r = one % 4;
    unsigned first = 0;
    int further = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i == r) first = known[i].first, further = known[i].further;
    }
    further = simt::shuffle(first ? further : kTooMany, one);
    const int row = 32 * warp + 16 * (r / 2) + 8 * (r % 2) + one / 4;
    Nearest<T, 32> nearest(batch, problem, begin + row);
    if (further == kTooMany) {
      nearest.consider_all();
    } else {
      int waits = -1;  // a candidate that is compared together with the next candidate, or −1
      for (int part = 0; part < 4 * (1 + further); ++part) {
        const int source = one - r + part % 4;
        const unsigned entry = part < 4 ? simt::shuffle(first, source)
                                        : lists[(part / 4 * 4 - 4 + r) * kAssignThreads + 32 * warp + source];
        for (unsigned bits = entry & 0xffff; bits; bits &= bits - 1) {
          const int bit = __ffs(bits) - 1;
          const int center = (int)((entry >> 16) - 1) * kWidth + bit / 2 * 8 + 2 * (part % 4) + bit % 2;
          if (center >= batch.k) continue;
          if (waits >= 0) nearest.consider({waits, center});
          waits = waits < 0 ? center : -1;
        }
      }
      if (waits >= 0) nearest.consider({waits, waits});
    }
    if (lane == one) label = nearest.label();
  }

  const int before = own < present ? batch.labels[from + own] : label;
  const unsigned changed = __ballot_sync(simt::every_lane, before != label);
  if (changed == 0) return;
  unsigned place = 0;
  if (lane == 0) place = atomicAdd(&batch.counts[problem], (unsigned)__popc(changed));
  place = simt::shuffle(place, 0) + __popc(changed & ((1u << lane) - 1));
  if (before != label) {
    batch.changes[problem * batch.n + place] = {(unsigned)(begin + own), before};
    batch.labels[from + own] = label;
  }
}

}  // namespace batched
