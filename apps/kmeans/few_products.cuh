// An iteration for few features and few clusters, by tensor cores on X itself: the label of every row, and the rows that
// change theirs moved from one cluster's sums to another's, in one launch.
//
//   X (n × d, float32 or 16 bits, row by row)   centres in float16 (centers.cuh)   labels (n)   sums (k × (d + 1))
//
//   a warp's tile, 16 rows a block      columns 0 … 15        16 … 31       a lane (g, t) = (lane / 4, lane % 4) loads columns
//     block 0   rows g                  t=0 t=1 t=2 t=3    t=0 t=1 …        4·t … 4·t + 3 of each 16, 16 bytes, of rows g
//               rows g + 8              ███ ███ ███ ███    ███ ███ …        and g + 8: the quad reads a row, the warp eight.
//     block 1   …                                                           The product takes them for columns 2·t, 2·t + 1,
//                                                                           2·t + 8 and 2·t + 9; centres likewise
//
//   scores    mma m16n8k16 of (x − mean)·scale, rounded to float16, and the centres, that begins with −‖c‖²/2
//   labels    as in nearest.cuh: candidates by the best score and a bound, brought together for each lane to have a row;
//             rows that are not done → the warp's queue (few_rows.cuh) → decided in float64, moved (column_sums.cuh)
//
// With x̂ and ĉ rounded to float16, n = ‖x̂‖ and a the most that is lost next to zero,
//
//   |x·c − x̂·ĉ| ≤ (ρ n / (1 − ρ) + a) C + n δ,   ρ = 2⁻¹¹, or 0 of data that float16 holds,   a = √d 2⁻²⁵
//
// and the tensor cores lose what nearest_of_many.cuh says. X is scaled for no row's norm to exceed 2¹⁰; where centres are so
// far away that scores could overflow, the threshold is no number, and every row is compared in float64. On the benchmark's
// data 0.3 to 1.2 % of the rows are compared with their candidates, 16 × 16, and 0.7 to 2.5 %, 32 × 64. (With one bound for
// all rows, of the largest norm there is, it would be five times as many.)
//
// Why it is fast: X is read once, each byte by one lane, and the next tile is on its way while this one is computed. Nothing
// is written but labels that change. Lane instructions a row, as compiled for sm_90a; by multiply-adds it is 382 of 16 × 16:
//
//                                                                16 × 16     32 × 64
//   loads, addresses, prefetches, the tile's loop                    45          94
//   to float16                                                       24          48
//   products, norms among them, and operands from shared memory      10          88
//   best scores and bounds                                           52         100
//   candidates                                                       32         128
//   rows brought together and compared with their labels; moves      52         104
//   in all                                                          215         562
//
// Of 28·10¹² a second, 50M rows of 16 take 0.38 ms of instructions, beside 0.73 of reading, and 20M of 32 take 0.40 and 0.56.
// A row that changes its label costs some 450 of 16 features by vectors of two, 390 by vectors of four.
#pragma once
#include "apps/kmeans/column_sums.cuh"
#include "apps/kmeans/few_centres.cuh"

namespace kmeans {

// Four columns of a row, from column `step` + `mine` on; zero past the last.
template <int kFeatures, typename T>
__device__ __forceinline__ void load_four(const T* from, int step, int mine, T (&to)[4]) {
  constexpr int kWide = few_wide<T, kFeatures, 4>();
#pragma unroll
  for (int i = 0; i < 4; i += kWide) {
    simt::Vector<T, kWide> some = {};
    if (step + 16 <= kFeatures || step + mine + i < kFeatures) {
      some = *reinterpret_cast<const simt::Vector<T, kWide>*>(from + i);
    }
#pragma unroll
    for (int e = 0; e < kWide; ++e) to[i + e] = some.at[e];
  }
}

// ‖x̂‖² of row g + 8·half. Eight rows are a matrix's rows and another's columns in the same registers, so that it is on the
// diagonal of their product.
template <int kSteps>
__device__ __forceinline__ float square_norm(const unsigned (&a)[kSteps][4], int half) {
  const int g = threadIdx.x % 32 / 4;
  float squares[4] = {};
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const unsigned b[2] = {a[s][half], a[s][half + 2]};
    ptx::mma_m16n8k16_f16(squares, a[s], b);
  }
  return simt::shuffle(g % 2 ? squares[2 * half + 1] : squares[2 * half], 4 * g + g / 2);
}

// Which of a lane's scores of row g + 8·half can be the best: bit 2·j + i for column 8·j + 2·t + i, below others.
template <int kColumns>
__device__ __forceinline__ unsigned candidates_of(const float (&scores)[kColumns][4], int half, float twice_error) {
  float best = fmaxf(scores[0][2 * half], scores[0][2 * half + 1]);
#pragma unroll
  for (int j = 1; j < kColumns; ++j) best = fmaxf(best, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
  best = fmaxf(best, simt::shuffle_xor(best, 1));
  best = fmaxf(best, simt::shuffle_xor(best, 2));
  const float threshold = fmaf(best, -kLarge, twice_error) - kLeast;
  float sum = kNoBits;
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum = fmaf(__saturatef(fmaf(scores[j][2 * half + i], kLarge, threshold)), (float)(1 << (2 * j + i)), sum);
    }
  return __float_as_uint(sum);
}

// kColumns is k / 8, rounded up; kBlocks the 16-row blocks of a tile. kAhead: the next tile waits in registers. kVector
// elements of a row that moves are a lane's. Digits of kMostAdded rows add up within 32 bits.
template <typename T, int kFeatures, int kColumns, int kBlocks, bool kAhead, bool kKept, int kVector, int kThreads,
          int kResident, int kMostAdded = 32768>
__global__ void __launch_bounds__(kThreads, kResident) assign_by_products(const T* X, const float* centers, int k,
                                                                          long long n, const Products of, int* labels,
                                                                          unsigned long long* sums, unsigned* moved,
                                                                          const int* stopped) {
  static_assert(kColumns <= 8 && kBlocks % 2 == 0, "a lane has up to 16 bits of a row; rows are dealt to lanes 32 at a time");
  constexpr int kSteps = (kFeatures + 15) / 16, kWarps = kThreads / 32, kTile = 16 * kBlocks;
  // A warp asks for the sums to be flushed when it has moved half of its share; it has at most 31 rows waiting.
  constexpr int kShare = kMostAdded / kWarps / 2, kTiles = (kShare - 31) / kTile;
  static_assert(kTiles >= 1, "the digits of one tile would overflow");
  if (*stopped) return;
  using Centres = Centres<kSteps, kColumns, kKept>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  const Centres nearby(of, shared);
  unsigned* digits = reinterpret_cast<unsigned*>(shared + Centres::kBytes);
  const ColumnSums<T, kFeatures, kVector> here(sums, digits, k, X, of.mean, of.scales);
  here.clear();
  Queue<Entry, kTile> queue(digits + 8 * kColumns * here.kWords);
  const Bound bound = few_bound(of, kFeatures);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  float shift[kSteps][4];
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = 16 * s + 4 * t + e;
      shift[s][e] = column < kFeatures ? -of.mean[column] * of.scale : 0.0f;
    }
  struct {
    T x[kBlocks][2][kSteps][4];
    int label[kBlocks / 2];
  } raw;
  const auto load_rows = [&](long long first, auto row_of) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const T* from = X + row_of(first + g, 16 * b + 8 * half) * kFeatures + 4 * t;
#pragma unroll
        for (int s = 0; s < kSteps; ++s) load_four<kFeatures, T>(from + 16 * s, 16 * s, 4 * t, raw.x[b][half][s]);
      }
#pragma unroll
    for (int p = 0; p < kBlocks / 2; ++p) raw.label[p] = labels[row_of(first + 8 * t + g, 32 * p)];
  };
  const auto load = [&](long long first) {
    if (first + kTile <= n) {
      load_rows(first, [](long long row, int more) { return row + more; });
    } else {
      // Past the end, the last row again, of which nothing is queued.
      load_rows(first, [n](long long row, int more) { return row + more < n ? row + more : n - 1; });
    }
  };
  unsigned changed = 0, added = 0;
  const auto settle = [&](Entry* items, int count) {
    Moving one = {0, 0, 0, 0};
    if (lane < count) {
      const Entry entry = items[lane];
      const bool single = __popc(entry.low) + __popc(entry.high) == 1;
      one = {entry.row, entry.label,
             single ? first_centre(entry.low, entry.high)
                    : nearest_in_double<kFeatures>(X + (long long)entry.row * kFeatures, of.mean, centers, k, entry.low,
                                                   entry.high),
             0};
      if (one.from != one.to) labels[one.row] = one.to;
    }
    const unsigned all = __ballot_sync(simt::every_lane, one.from != one.to);
    if (all == 0) return;
    Moving* moving = reinterpret_cast<Moving*>(items);  // where the items were, which all lanes have read
    if (one.from != one.to) {
      moving[__popc(all & ((1u << lane) - 1))] = {one.row, here.place(one.from), here.place(one.to), 0};
    }
    __syncwarp();
    here.move(moving, __popc(all));
    changed += __popc(all);
    added += __popc(all);
  };
  const auto flush = [&] {
    if (__syncthreads_or(added > kShare)) {
      here.flush();
      added = 0;
    }
  };
  const long long begin = ((long long)blockIdx.x * kWarps + threadIdx.x / 32) * kTile;
  if (kAhead && begin < n) load(begin);
  each_tile<kTile, kWarps, kTiles>(n, flush, [&](long long first, long long ahead, bool more) {
    const int rows = n - first < kTile ? (int)(n - first) : kTile;
    if (!kAhead) load(first);
    unsigned a[kBlocks][kSteps][4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          float x[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            x[e] = fmaf(tsm2::Element<T>::value(raw.x[b][half][s][e]), of.scale, shift[s][e]);
          }
          a[b][s][half] = ptx::to_halves(x[0], x[1]);
          a[b][s][half + 2] = ptx::to_halves(x[2], x[3]);
        }
    int label[kBlocks / 2];
#pragma unroll
    for (int p = 0; p < kBlocks / 2; ++p) label[p] = raw.label[p];
    if (kAhead && more) load(first + ahead);
    const long long soon = first + (kAhead ? 2 : 1) * ahead;
    if (soon + kTile <= n) prefetch_tile<kFeatures, kTile>(X, labels, soon);
    Candidates found[kBlocks / 2];
    bool any = false, waits[kBlocks / 2];
#pragma unroll
    for (int p = 0; p < kBlocks / 2; ++p) {
      unsigned bits[4];
#pragma unroll
      for (int b = 2 * p; b < 2 * p + 2; ++b) {
        float scores[kColumns][4];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) nearby.begin(j, scores[j]);
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
          for (int j = 0; j < kColumns; ++j) nearby.multiply(j, s, a[b][s], scores[j]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float norm = ptx::square_root(square_norm<kSteps>(a[b], half));
          const float twice_error = fmaf(norm, bound.of_norm, bound.always);
          bits[2 * (b % 2) + half] = candidates_of<kColumns>(scores, half, twice_error);
        }
        // For the scores of no more blocks to be in registers at a time.
        if (kColumns > 2 || b % 2) __syncwarp();
      }
      found[p] = candidates_of_own_row(bits);
      waits[p] = !found[p].is(label[p]) & (32 * p + 8 * t + g < rows);
      any |= waits[p];
    }
    if (__any_sync(simt::every_lane, any)) {
#pragma unroll
      for (int p = 0; p < kBlocks / 2; ++p) {
        const unsigned row = (unsigned)first + 32 * p + 8 * t + g;
        queue.add(waits[p], {row, label[p], found[p].low, found[p].high});
      }
    }
    // The last of a warp's tiles leaves nothing.
    queue.drain(more ? 32 : 1, settle);
  });
  here.flush();
  if (lane == 0 && changed) atomicAdd(moved, changed);
}

}  // namespace kmeans
