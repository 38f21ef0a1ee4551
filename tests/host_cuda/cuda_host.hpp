// Runs the source of a CUDA C++ kernel on the CPU: one fiber a CUDA thread, one OS thread for several blocks.
//
//   vectors.hpp     float4 and its kin; conversions of 16-bit floats
//   intrinsics.hpp  __syncthreads, shuffles, votes, atomics, cached loads
//   warp_sums.hpp   sums over a warp in one exchange
//   runtime.hpp     what they, and the host bodies of instructions, ask of the runner
//   runtime.cpp     the runner: blocks, warps, barriers, the launch; what is varied, and what is found wrong
//   fibers.hpp      switching between the threads of a block
//
// This file comes before a kernel's source (`-include`) and gives it CUDA's keywords. TSA_HOST tells kernels/ptx and
// kernels/device/simt.cuh to use their host bodies. machine.py exports kernels for the project's own launchers; a test
// of a device function, or of this runner, calls a function of C linkage:
//
//   extern "C" void run(const float* x, float* y, long long n) {
//     cuda_host::launch((n + 127) / 128, 128, 0, [=] { twice<float>(x, y, n); });
//   }
//
// What is seen: wrong results that come of missing barriers and waits, deadlocks, barriers in divergent code,
// misaligned copies, and, built with sanitizers, out-of-bounds accesses with their line. What is not: the memory model
// between blocks, timing, bank conflicts, and whatever has no host body (clusters of several blocks). None
// of it replaces compute-sanitizer on a GPU.
#pragma once
#define TSA_HOST 1

// Leaves out the special functions that <cmath> ends with, and nothing here includes <atomic>: each library would
// instantiate their templates again, as those pending at the end of a precompiled header, in a third of its time.
#define _GLIBCXX_BITS_SPECFUN_H

#include "intrinsics.hpp"
#include "runtime.hpp"
#include "vectors.hpp"
#include "warp_sums.hpp"

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
// The threads of a block share their OS thread, and blocks that run at the same time do not.
#define __shared__ static thread_local

#define threadIdx (cuda_host::here.thread_index)
#define blockIdx (cuda_host::here.block_index)
#define blockDim (cuda_host::here.block_size)
#define gridDim (cuda_host::here.grid_size)
