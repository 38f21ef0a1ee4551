// Tile loader: copies A and B of consecutive work units, in the order of WorkIterator, to the stages of a pipeline.
#pragma once
#include "kernels/tsm2/operand.cuh"
#include "kernels/tsm2/tile_scheduler.cuh"

namespace tsm2 {

// kThreadsA threads copy the tile of A to the beginning of a stage. With kReadsB, kThreadsB threads copy the tile of B
// directly after it.
template <typename Plan, int kThreadsA, int kThreadsB, bool kReadsB>
class TileLoader {
 public:
  using A = typename Plan::A;
  using B = typename Plan::B;

  // The first call of copy() copies work unit `unit`.
  __device__ TileLoader(const typename A::Source& a, const typename B::Source& b, const Work& work, long long unit,
                        int thread_of_a, int thread_of_b)
      : ahead_(work, unit), a_(a, thread_of_a), b_(b, thread_of_b) {}

  // Returns the first depth index of the next unit to copy.
  __device__ long long depth() const { return (*ahead_).depth; }

  // Issues the copies of the next unit.
  __device__ __forceinline__ void copy(unsigned char* stage) {
    if (more_) {
      a_.move_to((*ahead_).row, (*ahead_).depth);
      if (kReadsB) b_.move_to((*ahead_).column, (*ahead_).depth);
    }
    a_.copy(stage);
    if (kReadsB) b_.copy(stage + A::kBytes);
    more_ = ahead_.next();
    a_.next();
    if (kReadsB) b_.next();
  }

 private:
  WorkIterator<Plan> ahead_;
  typename A::template Reader<kThreadsA> a_;
  typename B::template Reader<kThreadsB> b_;
  bool more_ = true;
};

}  // namespace tsm2
