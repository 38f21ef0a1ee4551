// Products of a matrix with a vector along its rows or its columns: the checksums of protected modules.
//
//   row_products      M (rows × columns), u (columns)  →  Σ_j M_ij u_j, and √(Σ_j (M_ij u_j)²)
//   column_products   M (rows × columns), u (rows)     →  Σ_i u_i M_ij, and √(Σ_i (u_i M_ij)²) or Σ_i M_ij
//
// M is row-major with any distance between rows, and has 16-, 32- or 64-bit elements. Sums of 16-bit types are float,
// others double.
//
// Why it is fast: M is read once, 16 bytes per load, with eight loads of a thread in flight. A block of row_products is
// one warp with a row. A warp of column_products has 32 neighboring vectors of columns and keeps their sums in
// registers. Blocks share the rows; their partial sums are added in a fixed order by add_parts, so that results have
// the same bits on every run.
#pragma once
#include "apps/abft/product/row_checksums.cuh"

namespace abft {

// The type of checksums of a matrix with elements T.
template <typename T>
struct Checksum {
  using Type = double;
};
template <>
struct Checksum<ptx::Half> {
  using Type = float;
};
template <>
struct Checksum<ptx::Bfloat16> {
  using Type = float;
};

constexpr int kLineThreads = 32;     // of a block of row_products
constexpr int kColumnThreads = 256;  // of a block of column_products
constexpr int kPartThreads = 256;    // of a block of add_parts
constexpr int kVectorBytes = 16;

// A row-major matrix; `row_stride` counts elements.
template <typename T>
struct Rows {
  const T* data;
  long long row_stride, rows, columns;

  __device__ __forceinline__ const T* row(long long i) const { return data + i * row_stride; }
  // True if every row consists of aligned vectors, except for its last few elements.
  __device__ __forceinline__ bool is_aligned() const {
    return ((unsigned long long)data | (unsigned long long)(row_stride * (long long)sizeof(T))) % kVectorBytes == 0;
  }
};

template <typename T>
__device__ __forceinline__ typename Checksum<T>::Type summand(T x) {
  return (typename Checksum<T>::Type)tsm2::Element<T>::value(x);
}

// Adds a product to a sum, and its square to another if kSquares. If kNegative, it is subtracted.
template <bool kSquares, bool kNegative, typename T, typename Sum>
__device__ __forceinline__ void add_product(T element, Sum weight, Sum& sum, Sum& square) {
  if constexpr (kSquares) {
    const Sum product = summand(element) * weight;
    sum += product;
    square = fma(product, product, square);
  } else {
    sum = fma(summand(element), kNegative ? -weight : weight, sum);
  }
}

// Adds the products of vector i of kRows rows, which was loaded, with the weights u to this thread's sums.
template <bool kSquares, bool kNegative, typename T, typename Sum, int kRows>
__device__ __forceinline__ void add_vectors(const uint4 (&loaded)[kRows], const Sum* u, int i, Sum (&sum)[kRows],
                                            Sum (&square)[kRows]) {
  constexpr int kWide = kVectorBytes / (int)sizeof(T);
  const auto weights = *reinterpret_cast<const simt::Vector<Sum, kWide>*>(u + i * kWide);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const auto elements = simt::bits_of<simt::Vector<T, kWide>>(loaded[r]);
#pragma unroll
    for (int e = 0; e < kWide; ++e) add_product<kSquares, kNegative>(elements[e], weights[e], sum[r], square[r]);
  }
}

template <typename T, int kRows>
__device__ __forceinline__ void load_vectors(const T* const (&rows)[kRows], int i, uint4 (&loaded)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) loaded[r] = __ldcg(reinterpret_cast<const uint4*>(rows[r]) + i);
}

// Adds the products of kRows rows with the vector u to this thread's sums. The threads of a block share each row.
template <int kThreads, bool kSquares, bool kNegative, typename T, typename Sum, int kRows>
__device__ __forceinline__ void add_row_products(const T* const (&rows)[kRows], int columns, bool aligned, const Sum* u,
                                                 Sum (&sum)[kRows], Sum (&square)[kRows]) {
  constexpr int kWide = kVectorBytes / (int)sizeof(T);
  [[maybe_unused]] constexpr int kSteps = 8 / kRows;  // of eight loads
  const int vectors = aligned ? columns / kWide : 0;
#pragma unroll kSteps
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    uint4 loaded[kRows];
    load_vectors(rows, i, loaded);
    add_vectors<kSquares, kNegative, T>(loaded, u, i, sum, square);
  }
#pragma unroll 1
  for (int j = vectors * kWide + threadIdx.x; j < columns; j += kThreads)
#pragma unroll
    for (int r = 0; r < kRows; ++r) add_product<kSquares, kNegative>(rows[r][j], u[j], sum[r], square[r]);
}

// One block per row: writes the product of the row with u to `sums`, and the root of the sum of squared products to
// `roots`.
template <typename T>
__global__ void __launch_bounds__(kLineThreads)
    row_products(Rows<T> matrix, const typename Checksum<T>::Type* u, typename Checksum<T>::Type* sums,
                 typename Checksum<T>::Type* roots) {
  using Sum = typename Checksum<T>::Type;
  const T* const rows[1] = {matrix.row(blockIdx.x)};
  Sum sum[1] = {}, square[1] = {};
  add_row_products<kLineThreads, true, false>(rows, (int)matrix.columns, matrix.is_aligned(), u, sum, square);
  sum[0] = simt::warp_sum(sum[0]), square[0] = simt::warp_sum(square[0]);
  if (threadIdx.x != 0) return;
  sums[blockIdx.x] = sum[0];
  roots[blockIdx.x] = sqrt(square[0]);
}

// Block (x, y) adds the rows of part y of gridDim.y parts, in columns from x · 32 · kWide on. Writes partial sums to
// `parts`, an array (2, gridDim.y, columns): Σ u M first, then Σ (u M)² if kSquares, else Σ M.
template <typename T, bool kSquares>
__global__ void __launch_bounds__(kColumnThreads)
    column_products(Rows<T> matrix, const typename Checksum<T>::Type* u, typename Checksum<T>::Type* parts) {
  using Sum = typename Checksum<T>::Type;
  constexpr int kWide = kVectorBytes / (int)sizeof(T), kWarps = kColumnThreads / 32, kUnrolled = 8;
  constexpr int kWidth = 32 * kWide;  // columns of a block
  __shared__ Sum of_warps[kWarps][kWidth];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const long long column = (long long)blockIdx.x * kWidth + lane * kWide, left = matrix.columns - column;
  const long long size = (matrix.rows + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * size,
                  end = begin + size < matrix.rows ? begin + size : matrix.rows;
  const bool whole = matrix.is_aligned() && left >= kWide;
  Sum total[2][kWide] = {};
  for (long long first = begin + warp; first < end; first += kWarps * kUnrolled) {
    simt::Vector<T, kWide> elements[kUnrolled] = {};
    Sum weights[kUnrolled] = {};
#pragma unroll
    for (int r = 0; r < kUnrolled; ++r) {
      const long long i = first + r * kWarps;
      if (i >= end) continue;
      weights[r] = u[i];
      const T* at = matrix.row(i) + column;
      if (whole) {
        elements[r] = simt::bits_of<simt::Vector<T, kWide>>(__ldcg(reinterpret_cast<const uint4*>(at)));
      } else {
#pragma unroll
        for (int e = 0; e < kWide; ++e)
          if (e < left) elements[r][e] = at[e];
      }
    }
#pragma unroll
    for (int r = 0; r < kUnrolled; ++r)
#pragma unroll
      for (int e = 0; e < kWide; ++e) {
        const Sum element = summand(elements[r][e]), product = element * weights[r];
        total[0][e] += product;
        total[1][e] = kSquares ? fma(product, product, total[1][e]) : total[1][e] + element;
      }
  }
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    __syncthreads();  // the previous content of of_warps has been read
#pragma unroll
    for (int e = 0; e < kWide; ++e) of_warps[warp][lane * kWide + e] = total[which][e];
    __syncthreads();
    for (int j = threadIdx.x; j < kWidth; j += kColumnThreads) {
      const long long place = (long long)blockIdx.x * kWidth + j;
      if (place >= matrix.columns) continue;
      Sum sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += of_warps[w][j];
      parts[(which * (long long)gridDim.y + blockIdx.y) * matrix.columns + place] = sum;
    }
  }
}

// Adds the partial sums of column_products. Writes Σ u M to `sums`; the second sum's root to `roots`, or that sum,
// rounded to T, to `totals`. `roots` and `totals` may be null.
template <typename T>
__global__ void __launch_bounds__(kPartThreads)
    add_parts(const typename Checksum<T>::Type* parts, long long n_parts, long long columns,
              typename Checksum<T>::Type* sums, typename Checksum<T>::Type* roots, T* totals) {
  const long long column = (long long)blockIdx.x * kPartThreads + threadIdx.x;
  if (column >= columns) return;
  double sum[2] = {};
#pragma unroll 8
  for (long long part = 0; part < n_parts; ++part)
#pragma unroll
    for (int which = 0; which < 2; ++which) sum[which] += parts[(which * n_parts + part) * columns + column];
  sums[column] = (typename Checksum<T>::Type)sum[0];
  if (roots != nullptr) roots[column] = (typename Checksum<T>::Type)sqrt(sum[1]);
  if (totals != nullptr) totals[column] = tsm2::Element<T>::from((typename Checksum<T>::Type)sum[1]);
}

}  // namespace abft
