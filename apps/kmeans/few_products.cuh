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
// is written but labels that change.
#pragma once
#include "apps/kmeans/column_sums.cuh"

namespace kmeans {

// What few_products.cuh is told of the centres and of the data.
struct Products {
  const ptx::Half* halves;  // of the centres, rows of kSteps · 16 (and of as many centres as the columns of the product)
  const float* offsets;     // −‖c‖²/2 of every column; −infinite past the last centre
  const Extremes* extremes;
  const float *mean, *scales;  // what is subtracted of rows; what integers are multiplied by
  float scale, norm;           // what rows are multiplied by; what no row's norm exceeds then
  float tensor_error, rounding;  // γ, ρ
};

// 2 E of a row of norm n, times kLarge: `of_norm` · n + `always`.
__device__ __forceinline__ Bound few_bound(const Products& of, int features) {
  const Extremes most = *of.extremes;
  const Bound bound = bound_of(most, of.tensor_error, of.rounding, of.tensor_error + 1.0f / (1 << 22));
  const float least = sqrtf((float)features) / (1 << 25) * (most.norm + most.lost) + 1.0f / (1ull << 40);
  const bool fits = of.norm * most.norm + most.half_square <= (float)(1 << 26);
  // 0.1 % for 1 / (1 − ρ), and for roundings of the norm.
  const float twice = fits ? 2.002f * kLarge : kInfinity - kInfinity;
  return {twice * bound.of_norm, twice * (bound.always + least)};
}

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

// ‖x − c‖² in float64 of a row of X, by one thread, in the order of features.
template <int kFeatures, typename T>
__device__ __forceinline__ double square_distance(const T* row, const float* mean, const float* center) {
  constexpr int kWide = few_wide<T, kFeatures, 4>();
  double sum = 0;
#pragma unroll 2
  for (int i = 0; i < kFeatures; i += kWide) {
    const auto x = *reinterpret_cast<const simt::Vector<T, kWide>*>(row + i);
    const auto middle = *reinterpret_cast<const simt::Vector<float, kWide>*>(mean + i);
    const auto c = *reinterpret_cast<const simt::Vector<float, kWide>*>(center + i);
#pragma unroll
    for (int e = 0; e < kWide; ++e) {
      const double difference = (double)centred<T, float>(x.at[e], middle.at[e]) - (double)c.at[e];
      sum += difference * difference;
    }
  }
  return sum;
}

// The nearest of a row's candidates, or of all centres if it has none: the first of equals.
template <int kFeatures, typename T>
__device__ __forceinline__ int nearest_in_double(const T* row, const float* mean, const float* centers, int k,
                                                 unsigned low, unsigned high) {
  const bool all = (low | high) == 0;
  Distant nearest = {kInfinity, 0};
  for (int j = all ? 0 : next_candidate(low, high, k); j < k; j = all ? j + 1 : next_candidate(low, high, k)) {
    nearest.take({square_distance<kFeatures>(row, mean, centers + j * kFeatures), j});
  }
  return nearest.centre;
}

// The centres' parts of the product, as a lane has them: of column block j and step s, and −‖c‖²/2 of its columns of a
// block, of rows g and g + 8. In shared memory, or (kKept) in registers.
template <int kSteps, int kColumns, bool kKept>
class Centres {
 public:
  static constexpr int kBytes = (kKept ? 0 : kColumns * kSteps * 256) + kColumns * 64;

  struct Two {
    unsigned at[2];
  };

  __device__ Centres(const Products& of, void* shared) : shared_(static_cast<unsigned char*>(shared)) {
    const int lane = threadIdx.x % 32;
    for (int j = threadIdx.x / 32; j < kColumns; j += blockDim.x / 32) {
      if (lane < 4) {
        const float first = of.offsets[8 * j + 2 * lane], second = of.offsets[8 * j + 2 * lane + 1];
        offsets()[4 * j + lane] = {first, second, first, second};
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (!kKept) fragments()[(j * kSteps + s) * 32 + lane] = fetch(of, j, s);
      }
    }
    if (kKept) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j)
#pragma unroll
        for (int s = 0; s < kSteps; ++s) kept_[kKept ? j : 0][kKept ? s : 0] = fetch(of, j, s);
    }
  }

  __device__ __forceinline__ void begin(int j, float (&scores)[4]) const {
    const float4 two = offsets()[4 * j + threadIdx.x % 4];
    scores[0] = two.x, scores[1] = two.y, scores[2] = two.z, scores[3] = two.w;
  }

  __device__ __forceinline__ void multiply(int j, int s, const unsigned (&a)[4], float (&scores)[4]) const {
    const Two b = kKept ? kept_[kKept ? j : 0][kKept ? s : 0] : fragments()[(j * kSteps + s) * 32 + threadIdx.x % 32];
    ptx::mma_m16n8k16_f16(scores, a, b.at);
  }

 private:
  // Of centre 8·j + g, the elements that go with this lane's columns.
  __device__ static __forceinline__ Two fetch(const Products& of, int j, int s) {
    const int lane = threadIdx.x % 32;
    const auto* from = of.halves + (8 * j + lane / 4) * (16 * kSteps) + 16 * s + 4 * (lane % 4);
    return *reinterpret_cast<const Two*>(from);
  }

  __device__ __forceinline__ float4* offsets() const { return reinterpret_cast<float4*>(shared_); }
  __device__ __forceinline__ Two* fragments() const { return reinterpret_cast<Two*>(shared_ + kColumns * 64); }

  unsigned char* shared_;
  Two kept_[kKept ? kColumns : 1][kKept ? kSteps : 1];
};

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
