// Many problems of one shape: what they hold, and what is made of X before the first iteration.
//
//   X (b × n × d, any dtype)  →  moments (b × slices × 3 × d)   Σ(x − origin), Σ(x − origin)², max |x − origin|
//                             →  shadow (b × n × padded, float16) = fl16((x − mean) · scale), and norms (b × n)
//
// The shadow and its norms are those of data/half_copy.cuh, with a mean and a scale a problem; `padded` is d rounded up
// to 16, what one mma takes.
//
// Why it is fast: blockIdx.y is the problem, so that each launch is one for all of them; X is read twice in all, and
// from then on an iteration reads the shadow.
#pragma once
#include "kernels/ptx/types.cuh"
#include "kernels/device/element.cuh"

namespace batched {

#define kInfinity __uint_as_float(0x7f800000u)

// What is to become of a problem. The host sets kPlace; kernels but prepare_centers serve problems that are running.
enum Status : int {
  kRunning = 0,
  kStrict = 1,  // no label changed: the labels are those of the centers
  kEnded = 2,   // centers moved by the tolerance at most, or max_iter
  kEmpty = 3,   // a cluster is empty, which the host has to fill
  kPlace = 4,   // the centers are new
};

// A row that changed its label, and the one it had.
struct Change {
  unsigned row;
  int from;
};

// Of the centers of a problem, scaled: max ‖c‖, max ‖c − ĉ‖ and max ‖c‖²/2; and the norm from which on a row has to be
// compared with all of them, as centers far away were left out (update/centers.cuh has why).
struct CenterStats {
  float norm, lost, half_square, norm_limit;
};

// b problems, each array by problem first.
template <typename T>
struct Batch {
  const T* X;
  const float* means;               // d
  const float* half_copy_scales;    // 1
  const double* sum_scales;         // d: what an element is multiplied by to be an integer
  const double* sum_units;          // d: one over that, as exact
  const double* tolerances;         // 1
  ptx::Half* half_copy;             // n × padded
  float* norms;                     // n
  int* labels;                      // n
  float* centers;                   // k × d
  ptx::Half* centers_half;          // columns × padded: centers · scale; zero past the last
  float* half_squares;              // columns: ‖c · scale‖²/2; infinite past the last, and far away
  CenterStats* center_stats;        // 1
  unsigned long long* sums;         // k × (d + 1): of each cluster, and how many rows it has
  Change* changes;                  // n
  unsigned *counts, *n_reassigned;  // 1: changes listed, and changes of the last iteration
  unsigned* arrived;                // 1: blocks
  int *status, *iterations;         // 1
  long long n;
  int d, k, padded, columns, max_iter;
  float tensor_error, norm_limit;
  int padding;

  __device__ __forceinline__ const T* row(int problem, long long index) const { return X + (problem * n + index) * d; }
  // One element, less the mean, in float: what all distances and sums are of.
  __device__ __forceinline__ float centered(T x, float mean) const { return (float)tsm2::Element<T>::value(x) - mean; }
};

constexpr int kPrepareThreads = 256;

// Block (x, problem): rows y, y + 8·gridDim.x, … from y = 8·x on, 32 features at a time.
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

// A warp a row; a lane two elements at a time.
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
    // As in data/half_copy.cuh: where rounding cost more than 2⁻¹² of the norm, the norm is raised. What is no number
    // is infinite.
    const float least = 4096 * sqrtf(lost), most = sqrtf(square);
    const float norm = 1.0002f * (least > most ? least : most);
    if (lane == 0) batch.norms[problem * batch.n + row] = norm < kInfinity ? norm : kInfinity;
  }
}

}  // namespace batched
