// griddepcontrol: programmatic dependent launch (sm_90 and later; elsewhere these do nothing). See
// kernels/runtime/launch.py, DependentLaunch.
//
// griddepcontrol_wait               returns once the kernel ahead in the stream has ended and its writes are visible.
// All
//                                   threads of every such kernel call it, so that a kernel that ends has waited itself.
//                                   It comes first, except for reads of what nobody may still be writing.
// griddepcontrol_launch_dependents  lets blocks of the next kernel start once all blocks of this one have called it or
//                                   ended. For kernels that fill the GPU: behind a small kernel, two blocks of a large
//                                   one would come to a multiprocessor that has room first.
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
