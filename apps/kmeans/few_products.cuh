// An iteration for few features and few clusters, by tensor cores on X itself: the label of every row, and the rows that
// change theirs moved from one cluster's sums to another's, in one launch.
//
//   X (n × d, float32 or 16 bits, row by row)   centres in float16 (centers.cuh)   labels (n)   sums (k × (d + 1))
//
//   a warp's tile, 32 rows,             columns 0 … 15        16 … 31       a lane (g, t) = (lane / 4, lane % 4) loads columns
//   in its ring (tile_ring.cuh)         t=0 t=1 t=2 t=3    t=0 t=1 …        4·t … 4·t + 3 of each 16, 16 bytes, of rows g
//     rows g                            ███ ███ ███ ███    ███ ███ …        and g + 8: the quad reads a row, the warp eight.
//     rows g + 8                        ███ ███ ███ ███    ███ ███ …        The product takes them for columns 2·t, 2·t + 1,
//     rows g + 16, g + 24               ███ ███ ███ ███    ███ ███ …        2·t + 8 and 2·t + 9; centres likewise
//
//   scores    mma m16n8k16 of (x − mean)·scale, rounded to float16, and the centres, that begins with a level − ‖c‖²/2
//   labels    as in nearest.cuh: candidates by the best score and a bound, brought together for each lane to have a row
//   moves     rows with one candidate that is not their label (column_sums.cuh): many of a tile at once, from the ring; few
//             → a queue of the warp's (few_rows.cuh) → 32 at a time, from X; rows with several → another → decided in float64
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
// Why it is fast: X is read once, each byte by one lane, while the next tile is on its way. Nothing is written but labels that
// change. Scores are not negative (few_level), so that the best is found as an integer, three at a time. A row of which nothing
// moves takes 242 lane instructions with 16 × 16, as compiled for sm_90a (424 by multiply-adds), and 456 with 32 × 64; a tile
// in which some row does, 70 of the warp more, and to move 32 rows of 32 features takes about 500.
#pragma once
#include "apps/kmeans/column_sums.cuh"
#include "apps/kmeans/few_centres.cuh"
#include "apps/kmeans/tile_ring.cuh"

namespace kmeans {

// Four columns of a row, from column 16 · `step` + `mine` on; zero past the last.
template <int kFeatures, typename T>
__device__ __forceinline__ void load_four(const unsigned char* row, int swizzle, int step, int mine, T (&to)[4]) {
  constexpr int kWide = few_wide<T, kFeatures, 4>();
#pragma unroll
  for (int i = 0; i < 4; i += kWide) {
    simt::Vector<T, kWide> some = {};
    const int column = 16 * step + mine + i;
    if (16 * step + 16 <= kFeatures || column < kFeatures) {
      some = *reinterpret_cast<const simt::Vector<T, kWide>*>(row + (column * (int)sizeof(T) ^ swizzle));
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
  const auto most = [](int a, int b) { return b > a ? b : a; };
  int best = 0;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    best = most(most(best, __float_as_int(scores[j][2 * half])), __float_as_int(scores[j][2 * half + 1]));
  }
  best = most(best, simt::shuffle_xor(best, 1));
  best = most(best, simt::shuffle_xor(best, 2));
  const float threshold = fmaf(__int_as_float(best), -kLarge, twice_error) - kLeast;
  float sum = kNoBits;
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum = fmaf(__saturatef(fmaf(scores[j][2 * half + i], kLarge, threshold)), (float)(1 << (2 * j + i)), sum);
    }
  return __float_as_uint(sum);
}

// A row that moves, and waits: where the clusters' sums begin, negative if there are none.
struct alignas(8) Leaving {
  unsigned row;
  short from, to;
};

// Rows of a tile that move from which on they are read from shared memory.
constexpr int kMany = 12;

// kColumns is k / 8, rounded up. Digits of kMostAdded rows add up within 32 bits.
template <typename T, int kFeatures, int kColumns, int kStages, bool kKept, int kThreads, int kResident,
          int kMostAdded = 32768>
__global__ void __launch_bounds__(kThreads, kResident) assign_by_products(const T* X, const float* centers, int k,
                                                                          long long n, const Products of, Label* labels,
                                                                          unsigned long long* sums, unsigned* moved,
                                                                          const int* stopped) {
  static_assert(kColumns <= 8, "a lane has up to 16 bits of a row");
  constexpr int kSteps = (kFeatures + 15) / 16, kWarps = kThreads / 32, kTile = 32;
  // A warp asks for the sums to be flushed when it has moved half of its share; it has at most 62 rows waiting.
  constexpr int kShare = kMostAdded / kWarps / 2, kTiles = (kShare - 62) / kTile;
  static_assert(kTiles >= 1, "the digits of one tile would overflow");
  if (*stopped) return;
  using Ring = TileRing<T, kFeatures, kTile, kStages, 16 * (int)sizeof(T)>;
  using Centres = Centres<kSteps, kColumns, kKept>;
  using Sums = ColumnSums<T, kFeatures>;
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  Ring ring(X, labels, n, shared);
  shared += kWarps * Ring::kBytes;
  const Centres nearby(of, shared);
  shared += Centres::kBytes;
  const Sums here(sums, shared, 8 * kColumns, k, of.mean, of.scales);
  shared += Sums::bytes(8 * kColumns);
  // Of a tile, rows that move are settled at once if they are many. Few wait, with those that were decided.
  Queue<Moving, kTile> moving(shared);
  Queue<Entry, kTile> doubtful(shared + kWarps * moving.kBytes);
  Queue<Leaving, 3 * kTile> leaving(shared + kWarps * (moving.kBytes + doubtful.kBytes));
  __syncthreads();
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
  unsigned changed = 0, added = 0;
  const auto move = [&](const Moving* rows, int count) {
    here.move(rows, count);
    changed += count;
    added += count;
  };
  const auto decide = [&](const Entry* items, int count) {
    Leaving one = {};
    if (lane < count) {
      const Entry entry = items[lane];
      const T* row = X + (long long)entry.row * kFeatures;
      const int to = nearest_of_row<kFeatures>(row, of.mean, centers, k, entry.low, entry.high);
      one = {entry.row, (short)here.place(entry.label), (short)here.place(to)};
      if (to != entry.label) labels[entry.row] = (Label)to;
    }
    leaving.add(one.from != one.to, one);
  };
  const auto flush = [&] {
    if (__syncthreads_or(added > kShare)) {
      here.flush();
      added = 0;
    }
  };
  const unsigned together = gridDim.x * kThreads, own = blockIdx.x * kThreads + threadIdx.x / 32 * 32;
#pragma unroll
  for (int stage = 0; stage + 1 < kStages; ++stage) ring.ask(own + stage * together);
  each_tile<kTile, kWarps, kTiles>((unsigned)n, flush, [&](unsigned first) {
    ring.wait();
    ring.ask(first + (kStages - 1) * together);
    const unsigned mine = 8 * t + g;
    const int label = ring.labels()[mine];
    unsigned bits[4];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      unsigned a[kSteps][4];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const int row = 16 * b + 8 * half + g;
          T raw[4];
          load_four<kFeatures, T>(ring.row(row), Ring::swizzle(row), s, 4 * t, raw);
          float x[4];
#pragma unroll
          for (int e = 0; e < 4; ++e) x[e] = fmaf(tsm2::Element<T>::value(raw[e]), of.scale, shift[s][e]);
          a[s][half] = ptx::to_halves(x[0], x[1]);
          a[s][half + 2] = ptx::to_halves(x[2], x[3]);
        }
      float scores[kColumns][4];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) nearby.begin(j, scores[j]);
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int j = 0; j < kColumns; ++j) nearby.multiply(j, s, a[s], scores[j]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float norm = ptx::square_root(square_norm<kSteps>(a, half));
        const float twice_error = fmaf(norm, bound.of_norm, bound.always);
        bits[2 * b + half] = candidates_of<kColumns>(scores, half, twice_error);
      }
      // For the scores of no more blocks to be in registers at a time.
      if (kColumns > 2) __syncwarp();
    }
    const Candidates found = candidates_of_own_row(bits);
    const bool waits = !found.is(label) & (mine < (unsigned)n - first);
    if (__any_sync(simt::every_lane, waits)) {
      const bool certain = __popc(found.low) + __popc(found.high) == 1, moves = waits & certain;
      const int to = moves ? first_centre(found.low, found.high) : 0;
      if (moves) labels[first + mine] = (Label)to;
      const short from_place = (short)here.place(label), to_place = (short)here.place(to);
      if (__popc(__ballot_sync(simt::every_lane, moves)) >= kMany) {
        moving.add(moves, {ring.row(mine), Ring::swizzle(mine), from_place, to_place});
      } else {
        leaving.add(moves, {first + mine, from_place, to_place});
      }
      doubtful.add(waits & !certain, {first + mine, label, found.low, found.high});
    }
    // The last of a warp's tiles leaves nothing.
    const bool more = (unsigned)n - first > together;
    doubtful.drain(more ? 32 : 1, decide);
    do {
      moving.take(1, move);
    } while (leaving.take(more ? 32 : 1, [&](const Leaving* items, int count) {
      const Leaving one = items[lane < count ? lane : 0];
      moving.add(lane < count, {X + (long long)one.row * kFeatures, 0, one.from, one.to});
    }));
  });
  here.flush();
  if (lane == 0 && changed) atomicAdd(moved, changed);
}

}  // namespace kmeans
