// Batched K-means: state of b problems of n rows, d columns and k clusters; moments and half-precision copies of X.
//
//   X (b × n × d, any dtype)  →  moments (b × slices × 3 × d)   Σ(x − origin), Σ(x − origin)², max |x − origin|
//                             →  means, scales, tolerances (scales.cuh)
//                             →  half copy (b × rows × padded, float16) = fl16((x − mean) · scale)
//                                norms (b × rows)
//
// The half copy and its norms are defined as in data/half_copy.cuh, but with a mean, a scale and ρ per problem.
// `padded` is d rounded up to a multiple of 16, the k extent of one mma. `rows` is n; or, if the half copy consists of
// panels (core_matrix_layout.cuh), n rounded up to whole turns of the product (candidates.cuh). Further rows are
// zeros. `slices` is gridDim.x of column_moments.
//
// Why it is fast: blockIdx.y is the problem, so one launch processes all problems. X is read once for the moments and
// once for the half copy; iterations then read the half copy, and X only for ambiguous and reassigned rows. For the
// half copy, a lane loads eight adjacent elements at a time, and a warp eight or more rows.
#pragma once
#include "apps/kmeans/assign/error_bound.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/device/element.cuh"
#include "kernels/tsm2/core_matrix_layout.cuh"

namespace batched {

using kmeans::CenterStats;
using kmeans::RowBound;

// The status of a problem. The kernels of an iteration process only problems that are kRunning.
enum Status : int {
  kPlace = 0,  // the host has set new centers, which prepare_centers must prepare
  kRunning = 1,
  kStrict = 2,  // no label changed (strict convergence): the labels belong to the centers
  kEnded = 3,   // the center shift is within the tolerance, or max_iter is reached
  kEmpty = 4,   // a cluster is empty; the host relocates it
};

// A reassigned row, and its label before the reassignment (`from`).
struct Change {
  unsigned row;
  int from;
};

// Of one center c, times the scale of the half copy: ‖c‖², ‖c − ĉ‖² and the squared shift in the last iteration (not
// scaled). ĉ is c in float16.
struct Placed {
  double square, lost, shift;
};

// State of b problems. Every array has the problem as its first index; comments state the other dimensions.
template <typename T>
struct Batch {
  const T* X;
  float* means;                     // d
  float* half_copy_scales;          // 1
  float* roundings;                 // 1: ρ, the relative rounding error of the half copy
  double* sum_scales;               // d: fixed-point scales
  double* sum_units;                // d: their inverses, exact
  double* tolerances;               // 1
  int* narrow;                      // 1: whether fixed-point elements have 30 bits, otherwise up to 46
  ptx::Half* half_copy;             // rows × padded
  float* norms;                     // rows
  int* labels;                      // n
  float* centers;                   // k × d
  ptx::Half* centers_half;          // columns × padded: centers · scale; zero past center k − 1. In panels, with
                                    // −half_squares in the first panel
  float* half_squares;              // columns: ‖c · scale‖²/2; infinite past center k − 1, and for excluded centers
  CenterStats* center_stats;        // 1
  Placed* placed;                   // k
  unsigned long long* sums;         // k × (d + 1): fixed-point cluster sums; column d: number of rows
  Change* changes;                  // n: list of reassigned rows
  unsigned *counts, *n_reassigned;  // 1: length of `changes`; number of rows that the last iteration reassigned
  int *status, *iterations;         // 1
  // For all problems together: those that are kRunning, and their number; null if no kernel reads them.
  int *running, *n_running;
  unsigned* arrived;  // 1, and one for all problems together: arrivals of blocks (centers.cuh), zero between launches
  long long n, rows;
  int d, k, padded, columns, max_iter;
  float tensor_error, norm_limit;
  int panels, tile_columns;  // panels per row of the half copy, 0 for rows; centers per tile of `centers_half`

  __device__ __forceinline__ const T* row(int problem, long long index) const { return X + (problem * n + index) * d; }
  // Returns the offset of an element of the half copy. `row` counts the rows of all problems.
  __device__ __forceinline__ long long place(long long row, int column) const {
    return panels ? tsm2::panel_offset(row, column, panels, tsm2::kPanelRows) : row * padded + column;
  }
  // Returns an element of X minus the mean, in float: the operand of all distances and sums.
  static __device__ __forceinline__ float centered(T x, float mean) { return (float)tsm2::Element<T>::value(x) - mean; }
};

constexpr int kPrepareThreads = 256;

// Block (x, problem) processes 32 columns at a time, of eight rows from row 8·x on, and of eight rows every 8·gridDim.x
// rows after these. It writes its sums to moments[problem][x].
template <typename T>
__global__ void __launch_bounds__(256, 4) column_moments(const Batch<T> batch, double* moments) {
  __shared__ double partial[3][kPrepareThreads];
  const int problem = blockIdx.y, x = threadIdx.x % 32, y = threadIdx.x / 32, d = batch.d;
  double* to = moments + ((long long)problem * gridDim.x + blockIdx.x) * 3 * d;
  for (int first = 0; first < d; first += 32) {
    const int feature = first + x;
    double sum = 0, square = 0, largest = 0;
    if (feature < d) {
      const float origin = tsm2::Element<T>::value(batch.row(problem, 0)[feature]);
#pragma unroll 4
      for (long long row = 8LL * blockIdx.x + y; row < batch.n; row += 8LL * gridDim.x) {
        const double delta = (double)tsm2::Element<T>::value(batch.row(problem, row)[feature]) - (double)origin;
        const double size = delta < 0 ? -delta : delta;
        sum += delta;
        square += delta * delta;
        largest = size > largest ? size : largest;
      }
    }
    partial[0][threadIdx.x] = sum;
    partial[1][threadIdx.x] = square;
    partial[2][threadIdx.x] = largest;
    __syncthreads();
    if (y == 0 && feature < d) {
      for (int other = x + 32; other < kPrepareThreads; other += 32) {
        sum += partial[0][other];
        square += partial[1][other];
        largest = partial[2][other] > largest ? partial[2][other] : largest;
      }
      to[feature] = sum;
      to[d + feature] = square;
      to[2 * d + feature] = largest;
    }
    __syncthreads();
  }
}

// Divides kRows rows among the lanes of a warp, in vectors of eight elements. Lane `vector · kRows + row` has every
// (32 / kRows)-th vector of a row, from number `vector` on.
template <int kRows>
struct LanesOfRows {
  static constexpr int kStride = 8 * (32 / kRows);  // number of columns from one vector of a lane to the next
  static __device__ __forceinline__ int row() { return threadIdx.x % 32 % kRows; }
  static __device__ __forceinline__ int column() { return threadIdx.x % 32 / kRows * 8; }
  // The sum over the lanes of a row.
  template <typename Sum>
  static __device__ __forceinline__ Sum sum(Sum mine) {
#pragma unroll
    for (int bits = kRows; bits < 32; bits *= 2) mine += simt::shuffle_xor(mine, bits);
    return mine;
  }
};

// Loads x − mean of eight elements from column j on; columns from d on are zero. With kAligned, d is a multiple of
// eight, and rows are aligned to 16 bytes.
template <bool kAligned, typename T>
__device__ __forceinline__ void load_centered(const T* x, const float* mean, int j, int d, float (&to)[8]) {
  if constexpr (kAligned) {
    constexpr int kWide = 16 / (int)sizeof(T);
    simt::Vector<T, kWide> some[8 / kWide];
#pragma unroll
    for (int i = 0; i < 8 / kWide; ++i) some[i] = *reinterpret_cast<const simt::Vector<T, kWide>*>(x + j + i * kWide);
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = Batch<T>::centered(some[i / kWide].at[i % kWide], mean[j + i]);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = j + i < d ? Batch<T>::centered(x[j + i], mean[j + i]) : 0.0f;
  }
}

// Writes `half_copy` and `norms`. kRows: number of rows that a warp converts at a time.
template <typename T, bool kAligned, int kRows>
__global__ void __launch_bounds__(256, 4) make_half_copy(const Batch<T> batch) {
  using Lanes = LanesOfRows<kRows>;
  const int problem = blockIdx.y, warps = kPrepareThreads / 32 * gridDim.x, d = batch.d;
  const float scale = batch.half_copy_scales[problem], rounding = batch.roundings[problem],
              *mean = batch.means + (long long)problem * d;
  const long long warp = kPrepareThreads / 32LL * blockIdx.x + threadIdx.x / 32;
  for (long long first = kRows * warp; first < batch.rows; first += kRows * warps) {
    const long long row = first + Lanes::row(), to = problem * batch.rows + row;
    const bool present = row < batch.n;
    const T* x = batch.row(problem, present ? row : batch.n - 1);
    float square = 0, lost = 0;
#pragma unroll 4
    for (int j = Lanes::column(); j < batch.padded; j += Lanes::kStride) {
      float some[8];
      simt::Vector<unsigned, 4> pairs;
      if (!present || (kAligned && j >= d)) {
        pairs = {};
      } else {
        load_centered<kAligned>(x, mean, j, d, some);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
          const float left = some[i] * scale, right = some[i + 1] * scale;
          const unsigned pair = pairs.at[i / 2] = ptx::to_half_pair(left, right);
          const float a = ptx::to_float(ptx::Half{(unsigned short)(pair & 0xffff)});
          const float b = ptx::to_float(ptx::Half{(unsigned short)(pair >> 16)});
          square += a * a + b * b;
          lost += (left - a) * (left - a) + (right - b) * (right - b);
        }
      }
      if (row < batch.rows) *reinterpret_cast<simt::Vector<unsigned, 4>*>(batch.half_copy + batch.place(to, j)) = pairs;
    }
    square = Lanes::sum(square);
    lost = Lanes::sum(lost);
    // As in data/half_copy.cuh: the larger of the norm and the rounding error divided by ρ. NaN becomes infinite.
    const float least = sqrtf(lost) / rounding, most = sqrtf(square);
    const float norm = 1.0002f * (least > most ? least : most);
    if (row < batch.rows && Lanes::column() == 0) batch.norms[to] = norm < kInfinity ? norm : kInfinity;
  }
}

}  // namespace batched
