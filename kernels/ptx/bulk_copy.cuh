// cp.async.bulk: bulk copies to shared memory, and mbarriers that count their bytes (sm_90 and later).
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// mbarrier ─ 8 bytes of shared memory that count arrivals and bytes. A phase is over when all that are expected have
// arrived and all bytes that were announced have come; then the next begins. Phases are told apart by their parity: the
// first is 0. What those who arrived wrote is visible to those who waited.
struct Mbarrier {
  unsigned long long state;
};

#if defined(TSA_HOST)

TSA_PTX void mbarrier_init(Mbarrier* barrier, int arrivals) { cuda_host::mbarrier_init(&barrier->state, arrivals); }
TSA_PTX void mbarrier_init_fence() {}
TSA_PTX void mbarrier_arrive(Mbarrier* barrier) { cuda_host::mbarrier_arrive(&barrier->state, 0); }
TSA_PTX void mbarrier_arrive_expect(Mbarrier* barrier, int bytes) {
  cuda_host::mbarrier_arrive(&barrier->state, bytes);
}
TSA_PTX void mbarrier_wait(Mbarrier* barrier, unsigned parity) { cuda_host::mbarrier_wait(&barrier->state, parity); }
TSA_PTX void cp_async_arrive(Mbarrier* barrier) { cuda_host::arrive_with_copies(&barrier->state); }
TSA_PTX void bulk_copy(void* shared, const void* global, int bytes, Mbarrier* barrier) {
  cuda_host::bulk_copy(shared, global, bytes, &barrier->state);
}

#else

TSA_PTX unsigned shared_address(const void* shared) { return (unsigned)__cvta_generic_to_shared(shared); }

// By one thread; others may use it after mbarrier_init_fence by that thread, and a barrier.
TSA_PTX void mbarrier_init(Mbarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
TSA_PTX void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

TSA_PTX void mbarrier_arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and announces so many bytes of this phase.
TSA_PTX void mbarrier_arrive_expect(Mbarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Waits until the phase of this parity is over.
TSA_PTX void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred over;\n\t"
      "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n\t"
      "@over bra DONE;\n\t"
      "bra AGAIN;\n\t"
      "DONE: }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// cp.async.mbarrier.arrive ─ arrives once all copies that this thread has begun by cp_async (cp_async.cuh) are there:
// one of the arrivals that a phase expects. What the thread wrote otherwise is not visible by that.
TSA_PTX void cp_async_arrive(Mbarrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// cp.async.bulk ─ a multiple of 16 bytes from global to shared memory, both at multiples of 16, begun by one thread;
// they count at the barrier once they are there. Where ordinary loads read what lay there before, those threads have
// async_fence (wgmma.cuh) ahead of the barrier that the copy waits for: without, it overtakes them
// (docs/notes/tsm2.md).
TSA_PTX void bulk_copy(void* shared, const void* global, int bytes, Mbarrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

#endif

}  // namespace ptx
