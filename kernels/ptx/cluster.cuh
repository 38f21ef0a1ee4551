// Clusters: blocks that run at the same time and can reach each other's shared memory (sm_90 and later). A block that
// others reach must not end before they have finished: call cluster_sync last.
#pragma once
#include "kernels/ptx/bulk_copy.cuh"

namespace ptx {

// Returns the number of this block in its cluster.
TSA_PTX unsigned cluster_rank() {
#if defined(TSA_HOST)
  return cuda_host::cluster_rank();
#else
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}

// barrier.cluster ─ waits for all threads of the cluster, and makes their writes visible. The lanes of a warp call it
// together.
TSA_PTX void cluster_sync() {
#if defined(TSA_HOST)
  cuda_host::wait_for_cluster();
#else
  asm volatile(
      "barrier.cluster.arrive.aligned;\n\t"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
#endif
}

// The same, but of all writes only initialized barriers are visible (mbarrier_init_fence): faster.
TSA_PTX void cluster_sync_of_barriers() {
#if defined(TSA_HOST)
  cuda_host::wait_for_cluster();
#else
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n\t"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
#endif
}

// mapa, mbarrier.arrive ─ arrives at the barrier that block `rank` of the cluster has at the place of `barrier`.
TSA_PTX void mbarrier_arrive_in_block(Mbarrier* barrier, unsigned rank) {
#if defined(TSA_HOST)
  cuda_host::arrive_in_block(&barrier->state, rank);
#else
  asm volatile(
      "{ .reg .b32 there;\n\t"
      "mapa.shared::cluster.u32 there, %0, %1;\n\t"
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
#endif
}

}  // namespace ptx
