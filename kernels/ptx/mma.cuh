// mma: matrix multiply-accumulate of a warp on the tensor cores.
//
// Fragment layout of the PTX ISA, with g = lane / 4 and t = lane % 4:
//
//              A (M × K), row-major                 B (K × 8)            C and D (M × 8), M = 8 or 16
//   f64, tf32  a[i]: row g + 8·(i % (M / 8)),       b[i]: row t + 4·i,   d[i]: row g + 8·(i / 2),
//              column t + 4·(i / (M / 8))           column g             column 2·t + i % 2
//   b16 pairs  a[i]: row g + 8·(i % 2), columns     b[i]: rows 2·t + 8·i the same
//              2·t + 8·(i / 2) and the next         and the next, col. g
//   bytes      a[i]: row g + 8·(i % 2), the four    b[i]: the four rows  the same
//              columns from 4·t + 16·(i / 2) on     from 4·t + 16·i on
//
// The lowest bits of a register hold the first of its elements. All lanes of a warp take part.
#pragma once
#include "kernels/ptx/types.cuh"

#if defined(TSA_HOST)
#include "kernels/ptx/emulated_mma.cuh"
#endif

namespace ptx {

#if defined(TSA_HOST)

// d + Σ a·b with the rounding of the tensor cores. float64 products are added one after another, each with one
// rounding. Other types: emulated_mma.cuh.
template <int, int K>
inline double sum_on_host(double d, const double (&a)[K], const double (&b)[K]) {
  for (int k = 0; k < K; ++k) d = fma(a[k], b[k], d);
  return d;
}
template <int kLeast, int K>
inline float sum_on_host(float d, const float (&a)[K], const float (&b)[K]) {
  bool is_finite = d - d == 0;
  for (int k = 0; k < K; ++k) is_finite &= a[k] - a[k] == 0 && b[k] - b[k] == 0;
  if (is_finite) return tensor::sum<kLeast>(d, a, b);
  for (int k = 0; k < K; ++k) d += a[k] * b[k];
  return d;
}

template <int, int K>
inline int sum_on_host(int d, const int (&a)[K], const int (&b)[K]) {
  for (int k = 0; k < K; ++k) d += a[k] * b[k];
  return d;
}

// d += A·B for any shape of the table above. `of_a(register, i)` and `of_b(register, i)` extract the i-th element of a
// register, which holds `pack` elements along K.
template <int M, int K, int pack, int kLeast = tensor::kLeastOfFloat, typename T, typename R, int NA, int NB, int ND,
          typename OfA, typename OfB>
inline void mma_on_host(T (&d)[ND], const R (&a)[NA], const R (&b)[NB], OfA of_a, OfB of_b) {
  static_assert(NA * pack == M * K / 32 && NB * pack == 8 * K / 32 && ND == M * 8 / 32);
  struct Fragments {
    R a[NA], b[NB];
  } mine;
  memcpy(mine.a, a, sizeof a);
  memcpy(mine.b, b, sizeof b);
  const auto lanes = cuda_host::publish_to_warp(mine, "mma");
  const int g = cuda_host::here.lane / 4, t = cuda_host::here.lane % 4, step = 4 * pack;
  for (int i = 0; i < ND; ++i) {
    const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    T left[K], right[K];
    for (int k = 0; k < K; ++k) {
      left[k] = of_a(lanes[row % 8 * 4 + k % step / pack].a[row / 8 + M / 8 * (k / step)], k % pack);
      right[k] = of_b(lanes[column * 4 + k % step / pack].b[k / step], k % pack);
    }
    d[i] = sum_on_host<kLeast>(d[i], left, right);
  }
}
template <int M, int K, int pack, int kLeast = tensor::kLeastOfFloat, typename T, typename R, int NA, int NB, int ND,
          typename Element>
inline void mma_on_host(T (&d)[ND], const R (&a)[NA], const R (&b)[NB], Element element) {
  mma_on_host<M, K, pack, kLeast>(d, a, b, element, element);
}

#endif

// mma m16n8k8, tf32 ─ the tensor cores ignore the bits of a float below the 11 significant bits of tf32.
TSA_PTX void mma_m16n8k8(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
#if defined(TSA_HOST)
  mma_on_host<16, 8, 1>(d, a, b, [](float x, int) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); });
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
#endif
}

// mma m8n8k4, f64 (sm_80 and later). The three functions after mma_m8n8k4 are instructions from sm_90 on. Before, they
// consist of mma_m8n8k4, with the same roundings: products are added one after another.
TSA_PTX void mma_m8n8k4(double (&d)[2], const double (&a)[1], const double (&b)[1]) {
#if defined(TSA_HOST)
  mma_on_host<8, 4, 1>(d, a, b, [](double x, int) { return x; });
#else
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(d[0]), "+d"(d[1])
      : "d"(a[0]), "d"(b[0]));
#endif
}

template <int kSteps>
TSA_PTX void mma_m16_by_m8n8k4(double (&d)[4], const double (&a)[2 * kSteps], const double (&b)[kSteps]) {
#pragma unroll
  for (int rows = 0; rows < 2; ++rows) {
    double half[2] = {d[2 * rows], d[2 * rows + 1]};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const double left[1] = {a[2 * step + rows]}, right[1] = {b[step]};
      mma_m8n8k4(half, left, right);
    }
    d[2 * rows] = half[0], d[2 * rows + 1] = half[1];
  }
}

TSA_PTX void mma_m16n8k4(double (&d)[4], const double (&a)[2], const double (&b)[1]) {
#if defined(TSA_HOST)
  mma_on_host<16, 4, 1>(d, a, b, [](double x, int) { return x; });
#elif __CUDA_ARCH__ < 900
  mma_m16_by_m8n8k4(d, a, b);
#else
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(b[0]));
#endif
}

TSA_PTX void mma_m16n8k8(double (&d)[4], const double (&a)[4], const double (&b)[2]) {
#if defined(TSA_HOST)
  mma_on_host<16, 8, 1>(d, a, b, [](double x, int) { return x; });
#elif __CUDA_ARCH__ < 900
  mma_m16_by_m8n8k4(d, a, b);
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#endif
}

TSA_PTX void mma_m16n8k16(double (&d)[4], const double (&a)[8], const double (&b)[4]) {
#if defined(TSA_HOST)
  mma_on_host<16, 16, 1>(d, a, b, [](double x, int) { return x; });
#elif __CUDA_ARCH__ < 900
  mma_m16_by_m8n8k4(d, a, b);
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
        "d"(b[2]), "d"(b[3]));
#endif
}

// mma m16n8k16 ─ f16 and bf16 operands, float accumulators.
TSA_PTX void mma_m16n8k16_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(TSA_HOST)
  mma_on_host<16, 16, 2, tensor::kLeastOfHalf>(
      d, a, b, [](unsigned x, int half) { return cuda_host::half_value(x >> 16 * half & 0xffff); });
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// mma m16n8k8 ─ half as deep.
TSA_PTX void mma_m16n8k8_f16(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
#if defined(TSA_HOST)
  mma_on_host<16, 8, 2, tensor::kLeastOfHalf>(
      d, a, b, [](unsigned x, int half) { return cuda_host::half_value(x >> 16 * half & 0xffff); });
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
#endif
}

TSA_PTX void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(TSA_HOST)
  mma_on_host<16, 16, 2>(d, a, b,
                         [](unsigned x, int half) { return cuda_host::bfloat16_value(x >> 16 * half & 0xffff); });
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// mma m16n8k32 ─ unsigned bytes times signed bytes, with exact sums modulo 2³².
TSA_PTX void mma_m16n8k32_u8_s8(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if defined(TSA_HOST)
  mma_on_host<16, 32, 4>(
      d, a, b, [](unsigned x, int i) { return (int)(x >> 8 * i & 0xff); },
      [](unsigned x, int i) { return (int)(signed char)(x >> 8 * i & 0xff); });
#else
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

}  // namespace ptx
