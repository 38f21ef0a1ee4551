// Passes over X: moments of the columns, and distances. X is a row-major block of rows × d numbers.
//
// own_distances    ‖x − c‖² of each row x and the center c of its label
// point_distances  ‖x − p‖² of each row x and each of up to 8 points p, such as the candidates of a k-means++ step
// column_moments   Σ(x − o), Σ(x − o)² and max |x − o| of each column, about an origin o, over each chunk of rows
// fold_moments     the same over all chunks, from the results of column_moments
// add_in_order     Σ x, or Σ (x − o)², of each column, with the same bits as NumPy's sums
//
// In the distances, x is a row of X minus `mean`; the mean is zero if X is already centered. own_distances and
// column_moments read X of any dtype and convert it to `Work`, the working type. kVectors selects vector loads of up to
// 16 bytes; rows must then be aligned to vectors and consist of whole vectors.
//
// Why it is fast: each kernel reads its input once, coalesced. No kernel uses atomics, so results have the same bits on
// every run.
#pragma once
#include "kernels/device/vector_load.cuh"
#include "kernels/ptx/dependent_launch.cuh"
#include "apps/kmeans/data/stopped.cuh"

#define FULL_WARP 0xffffffffu

// Number of elements of T that a lane reads at a time.
template <typename T, bool kVectors>
constexpr int kPassWide = kVectors ? (sizeof(T) == 8 ? 2 : 4) : 1;

// Number of rows that a group of 2^log2_lanes lanes processes together in own_distances. These rows are `together` rows
// apart.
#define ROWS_TOGETHER 4

// If `stopped` is not null, the launch does nothing unless empty clusters are to be relocated (stopped.cuh).
template <typename T, typename Work, bool kVectors, typename Label = int>
__global__ void __launch_bounds__(256, 2)
    own_distances(const T* X, const Work* mean, const Work* centers, const Label* labels, long long rows, int d,
                  int log2_lanes, Work* distances, const int* stopped) {
  ptx::griddepcontrol_wait();
  if (stopped != nullptr && kmeans::clusters_to_relocate(*stopped) == 0) return;
  constexpr int kWide = kPassWide<T, kVectors>;
  using P = simt::Vector<Work, kWide>;
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long together = gridDim.x * (long long)blockDim.x >> log2_lanes, first = thread >> log2_lanes;
  const int lanes = 1 << log2_lanes, lane = (int)thread & (lanes - 1);
  const T* x[ROWS_TOGETHER];
  const Work* center[ROWS_TOGETHER];
  double sum[ROWS_TOGETHER] = {};
#pragma unroll
  for (int r = 0; r < ROWS_TOGETHER; ++r) {
    const long long row = first + r * together < rows ? first + r * together : rows - 1;
    x[r] = X + row * d;
    center[r] = centers + (long long)labels[row] * d;
  }
  for (int j = kWide * lane; j < d; j += kWide * lanes) {
    const P of_mean = *reinterpret_cast<const P*>(mean + j);
    kmeans::Packed<T, kWide> value[ROWS_TOGETHER];
    P of_center[ROWS_TOGETHER];
#pragma unroll
    for (int r = 0; r < ROWS_TOGETHER; ++r) {
      value[r].load(x[r] + j);
      of_center[r] = *reinterpret_cast<const P*>(center[r] + j);
    }
#pragma unroll
    for (int r = 0; r < ROWS_TOGETHER; ++r) {
      const auto elements = value[r].elements();
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const Work element = (Work)tsm2::Element<T>::value(elements.at[i]);
        const double delta = (double)(element - of_mean.at[i]) - (double)of_center[r].at[i];
        sum[r] += delta * delta;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS_TOGETHER; ++r) {
    for (int offset = lanes / 2; offset > 0; offset /= 2) sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], offset);
    if (lane == 0 && first + r * together < rows) distances[first + r * together] = (Work)sum[r];
  }
}

#define POINTS 8

// Computes ‖x − p‖² for the first `count` of the points (POINTS × d); the other points are zero. Points are stored as
// doubles, because conversion costs more than the arithmetic. `distances` has one row per point; rows are `stride`
// numbers apart. A row of X is split among 2^log2_lanes lanes.
template <typename T>
__global__ void point_distances(const T* X, const T* mean, const double* points, int count, long long rows, int d,
                                int log2_lanes, long long stride, T* distances) {
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const int lanes = 1 << log2_lanes, lane = (int)thread & (lanes - 1);
  const bool present = thread >> log2_lanes < rows;
  const long long row = present ? thread >> log2_lanes : rows - 1;
  double sums[POINTS] = {};
  for (int j = lane; j < d; j += lanes) {
    const double x = (double)(X[row * d + j] - mean[j]);
#pragma unroll
    for (int p = 0; p < POINTS; ++p) {
      const double delta = x - points[p * d + j];
      sums[p] += delta * delta;
    }
  }
#pragma unroll
  for (int p = 0; p < POINTS; ++p) {
    for (int offset = lanes / 2; offset > 0; offset /= 2) sums[p] += __shfl_xor_sync(FULL_WARP, sums[p], offset);
    if (present && lane == 0 && p < count) distances[p * stride + row] = (T)sums[p];
  }
}

// Writes the moments of the columns over each chunk of `chunk` consecutive rows: row g of `sums`, `squares` and
// `largest`, each gridDim.y × d, has those of chunk g; the last chunk may have fewer rows. Block (f, g) of 256 threads
// sums the columns from f·blockDim.x·kWide on, kWide columns per thread. A thread adds up every blockDim.y-th row of
// the chunk from row threadIdx.y on. So the bits of a chunk's moments depend on its rows and on blockDim.y, but neither
// on other rows nor on kVectors.
//
// Why it is fast: a thread loads the next rows before it adds up the current rows. It converts each element to double
// only once, because a multiprocessor makes 16 such conversions per clock. x − o is computed in `Work`, which is as
// exact as x itself.
template <typename T, typename Work, bool kVectors>
__global__ void __launch_bounds__(256, 3) column_moments(const T* X, const Work* origin, long long rows, int d,
                                                         int chunk, double* sums, double* squares, double* largest) {
  // kTogether is the number of rows that a thread loads at a time; it is larger for 16-bit elements.
  constexpr int kWide = kPassWide<T, kVectors>, kTogether = sizeof(T) == 2 ? 6 : 4;
  using P = kmeans::Packed<T, kWide>;
  __shared__ double partial[3][256];
  const int feature = (blockIdx.x * blockDim.x + threadIdx.x) * kWide;
  double sum[kWide] = {}, square[kWide] = {};
  Work most[kWide] = {};
  const long long begin = (long long)blockIdx.y * chunk;
  const int count = rows - begin < chunk ? (int)(rows - begin) : chunk, step = blockDim.y;
  const T* const of_chunk = X + begin * d + feature;
  int row = threadIdx.y;
  if (feature < d && row < count) {
    Work about[kWide];
#pragma unroll
    for (int i = 0; i < kWide; ++i) about[i] = origin[feature + i];
    P now[kTogether], next[kTogether];
    // For a row past the end of the chunk, row `first` is read instead, and its values are not added.
    const auto read = [&](P(&value)[kTogether], int first) {
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
        const long long here = first + r * step < count ? first + r * step : first;
        value[r].load(of_chunk + here * d);
      }
    };
    read(now, row);
    while (row < count) {
      const int later = row + kTogether * step;
      // The load is unconditional: the compiler would move a conditional load behind independent code.
      read(next, later < count ? later : row);
#pragma unroll
      for (int r = 0; r < kTogether; ++r) {
        const bool present = row + r * step < count;
        const auto elements = now[r].elements();
#pragma unroll
        for (int i = 0; i < kWide; ++i) {
          const Work element = (Work)tsm2::Element<T>::value(elements.at[i]);
          const Work delta = present ? element - about[i] : Work(0), size = delta < 0 ? -delta : delta;
          // The square of a float32 number is exact in double, so fusing it with the addition changes nothing.
          const double wide = (double)delta;
          sum[i] += wide;
          square[i] += sizeof(Work) < sizeof(double) ? wide * wide : simt::rounded_product(wide, wide);
          most[i] = size > most[i] ? size : most[i];
        }
        now[r] = next[r];
      }
      row = later;
    }
  }
  const int place = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kWide; ++i) {
    __syncthreads();
    partial[0][place] = sum[i];
    partial[1][place] = square[i];
    partial[2][place] = most[i];
    __syncthreads();
    if (threadIdx.y != 0 || feature >= d) continue;
    double greatest = most[i];
    for (int y = 1; y < (int)blockDim.y; ++y) {
      const int other = y * blockDim.x + threadIdx.x;
      sum[i] += partial[0][other];
      square[i] += partial[1][other];
      greatest = partial[2][other] > greatest ? partial[2][other] : greatest;
    }
    sums[(long long)blockIdx.y * d + feature + i] = sum[i];
    squares[(long long)blockIdx.y * d + feature + i] = square[i];
    largest[(long long)blockIdx.y * d + feature + i] = greatest;
  }
}

// Number of columns per block, and number of threads among which the partial results of a column are split.
#define FOLD_COLUMNS 8
#define FOLD_ROWS 128

// Reduces the results of column_moments over all chunks of X. `parts` (3 × chunks × d) has sums, squares and maxima;
// blocks (f, p) of all f reduce part p, and write row p of `totals` (3 × d). The order depends on the number of chunks
// only, so the totals have the same bits however the chunks are distributed over launches of column_moments.
//
// Why it is fast: the time is that of a chain of loads. So each thread has eight loads in flight, and many threads
// share a column; eight columns are two sectors of 32 bytes.
__global__ void __launch_bounds__(FOLD_COLUMNS* FOLD_ROWS)
    fold_moments(const double* parts, int chunks, int d, double* totals) {
  __shared__ double partial[FOLD_ROWS][FOLD_COLUMNS];
  const int column = blockIdx.x * FOLD_COLUMNS + threadIdx.x;
  const bool maxima = blockIdx.y == 2;
  const auto take = [&](double& to, double other) { to = !maxima ? to + other : other > to ? other : to; };
  const double* part = parts + (long long)blockIdx.y * chunks * d + column;
  double mine = 0;
#pragma unroll 8
  for (int chunk = threadIdx.y; chunk < chunks && column < d; chunk += FOLD_ROWS)
    take(mine, part[(long long)chunk * d]);
  partial[threadIdx.y][threadIdx.x] = mine;
  __syncthreads();
  if (threadIdx.y != 0 || column >= d) return;
  for (int y = 1; y < FOLD_ROWS; ++y) take(mine, partial[y][threadIdx.x]);
  totals[(long long)blockIdx.y * d + column] = mine;
}

// Sums of the columns in the input type, one row after the other: Σ x, or with kSquares Σ (x − about)². One thread sums
// a column.
//
// Why it is fast: kAhead rows are in flight while the kAhead rows before them are added up. The kernel reads X once;
// NumPy reads X once for a mean, but four times for a variance.
template <typename Work, bool kSquares>
__global__ void __launch_bounds__(32)
    add_in_order(const Work* X, const Work* about, long long rows, int d, Work* sums) {
  constexpr int kAhead = 256 / (int)sizeof(Work);
  const int column = blockIdx.x * 32 + threadIdx.x;
  if (column >= d) return;
  const Work middle = kSquares ? about[column] : Work(0);
  const auto term = [&](Work x) { return kSquares ? simt::rounded_product(x - middle, x - middle) : x; };
  const Work* x = X + column;
  Work sum = term(*x), now[kAhead], next[kAhead];
  const auto load = [&](Work(&to)[kAhead], long long row) {
#pragma unroll
    for (int r = 0; r < kAhead; ++r) to[r] = x[(row + r) * d];
  };
  long long row = 1;
  if (row + kAhead <= rows) load(next, row);
  for (; row + kAhead <= rows; row += kAhead) {
#pragma unroll
    for (int r = 0; r < kAhead; ++r) now[r] = next[r];
    if (row + 2 * kAhead <= rows) load(next, row + kAhead);
#pragma unroll
    for (int r = 0; r < kAhead; ++r) sum += term(now[r]);
  }
  for (; row < rows; ++row) sum += term(x[row * d]);
  sums[column] = sum;
}
