// Fragments by element type: conversion of an operand's elements to fragment words, and the 16 × 8 tensor-core product.
//
//   Tensor<T>::Word        the content of one fragment register: one element, or two 16-bit elements that are
//                          consecutive along the depth
//   Tensor<T>::Sum         the accumulator type
//   Tensor<T>::Parts       a word split for multiplication: kParts values; bits(parts, i) is part i as a Register
//   Tensor<T>::multiply    one of the kSteps instructions of d (16 × 8) += a · b, where the depth of a and b is 2 words
//                          of four lanes; callers interleave the instructions of independent products
//
// With g = lane / 4 and t = lane % 4: a[i] holds word i / 2 of row g + 8·(i % 2), and b[i] word i of column g, both for
// lane t. Depths may be assigned to words in any way that is the same for A and B, because a sum may be added in any
// order.
//
// float is emulated by `kProducts` tf32 products (3xTF32). An element is the sum of tf32 parts, x = x₁ + x₂ (+ x₃),
// with 11 bits each; all parts but the last are rounded to nearest. Three products, x₁y₂ + x₂y₁ + x₁y₁, omit x₂y₂, at
// most 2⁻²² |xy|, and the bits of x and y below their second parts, again at most 2⁻²² |xy|. Six products omit less
// than 2⁻³¹ |xy|. Tensor cores truncate as they add. Therefore the tensor cores accumulate only over an interval of the
// depth, and rounded float additions combine the sums of the intervals.
#pragma once
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/types.cuh"

template <typename T, int kProducts>
struct Tensor;

template <int kProducts>
struct Tensor<double, kProducts> {
  using Word = double;
  using Sum = double;
  using Parts = double;
  using Register = double;
  static constexpr bool kRounds = true;
  static constexpr int kParts = 1, kSteps = 1;

  static __device__ Parts parts(Word word) { return word; }
  static __device__ Register bits(Parts parts, int) { return parts; }
  static __device__ void multiply(int, Sum (&d)[4], const Parts (&a)[4], const Parts (&b)[2]) {
    ptx::mma_m16n8k8(d, a, b);
  }
};

template <int kProducts>
struct Tensor<float, kProducts> {
  static_assert(kProducts == 3 || kProducts == 6, "an element has two or three parts");
  static constexpr int kParts = kProducts / 3 + 1;
  using Word = float;
  using Sum = float;
  struct Parts {
    float at[kParts];
  };
  using Register = unsigned;
  static constexpr bool kRounds = false;
  static constexpr int kSteps = kProducts;

  static __device__ Parts parts(Word word) {
    Parts parts;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      // The last part may have more bits than tf32 has; the tensor cores ignore these bits.
      parts.at[i] = i + 1 < kParts ? nearest_tf32(word) : word;
      word -= parts.at[i];
    }
    return parts;
  }
  // Rounds to nearest by integer arithmetic. cvt.rna.tf32 would take two more instructions, which preserve every NaN.
  // Here the addition may overflow the bits of a NaN, but then the next part is a NaN.
  static __device__ float nearest_tf32(float x) {
    return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
  }

  static __device__ unsigned bits(const Parts& parts, int part) { return __float_as_uint(parts.at[part]); }

  // Instruction `step` multiplies part i = left(step) of a by part j = right(step) of b. The smallest products come
  // first: six instructions have i + j = 2, 2, 2, 1, 1, 0, and three instructions the last three of these.
  static __device__ constexpr int left(int step) {
    const int of_six = step + 6 - kProducts;
    return of_six == 1 || of_six == 4 ? 1 : of_six == 0 ? 2 : 0;
  }
  static __device__ constexpr int right(int step) {
    const int of_six = step + 6 - kProducts;
    return (of_six < 3 ? 2 : of_six < 5 ? 1 : 0) - left(step);
  }

  static __device__ void multiply(int step, Sum (&d)[4], const Parts (&a)[4], const Parts (&b)[2]) {
    const int i = left(step), j = right(step);
    const float x[4] = {a[0].at[i], a[1].at[i], a[2].at[i], a[3].at[i]}, y[2] = {b[0].at[j], b[1].at[j]};
    ptx::mma_m16n8k8(d, x, y);
  }
};

// 16-bit types: one instruction per product, float accumulators. A word holds two elements, the first in its lower 16
// bits.
template <typename T>
struct TensorOfHalf {
  using Word = unsigned;
  using Sum = float;
  using Parts = unsigned;
  using Register = unsigned;
  static constexpr bool kRounds = false;
  static constexpr int kParts = 1, kSteps = 1;

  static __device__ Parts parts(Word word) { return word; }
  static __device__ unsigned bits(Parts parts, int) { return parts; }
  static __device__ constexpr int left(int) { return 0; }
  static __device__ constexpr int right(int) { return 0; }
};

template <int kProducts>
struct Tensor<ptx::Half, kProducts> : TensorOfHalf<ptx::Half> {
  static __device__ void multiply(int, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_m16n8k16_f16(d, a, b);
  }
};

template <int kProducts>
struct Tensor<ptx::Bfloat16, kProducts> : TensorOfHalf<ptx::Bfloat16> {
  static __device__ void multiply(int, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    ptx::mma_m16n8k16_bf16(d, a, b);
  }
};
