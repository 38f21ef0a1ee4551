// The stages of a warp's multistage pipeline of asynchronous copies to shared memory: one is read, the others are in
// flight.
#pragma once
#include "kernels/device/simt.cuh"
#include "kernels/ptx/cp_async.cuh"

namespace simt {

// Copies to a stage are committed kStages − 1 commits before the wait after which it is read.
template <int kStages, int kStage>
struct WarpStages {
  unsigned char* const own;                     // this warp's stages, of kStage bytes each
  int asked = 0, now = (kStages - 1) * kStage;  // byte offsets of the stage to copy to, and of the stage to read

  // `shared` is the block's, for all of its warps.
  __device__ explicit WarpStages(void* shared)
      : own(static_cast<unsigned char*>(shared) + threadIdx.x / 32 * (kStages * kStage)) {}

  // Commits the copies to a stage, if any. By all lanes.
  __device__ __forceinline__ void commit() {
    ptx::cp_async_commit();
    asked = after(asked);
  }

  // Waits for the copies of kStages − 1 commits ago, for all lanes. All lanes have then read the previous stage.
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
