// ldmatrix and stmatrix: 8 × 8 matrices of 16-bit elements between shared memory and the registers of a warp. In this
// file g = lane / 4 and t = lane % 4. All lanes of a warp take part.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// ldmatrix ─ loads four 8 × 8 matrices of 16-bit elements from shared memory. Lane 8·i + r passes the address of row r
// of matrix i: 16 bytes, aligned to 16. to[i] receives elements (g, 2·t) and (g, 2·t + 1) of matrix i, or with
// `transposed` (2·t, g) and (2·t + 1, g).
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

// stmatrix ─ stores four 8 × 8 matrices (sm_90 and later): the inverse of ldmatrix_x4. Lane 8·i + r passes the address
// of row r of matrix i: 16 bytes, aligned to 16. from[i] holds elements (g, 2·t) and (g, 2·t + 1) of matrix i.
TSA_PTX void stmatrix_x4(void* shared_row, const unsigned (&from)[4]) {
#if defined(TSA_HOST)
  cuda_host::check_aligned(shared_row, 16, "stmatrix");
  struct Registers {
    unsigned at[4];
  } mine;
  memcpy(mine.at, from, sizeof mine.at);
  const auto lanes = cuda_host::publish_to_warp(mine, "stmatrix");
  const int matrix = cuda_host::here.lane / 8, row = cuda_host::here.lane % 8;
  for (int pair = 0; pair < 4; ++pair) static_cast<unsigned*>(shared_row)[pair] = lanes[4 * row + pair].at[matrix];
#else
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   (unsigned)__cvta_generic_to_shared(shared_row)),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
#endif
}

// stmatrix with transposition ─ stores four 8 × 8 matrices, transposed: the inverse of ldmatrix_x4<true>. Lane 8·i + r
// passes the address of row r of matrix i: 16 bytes, aligned to 16. from[i] holds elements (2·t, g) and (2·t + 1, g) of
// matrix i. Before sm_90, or with TSA_NO_STMATRIX, it uses movmatrix and ordinary stores.
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

}  // namespace ptx
