// Stages of a warp's pipeline of asynchronous copies to shared memory: the warp reads one stage while copies to the
// other stages are in flight.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace simt {

// A pipeline of kStages stages of kStage bytes each. The warp first issues copies to kStages − 1 stages and calls
// commit() after each stage. Then it repeats three steps:
//   1. wait() waits for the copies to the oldest stage in flight.
//   2. The warp issues copies to the stage that it read in the previous round, and calls commit().
//   3. The warp reads the stage that step 1 waited for.
template <int kStages, int kStage>
struct WarpStages {
  unsigned char* const own;                     // this warp's kStages stages of kStage bytes each
  int asked = 0, now = (kStages - 1) * kStage;  // byte offsets of the stage to copy to, and of the stage to read

  // `shared` points to the stages of all warps of the block.
  __device__ explicit WarpStages(void* shared)
      : own(static_cast<unsigned char*>(shared) + threadIdx.x / 32 * (kStages * kStage)) {}

  // Commits the copies to stage `asked` (even if there are none), and moves `asked` to the next stage. All lanes call
  // it.
  __device__ __forceinline__ void commit() {
    ptx::cp_async_commit();
    asked = after(asked);
  }

  // Moves `now` to the next stage and waits for the copies of all lanes to it. All lanes call it, after they have read
  // the previous stage.
  __device__ __forceinline__ void wait() {
    ptx::cp_async_wait<kStages - 2>();
    sync_warp();
    now = after(now);
  }

 private:
  __device__ static __forceinline__ int after(int stage) {
    return stage == (kStages - 1) * kStage ? 0 : stage + kStage;
  }
};

}  // namespace simt
