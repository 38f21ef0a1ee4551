// Named barriers and setmaxnreg: synchronization and register reallocation between producer and consumer warpgroups.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// barrier.sync, barrier.arrive ─ named barrier `id` (1 to 15) for `threads` threads of a block, a multiple of 32. A
// thread that syncs waits until `threads` threads have synced or arrived; a thread that arrives continues at once.
// Writes before either call are visible to the threads that synced. The forms without .aligned are used because the
// warps execute different barrier instructions.
TSA_PTX void barrier_sync(int id, int threads) {
#if defined(TSA_HOST)
  cuda_host::wait_for_some(id, threads, true);
#else
  asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

TSA_PTX void barrier_arrive(int id, int threads) {
#if defined(TSA_HOST)
  cuda_host::wait_for_some(id, threads, false);
#else
  asm volatile("barrier.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// setmaxnreg ─ changes the registers per thread of this warpgroup to `registers`, a multiple of 8 between 24 and 256.
// An increase waits until other warpgroups of the block have released enough registers.
template <int registers>
TSA_PTX void more_registers() {
#if !defined(TSA_HOST)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
TSA_PTX void fewer_registers() {
#if !defined(TSA_HOST)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}

}  // namespace ptx
