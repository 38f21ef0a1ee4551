// A barrier of all threads of a grid whose blocks are there together: of a cooperative launch.
//
//   state   arrived, generation, left   words in global memory, zero before the first launch and again after each
//
// What a block has read behind the barrier others may overwrite once all blocks have said that they left it; nobody waits
// to say so, and whoever writes next finds it said.
//
// Why it is fast: of a block, one thread asks and one word is asked for, and whoever comes last writes it once.
#pragma once
#include "kernels/tsm2/simt.cuh"

namespace tsm2 {

class GridBarrier {
 public:
  __device__ __forceinline__ explicit GridBarrier(unsigned* state) : state_(state) {}

  // By all threads: what any of them wrote before is then there for all.
  __device__ __forceinline__ void wait() const {
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned generation = now(kGeneration);
      __threadfence();
      if (atomicAdd(&state_[kArrived], 1u) == gridDim.x - 1) {
        state_[kArrived] = 0, state_[kLeft] = 0;
        __threadfence();
        atomicExch(&state_[kGeneration], generation + 1);
      } else {
        while (now(kGeneration) == generation) simt::give_way();
      }
      __threadfence();
    }
    __syncthreads();
  }

  // By one thread of a block that has read what it came for.
  __device__ __forceinline__ void leave() const {
    __threadfence();
    atomicAdd(&state_[kLeft], 1u);
  }

  // By any thread: waits until all blocks have left.
  __device__ __forceinline__ void wait_left() const {
    while (now(kLeft) != gridDim.x) simt::give_way();
    __threadfence();
  }

  // By one thread of the grid, that last waits for all to leave: as it was before the launch.
  __device__ __forceinline__ void end() const {
    wait_left();
    state_[kLeft] = 0;
  }

 private:
  enum { kArrived, kGeneration, kLeft };

  __device__ __forceinline__ unsigned now(int word) const { return simt::load_volatile(&state_[word]); }

  unsigned* const state_;
};

}  // namespace tsm2
