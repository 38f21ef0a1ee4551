// cp.async: asynchronous copies from global to shared memory (sm_80 and later).
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// cp.async ─ copies `bytes` bytes (4, 8 or 16) from global to shared memory without using registers. Both addresses are
// multiples of `bytes`. It copies the first `read` bytes and fills the remaining bytes of the destination with zeros.
// With `read` = 0 it reads no global memory.
//
// The copy is visible to this thread after cp_async_wait, and to other threads after a barrier that follows. `around`
// (128 or 256) makes the level-2 cache fetch the aligned block of 128 or 256 bytes that contains `global`, so that
// later copies from this block are faster.
template <int bytes, int around = 0>
TSA_PTX void cp_async(void* shared, const void* global, int read = bytes) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "cp.async copies 4, 8 or 16 bytes");
  static_assert(around == 0 || around == 128 || around == 256, "the level-2 cache prefetches 128 or 256 bytes");
#if defined(TSA_HOST)
  cuda_host::copy_async(shared, global, read, bytes);
#else
  const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
  const unsigned long long from = (unsigned long long)__cvta_generic_to_global(global);
#define TSA_CP_ASYNC(kind) \
  asm volatile("cp.async." kind " [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(read), "n"(bytes) : "memory")
  if constexpr (bytes == 16) {  // 16-byte copies bypass the L1 cache
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

// cp.async ─ copies 16 bytes from `offset` bytes after `global` to `offset` bytes after `shared`. The instruction has
// the offset, so that successive copies need no address arithmetic. Offsets of global addresses in instructions are
// below 2 KB in magnitude.
template <int offset>
TSA_PTX void cp_async_at(void* shared, const void* global) {
#if defined(TSA_HOST)
  cuda_host::copy_async(static_cast<char*>(shared) + offset, static_cast<const char*>(global) + offset, 16, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;" ::"r"((unsigned)__cvta_generic_to_shared(shared)),
               "l"(__cvta_generic_to_global(global)), "n"(offset)
               : "memory");
#endif
}

// Combines the copies that this thread has issued since its last commit into a group.
TSA_PTX void cp_async_commit() {
#if defined(TSA_HOST)
  cuda_host::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all groups of copies of this thread are complete, except the `pending` latest groups.
template <int pending>
TSA_PTX void cp_async_wait() {
#if defined(TSA_HOST)
  cuda_host::wait_for_copies(pending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

}  // namespace ptx
