// Batched K-means: state of many problems of one shape; moments and half-precision copies of their X.
//
//   X (b × n × d, any dtype)  →  moments (b × slices × 3 × d)   Σ(x − origin), Σ(x − origin)², max |x − origin|
//                             →  half copy (b × n × padded, float16) = fl16((x − mean) · scale), and norms (b × n)
//
// The half copy and its norms are those of data/half_copy.cuh, with a mean and a scale per problem. `padded` is d
// rounded up to a multiple of 16, the depth of one mma.
//
// Why it is fast: blockIdx.y is the problem, so one launch processes all problems. X is read twice in all, for moments
// and half copy; iterations then read the half copy.
#pragma once
#include "apps/kmeans/assign/error_bound.cuh"
#include "kernels/ptx/types.cuh"
#include "kernels/device/element.cuh"

namespace batched {

using kmeans::CenterStats;

// The status of a problem. The host sets kPlace. In an iteration, all kernels except prepare_centers process only
// running problems.
enum Status : int {
  kRunning = 0,
  kStrict = 1,  // no label changed (strict convergence): the labels belong to the centers
  kEnded = 2,   // the center shift is within the tolerance, or max_iter is reached
  kEmpty = 3,   // a cluster is empty; the host fills it
  kPlace = 4,   // the centers are new
};

// A reassigned row, and its old label.
struct Change {
  unsigned row;
  int from;
};

// b problems; the problem is the first index of each array.
template <typename T>
struct Batch {
  const T* X;
  const float* means;               // d
  const float* half_copy_scales;    // 1
  const double* sum_scales;         // d: fixed-point scales
  const double* sum_units;          // d: their inverses, exact
  const double* tolerances;         // 1
  ptx::Half* half_copy;             // n × padded
  float* norms;                     // n
  int* labels;                      // n
  float* centers;                   // k × d
  ptx::Half* centers_half;          // columns × padded: centers · scale; zero past the last
  float* half_squares;              // columns: ‖c · scale‖²/2; infinite past the last, and for excluded centers
  CenterStats* center_stats;        // 1
  unsigned long long* sums;         // k × (d + 1): of each cluster, and its number of rows
  Change* changes;                  // n
  unsigned *counts, *n_reassigned;  // 1: length of the list; reassigned rows of the last iteration
  unsigned* arrived;                // 1: blocks that have arrived
  int *status, *iterations;         // 1
  long long n;
  int d, k, padded, columns, max_iter;
  float tensor_error, norm_limit;
  int padding;

  __device__ __forceinline__ const T* row(int problem, long long index) const { return X + (problem * n + index) * d; }
  // One element less the mean, in float: the operand of all distances and sums.
  __device__ __forceinline__ float centered(T x, float mean) const { return (float)tsm2::Element<T>::value(x) - mean; }
};

constexpr int kPrepareThreads = 256;

// Block (x, problem) adds up eight rows from row 8·x on, and again eight rows every 8·gridDim.x rows; 32 features at a
// time.
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

// One warp per row; a lane converts two elements at a time.
template <typename T>
__global__ void __launch_bounds__(256, 4) make_half_copy(const Batch<T> batch) {
  const int problem = blockIdx.y, lane = threadIdx.x % 32, warps = kPrepareThreads / 32 * gridDim.x, d = batch.d;
  const float scale = batch.half_copy_scales[problem], *mean = batch.means + (long long)problem * d;
  for (long long row = kPrepareThreads / 32LL * blockIdx.x + threadIdx.x / 32; row < batch.n; row += warps) {
    const T* x = batch.row(problem, row);
    unsigned* to = reinterpret_cast<unsigned*>(batch.half_copy + (problem * batch.n + row) * batch.padded);
    float square = 0, lost = 0;
#pragma unroll 2
    for (int j = 2 * lane; j < batch.padded; j += 64) {
      const float first = j < d ? batch.centered(x[j], mean[j]) * scale : 0.0f;
      const float second = j + 1 < d ? batch.centered(x[j + 1], mean[j + 1]) * scale : 0.0f;
      const unsigned pair = ptx::to_half_pair(first, second);
      to[j / 2] = pair;
      const float a = ptx::to_float(ptx::Half{(unsigned short)(pair & 0xffff)});
      const float b = ptx::to_float(ptx::Half{(unsigned short)(pair >> 16)});
      square += a * a + b * b;
      lost += (first - a) * (first - a) + (second - b) * (second - b);
    }
    square = simt::warp_sum(square);
    lost = simt::warp_sum(lost);
    // As in data/half_copy.cuh: if rounding cost more than 2⁻¹² of the norm, the norm is raised. NaN becomes infinite.
    const float least = 4096 * sqrtf(lost), most = sqrtf(square);
    const float norm = 1.0002f * (least > most ? least : most);
    if (lane == 0) batch.norms[problem * batch.n + row] = norm < kInfinity ? norm : kInfinity;
  }
}

}  // namespace batched
