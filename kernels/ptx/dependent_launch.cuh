// griddepcontrol: programmatic dependent launch (sm_90 and later; elsewhere these functions do nothing). The host side
// is DependentLaunch in kernels/runtime/launch.py.
//
// griddepcontrol_wait
//   Returns when the previous kernel of the stream has ended and its writes are visible. All threads of every kernel in
//   such a chain call it, so that a kernel that ends has itself waited. Call it first; only reads of data that no
//   earlier kernel writes may precede it.
//
// griddepcontrol_launch_dependents
//   Lets blocks of the next kernel start when all blocks of this kernel have called it or ended. Use it in kernels that
//   fill the GPU. After a small kernel, two blocks of a large next kernel could share a multiprocessor while others are
//   still busy.
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
