// Named barriers, and registers that warpgroups hand to each other: for blocks of producers and consumers.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// barrier.sync, barrier.arrive ─ barrier `id` of a block, 1 to 15, for `threads` of it, whole warps. Those that sync
// wait for all, those that arrive do not; what either wrote before is then visible to those that waited. Not the
// aligned forms (bar.sync): warps may come from different places of the code.
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

// setmaxnreg ─ from here on, this warpgroup has so many registers a thread (a multiple of 8, 24 to 256): more, which
// the other warpgroups of the block have to give first, or fewer.
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
