// cp.async: asynchronous copies from global to shared memory (sm_80 and later).
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

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

}  // namespace ptx
