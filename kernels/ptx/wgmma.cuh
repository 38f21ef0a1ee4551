// wgmma: asynchronous matrix multiply-accumulate of a warpgroup, four warps of a Hopper multiprocessor (sm_90a).
#pragma once
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/register_lists.cuh"

namespace ptx {

// wgmma ─ starts d (64 × 8·blocks) += A · B, or d = A · B with `clears`. All four warps of a warpgroup issue it; it
// does not wait for the product. A is 64 × 8 of tf32 or 64 × 16 of 16-bit elements. Each warp holds 16 rows of A in
// registers, as a fragment of mma m16n8k8 or m16n8k16; d[j] is the warp's fragment of columns 8·j to 8·j + 7.
//
// B lies in shared memory, aligned to 16 bytes, with 256 bytes per 8 columns. Within these 256 bytes, word i of lane l
// of B's fragment (mma.cuh) is at byte 4·(32·i + l).
//
// Order of operations:
//   1. Call wgmma_fence for the registers of A, and of d if the thread wrote them, before the first wgmma that uses
//      them.
//   2. If threads wrote B by ordinary stores, they call async_fence and then a barrier before a wgmma reads B.
//   3. wgmma_commit closes a group of products. wgmma_wait returns when all groups except the `pending` latest groups
//      have completed. Until a group has completed, no thread may read the d or overwrite the B of this group.
//
// matrix_at returns the descriptor of a matrix in shared memory. matrix_after returns the descriptor of the matrix that
// begins `bytes` bytes after another one: adding to a descriptor is cheaper than converting a pointer for each product.
// An A of 16-bit elements may also lie in shared memory, in the layout of B and with its own descriptor. Then d has up
// to 64 columns, or 256; for float16, it may also have 72 to 128, 152, 176 or 200. With A in registers, d has up to
// 128.
//
// swizzled_matrix_at is for matrices of 16-bit elements whose rows or columns lie in shared memory as tensor copies
// write them: 64 elements of each, swizzled (tensor_copy.cuh). The matrices at 32, 64 and 96 bytes after it are those
// of the elements from 16, 32 and 48 on.
template <typename T>
inline constexpr bool is_half = false;
template <>
inline constexpr bool is_half<Half> = true;

// computed_here makes the compiler compute a number before the next of these instructions. If the number depends on d,
// the compiler might otherwise copy d, to compute the number after a later product has begun to overwrite d.
#if defined(TSA_HOST)

inline void computed_here(unsigned&) {}
inline void async_fence() {}
template <int parts, int pairs>
inline void wgmma_fence(unsigned (&)[parts][pairs][4]) {}
inline void wgmma_commit() { cuda_host::commit_work(); }
template <int pending, int blocks>
inline void wgmma_wait(float (&)[blocks][4]) {
  cuda_host::wait_for_work(pending);
}
template <int pending>
inline void wgmma_wait() {
  cuda_host::wait_for_work(pending);
}

template <bool clears, typename T, int blocks>
inline void wgmma(float (&d)[blocks][4], const unsigned (&a)[4], const void* b) {
  cuda_host::check_aligned(b, 16, "wgmma");
  struct {
    float (*d)[4];
    unsigned a[4];
    const unsigned* b;
  } work = {d, {a[0], a[1], a[2], a[3]}, static_cast<const unsigned*>(b)};
  cuda_host::begin_work([=] {
    for (int j = 0; j < blocks; ++j) {
      float (&sums)[4] = work.d[j];
      if (clears) sums[0] = sums[1] = sums[2] = sums[3] = 0;
      const unsigned words[2] = {work.b[64 * j + cuda_host::here.lane], work.b[64 * j + 32 + cuda_host::here.lane]};
      if constexpr (sizeof(T) == 2) {
        if constexpr (is_half<T>) {
          mma_m16n8k16_f16(sums, work.a, words);
        } else {
          mma_m16n8k16_bf16(sums, work.a, words);
        }
      } else {
        float x[4], y[2];
        memcpy(x, work.a, sizeof x);
        memcpy(y, words, sizeof y);
        mma_m16n8k8(sums, x, y);
      }
    }
  });
}

struct SharedMatrix {
  const unsigned char* at;
  bool is_swizzled;

  // The bits of element `k` of a row or column of the matrix.
  unsigned short element(int row, int k) const {
    if (!is_swizzled) {
      return reinterpret_cast<const unsigned short*>(at)[row / 8 * 128 + k / 8 * 64 + row % 8 * 8 + k % 8];
    }
    const uintptr_t place = reinterpret_cast<uintptr_t>(at) + row / 8 * 1024 + row % 8 * 128 + 2 * k;
    return *reinterpret_cast<const unsigned short*>(place ^ (place >> 7 & 7) << 4);
  }
};
inline SharedMatrix matrix_at(const void* shared) { return {static_cast<const unsigned char*>(shared), false}; }
inline SharedMatrix swizzled_matrix_at(const void* shared) {
  cuda_host::check_aligned(shared, 1024, "wgmma");
  return {static_cast<const unsigned char*>(shared), true};
}
inline SharedMatrix matrix_after(const SharedMatrix& matrix, int bytes) {
  return {matrix.at + bytes, matrix.is_swizzled};
}

template <bool clears, typename T, int blocks>
inline void wgmma(float (&d)[blocks][4], const unsigned (&a)[4], const SharedMatrix& b) {
  wgmma<clears, T>(d, a, static_cast<const void*>(b.at));
}
template <bool clears, typename T = Half, int blocks>
inline void wgmma(float (&d)[blocks][4], const SharedMatrix& a, const SharedMatrix& b) {
  cuda_host::check_aligned(a.at, 16, "wgmma");
  cuda_host::check_aligned(b.at, 16, "wgmma");
  struct {
    float (*d)[4];
    SharedMatrix a, b;
    int warp, lane;
  } work = {d, a, b, (int)cuda_host::here.thread_index.x / 32 % 4, cuda_host::here.lane};
  cuda_host::begin_work([=] {
    for (int i = 0; i < 4 * blocks; ++i) {
      const int row = 16 * work.warp + work.lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + work.lane % 4 * 2 + i % 2;
      float x[16], y[16];
      for (int k = 0; k < 16; ++k)
        x[k] = to_float(T{work.a.element(row, k)}), y[k] = to_float(T{work.b.element(column, k)});
      constexpr int kLeast = is_half<T> ? tensor::kLeastOfHalf : tensor::kLeastOfFloat;
      work.d[i / 4][i % 4] = sum_on_host<kLeast>(clears ? 0.0f : work.d[i / 4][i % 4], x, y);
    }
  });
}
template <int blocks>
inline void wgmma_fence(float (&)[blocks][4]) {}

#else

TSA_PTX void computed_here(unsigned& number) { asm volatile("" : "+r"(number)); }

// Orders this thread's accesses to shared memory before later accesses by the tensor cores and by bulk copies.
TSA_PTX void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
template <int parts, int pairs>
TSA_PTX void wgmma_fence(unsigned (&a)[parts][pairs][4]) {
  // The compiler does not know that the fence concerns registers. These empty statements keep writes to the registers
  // of A before the fence.
#pragma unroll
  for (int i = 0; i < 4 * parts * pairs; ++i) asm volatile("" : "+r"(a[i / 4 / pairs][i / 4 % pairs][i % 4])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int blocks>
TSA_PTX void wgmma_fence(float (&d)[blocks][4]) {
#pragma unroll
  for (int i = 0; i < 4 * blocks; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
TSA_PTX void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
TSA_PTX void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
template <int pending, int blocks>
TSA_PTX void wgmma_wait(float (&d)[blocks][4]) {
  wgmma_wait<pending>();
  // The compiler does not know that products write d. These empty statements keep reads of d after the wait.
#pragma unroll
  for (int i = 0; i < 4 * blocks; ++i) asm volatile("" : "+f"(d[i / 4][i % 4])::"memory");
}

// `rest` lists the operands after d: A, the descriptor of B, and the flag that selects d += A · B instead of d = A · B.
// For 16-bit types, the last 0 means that B is not transposed.
#define TSA_WGMMA(blocks, n, rest)                                                                                    \
  if constexpr (sizeof(T) == 4)                                                                                       \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k8.f32.tf32.tf32 {" TSA_NAMES_##blocks "}, " rest ", 1, 1;"   \
                 : TSA_SUMS_##blocks                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from), "n"(!clears));                              \
  else if constexpr (is_half<T>)                                                                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 {" TSA_NAMES_##blocks "}, " rest ", 1, 1, 0;" \
                 : TSA_SUMS_##blocks                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from), "n"(!clears));                              \
  else                                                                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" TSA_NAMES_##blocks "}, " rest            \
                                                                                                ", 1, 1, 0;"          \
                 : TSA_SUMS_##blocks                                                                                  \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(from), "n"(!clears))

// Matrix descriptor. Its fields are in units of 16 bytes: the start address, the distance from word 0 of a fragment to
// word 1 (128 bytes), and the distance from 8 columns or rows to the next 8 (256 bytes).
TSA_PTX unsigned long long matrix_at(const void* shared) {
  return ((unsigned)__cvta_generic_to_shared(shared) & 0x3ffffu) >> 4 | 8ull << 16 | 16ull << 32;
}

// Of a swizzled matrix: 1024 bytes from 8 columns or rows to the next 8, and the kind of swizzle.
TSA_PTX unsigned long long swizzled_matrix_at(const void* shared) {
  return ((unsigned)__cvta_generic_to_shared(shared) & 0x3ffffu) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

TSA_PTX unsigned long long matrix_after(unsigned long long matrix, int bytes) { return matrix + (bytes >> 4); }

template <bool clears, typename T, int blocks>
TSA_PTX void wgmma(float (&d)[blocks][4], const unsigned (&a)[4], unsigned long long from) {
  static_assert(1 <= blocks && blocks <= 16, "8 to 128 columns");
  if constexpr (blocks == 1) {
    TSA_WGMMA(1, "8", "{%4, %5, %6, %7}, %8, %9");
  } else if constexpr (blocks == 2) {
    TSA_WGMMA(2, "16", "{%8, %9, %10, %11}, %12, %13");
  } else if constexpr (blocks == 3) {
    TSA_WGMMA(3, "24", "{%12, %13, %14, %15}, %16, %17");
  } else if constexpr (blocks == 4) {
    TSA_WGMMA(4, "32", "{%16, %17, %18, %19}, %20, %21");
  } else if constexpr (blocks == 5) {
    TSA_WGMMA(5, "40", "{%20, %21, %22, %23}, %24, %25");
  } else if constexpr (blocks == 6) {
    TSA_WGMMA(6, "48", "{%24, %25, %26, %27}, %28, %29");
  } else if constexpr (blocks == 7) {
    TSA_WGMMA(7, "56", "{%28, %29, %30, %31}, %32, %33");
  } else if constexpr (blocks == 8) {
    TSA_WGMMA(8, "64", "{%32, %33, %34, %35}, %36, %37");
  } else if constexpr (blocks == 9) {
    TSA_WGMMA(9, "72", "{%36, %37, %38, %39}, %40, %41");
  } else if constexpr (blocks == 10) {
    TSA_WGMMA(10, "80", "{%40, %41, %42, %43}, %44, %45");
  } else if constexpr (blocks == 11) {
    TSA_WGMMA(11, "88", "{%44, %45, %46, %47}, %48, %49");
  } else if constexpr (blocks == 12) {
    TSA_WGMMA(12, "96", "{%48, %49, %50, %51}, %52, %53");
  } else if constexpr (blocks == 13) {
    TSA_WGMMA(13, "104", "{%52, %53, %54, %55}, %56, %57");
  } else if constexpr (blocks == 14) {
    TSA_WGMMA(14, "112", "{%56, %57, %58, %59}, %60, %61");
  } else if constexpr (blocks == 15) {
    TSA_WGMMA(15, "120", "{%60, %61, %62, %63}, %64, %65");
  } else {
    TSA_WGMMA(16, "128", "{%64, %65, %66, %67}, %68, %69");
  }
}

template <bool clears, typename T, int blocks>
TSA_PTX void wgmma(float (&d)[blocks][4], const unsigned (&a)[4], const void* b) {
  wgmma<clears, T>(d, a, matrix_at(b));
}

#define TSA_SHARED_WGMMA(blocks, n, rest)                                                                       \
  if constexpr (is_half<T>)                                                                                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 {" TSA_NAMES_##blocks "}, " rest        \
                                                                                              ", 1, 1, 0, 0;"   \
                 : TSA_SUMS_##blocks                                                                            \
                 : "l"(a), "l"(b), "n"(!clears));                                                               \
  else                                                                                                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" TSA_NAMES_##blocks "}, " rest      \
                                                                                                ", 1, 1, 0, 0;" \
                 : TSA_SUMS_##blocks                                                                            \
                 : "l"(a), "l"(b), "n"(!clears))

template <bool clears, typename T = Half, int blocks>
TSA_PTX void wgmma(float (&d)[blocks][4], unsigned long long a, unsigned long long b) {
  static_assert(blocks <= 8 || blocks == 32 || (is_half<T> && (blocks <= 16 || (blocks % 3 == 1 && blocks <= 25))),
                "8 to 64 columns, or 256; of halves 8 to 128, 152, 176 or 200");
  if constexpr (blocks == 1) {
    TSA_SHARED_WGMMA(1, "8", "%4, %5, %6");
  } else if constexpr (blocks == 2) {
    TSA_SHARED_WGMMA(2, "16", "%8, %9, %10");
  } else if constexpr (blocks == 3) {
    TSA_SHARED_WGMMA(3, "24", "%12, %13, %14");
  } else if constexpr (blocks == 4) {
    TSA_SHARED_WGMMA(4, "32", "%16, %17, %18");
  } else if constexpr (blocks == 5) {
    TSA_SHARED_WGMMA(5, "40", "%20, %21, %22");
  } else if constexpr (blocks == 6) {
    TSA_SHARED_WGMMA(6, "48", "%24, %25, %26");
  } else if constexpr (blocks == 7) {
    TSA_SHARED_WGMMA(7, "56", "%28, %29, %30");
  } else if constexpr (blocks == 8) {
    TSA_SHARED_WGMMA(8, "64", "%32, %33, %34");
  } else if constexpr (blocks == 9) {
    TSA_SHARED_WGMMA(9, "72", "%36, %37, %38");
  } else if constexpr (blocks == 10) {
    TSA_SHARED_WGMMA(10, "80", "%40, %41, %42");
  } else if constexpr (blocks == 11) {
    TSA_SHARED_WGMMA(11, "88", "%44, %45, %46");
  } else if constexpr (blocks == 12) {
    TSA_SHARED_WGMMA(12, "96", "%48, %49, %50");
  } else if constexpr (blocks == 13) {
    TSA_SHARED_WGMMA(13, "104", "%52, %53, %54");
  } else if constexpr (blocks == 14) {
    TSA_SHARED_WGMMA(14, "112", "%56, %57, %58");
  } else if constexpr (blocks == 15) {
    TSA_SHARED_WGMMA(15, "120", "%60, %61, %62");
  } else if constexpr (blocks == 16) {
    TSA_SHARED_WGMMA(16, "128", "%64, %65, %66");
  } else if constexpr (blocks == 19) {
    TSA_SHARED_WGMMA(19, "152", "%76, %77, %78");
  } else if constexpr (blocks == 22) {
    TSA_SHARED_WGMMA(22, "176", "%88, %89, %90");
  } else if constexpr (blocks == 25) {
    TSA_SHARED_WGMMA(25, "200", "%100, %101, %102");
  } else {
    TSA_SHARED_WGMMA(32, "256", "%128, %129, %130");
  }
}

#endif

}  // namespace ptx
