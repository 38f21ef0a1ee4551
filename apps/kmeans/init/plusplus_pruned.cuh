// Pruned greedy k-means++ step (plusplus.cuh). For most rows, the half-precision copy of X shows that no candidate is
// nearer than the nearest center so far. These rows of X are not read.
//
//   copy (n × padded, float16, row-major or in panels)   x̂ of every row x (data/half_copy.cuh)
//   norms (n)                                            the maximum of ‖x̂‖ and ρ⁻¹ ‖x·s − x̂‖ of every row
//   closest (n)                                          D² of every row, as in plusplus.cuh
//
// s is the scale of the copy, and ρ is the relative rounding error of the copy. N and N_c are the norms of a row x and
// of a candidate c; ĉ is c in the copy. D(x, c) is the distance of x and c. The tensor cores compute q = ‖x̂‖², q_c =
// ‖ĉ‖² and a = x̂·ĉ. The error of each is γ times the product of the norms of its two factors. So
//
//   (s D(x, c))² ≥ (‖x̂ − ĉ‖ − ρ (N + N_c))² ≥ q + q_c − 2 a − (2 ρ + γ) (N + N_c)²
//
// If this lower bound is at least s² D² for all candidates and for the center of the previous step, the row adds w·D²
// to the sums of all candidates. Each warp queues its other rows, reads them from X, and computes their distances to
// all candidates as plusplus.cuh does. So `closest` and each row's contribution to the sums have the same bits as
// without pruning.
//
// Why it is fast: with j centers, a candidate is the nearest point for about 1 / (j + 1) of the rows. At k = 64 with 7
// points per step, the seventh step does not read half of X, and the last step nine tenths. The half-precision copy has
// half the bytes of float32, and a quarter of float64. A warp prefetches queued rows to L2, and copies its next tiles
// to shared memory while it processes the current tile.
#pragma once
#include "kernels/device/warp_queue.cuh"
#include "apps/kmeans/init/plusplus.cuh"
#include "apps/kmeans/init/copy_pipeline.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace kmeans {

// Squared distances smaller than this may have a larger error than Copy::of_distance covers.
template <typename T>
constexpr T kLeastExact = 0x1p-100f;
template <>
constexpr double kLeastExact<double> = 0x1p-900;

// Does what evaluate_candidates (plusplus.cuh) does, with pruning. `copy` is the half-precision copy of X.
template <typename T, int kTrials, int kLanes, bool kAligned, bool kWeighted, bool kPanels, int kStages>
__global__ void __launch_bounds__(kTryThreads, kTryBlocks)
    evaluate_candidates_pruned(const T* X, long long n, int d, const T* weights, const long long* last,
                               const long long* candidates, int chunk, int chunks, int window, T* closest, double* sums,
                               const Copy copy) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kPoints = kTrials + 1, kBlocks = (kPoints + 7) / 8, kGroups = 32 / kLanes;
  // For large d, a lane processes half as many rows at a time as in plusplus.cuh, to save registers.
  constexpr int kMost = kTryRows<T, kPoints>, kRows = kMost > 1 && kLanes == 32 ? kMost / 2 : kMost;
  using Pipeline = PrunedPipeline<T, kPanels, kWeighted, kStages>;
  constexpr int kTile = Pipeline::kTile, kHeight = Pipeline::kHeight, kWarps = kTryThreads / 32;
  using Found = Distances<T, kPoints, kRows, kLanes, kAligned>;
  using Waiting = Queue<int, kTile>;
  // Shared memory holds the points from X (`points`), and the points from the copy (`words`) in blocks of 32 columns
  // and eight points. A lane reads 16 bytes of a block.
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  T* points = reinterpret_cast<T*>(shared);
  const int lane = simt::lane(), g = lane / 4, t = lane % 4;
  shared += (kPoints * window * (int)sizeof(T) + 15) / 16 * 16;
  uint4* words = reinterpret_cast<uint4*>(shared);
  const int parts = (copy.padded + 31) / 32;
  // Index of a lane's eight columns in a block of 32 columns and eight points: lane 4·g + t has the t-th eight columns
  // of point g.
  const auto word = [](int part, int block, int lane) { return (part * kBlocks + block) * 32 + lane; };
  shared += parts * kBlocks * 512;
  Pipeline pipeline(shared);
  Waiting waiting(shared + kWarps * Pipeline::kBytes);
  // ‖ĉ‖² of each point; infinite past the last point.
  __shared__ float squares[8 * kBlocks];
  __shared__ long long samples[kPoints];
  if (threadIdx.x < kPoints) samples[threadIdx.x] = threadIdx.x == 0 ? *last : candidates[threadIdx.x - 1];
  if (threadIdx.x < 8 * kBlocks) squares[threadIdx.x] = threadIdx.x < kPoints ? 0.0f : __int_as_float(0x7f800000);
  const Chunks of{n, chunk, chunks};
  pipeline.start(of, copy, closest, weights);
  __syncthreads();
  fetch_points<kPoints>(X, samples, d, 0, window, points);
  for (int i = threadIdx.x; i < 4 * parts * 8 * kBlocks; i += blockDim.x) {
    const int p = i / (4 * parts), of_p = i % (4 * parts), column = 8 * of_p;
    uint4 some = {};
    if (p < kPoints && column < copy.padded)
      some = *reinterpret_cast<const uint4*>(copy.at<kPanels>(samples[p], column));
    words[word(of_p / 4, p / 8, p % 8 * 4 + of_p % 4)] = some;
  }
  float most = 0;
  for (int p = 0; p < kPoints; ++p) {
    const float norm = copy.norms[samples[p]];
    most = norm <= most ? most : norm;
  }
  // The addition covers rounding errors of a row that are subnormal. The row's norm does not include them: it may be
  // zero (data/half_copy.cuh).
  most += 1e-15f;
  __syncthreads();
  for (int p = threadIdx.x / 32; p < kPoints; p += kWarps) {
    float sum = 0;
    for (int i = lane; i < 4 * parts; i += 32) {
      const auto some = simt::bits_of<simt::Vector<ptx::Half, 8>>(words[word(i / 4, p / 8, p % 8 * 4 + i % 4)]);
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
      for (int from = 0; from < copy.padded; from += Pipeline::kColumns) {
        pipeline.wait();
#pragma unroll
        for (int u = 0; u < Pipeline::kUnits; ++u) {
          const int r = kPanels ? u : 0, column = from + (kPanels ? 0 : 32 * u);
          if (column >= copy.padded) break;
          uint4 low = {}, high = {};
          if (column + 8 * t < copy.padded) low = pipeline.columns(u, 0), high = pipeline.columns(u, 1);
          const unsigned a[2][4] = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) {
            const uint4 point = words[word(column / 32, j, lane)];
            const unsigned b[2][2] = {{point.x, point.y}, {point.z, point.w}};
#pragma unroll
            for (int s = 0; s < 2; ++s) ptx::mma_m16n8k16_f16(products[r][j], a[s], b[s]);
          }
          // Multiplies eight rows by their own transpose: the same registers are passed as rows of operand A and as
          // columns of operand B, so squared norms are on the diagonal. The first product is for rows g, the second for
          // rows g + 8; each passes zeros for the other eight rows.
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            const unsigned lower[4] = {a[s][0], 0, a[s][2], 0}, upper[4] = {0, a[s][1], 0, a[s][3]};
            const unsigned of_lower[2] = {a[s][0], a[s][2]}, of_upper[2] = {a[s][1], a[s][3]};
            ptx::mma_m16n8k16_f16(own[r], lower, of_lower);
            ptx::mma_m16n8k16_f16(own[r], upper, of_upper);
          }
        }
        if (from + Pipeline::kColumns < copy.padded) pipeline.ask(of, copy, closest, weights);
      }
#pragma unroll
      for (int r = 0; r < kHeight; ++r) {
        unsigned nearer[2];
        T near[2], weight[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = 16 * r + 8 * half + g;
          const float square = simt::shuffle(g % 2 ? own[r][2 * half + 1] : own[r][2 * half], 4 * g + g / 2);
          near[half] = pipeline.near(row), weight[half] = pipeline.weight(row);
          const float norm_sum = pipeline.norm(row) + most;
          const float scaled = (float)(near[half] * (T)copy.scale * (T)copy.scale);
          const float beyond = square - copy.error * norm_sum * norm_sum - scaled * copy.of_distance;
          // A row with a D² near zero, whose relative error is larger, is queued. No candidate can lower a D² of zero.
          bool any = near[half] > 0 && near[half] < kLeastExact<T>;
#pragma unroll
          for (int j = 0; j < kBlocks; ++j)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              any |= !(2 * products[r][j][2 * half + i] - squares[8 * j + 2 * t + i] <= beyond);
            }
          nearer[half] = __ballot_sync(simt::every_lane, any & (at + row < count)) >> 4 * g & 15;
        }
        // Four lanes hold the products of rows g and g + 8. Lane t = 0 adds or queues row g, and lane t = 1 row g + 8.
        const int first = at + 16 * r + g, row = first + 8 * (t % 2);
        const bool has = t < 2 && row < count, waits = has && (t ? nearer[1] : nearer[0]) != 0;
        if (has && !waits) alike += (double)(t ? weight[1] : weight[0]) * (double)(t ? near[1] : near[0]);
        if (__any_sync(simt::every_lane, waits)) {
          waiting.add(waits, row);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const T* x = X + (begin + first + 8 * half) * d;
            for (int i = t * (128 / (int)sizeof(T)); nearer[half] && i < d; i += 512 / (int)sizeof(T))
              ptx::prefetch(x + i);
          }
        }
      }
      pipeline.ask(of, copy, closest, weights);
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
            // Every lane takes part in the shuffles. Lanes past the end of the queue load its first row.
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
