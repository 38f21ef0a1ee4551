// Block configuration of gemm_wgmma.cuh: warpgroup roles, jobs, shared-memory map, barriers and registers.
// gemm_wgmma.cuh defines the terms.
#pragma once
#include "kernels/tsm2/weighted_row_sums.cuh"

namespace tsm2 {

// If kAddsRows is true, the kernel computes weighted sums of A's rows, and copies the weights together with the work
// units.
template <typename Plan, bool kAddsRows>
struct WgmmaBlock {
  using A = typename Plan::A;
  using B = typename Plan::B;
  using T = typename Plan::Element;
  using Unit = Tensor<T, Plan::kProducts>;
  using Register = typename Unit::Register;

  // The first kGroups warpgroups are consumers, the others producers.
  static constexpr int kRowGroups = Plan::kWarpsM / 4, kSplits = Plan::kWarpsK, kGroups = kRowGroups * kSplits;
  static constexpr int kGroup = 128, kProducers = Plan::kProducers;
  static constexpr int kConsumers = kGroups * kGroup, kThreads = kConsumers + kProducers * kGroup;
  static constexpr int kMatrices = (Plan::kTileM + 64 * kRowGroups - 1) / (64 * kRowGroups), kColumns = Plan::kTileN;
  static constexpr int kColumnBlocks = (kColumns + 7) / 8;
  static_assert(Plan::kWarpsM % 4 == 0 && kGroups <= 3 && Plan::kWarpsN == 1 && kSplits <= 2 && kColumns <= 64,
                "at most 64 columns, and barriers for three warpgroups");
  static constexpr int kGroupDepth = Plan::kDepth / kSplits;
  using Depths = Depth<kGroupDepth, A::kPerWord, Plan::kStride>;
  static_assert(Plan::kDepth % kSplits == 0 && Depths::kWords % 2 == 0, "an instruction takes two words a lane");
  static constexpr int kGroupPairs = Depths::kWords / 2, kPairs = kGroupPairs * kSplits;
  // A job is kJobPairs pairs of words of one 64-row matrix; kJobs is the number of jobs of a warpgroup per unit. Jobs
  // alternate between two sets of registers. If kJobs is even, the next unit's first job is loaded before this unit's
  // last job ends.
  static constexpr int kJobPairs = Plan::kJobPairs, kJobs = kGroupPairs / kJobPairs * kMatrices;
  static constexpr bool kLoadsAhead = kJobs % 2 == 0;
  static_assert(sizeof(T) == 8 || kGroupPairs % kJobPairs == 0, "a unit is whole jobs");

  // Shared memory from its beginning, in bytes: the pipeline, then the parts of B, for two units. A stage holds A, B
  // and the weights of A's row sums. With kKeepB, a stage holds only A. The parts of all of B are then stored once, and
  // the weights follow these parts.
  using Weights = RowWeights<typename Unit::Sum, Plan::kDepth>;
  static constexpr bool kStreamsB = !(Plan::kGram || Plan::kKeepB);
  static constexpr int kWeights = kAddsRows ? Weights::kBytes : 0, kWeightsAt = A::kBytes + (kStreamsB ? B::kBytes : 0);
  static constexpr int kStage = kWeightsAt + (Plan::kKeepB ? 0 : kWeights), kPipelineBytes = Plan::kStages * kStage;
  static_assert(Plan::kStages >= 3, "one stage is multiplied, one is split, and one is in flight");
  static_assert(!Plan::kKeepB || (kProducers == 1 && kPipelineBytes >= B::kBytes),
                "B is first copied to the pipeline, by one warpgroup");
  static constexpr int kMatrixBytes = 64 * (int)sizeof(Register) * kColumnBlocks;
  static constexpr int kParts = kPairs * Unit::kParts * kMatrixBytes, kAllParts = (Plan::kKeepB ? 1 : 2) * kParts;
  static constexpr int kKeptWeightsAt = kPipelineBytes + kAllParts,
                       kShared = kKeptWeightsAt + (Plan::kKeepB ? kWeights : 0);
  static __device__ int next(int stage) { return stage + 1 == Plan::kStages ? 0 : stage + 1; }
  // The address of part `part` of words 2·pair and 2·pair + 1 of B, in buffer `place` of the parts. Each column block
  // has 64 registers: word 0 of all lanes, then word 1 of all lanes.
  static __device__ Register* matrix(unsigned char* shared, int place, int pair, int part) {
    const int unit = Plan::kKeepB ? 0 : place;
    return reinterpret_cast<Register*>(shared + kPipelineBytes + unit * kParts +
                                       (pair * Unit::kParts + part) * kMatrixBytes);
  }

  // Numbers of the named barriers of buffer `place` of the parts (0 or 1), and of consumer warpgroup `group`. kFull and
  // kEmpty: the number of threads that `full` and `empty` synchronize. kConsumersBarrier: the number of a barrier of
  // all consumers.
  static __device__ int landed(int place) { return 1 + place; }
  static __device__ int full(int place, int group) { return 3 + 2 * group + place; }
  static __device__ int empty(int place, int group) { return 3 + 2 * kGroups + 2 * group + place; }
  static constexpr int kFull = 2 * kGroup, kEmpty = kGroup + kProducers * kGroup, kConsumersBarrier = 3 + 4 * kGroups;

  // Registers per thread: at launch (an equal share of a multiprocessor's registers), of a producer, which releases
  // some of them, and of a consumer, which gets the released registers.
  static constexpr int kLaunchRegisters = 512 / Plan::kBlocksAMultiprocessor / (kGroups + kProducers) / 8 * 8;
  static constexpr int kProducerRegisters = kProducers == 1 ? 88 : 64;
  static constexpr int kMost =
      ((kGroups + kProducers) * kLaunchRegisters - kProducers * kProducerRegisters) / kGroups / 8 * 8;
  static constexpr int kConsumerRegisters = kMost < 240 ? kMost : 240;
  static_assert(kProducerRegisters <= kLaunchRegisters && kLaunchRegisters <= kConsumerRegisters,
                "producers release registers, consumers take them");
};

}  // namespace tsm2
