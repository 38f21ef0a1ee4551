// cp.async.bulk and mbarrier: bulk copies to shared memory, and barriers that count the copied bytes (sm_90 and later).
// Barriers that count arrivals alone, of threads and of cp_async copies, need sm_80.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

// mbarrier ─ a barrier in 8 bytes of shared memory that counts arrivals of threads and bytes of copies. A phase
// completes when all expected arrivals and all announced bytes have been counted; then the next phase begins. Phases
// have parity 0, 1, 0, 1, …; a waiting thread identifies a phase by the parity of this phase. Writes that a thread
// makes before it arrives are visible to threads that have waited for that phase.
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

// Initializes a barrier that expects `arrivals` arrivals per phase; one thread calls it. Other threads may use the
// barrier after that thread has called mbarrier_init_fence and the block has synchronized.
TSA_PTX void mbarrier_init(Mbarrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
TSA_PTX void mbarrier_init_fence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

TSA_PTX void mbarrier_arrive(Mbarrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives, and adds `bytes` to the number of bytes that the current phase expects.
TSA_PTX void mbarrier_arrive_expect(Mbarrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

// Waits until the phase with this parity completes.
TSA_PTX void mbarrier_wait(Mbarrier* barrier, unsigned parity) {
  asm volatile(
      "{ .reg .pred over;\n\t"
#if __CUDA_ARCH__ >= 900
      "AGAIN: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n\t"
#else
      "AGAIN: mbarrier.test_wait.parity.shared::cta.b64 over, [%0], %1;\n\t"
#endif
      "@over bra DONE;\n\t"
      "bra AGAIN;\n\t"
      "DONE: }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// cp.async.mbarrier.arrive ─ the barrier counts one arrival when all earlier cp_async copies of this thread
// (cp_async.cuh) have completed. This arrival is one of the arrivals that the barrier expects. It makes only the copies
// visible to waiting threads: other writes of this thread need an ordinary arrival.
TSA_PTX void cp_async_arrive(Mbarrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// cp.async.bulk ─ copies a multiple of 16 bytes from global to shared memory; both addresses are multiples of 16. One
// thread issues the copy, and `barrier` counts the bytes when they have been written.
//
// If threads read the old content of the destination by ordinary loads, they call async_fence (wgmma.cuh) after these
// loads and before the barrier that orders the loads before the copy. Without the fence, the copy can overtake those
// loads (docs/notes/tsm2.md).
TSA_PTX void bulk_copy(void* shared, const void* global, int bytes, Mbarrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

#endif

}  // namespace ptx
