// Assignment with Hamerly bounds: computes labels as assign/small_k.cuh does, and a bound per row. A row bound is how
// far centers may drift before the row may need a new label (state.cuh).
//
// s₁ and s₂ are the best and second-best computed scores s of a row x; E is their error bound (assign/small_k.cuh). d₁
// and d₂ are the distances from x to the nearest and to the second-nearest center. A squared distance is ‖x‖² − 2 s.
// The distance d₁ is at most u, and d₂ − d₁ is at least the gap g:
//
//   u² = (1.001 norm)² − 2 s₁ + 4 E  ≥  d₁²,     D = 2 (s₁ − s₂) − 4 E  ≤  d₂² − d₁²,
//   g = √(u² + D) − u = D / (√(u² + D) + u)
//
// since √(d₁² + D) − d₁ decreases with d₁. norm is the row's stored norm: at least ‖x̂‖, and at least 2¹² times the
// row's rounding error in the half-precision copy (data/half_copy.cuh). Excluded centers have no scores, and E does not
// bound the errors of centers of a norm above R (small_k.cuh). The former are more than 4.01 · norm_limit from the mean
// (update/centers.cuh), the latter more than R. These distances limit g.
//
// ArgminEpilogueBounded  GEMM epilogue over all rows
// assign_active_rows     scores only the rows that `select_active_rows` listed
//
// `assign_active_rows` uses the same mma instruction as the GEMM, so the same error bound holds. A warp processes 32
// listed rows at a time. It loads their half-precision copies from global memory to registers, 16 bytes per lane. Of
// every 32 columns, lane t of a row's four lanes loads columns 8·t to 8·t + 7. Rows and centers have the same order of
// columns, so only the order of summation differs from the GEMM's.
//
// Why it is fast: finding the second-best score costs two more instructions per score. Few rows are active, and each
// active row is read once. Reads of the centers hit in L1.
#pragma once
#include "apps/kmeans/bounds/state.cuh"
#include "apps/kmeans/assign/small_k.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "kernels/ptx/memory.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

namespace kmeans {

// Returns a lower bound of a row's gap g. `best` and `second` are s₁ and s₂; `error` is E. Centers without a score, or
// whose score has a larger error than E, are at least `beyond` from the mean. Symbols: see the head of this file.
__device__ __forceinline__ float gap_of(float norm, float best, float second, float error, float beyond) {
  const float at_most = 1.001f * norm;
  const float square = fmaxf(at_most * at_most - 2 * best + 4 * error, 0.0f), nearest = sqrtf(square);
  // Without a second center, the difference is infinite; `most` makes it finite. NaN remains NaN, and a NaN row bound
  // makes the row active.
  const float most = 1e30f, difference = 1.999999f * (best - second) - 4 * error,
              ahead = difference > most ? most : difference;
  const float other = sqrtf(square + fmaxf(ahead, 0.0f));
  const float between = ahead / (1.000001f * (other + nearest)), left_out = beyond - at_most - nearest;
  // The gap is reduced by more than the rounding error of float64 distances (state.cuh).
  return (left_out < between ? left_out : between) - 1e-9f * (other + nearest);
}

// Returns the bound of a row with the given gap. `limit` is limits[label of the row] (state.cuh).
__device__ __forceinline__ float row_bound_of(float gap, float limit) {
  return (gap + below_limit(limit)) * (1 - 1.0f / (1 << 20));
}

struct ArgminEpilogueBounded : ArgminEpilogue {
  float* row_bounds;
  const float* limits;
  const BoundsState* state;

  __device__ __forceinline__ bool idle() const { return *stopped || state->pass != kWithBounds; }

  template <int kBlocks, int kColumnBlocks>
  __device__ void tile(unsigned char*, long long row, int rows, long long, int,
                       const float (&d)[kBlocks][kColumnBlocks][4]) const {
    const unsigned from = (unsigned)row, soon = from + ahead + 16 * (threadIdx.x % 32 / 2);
    const int lane = threadIdx.x % 32;
    if (lane < 2 * kBlocks && lane % 4 < 2 && soon < n) {
      ptx::prefetch(lane % 2 ? static_cast<const void*>(norms + soon) : labels + soon);
    }
    score(d, rows, [=](int i) { return from + i; }, listed());
  }

  // Labels a tile of `rows` rows from their sums `d`, and writes their row bounds. `row_of(i)` is the index in X of row
  // i of the tile. Rows that are ambiguous or have a new label are appended to the block's list of length `*count`.
  template <int kBlocks, int kColumnBlocks, typename RowOf>
  __device__ __forceinline__ void score(const float (&d)[kBlocks][kColumnBlocks][4], int rows, RowOf row_of,
                                        unsigned* count) const {
    static_assert(kBlocks % 2 == 0 && kColumnBlocks <= 8,
                  "rows are dealt to lanes 32 at a time; a lane has up to 16 bits");
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float offset[kColumnBlocks][2];
    load_columns(offsets, offset);
    const CenterStats most = *center_stats;
    const RowBound bound(most, tensor_error, rounding, 1.0f / (1 << 22));
#pragma unroll
    for (int first = 0; first < kBlocks; first += 2) {
      const int mine = 16 * first + 8 * t + g;
      const bool present = mine < rows;
      const unsigned row = row_of(mine);
      const int label = present ? labels[row] : 0;
      const float norm = present ? norms[row] : 0.0f;
      const float error = 1.0001f * bound(norm);
      unsigned bits[4];
      Two mine_of = {0, 0};
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const Two two = best_two(d[first + q / 2], q % 2, offset);
        bits[q] = candidates_near(d[first + q / 2], q % 2, offset, simt::shuffle(error, 4 * g + q), two.best);
        // Four lanes hold scores of row 8·q + g of these 32 rows; lane t = q of them labels the row.
        if (t == q) mine_of = two;
      }
      Candidates found = candidates_of_own_row(bits);
      if (!(norm <= most.norm_limit)) found = {0, 0};
      const bool certified = __popc(found.low) + __popc(found.high) == 1;
      const int nearest = certified ? first_center(found.low, found.high) : label;
      if (present) {
        float row_bound = -kInfinity;
        if (certified) {
          const float beyond = fminf(4.01f * most.norm_limit, bound.beyond(norm));
          const float gap = gap_of(norm, mine_of.best, mine_of.second, error, beyond);
          row_bound = row_bound_of(gap, limits[nearest]);
        }
        row_bounds[row] = row_bound;
      }
      append(count, present && !(certified && nearest == label), {row, label, found.low, found.high});
    }
  }

 private:
  struct Two {
    float best, second;
  };

  // Returns the two best scores of row 8·half + g, to all four lanes that hold scores of the row.
  template <int kColumnBlocks>
  static __device__ __forceinline__ Two best_two(const float (&d)[kColumnBlocks][4], int half,
                                                 const float (&offset)[kColumnBlocks][2]) {
    Two two = {-kInfinity, -kInfinity};
#pragma unroll
    for (int j = 0; j < kColumnBlocks; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float score = d[j][2 * half + i] + offset[j][i];
        two.second = fmaxf(two.second, fminf(two.best, score));
        two.best = fmaxf(two.best, score);
      }
#pragma unroll
    for (int bits = 1; bits <= 2; bits *= 2) {
      const float best = simt::shuffle_xor(two.best, bits), second = simt::shuffle_xor(two.second, bits);
      two.second = fmaxf(fmaxf(two.second, second), fminf(two.best, best));
      two.best = fmaxf(two.best, best);
    }
    return two;
  }
};

constexpr int kActiveThreads = 128;
// Maximum number of columns of a row that assign_active_rows prefetches.
constexpr int kAskedFor = 512;

// Labels the active rows. Block (x, y) appends ambiguous and reassigned rows to list x. Consecutive tiles of 32 active
// rows go to different lists. `padded`, the row length of the half-precision copy, is a multiple of 8. Rows and centers
// are aligned to 16 bytes.
template <int kColumnBlocks>
__global__ void __launch_bounds__(kActiveThreads, 3)
    assign_active_rows(const ptx::Half* half_copy, const ptx::Half* centers_half, int padded, const unsigned* active,
                       const ArgminEpilogueBounded nearest) {
  ptx::griddepcontrol_wait();
  if (*nearest.stopped || nearest.state->pass != kActive) return;
  const unsigned count = nearest.state->active;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const unsigned step = 32 * gridDim.x * gridDim.y * (kActiveThreads / 32);
  const unsigned first = (threadIdx.x / 32 * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  for (unsigned begin = 32 * first; begin < count; begin += step) {
    const int rows = count - begin < 32 ? (int)(count - begin) : 32;
    // Lanes past the end of the list repeat the last row; their results are not stored.
    const unsigned mine = active[begin + (lane < rows ? lane : rows - 1)];
    if (begin + step + lane < count) {
      // Prefetches the warp's next rows, one per lane.
      const unsigned soon = active[begin + step + lane];
      ptx::prefetch(nearest.norms + soon);
      ptx::prefetch(nearest.labels + soon);
      for (int column = 0; column < padded && column < kAskedFor; column += 64) {
        ptx::prefetch(half_copy + (long long)soon * padded + column);
      }
    }
    const ptx::Half* from[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) from[q] = half_copy + (long long)simt::shuffle(mine, 8 * q + g) * padded;
    float sums[2][kColumnBlocks][4] = {};
    for (int column = 8 * t; column - 8 * t < padded; column += 32) {
      const bool present = column < padded;
      ptx::Quad a[4];
#pragma unroll
      for (int q = 0; q < 4; ++q) a[q] = present ? *reinterpret_cast<const ptx::Quad*>(from[q] + column) : ptx::Quad{};
#pragma unroll
      for (int j = 0; j < kColumnBlocks; ++j) {
        const ptx::Half* center = centers_half + (long long)(8 * j + g) * padded;
        const ptx::Quad b = present ? *reinterpret_cast<const ptx::Quad*>(center + column) : ptx::Quad{};
#pragma unroll
        for (int word = 0; word < 4; word += 2) {
          const unsigned of_b[2] = {b.at[word], b.at[word + 1]};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const unsigned of_a[4] = {a[2 * i].at[word], a[2 * i + 1].at[word], a[2 * i].at[word + 1],
                                      a[2 * i + 1].at[word + 1]};
            ptx::mma_m16n8k16_f16(sums[i][j], of_a, of_b);
          }
        }
      }
    }
    nearest.score(sums, rows, [=](int i) { return simt::shuffle(mine, i); }, &nearest.counts[blockIdx.x]);
  }
}

}  // namespace kmeans
