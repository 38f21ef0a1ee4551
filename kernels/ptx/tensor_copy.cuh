// cp.async.bulk.tensor: copies of boxes of a matrix between global and shared memory (sm_90 and later).
//
// A TensorMap describes a row-major matrix in global memory, and the size of its boxes; `Machine.tensor_map` makes it.
// A row of a box has 128 or 64 bytes. In shared memory, the rows of a box follow each other from a multiple of 1024 on,
// and are *swizzled*: the 16-byte pieces of a row change places, so that the same piece of eight rows uses all banks.
// Outside the matrix, loads return zeros and stores do nothing; a barrier always counts whole boxes.
#pragma once
#include "kernels/ptx/bulk_copy.cuh"

namespace ptx {

// A kernel takes it as a `const __grid_constant__` parameter.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// Returns the offset in bytes of piece `piece` of row `row` of a box with rows of `row_bytes` bytes.
template <int row_bytes>
TSA_PTX int swizzled_offset(int row, int piece) {
  static_assert(row_bytes == 128 || row_bytes == 64);
  const int place = row_bytes == 128 ? row % 8 : row / 2 % 4;
  return row_bytes * row + 16 * (piece ^ place);
}

#if defined(TSA_HOST)

TSA_PTX void prefetch_map(const TensorMap&) {}
TSA_PTX void tensor_load(void* shared, const TensorMap& map, int column, int row, Mbarrier* barrier) {
  cuda_host::tensor_load(shared, map.words, column, row, &barrier->state, 1u << cuda_host::cluster_rank());
}
TSA_PTX void tensor_load_to_blocks(void* shared, const TensorMap& map, int column, int row, Mbarrier* barrier,
                                   unsigned short blocks) {
  cuda_host::tensor_load(shared, map.words, column, row, &barrier->state, blocks);
}
TSA_PTX void tensor_store(const TensorMap& map, int column, int row, const void* shared) {
  cuda_host::tensor_store(map.words, column, row, shared);
}
TSA_PTX void tensor_store_commit() { cuda_host::commit_stores(); }
template <int pending>
TSA_PTX void tensor_store_wait() {
  cuda_host::wait_for_stores(pending);
}

#else

// Loads a map into a cache of the copy engine.
TSA_PTX void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Copies the box whose first element is in column `column` and row `row` to this block's shared memory. One thread
// issues the copy, and `barrier` counts its bytes.
TSA_PTX void tensor_load(void* shared, const TensorMap& map, int column, int row, Mbarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}

// The same to the same place in all blocks of the cluster whose bit in `blocks` is set; in each, its own barrier at the
// place of `barrier` counts the bytes.
TSA_PTX void tensor_load_to_blocks(void* shared, const TensorMap& map, int column, int row, Mbarrier* barrier,
                                   unsigned short blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(shared)),
      "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}

// Copies a box from shared memory. Threads that wrote it call async_fence (wgmma.cuh) and a barrier before. The thread
// that issues stores closes groups of them; tensor_store_wait returns when all groups except the `pending` latest
// groups have read shared memory.
TSA_PTX void tensor_store(const TensorMap& map, int column, int row, const void* shared) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(column),
               "r"(row), "r"(shared_address(shared))
               : "memory");
}
TSA_PTX void tensor_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending>
TSA_PTX void tensor_store_wait() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

#endif

}  // namespace ptx
