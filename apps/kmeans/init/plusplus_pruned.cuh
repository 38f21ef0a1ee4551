// Pruned greedy k-means++ step (plusplus.cuh). For most rows, the quantized copy of X shows that no candidate is nearer
// than the nearest center so far. These rows of X are not read.
//
//   copy           the quantized copy of X (quantized_copy.cuh; symbols: see its head)
//   closest (n)    D² of every row, as in plusplus.cuh
//
// A *point* is a candidate, or the center of the previous step. For a row y of X and a point c, both centered and
// scaled as in the copy, let u_f = h_f c_f, and let u be σ q plus a rounding error δ, where q are 16-bit numbers. If
// the copy has y_f = s h_f v_f plus an error of norm e, then
//
//   ‖y − c‖² = ‖y‖² + ‖c‖² − 2 y·c ≥ ‖y‖² + ‖c‖² − 2 s (σ v·q + ‖v‖ ‖δ‖) − 2 e ‖c‖
//
// The tensor cores compute v·q, exactly, as products of bytes: q = 256 a + b. If this lower bound is at least D² for
// all points, the row adds w·D² to the sums of all candidates. A warp decides in three stages, and queues the rows that
// a stage leaves ambiguous for the next:
//
//               reads of a row of d = 384       computes
//   1. stage    the upper plane, 192 + 12 B     U·a and U·b; e = e₄
//   2. stage    the lower plane, 192 + 16 B     16 U·q + 256 L·a, from U·q of stage 1; e = e₈. It bounds L·b
//   3. stage    X, 1536 B                       the distances of plusplus.cuh, to the points that may be nearer
//
// So `closest` and each row's contribution to the sums have the same bits as without pruning.
//
// Why it is fast: with j centers, a candidate is the nearest point for about 1 / (j + 1) of the rows, and stage 3 reads
// little more than these rows. Reading the upper plane, an eighth of float32 X, is most of the work. Copies of the next
// rows to shared memory are in flight during all stages (code_pipeline.cuh), and queued rows are prefetched to L2. 2M ×
// 384 with nine points: 163 µs for stage 1 alone (2.5 TB/s), 220 to 290 for a mixture of Gaussians with hundreds of
// centers, of 1,170 for reading X.
#pragma once
#include "kernels/device/warp_queue.cuh"
#include "apps/kmeans/init/plusplus.cuh"
#include "apps/kmeans/init/code_pipeline.cuh"
#include "apps/kmeans/init/code_products.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/memory.cuh"

namespace kmeans {

// Squared distances smaller than this may have a larger error than QuantizedCopy::of_distance covers. Stage 3 computes
// them, and those that are smaller than kLeastScaled in the scale of the copy.
template <typename T>
constexpr T kLeastExact = 0x1p-100f;
template <>
constexpr double kLeastExact<double> = 0x1p-900;
constexpr float kLeastScaled = 0x1p-100f;

// Does what evaluate_candidates (plusplus.cuh) does, with pruning.
template <typename T, int kTrials, int kLanes, bool kAligned, bool kWeighted, int kStages>
__global__ void __launch_bounds__(kTryThreads, kTryBlocks)
    evaluate_candidates_pruned(const T* X, long long n, int d, const T* weights, const T* points_of_step, int chunk,
                               int own_chunks, int chunks, T* closest, double* sums, const QuantizedCopy<T> copy,
                               const unsigned* table_of_points, const PointTest* tests_of_points) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int kPoints = kTrials + 1, kBlocks = (kPoints + 7) / 8, kGroups = 32 / kLanes, kWarps = kTryThreads / 32;
  using Upper = CodeProducts<kBlocks, 2>;
  using Lower = CodeProducts<kBlocks, 1>;
  using Pipeline = CodePipeline<T, kWeighted, kStages>;
  // Shared memory holds the tables of points, the queues of stages 2 and 3, and the pipelines. An item of the second
  // queue is a row, and the points for which it is ambiguous.
  unsigned char* shared = simt::dynamic_shared<unsigned char>();
  unsigned* table = reinterpret_cast<unsigned*>(shared);
  const int size = copy.groups * Upper::kOfGroup;  // words per table
  shared += 2 * size * sizeof(unsigned);
  CodeQueue<kPoints> for_both(shared);
  shared += kWarps * CodeQueue<kPoints>::kBytes;
  Queue<uint2, 32> for_x(shared);
  shared += kWarps * Queue<uint2, 32>::kBytes;
  const Chunks of{n, chunk, own_chunks};
  Pipeline pipeline(shared, of);
  pipeline.start(of, copy, closest, weights);
  __shared__ PointTest tests[8 * kBlocks];
  __shared__ const T* points[kPoints];
  const int lane = simt::lane();
  for (int i = threadIdx.x; i < 2 * size / 4; i += kTryThreads) {
    reinterpret_cast<uint4*>(table)[i] = reinterpret_cast<const uint4*>(table_of_points)[i];
  }
  if (threadIdx.x < 8 * kBlocks) tests[threadIdx.x] = tests_of_points[threadIdx.x];
  if (threadIdx.x < kPoints) points[threadIdx.x] = points_of_step + (long long)threadIdx.x * point_pitch<T>(d);
  __syncthreads();

  const int words = 4 * copy.groups;  // per row of a plane
  for (long long mine = of.first(); mine < own_chunks; mine = of.next(mine)) {
    const long long begin = of.begin(mine);
    const int count = of.count(mine);
    // Sums over the rows that stages 1 and 2 decide, of this lane; and over the rows of stage 3, in lane t for
    // candidate t.
    double alike = 0, of_trial = 0;

    // Stage 3: a group of lanes computes the distances of a row, one point after another.
    const auto from_x = [&](const uint2* items, int found) {
      for (int first = 0; first < found; first += kGroups) {
        const int i = first + lane / kLanes;
        const uint2 item = items[i < found ? i : 0];
        const long long row = begin + item.x;
        const unsigned of_row = i < found ? item.y : 0;
        const T* const x[1] = {X + row * d};
        const double weight = kWeighted ? weights[row] : T(1);
        T near = closest[row];
        for (unsigned wanted = of_row; __any_sync(simt::every_lane, wanted != 0); wanted &= wanted - 1) {
          const int p = wanted != 0 ? __ffs(wanted) - 1 : 0;
          Distances<T, 1, 1, kLanes, kAligned, 4> distance;
          distance.add(x, points[p], 0, 0, d, d, 0);
          const T there = (T)distance.at[0][0], least = there < near ? there : near;
          if (wanted & 1) {
            if (there < near && lane % kLanes == 0) closest[row] = there;
            near = least;
          }
          const int trial = wanted >> 1 != 0 ? p - 1 : -1;
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            const double of_group = simt::shuffle(weight * (double)least, group * kLanes);
            if (lane == simt::shuffle(trial, group * kLanes)) of_trial += of_group;
          }
        }
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const double of_group = simt::shuffle(weight * (double)near, group * kLanes);
          const unsigned computed = simt::shuffle(of_row, group * kLanes);
          if (computed != 0 && !(computed >> (lane + 1) & 1)) of_trial += of_group;
        }
      }
    };
    // The test of stage 1 (`planes` = 1) or 2 for up to 32 rows. For the row of this lane, if it `has` one, returns the
    // points for which it is ambiguous.
    const auto test = [&](int planes, auto product, bool has, uint2 of_row, float error, T near, T weight) {
      constexpr unsigned kEvery = (1u << kPoints) - 1;
      const float scale = __uint_as_float(of_row.x & 0xffff0000u), square = __uint_as_float(of_row.y);
      const float scaled = (float)(near * (T)copy.unit * (T)copy.unit);
      const float most = square - copy.roundings * square - scaled * copy.of_distance;
      unsigned ambiguous = ambiguous_points<kBlocks>(product, planes, scale, 2 * error, most, tests) & kEvery;
      if (near < kLeastExact<T> || scaled < kLeastScaled) ambiguous = kEvery;
      if (!has || near == 0) ambiguous = 0;  // no candidate can lower a D² of zero
      if (has && ambiguous == 0) alike += simt::rounded_product((double)weight, (double)near);
      return ambiguous;
    };
    for (int at = 0; at < count; at += 32) {
      Upper upper;
      int rows[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[i] = (8 * i + lane / 4) * Pipeline::kPitch;
      for (int group = 0; group < copy.groups; group += 4) {
        pipeline.wait();
        pipeline.ask(of, copy, closest, weights);
        uint4 codes[4];
        Upper::load(pipeline.codes(), rows, copy.groups - group, codes);
        upper.add(codes, copy.groups - group, table + group * Upper::kOfGroup, size);
      }
      const uint2 of_row = pipeline.of_row();
      const float error = __uint_as_float(of_row.x << 16);
      const bool ends = at + 32 >= count;
      const auto of_upper = [&](int i, int j, int e) { return (float)upper.of(i, j, e); };
      const bool waits = test(1, of_upper, at + lane < count, of_row, error, pipeline.near(), pipeline.weight()) != 0;
      for_both.add(waits, at + lane, upper);
      for (int i = 0; waits && i < words; i += 32) ptx::prefetch(copy.lower + (begin + at + lane) * words + i);
      int own;
      while (const int taken = for_both.take(ends ? 1 : 32, own)) {
        // Loaded before the products, so that the test does not wait.
        const long long row = begin + own;
        const uint2 of_own = copy.rows[row];
        const float error_of_both = copy.errors[row];
        const T near = closest[row], weight = kWeighted ? weights[row] : T(1);
#pragma unroll
        for (int i = 0; i < 4; ++i) rows[i] = simt::shuffle(own, 8 * i + lane / 4) * words;
        Lower lower;
        lower.add_plane(copy.lower + begin * words, rows, copy.groups, table, size);
        const auto of_both = [&](int i, int j, int e) {
          return 16 * (float)for_both.of(taken, i, j, e) + 256 * (float)lower.of(i, j, e);
        };
        const unsigned ambiguous = test(2, of_both, lane < taken, of_own, error_of_both, near, weight);
        for_x.add(ambiguous != 0, {(unsigned)own, ambiguous});
        for (int i = 0; ambiguous != 0 && i < d; i += 128 / (int)sizeof(T)) ptx::prefetch(X + row * d + i);
        for_x.drain(32, from_x);
      }
    }
    for_x.drain(1, from_x);
    alike = simt::warp_sum(alike);
    if (lane < kTrials) sums[(long long)lane * chunks + mine] = alike + of_trial;
  }
}

}  // namespace kmeans
