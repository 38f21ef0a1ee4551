// The only file with inline PTX, but for bulk_copy.cuh and wgmma.cuh: one inline function an instruction. Each has two
// bodies: the instruction, and what it means in C++ (TSA_HOST), so that a kernel's own source runs on the CPU. Needs no
// header under NVRTC.
//
// Fragments of a matrix, as the PTX ISA deals them to the lanes of a warp; g = lane / 4, t = lane % 4:
//
//              A (M × K), row-major                 B (K × 8)            C and D (M × 8), M = 8 or 16
//   f64, tf32  a[i]: row g + 8·(i % (M / 8)),       b[i]: row t + 4·i,   d[i]: row g + 8·(i / 2),
//              column t + 4·(i / (M / 8))           column g             column 2·t + i % 2
//   b16 pairs  a[i]: row g + 8·(i % 2), columns     b[i]: rows 2·t + 8·i the same
//              2·t + 8·(i / 2) and the next         and the next, col. g
//
// The lower element of a pair is in the lower half of the register. All lanes of a warp take part in mma, ldmatrix and
// stmatrix.
#pragma once

#if defined(TSA_HOST)
#include "kernels/ptx/emulated_mma.cuh"
#define TSA_PTX inline
#else
#define TSA_PTX __device__ __forceinline__
#endif

namespace ptx {

// 16-bit floats: storage, and conversion from and to float, to nearest and ties to even.
struct Half {
  unsigned short bits;
};
struct Bfloat16 {
  unsigned short bits;
};

TSA_PTX Half to_half(float x) {
#if defined(TSA_HOST)
  return {cuda_host::half_bits(x)};
#else
  Half value;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value.bits) : "f"(x));
  return value;
#endif
}

TSA_PTX float to_float(Half x) {
#if defined(TSA_HOST)
  return cuda_host::half_value(x.bits);
#else
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
#endif
}

TSA_PTX Bfloat16 to_bfloat16(float x) {
#if defined(TSA_HOST)
  return {cuda_host::bfloat16_bits(x)};
#else
  Bfloat16 value;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(value.bits) : "f"(x));
  return value;
#endif
}

// The same of two, the first in the lower half.
TSA_PTX unsigned to_half_pair(float lower, float upper) {
#if defined(TSA_HOST)
  return to_half(lower).bits | (unsigned)to_half(upper).bits << 16;
#else
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
#endif
}

TSA_PTX unsigned to_bfloat16s(float lower, float upper) {
#if defined(TSA_HOST)
  return to_bfloat16(lower).bits | (unsigned)to_bfloat16(upper).bits << 16;
#else
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
#endif
}

TSA_PTX float to_float(Bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

// sqrt.approx ─ one instruction: off by 2⁻²³ of itself at most, and zero of what is below 2⁻¹²⁶.
TSA_PTX float square_root(float x) {
#if defined(TSA_HOST)
  return x < 1.17549435e-38f ? 0.0f : sqrtf(x);
#else
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
#endif
}

// 16 bytes, moved as one.
struct alignas(16) Quad {
  unsigned at[4];
};

// cp.async ─ from global to shared memory past the registers. `bytes` is 4, 8 or 16, and both addresses are multiples
// of it. The first `read` bytes are copied, and zeros after them: with 0, nothing is read. A copy has landed for this
// thread after cp_async_wait, and for others after a barrier that follows. The level-2 cache may be told to read all
// `around` bytes around, 128 or 256, for those who copy the rest soon.
template <int bytes, int around = 0>
TSA_PTX void cp_async(void* shared, const void* global, int read = bytes) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  static_assert(around == 0 || around == 128 || around == 256, "the level-2 cache reads 128 or 256 bytes around");
#if defined(TSA_HOST)
  cuda_host::copy_async(shared, global, read, bytes);
#else
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
  const unsigned long long from = (unsigned long long)__cvta_generic_to_global(global);
#define TSA_CP_ASYNC(kind) \
  asm volatile("cp.async." kind " [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(read), "n"(bytes) : "memory")
  if constexpr (bytes == 16) {  // past L1 as well
    if constexpr (around == 256) {
      TSA_CP_ASYNC("cg.shared.global.L2::256B");
    } else if constexpr (around == 128) {
      TSA_CP_ASYNC("cg.shared.global.L2::128B");
    } else {
      TSA_CP_ASYNC("cg.shared.global");
    }
  } else if constexpr (around == 256) {
    TSA_CP_ASYNC("ca.shared.global.L2::256B");
  } else if constexpr (around == 128) {
    TSA_CP_ASYNC("ca.shared.global.L2::128B");
  } else {
    TSA_CP_ASYNC("ca.shared.global");
  }
#undef TSA_CP_ASYNC
#endif
}

// ld.shared.s8 ─ a byte as an integer. (Of what C++ loads, a shift that is PTX asks for the sign once more.)
TSA_PTX int shared_byte(const signed char* at) {
#if defined(TSA_HOST)
  return *at;
#else
  int value;
  asm volatile("ld.shared.s8 %0, [%1];" : "=r"(value) : "r"((unsigned)__cvta_generic_to_shared(at)));
  return value;
#endif
}

// What follows leaves one of many out of a largest: seven predicates are set by one R2P, if the seven places of a mask
// are the lowest of a byte, and each then spares one `max`. (Comparing a number with each takes one more instruction
// for each.)
//
// spares ─ bit `one` − 1, for `one` of 1 … 31; below, none; above, the last.
TSA_PTX unsigned spares(int one) {
#if defined(TSA_HOST)
  return one == 0 ? 0 : (unsigned)one >= 32 ? 1u << 31 : 1u << (one - 1);
#else
  unsigned bits;
  asm("shf.l.clamp.b32 %0, %1, %2, %3;" : "=r"(bits) : "r"(1u << 31), "r"(0u), "r"(one));
  return bits;
#endif
}

// The largest of `most` and of each of seven numbers whose bit is not set: of the first, bit 8 · byte of `spared`.
template <int byte>
TSA_PTX float max_unless_spared(float most, const float (&of)[7], unsigned spared) {
  static_assert(byte >= 0 && byte < 4, "a word has four bytes");
#if defined(TSA_HOST)
  for (int i = 0; i < 7; ++i) {
    if (!(spared >> (8 * byte + i) & 1) && !(most >= of[i])) most = of[i];
  }
#else
  asm("{ .reg .pred p<7>; .reg .b32 b<7>;\n"
      "and.b32 b0, %8, %9; and.b32 b1, %8, %10; and.b32 b2, %8, %11; and.b32 b3, %8, %12;\n"
      "and.b32 b4, %8, %13; and.b32 b5, %8, %14; and.b32 b6, %8, %15;\n"
      "setp.ne.u32 p0, b0, 0; setp.ne.u32 p1, b1, 0; setp.ne.u32 p2, b2, 0; setp.ne.u32 p3, b3, 0;\n"
      "setp.ne.u32 p4, b4, 0; setp.ne.u32 p5, b5, 0; setp.ne.u32 p6, b6, 0;\n"
      "@!p0 max.f32 %0, %0, %1; @!p1 max.f32 %0, %0, %2; @!p2 max.f32 %0, %0, %3; @!p3 max.f32 %0, %0, %4;\n"
      "@!p4 max.f32 %0, %0, %5; @!p5 max.f32 %0, %0, %6; @!p6 max.f32 %0, %0, %7; }"
      : "+f"(most)
      : "f"(of[0]), "f"(of[1]), "f"(of[2]), "f"(of[3]), "f"(of[4]), "f"(of[5]), "f"(of[6]), "r"(spared),
        "n"(1u << 8 * byte), "n"(2u << 8 * byte), "n"(4u << 8 * byte), "n"(8u << 8 * byte), "n"(16u << 8 * byte),
        "n"(32u << 8 * byte), "n"(64u << 8 * byte));
#endif
  return most;
}

// The same of one number, that of `spared`, by a comparison.
TSA_PTX float max_unless(float most, float of, int one, int spared) {
#if defined(TSA_HOST)
  return one == spared || most >= of ? most : of;
#else
  asm("{ .reg .pred p; setp.ne.s32 p, %2, %3; @p max.f32 %0, %0, %1; }" : "+f"(most) : "f"(of), "r"(one), "r"(spared));
  return most;
#endif
}

// red.shared ─ a word of shared memory by its address of 32 bits, and words behind it by what the instruction itself has room for:
// told of pointers, the compiler adds up an address anew for each. Nothing is waited for.
class SharedWord {
 public:
  SharedWord() = default;
#if defined(TSA_HOST)
  explicit SharedWord(unsigned* at) : at_(at) {}
  SharedWord operator+(unsigned bytes) const { return SharedWord(at_ + bytes / 4); }
  template <int words>
  void add(unsigned value) const {
    atomicAdd(at_ + words, value);
  }

 private:
  unsigned* at_;
#else
  TSA_PTX explicit SharedWord(unsigned* at) : at_((unsigned)__cvta_generic_to_shared(at)) {}
  TSA_PTX SharedWord operator+(unsigned bytes) const {
    SharedWord there;
    there.at_ = at_ + bytes;
    return there;
  }
  // Adds to the word that is `words` further on.
  template <int words>
  TSA_PTX void add(unsigned value) const {
    asm volatile("red.shared.add.u32 [%0 + %2], %1;" ::"r"(at_), "r"(value), "n"(4 * words) : "memory");
  }

 private:
  unsigned at_;
#endif
};

// Makes one group of this thread's copies since the last commit.
TSA_PTX void cp_async_commit() {
#if defined(TSA_HOST)
  cuda_host::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for this thread's groups but the `pending` latest.
template <int pending>
TSA_PTX void cp_async_wait() {
#if defined(TSA_HOST)
  cuda_host::wait_for_copies(pending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// ld.global.nc ─ 16 bytes that nobody writes while the kernel runs and that are read once: they take no place in L1.
TSA_PTX Quad load_no_allocate(const void* global) {
  Quad value;
#if defined(TSA_HOST)
  cuda_host::check_aligned(global, 16, "ld.global");
  memcpy(&value, global, 16);
#else
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.at[0]), "=r"(value.at[1]), "=r"(value.at[2]), "=r"(value.at[3])
               : "l"(__cvta_generic_to_global(global)));
#endif
  return value;
}

// The same, but the first to go from L1 instead: for neighbours that share a cache line at different times.
TSA_PTX Quad load_evict_first(const void* global) {
  Quad value;
#if defined(TSA_HOST)
  cuda_host::check_aligned(global, 16, "ld.global");
  memcpy(&value, global, 16);
#else
  asm volatile("ld.global.nc.L1::evict_first.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.at[0]), "=r"(value.at[1]), "=r"(value.at[2]), "=r"(value.at[3])
               : "l"(__cvta_generic_to_global(global)));
#endif
  return value;
}

// st.global ─ 16 bytes that are not read again soon.
TSA_PTX void store_no_allocate(void* global, const Quad& value) {
#if defined(TSA_HOST)
  cuda_host::check_aligned(global, 16, "st.global");
  memcpy(global, &value, 16);
#else
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)),
               "r"(value.at[0]), "r"(value.at[1]), "r"(value.at[2]), "r"(value.at[3])
               : "memory");
#endif
}

// prefetch ─ the line around an address into the level-2 cache; with `stays`, to be evicted after all else.
template <bool stays = false>
TSA_PTX void prefetch(const void* global) {
#if !defined(TSA_HOST)
  if constexpr (stays) {
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(__cvta_generic_to_global(global)));
  } else {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(global)));
  }
#endif
}

// griddepcontrol ─ of kernels that are launched to overlap (kernels/runtime/launch.py).
//
// griddepcontrol_wait   the kernel ahead in the stream has ended, and what it wrote is there: of every such kernel, in
//                       all threads, so
//                  that one which ends has waited, the first statement, but for what reads nothing that may yet be
//                  written
// griddepcontrol_launch_dependents   blocks of the next kernel may come, once all blocks of this one have said so or
//                                    ended. For kernels that
//                  fill the GPU: behind a small one, the blocks of a large one would come two to where there is room
//                  first
TSA_PTX void griddepcontrol_wait() {
#if !defined(TSA_HOST) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
TSA_PTX void griddepcontrol_launch_dependents() {
#if !defined(TSA_HOST) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// cvt.rna ─ the nearest tf32 (10 bits after the point), ties away from zero; the 13 bits below are zero.
TSA_PTX float to_tf32(float x) {
#if defined(TSA_HOST)
  if (x != x) return x;
  return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
#else
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
#endif
}

// ldmatrix ─ four 8 × 8 matrices of 16-bit elements from shared memory. Lane 8·i + r points to row r of matrix i, 16
// bytes at a multiple of 16; every lane gets in to[i] the elements (g, 2·t) and (g, 2·t + 1) of matrix i, transposed:
// (2·t, g) and (2·t + 1, g).
template <bool transposed = false>
TSA_PTX void ldmatrix_x4(unsigned (&to)[4], const void* shared_row) {
#if defined(TSA_HOST)
  cuda_host::check_aligned(shared_row, 16, "ldmatrix");
  const auto rows = cuda_host::publish_to_warp(static_cast<const unsigned short*>(shared_row), "ldmatrix");
  const int g = cuda_host::here.lane / 4, t = cuda_host::here.lane % 4;
  for (int i = 0; i < 4; ++i) {
    const unsigned low = transposed ? rows[8 * i + 2 * t][g] : rows[8 * i + g][2 * t];
    const unsigned high = transposed ? rows[8 * i + 2 * t + 1][g] : rows[8 * i + g][2 * t + 1];
    to[i] = low | high << 16;
  }
#else
  const unsigned from = (unsigned)__cvta_generic_to_shared(shared_row);
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
  }
#endif
}

// stmatrix ─ the way back, transposed: lane 8·i + r points to row r of matrix i, 16 bytes at a multiple of 16, and what a
// lane has in from[i] are the elements (2·t, g) and (2·t + 1, g) of matrix i. Before sm_90, or with TSA_NO_STMATRIX,
// movmatrix and ordinary stores.
TSA_PTX void stmatrix_x4_transposed(void* shared_row, const unsigned (&from)[4]) {
#if defined(TSA_HOST)
  cuda_host::check_aligned(shared_row, 16, "stmatrix");
  struct Registers {
    unsigned at[4];
  } mine;
  memcpy(mine.at, from, sizeof mine.at);
  const auto lanes = cuda_host::publish_to_warp(mine, "stmatrix");
  const int matrix = cuda_host::here.lane / 8, row = cuda_host::here.lane % 8;
  for (int column = 0; column < 8; ++column) {
    const unsigned pair = lanes[4 * column + row / 2].at[matrix];
    static_cast<unsigned short*>(shared_row)[column] = (unsigned short)(pair >> 16 * (row % 2));
  }
#else
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared_row);
#if __CUDA_ARCH__ >= 900 && !defined(TSA_NO_STMATRIX)
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[0]),
               "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
#else
  const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    unsigned pair;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(pair) : "r"(from[i]));
    const unsigned row = __shfl_sync(0xffffffffu, to, 8 * i + g);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(row + 4 * t), "r"(pair) : "memory");
  }
#endif
#endif
}

#if defined(TSA_HOST)

// d + Σ ab as the tensor cores add it: of float64 one product after another, each rounded once.
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

// d += A·B for any shape above. `element(register, half)` reads one; a register holds `pack` elements along K.
template <int M, int K, int pack, int kLeast = tensor::kLeastOfFloat, typename T, typename R, int NA, int NB, int ND,
          typename Element>
inline void mma_on_host(T (&d)[ND], const R (&a)[NA], const R (&b)[NB], Element element) {
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
      left[k] = element(lanes[row % 8 * 4 + k % step / pack].a[row / 8 + M / 8 * (k / step)], k % pack);
      right[k] = element(lanes[column * 4 + k % step / pack].b[k / step], k % pack);
    }
    d[i] = sum_on_host<kLeast>(d[i], left, right);
  }
}

#endif

// mma m16n8k8, tf32 ─ the bits below a tf32's are ignored: round with to_tf32 first.
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

// mma m8n8k4, f64 (sm_80 and later); the next three: sm_90 and later.
TSA_PTX void mma_m8n8k4(double (&d)[2], const double (&a)[1], const double (&b)[1]) {
#if defined(TSA_HOST)
  mma_on_host<8, 4, 1>(d, a, b, [](double x, int) { return x; });
#else
  asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+d"(d[0]), "+d"(d[1])
      : "d"(a[0]), "d"(b[0]));
#endif
}

TSA_PTX void mma_m16n8k4(double (&d)[4], const double (&a)[2], const double (&b)[1]) {
#if defined(TSA_HOST)
  mma_on_host<16, 4, 1>(d, a, b, [](double x, int) { return x; });
#else
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(b[0]));
#endif
}

TSA_PTX void mma_m16n8k8(double (&d)[4], const double (&a)[4], const double (&b)[2]) {
#if defined(TSA_HOST)
  mma_on_host<16, 8, 1>(d, a, b, [](double x, int) { return x; });
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
#else
  asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
        "d"(b[2]), "d"(b[3]));
#endif
}

// mma m16n8k16 ─ f16 and bf16 with float sums.
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

}  // namespace ptx
