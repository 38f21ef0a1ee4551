// griddepcontrol: programmatic dependent launch (sm_90 and later; elsewhere these functions do nothing). The host side
// is DependentLaunch in kernels/runtime/launch.py.
//
// griddepcontrol_wait
//   Returns when the previous kernel of the stream has ended and its writes are visible. In a chain of
//   dependent launches, all threads of every kernel call this function: a kernel then ends only after all kernels
//   before it have ended. Call it first: before the call, a kernel may only read data that no earlier kernel writes.
//
// griddepcontrol_launch_dependents
//   Lets blocks of the next kernel start when all blocks of this kernel have called this function or ended. Use it in
//   kernels that fill the GPU. If a small kernel calls it, two blocks of a large next kernel can start on the same
//   multiprocessor while blocks of the small kernel still occupy other multiprocessors.
#pragma once
#include "kernels/ptx/types.cuh"

namespace ptx {

TSA_PTX void griddepcontrol_wait() {
#if !defined(TSA_HOST) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
TSA_PTX void griddepcontrol_launch_dependents() {
#if !defined(TSA_HOST) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace ptx
