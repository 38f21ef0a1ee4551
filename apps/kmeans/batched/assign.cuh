// Batched assignment: labels of all rows of many problems by GEMM with an arg-min epilogue, and the list of reassigned
// rows.
//
//   half copy (b × n × padded, float16)  ·  centers_half (b × columns × padded)ᵀ  →  labels (b × n), changes
//
//            a block: 128 rows of a problem               a warp: 32 rows
//     ┌─────────────── padded ───────────────┐      ┌────────────── kWidth ───────────────┐
//     │ rows, in shared memory for as long   │  ×   │ a chunk of centers, in shared       │ → scores in registers
//     │ as the block runs                    │      │ memory; the next is in flight       │
//     └──────────────────────────────────────┘      └─────────────────────────────────────┘
//
// A score is x̂·ĉ − ‖c‖²/2, with an error of at most E (derived in assign/small_k.cuh); accumulators start at −‖c‖²/2:
//
//   E = norm·(2⁻¹² C + δ + γ(C + δ)) + (γ + 2⁻²¹) H
//
// Candidates are centers with scores above the best score less 2E. For each row, up to four chunks with candidates are
// kept, 16 bits in each of four lanes. A chunk whose best score is more than 2E above the best score so far replaces
// all kept chunks. A chunk whose best score is more than 2E below the best score so far is not kept. One candidate
// certifies the label. Several candidates are compared by float64 distances from X; of equally near ones, the first
// becomes the label. If five chunks have candidates, or E is NaN, all centers are compared. Such a row costs a warp
// more time than all products of its tile, so it must be rare (docs/notes/lloyd.md).
//
// Why it is fast: a score costs d/16 · 1/128 mma of a warp and a maximum. In chunks whose best score is near the row's
// best, a score also costs a comparison and a mask bit. At d = 128, a warp takes about 800 instructions for 32 rows by
// 64 centers: 176 for products, 300 for scores, 100 to start the sums, 110 to copy the next chunk. Float32 FMA would
// take 8,192. Per 16-deep step, a warp loads 2 + kWidth / 16 matrices from shared memory for kWidth / 4 mma.
#pragma once
#include "apps/kmeans/batched/problem.cuh"
#include "kernels/ptx/cp_async.cuh"
#include "kernels/ptx/ldmatrix.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace batched {

constexpr int kTileRows = 128, kAssignThreads = 128;

// Copies `count` float16 rows of `padded` elements to shared memory, where they are padded + 8 elements apart. Rows
// from `present` on become zeros. In global memory, rows are consecutive.
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

// Centers that are compared with a row at a time, if all centers are compared.
constexpr int kOfAll = 8;

// Float64 arg-min over given centers for one row, by a warp.
template <typename T>
struct Nearest {
  const Batch<T>& batch;
  const T* x;
  const float *mean, *centers;
  double least;
  int label;

  // Compares kTogether centers at a time, because each distance is a chain of dependent additions.
  template <int kTogether>
  __device__ __forceinline__ void consider(const int (&some)[kTogether]) {
    double sums[kTogether] = {};
    for (int j = threadIdx.x % 32; j < batch.d; j += 32) {
      const double value = batch.centered(x[j], mean[j]);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const double delta = value - (double)centers[(long long)some[i] * batch.d + j];
        sums[i] += delta * delta;
      }
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const double sum = simt::warp_sum(sums[i]);
      if (sum < least || (sum == least && some[i] < label)) {
        least = sum;
        label = some[i];
      }
    }
  }
};

// kFurther: maximum number of chunks with candidates that are kept for a row besides the first. kTooMany: more were
// found, or the error bound is not finite.
constexpr int kFurther = 3, kTooMany = kFurther + 1;

// State of one row. `best`: its best score. `first`: in the lower half, the candidates among this lane's columns of the
// first kept chunk; in the upper half, the chunk's number, from 1 on. `further`: the number of further kept chunks,
// which few rows have; their candidates are in shared memory.
struct Known {
  float best;
  unsigned first;
  int further;
};

// Finds the candidates of a chunk among this lane's scores of a row, row 8·half + g of a block of 16: bit 2·j + i for
// column 8·j + 2·t + i. `error_bound` is 2 E.
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

// Block (x, problem) labels 128 rows, from row 128·x on. kWidth is 16, 32 or 64, and divides `columns`.
template <typename T, int kWidth>
__global__ void __launch_bounds__(128, 3) assign(const Batch<T> batch) {
  constexpr int kBlocks = kWidth / 8;
  const int problem = blockIdx.y;
  if (batch.status[problem] != kRunning) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int padded = batch.padded, chunks = batch.columns / kWidth;
  const int stride = padded + 8;  // eight rows of a matrix are in different banks
  const long long begin = (long long)blockIdx.x * kTileRows, from = problem * batch.n + begin;
  const int present = batch.n - begin < kTileRows ? (int)(batch.n - begin) : kTileRows;
  // kFurther entries for each of a thread's four rows.
  unsigned* lists = simt::dynamic_shared<unsigned>();
  float* offsets = reinterpret_cast<float*>(lists + kFurther * 4 * kAssignThreads);  // biases of both buffers
  ptx::Half* rows = reinterpret_cast<ptx::Half*>(offsets + 2 * kWidth);
  ptx::Half* buffers = rows + kTileRows * stride;
  const ptx::Half* centers_half = batch.centers_half + (long long)problem * batch.columns * padded;
  copy_rows<false>(rows, batch.half_copy + from * padded, kTileRows, present, padded);
  copy_rows<true>(buffers, centers_half, kWidth, kWidth, padded);
  const float* half_squares = batch.half_squares + (long long)problem * batch.columns + 4 * threadIdx.x;
  if (threadIdx.x < kWidth / 4) ptx::cp_async<16>(offsets + 4 * threadIdx.x, half_squares);
  ptx::cp_async_commit();

  const CenterStats most = batch.center_stats[problem];
  const float a_norm =
      most.norm * (1.0f / 4096 + 1.0f / (1 << 21)) + most.lost + batch.tensor_error * (most.norm + most.lost);
  const float always = most.half_square * (batch.tensor_error + 1.0f / (1 << 21)) + 1e-18f;
  // Row r of a lane's four rows is row 16·(r / 2) + 8·(r % 2) + g of the warp's 32.
  Known known[4];
  float error_bound[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int row = 32 * warp + 16 * (r / 2) + 8 * (r % 2) + g;
    const float norm = row < present ? batch.norms[from + row] : 0.0f;
    error_bound[r] = norm <= most.norm_limit ? 2.0002f * (norm * a_norm + always) : kInfinity;
    known[r] = {-kInfinity, 0, error_bound[r] < kInfinity ? 0 : kTooMany};
  }
  const ptx::Half* mine = rows + (32 * warp + lane % 16) * stride + lane / 16 * 8;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // the chunk has arrived, and the one before has been read
    if (chunk + 1 < chunks) {
      centers_half += kWidth * padded;
      copy_rows<true>(buffers + (chunk + 1) % 2 * kWidth * stride, centers_half, kWidth, kWidth, padded);
      half_squares += kWidth;
      if (threadIdx.x < kWidth / 4)
        ptx::cp_async<16>(offsets + (chunk + 1) % 2 * kWidth + 4 * threadIdx.x, half_squares);
      ptx::cp_async_commit();
    }
    // One address per loaded matrix; all addresses advance along the depth together.
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
    // The loop exits from the middle. With an unrolled loop and a remainder, the compiler would copy the initial sums,
    // as for each loop that may be empty.
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
  simt::sync_warp();  // a warp reads only its own lanes' lists

  // Lane (g, t) labels row r = t of its four rows.
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
  const float* centers = batch.centers + (long long)problem * batch.k * batch.d;
  const float* mean = batch.means + (long long)problem * batch.d;
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
    Nearest<T> nearest{batch, batch.X + (from + row) * batch.d, mean, centers, kInfinity, 0};
    if (further == kTooMany) {
      for (int center = 0; center < batch.k; center += kOfAll) {
        int some[kOfAll];
#pragma unroll
        for (int i = 0; i < kOfAll; ++i) some[i] = center + i < batch.k ? center + i : batch.k - 1;
        nearest.consider(some);
      }
    } else {
      int waits = -1;  // a candidate that waits for a second one
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
    if (lane == one) label = nearest.label;
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
