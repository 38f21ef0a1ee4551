// A step of greedy k-means++ (seeding.cuh) that need not read X: of most rows, X's copy in float16 tells that no candidate is
// nearer than the nearest centre is.
//
//   copy (n × padded, float16, row by row or in slabs), norms (n)    shadow.cuh: x̂ and what bounds ‖x̂‖ and ρ⁻¹ ‖x·s − x̂‖
//   closest (n)                                                      D², as seeding.cuh has it
//
// With N the norms of a row and of a candidate, q = ‖x̂‖² and q_c = ‖ĉ‖² as computed, and a the product of both rows, all of them
// by tensor cores that are off by γ of the product of the norms,
//
//   (s D(x, c))² ≥ (‖x̂ − ĉ‖ − ρ (N + N_c))² ≥ q + q_c − 2 a − (2 ρ + γ) (N + N_c)²
//
// A row for which that is no less than s² D² for any candidate adds w·D² to the sums of all. The others wait in the warp's queue
// and are compared with all candidates as in seeding.cuh, from X: `closest` has the same bits as if all had been, and so has
// what each row adds to the sums.
//
//   a unit, 16 rows of the copy       columns 0 … 7   8 … 15   16 … 23   24 … 31    a lane (g, t) = (lane / 4, lane % 4) copies
//   and 32 columns                        t=0          t=1       t=2       t=3      8 columns of rows g and g + 8 to shared
//     rows g                              ███          ███       ███       ███      memory: a product takes the first four for
//     rows g + 8                          ███          ███       ███       ███      columns 2·t, 2·t + 1, 2·t + 8, 2·t + 9, the
//                                                                                   next one the others; candidates alike
//
// Why it is fast: when s centres have been drawn, a candidate is nearer to about 1 / (s + 1) of the rows, so that 7 points of the
// 64 of k = 64 leave half of X unread at the seventh and nine tenths at the last. The copy is half of float32's bytes, a quarter
// of float64's. A lane reads what it copied itself, so that nothing is waited for but the copy, and 4 KB of that lie together (of slabs,
// 512 bytes here and there took half as long again); rows that wait are on their way to the level-2 cache meanwhile.
#pragma once
#include "apps/kmeans/row_queue.cuh"
#include "apps/kmeans/seeding.cuh"
#include "kernels/tsm2/slabs.cuh"

namespace kmeans {

// X's copy. `error` is 2 ρ + γ and what the roundings here may come to; `of_distance` is 1 and what a computed distance may be
// below the true one.
struct Copy {
  const ptx::Half* rows;
  const float* norms;
  int padded;
  float scale, error, of_distance;

  template <bool kSlabs>
  __device__ __forceinline__ const ptx::Half* at(long long row, int column) const {
    if (!kSlabs) return rows + row * padded + column;
    return rows + tsm2::slab_offset(row, column, padded / tsm2::kSlabDepth, tsm2::kSlabRows);
  }
};

// The chunks of rows that a warp has in turn: neighbours go to different blocks, and the last few to all of them.
struct Chunks {
  long long rows;
  int size, number;

  __device__ __forceinline__ long long first() const { return blockIdx.x + (long long)(threadIdx.x / 32) * gridDim.x; }
  __device__ __forceinline__ long long next(long long chunk) const { return chunk + (long long)(blockDim.x / 32) * gridDim.x; }
  __device__ __forceinline__ long long begin(long long chunk) const { return chunk * size; }
  // The rows of a chunk: none past the last.
  __device__ __forceinline__ int count(long long chunk) const {
    const long long left = rows - begin(chunk);
    return chunk >= number || left <= 0 ? 0 : left < size ? (int)left : size;
  }
};

// What a warp copies at a time: four units of 16 rows and 32 columns, side by side where rows lie one after the other, or below
// one another in slabs, so that they are together in memory; and with a tile's last columns the norm, D² and weight of its rows.
template <typename T, bool kSlabs, bool kWeighted, int kStages>
class ScreenRing {
 public:
  static constexpr int kUnits = 4, kHeight = kSlabs ? kUnits : 1;  // units, and those below one another
  static constexpr int kTile = 16 * kHeight, kColumns = 32 * kUnits / kHeight;
  static constexpr int kOfRows = kTile * kColumns * (int)sizeof(ptx::Half), kOfNorms = kTile * (int)sizeof(float);
  static constexpr int kOfNear = kTile * (int)sizeof(T), kStage = kOfRows + kOfNorms + (kWeighted ? 2 : 1) * kOfNear;
  static constexpr int kBytes = kStages * kStage;  // of a warp

  __device__ ScreenRing(void* shared) : own_(static_cast<unsigned char*>(shared) + threadIdx.x / 32 * kBytes) {}

  // Begins with the first tiles of a warp's chunks.
  __device__ __forceinline__ void start(const Chunks& chunks, const Copy& copy, const T* closest, const T* weights) {
    row_ = column_ = asked_ = 0;
    now_ = kBytes - kStage;
    chunk_ = chunks.first();
    count_ = chunks.count(chunk_);
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) ask(chunks, copy, closest, weights);
  }

  // Asks for the next columns, rows or chunk; nothing past the last.
  __device__ __forceinline__ void ask(const Chunks& chunks, const Copy& copy, const T* closest, const T* weights) {
    if (count_ > 0) {
      const long long begin = chunks.begin(chunk_);
      unsigned char* to = own_ + asked_;
      const int lane = simt::lane(), last = count_ - 1;
#pragma unroll
      for (int i = 0; i < kOfRows / 512; ++i) {
        if constexpr (kSlabs) {
          // Two slabs' part of a tile as they lie; of slabs there are whole tiles.
          const int slab = 4 * i / (kOfRows / 512) / 2;
          if (column_ + 16 * slab < copy.padded) {
            const int place = 16 * (32 * i + (lane ^ 2 * (2 * slab + lane / 8 % 2)));
            ptx::cp_async<16>(to + place, copy.at<true>(begin + row_, column_) + 8 * (32 * i + lane));
          }
        } else {
          const int row = row_ + 2 * i + lane / 16, column = column_ + 8 * (lane % 16);
          if (column < copy.padded) {
            const int place = 16 * (32 * i + (lane ^ 4 * (lane / 16)));
            ptx::cp_async<16>(to + place, copy.at<false>(begin + (row < last ? row : last), column));
          }
        }
      }
      column_ += kColumns;
      if (column_ >= copy.padded) {
        for (int i = lane; i < kTile; i += 32) {
          const long long row = begin + (row_ + i < last ? row_ + i : last);
          ptx::cp_async<4>(to + kOfRows + 4 * i, copy.norms + row);
          ptx::cp_async<sizeof(T)>(to + kOfRows + kOfNorms + sizeof(T) * i, closest + row);
          if (kWeighted) ptx::cp_async<sizeof(T)>(to + kOfRows + kOfNorms + kOfNear + sizeof(T) * i, weights + row);
        }
        column_ = 0;
        row_ += kTile;
        if (row_ >= count_) {
          row_ = 0;
          chunk_ = chunks.next(chunk_);
          count_ = chunks.count(chunk_);
        }
      }
    }
    ptx::cp_async_commit();
    asked_ = asked_ == kBytes - kStage ? 0 : asked_ + kStage;
  }

  // Waits for what was asked for kStages − 1 times ago; what came before has been read by all lanes.
  __device__ __forceinline__ void wait() {
    ptx::cp_async_wait<kStages - 2>();
    simt::sync_warp();
    now_ = now_ == kBytes - kStage ? 0 : now_ + kStage;
  }

  // A lane's eight columns of a unit, of its row g + 8·half, as words.
  __device__ __forceinline__ uint4 columns(int u, int half) const {
    return *reinterpret_cast<const uint4*>(own_ + now_ + unit(u, half));
  }
  __device__ __forceinline__ float norm(int row) const { return of_rows<float>(0)[row]; }
  __device__ __forceinline__ T near(int row) const { return of_rows<T>(kOfNorms)[row]; }
  __device__ __forceinline__ T weight(int row) const { return kWeighted ? of_rows<T>(kOfNorms + kOfNear)[row] : T(1); }

 private:
  // Where this lane's part of a unit is. Lanes of four copy rows, or eight slots of 16 bytes, side by side, and eight lanes
  // read of two rows: which these are changes places with others by the row, or by the column, for them to lie in all banks.
  static __device__ __forceinline__ int unit(int u, int half) {
    const int g = simt::lane() / 4, t = simt::lane() % 4;
    if (kSlabs) return 2048 * (t / 2) + 256 * (2 * u + half) + 128 * (t % 2) + 16 * (g ^ 2 * t);
    return 256 * (g + 8 * half) + 16 * ((4 * u + t) ^ 4 * (g % 2));
  }
  template <typename Any>
  __device__ __forceinline__ const Any* of_rows(int place) const {
    return reinterpret_cast<const Any*>(own_ + now_ + kOfRows + place);
  }

  unsigned char* own_;
  long long chunk_;  // of which rows are asked for, `count_` in all, from `row_` on, and columns from `column_`
  int count_, row_, column_, asked_, now_;
};

template <typename T, int kTrials, int kLanes, bool kAligned, bool kWeighted, bool kSlabs, int kStages>
__global__ void __launch_bounds__(kTryThreads, kTryBlocks)
    screen_candidates(const T* X, long long n, int d, const T* weights, const long long* last, const long long* candidates,
                      int chunk, int chunks, int window, T* closest, double* sums, const Copy copy) {
  ptx::next_may_begin();
  ptx::after_previous();
  constexpr int kPoints = kTrials + 1, kBlocks = (kPoints + 7) / 8, kGroups = 32 / kLanes;
  // Of long rows fewer than where all are read, for the registers.
  constexpr int kMost = kTryRows<T, kPoints>, kRows = kMost > 1 && kLanes == 32 ? kMost / 2 : kMost;
  using Ring = ScreenRing<T, kSlabs, kWeighted, kStages>;
  constexpr int kTile = Ring::kTile, kHeight = Ring::kHeight, kWarps = kTryThreads / 32;
  using Found = Distances<T, kPoints, kRows, kLanes, kAligned>;
  using Waiting = Queue<int, kTile>;
  // The points as X has them, and as the copy has them: of 32 columns and eight points, 16 bytes a lane.
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  T* points = reinterpret_cast<T*>(shared);
  const int lane = simt::lane(), g = lane / 4, t = lane % 4;
  shared += (kPoints * window * (int)sizeof(T) + 15) / 16 * 16;
  uint4* words = reinterpret_cast<uint4*>(shared);
  const int parts = (copy.padded + 31) / 32;
  shared += parts * kBlocks * 512;
  Ring ring(shared);
  Waiting waiting(shared + kWarps * Ring::kBytes);
  // ‖ĉ‖² of each; of what is no point infinite.
  __shared__ float squares[8 * kBlocks];
  __shared__ long long samples[kPoints];
  if (threadIdx.x < kPoints) samples[threadIdx.x] = threadIdx.x == 0 ? *last : candidates[threadIdx.x - 1];
  if (threadIdx.x < 8 * kBlocks) squares[threadIdx.x] = threadIdx.x < kPoints ? 0.0f : __int_as_float(0x7f800000);
  const Chunks of{n, chunk, chunks};
  ring.start(of, copy, closest, weights);
  __syncthreads();
  fetch_points<kPoints>(X, samples, d, 0, window, points);
  for (int i = threadIdx.x; i < parts * kBlocks * 32; i += blockDim.x) {
    const int p = i / 32 % kBlocks * 8 + i % 32 / 4, column = i / (32 * kBlocks) * 32 + i % 4 * 8;
    uint4 some = {};
    if (p < kPoints && column < copy.padded) some = *reinterpret_cast<const uint4*>(copy.at<kSlabs>(samples[p], column));
    words[i] = some;
  }
  float most = 0;
  for (int p = 0; p < kPoints; ++p) {
    const float norm = copy.norms[samples[p]];
    most = norm <= most ? most : norm;
  }
  __syncthreads();
  for (int p = threadIdx.x / 32; p < kPoints; p += kWarps) {
    float sum = 0;
    for (int i = lane; i < 4 * parts; i += 32) {
      const auto some = simt::bits_of<simt::Vector<ptx::Half, 8>>(words[(i / 4 * kBlocks + p / 8) * 32 + p % 8 * 4 + i % 4]);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += ptx::to_float(some.at[e]) * ptx::to_float(some.at[e]);
    }
    sum = simt::warp_sum(sum);
    if (lane == 0) squares[p] = sum;
  }
  __syncthreads();

  for (long long mine = of.first(); mine < chunks; mine = of.next(mine)) {
    const long long begin = of.begin(mine);
    const int count = of.count(mine);
    double totals[Found::kHeld] = {}, alike = 0;
    for (int at = 0; at < count; at += kTile) {
      float products[kHeight][kBlocks][4] = {}, own[kHeight][4] = {};
      for (int from = 0; from < copy.padded; from += Ring::kColumns) {
        ring.wait();
#pragma unroll
        for (int u = 0; u < Ring::kUnits; ++u) {
          const int r = kSlabs ? u : 0, column = from + (kSlabs ? 0 : 32 * u);
          if (column >= copy.padded) break;
          uint4 low = {}, high = {};
          if (column + 8 * t < copy.padded) low = ring.columns(u, 0), high = ring.columns(u, 1);
          const unsigned a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) {
            const uint4 point = words[(column / 32 * kBlocks + j) * 32 + lane];
            const unsigned b[2][2] = {{point.x, point.y}, {point.z, point.w}};
#pragma unroll
            for (int s = 0; s < 2; ++s) ptx::mma_m16n8k16_f16(products[r][j], a[s], b[s]);
          }
          // Eight rows are a matrix's rows and another's columns in the same registers: squares are on the diagonals of the
          // products of either eight, of which each leaves nothing where the other's are.
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            const unsigned lower[4] = {a[s][0], 0, a[s][2], 0}, upper[4] = {0, a[s][1], 0, a[s][3]};
            const unsigned of_lower[2] = {a[s][0], a[s][2]}, of_upper[2] = {a[s][1], a[s][3]};
            ptx::mma_m16n8k16_f16(own[r], lower, of_lower);
            ptx::mma_m16n8k16_f16(own[r], upper, of_upper);
          }
        }
        if (from + Ring::kColumns < copy.padded) ring.ask(of, copy, closest, weights);
      }
#pragma unroll
      for (int r = 0; r < kHeight; ++r) {
        unsigned nearer[2];
        T near[2], weight[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * r + 8 * half + g;
          const float square = simt::shuffle(g % 2 ? own[r][2 * half + 1] : own[r][2 * half], 4 * g + g / 2);
          near[half] = ring.near(row), weight[half] = ring.weight(row);
          const float reach = ring.norm(row) + most, scaled = (float)near[half] * copy.scale * copy.scale;
          const float beyond = square - copy.error * reach * reach - scaled * copy.of_distance;
          bool any = false;
#pragma unroll
          for (int j = 0; j < kBlocks; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              any |= !(2 * products[r][j][2 * half + i] - squares[8 * j + 2 * t + i] <= beyond);
            }
          nearer[half] = __ballot_sync(simt::every_lane, any & (at + row < count)) >> 4 * g & 15;
        }
        // Two lanes of four have a row each.
        const int first = at + 16 * r + g, row = first + 8 * (t % 2);
        const bool has = t < 2 && row < count, waits = has && (t ? nearer[1] : nearer[0]) != 0;
        if (has && !waits) alike += (double)(t ? weight[1] : weight[0]) * (double)(t ? near[1] : near[0]);
        if (__any_sync(simt::every_lane, waits)) {
          waiting.add(waits, row);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const T* x = X + (begin + first + 8 * half) * d;
            for (int i = t * (128 / (int)sizeof(T)); nearer[half] && i < d; i += 512 / (int)sizeof(T)) ptx::prefetch(x + i);
          }
        }
      }
      ring.ask(of, copy, closest, weights);
      waiting.drain(at + kTile < count ? 32 : 1, [&](const int* rows, int found) {
        for (int first = 0; first < found; first += kRows * kGroups) {
          const auto place = [&](int r) {
            const int i = first + r * kGroups + lane / kLanes;
            return i < found ? begin + rows[i] : -1;
          };
          const T* x[kRows];
          T closest_yet[kRows], weight_of[kRows];
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            // Every lane takes part in the shuffles.
            const long long row = place(r) < 0 ? begin + rows[0] : place(r);
            x[r] = X + row * d;
            closest_yet[r] = closest[row];
            weight_of[r] = kWeighted ? weights[row] : T(1);
          }
          Found to_points;
          to_points.add(x, points, window, 0, d, d, 0);
          settle(to_points, closest_yet, weight_of, place, closest, totals);
        }
      });
    }
    hand_in<Found>(totals, simt::warp_sum(alike), kTrials, sums + mine, chunks);
  }
}

}  // namespace kmeans
