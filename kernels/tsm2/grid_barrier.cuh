// A barrier of all threads of a grid whose blocks are there together: of a cooperative launch.
//
//   state   how many times blocks have arrived, and how many times they have left: words in global memory, zero before a
//           launch and again behind it
//
// What a block reads behind a barrier others may overwrite once all blocks have said that they left it; nobody waits to say
// so, and whoever writes next finds it said. Barriers are numbered from 0 on in each launch.
//
// Why it is fast: of a block, one thread adds to one word and asks for it. Nobody has the last word.
#pragma once
#include "kernels/tsm2/simt.cuh"

namespace tsm2 {

class GridBarrier {
 public:
  __device__ __forceinline__ explicit GridBarrier(unsigned* state) : state_(state) {}

  // By all threads: what any of them wrote before is then there for all.
  __device__ __forceinline__ void wait(int number) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(&state_[kArrived], 1u);
      wait_for(kArrived, number + 1);
    }
    __syncthreads();
  }

  // By one thread of a block that has read what it came for.
  __device__ __forceinline__ void leave() const {
    __threadfence();
    atomicAdd(&state_[kLeft], 1u);
  }

  // By any thread: waits until all blocks have left so many barriers.
  __device__ __forceinline__ void wait_left(int barriers) const { wait_for(kLeft, barriers); }

  // By one thread of the grid: waits until all have left the last of so many barriers, and makes the state what it was.
  __device__ __forceinline__ void end(int barriers) const {
    wait_left(barriers);
    state_[kArrived] = state_[kLeft] = 0;
  }

 private:
  enum { kArrived, kLeft };

  __device__ __forceinline__ void wait_for(int word, int times) const {
    while (simt::load_volatile(&state_[word]) < (unsigned)times * gridDim.x) simt::give_way();
    __threadfence();
  }

  unsigned* const state_;
};

}  // namespace tsm2
