// Block configuration of gemm_mma.cuh: warp layout, pipelines and shared-memory map. gemm_mma.cuh defines the terms.
#pragma once
#include "kernels/tsm2/epilogue_staging.cuh"
#include "kernels/tsm2/weighted_row_sums.cuh"

namespace tsm2 {

template <typename Plan, typename Epilogue>
struct MmaBlock {
  using A = typename Plan::A;
  using B = typename Plan::B;
  using T = typename Plan::Element;
  using Unit = Tensor<T, Plan::kProducts>;
  using Sum = typename Unit::Sum;

  // Number of warps per team, and per block.
  static constexpr int kTeam = Plan::kWarpsM * Plan::kWarpsN * Plan::kWarpsK, kWarps = kTeam * Plan::kTeams;
  static constexpr int kThreads = 32 * kWarps;
  static_assert(Plan::kTeams == 1 || (Plan::kKeepB && kTeam == 1), "with several teams, each team is one warp");
  static constexpr int kRows = Plan::kTileM / Plan::kWarpsM, kColumns = Plan::kTileN / Plan::kWarpsN;  // per warp
  static constexpr int kEights = (kRows + 7) / 8, kBlocks = (kRows + 15) / 16, kColumnBlocks = (kColumns + 7) / 8;
  // Accumulators of a lane: those of C, followed by those of A's weighted row sums.
  static constexpr bool kAddsRows = adds_rows<Epilogue>;
  static_assert(!kAddsRows || Plan::kWarpsN == 1, "warps that share rows would add them up twice");
  static constexpr int kSumBlocks = kColumnBlocks + kAddsRows, kRegisters = 4 * kBlocks * kSumBlocks;
  using Depths = Depth<Plan::kDepth / Plan::kWarpsK, A::kPerWord, Plan::kStride>;
  static_assert(Plan::kTileM % Plan::kWarpsM == 0 && Plan::kTileN % Plan::kWarpsN == 0 &&
                    Plan::kDepth % Plan::kWarpsK == 0 && (Plan::kWarpsM == 1 || kRows % 16 == 0) &&
                    (Plan::kWarpsN == 1 || kColumns % 8 == 0),
                "warps share a tile evenly");

  // Shared memory, in bytes: a pipeline per team, the parts of B (fragments.cuh), and scratch for sums. With kKeepB,
  // the parts of B are stored once. Otherwise they are stored twice, for the current unit and for the next unit. The
  // reduction over warps and the epilogue use the same scratch.
  static constexpr bool kOwnB = !Plan::kGram, kStreamsB = kOwnB && !Plan::kKeepB;
  static constexpr bool kPreparesB = Plan::kKeepB || Plan::kPrepareB;
  static_assert(!kPreparesB || (kOwnB && Plan::kWarpsK == 1), "all warps read the same parts of B");
  using Weights = RowWeights<Sum, Plan::kDepth>;  // after B in every stage; with kKeepB, once per block
  static constexpr int kWeights = kAddsRows ? Weights::kBytes : 0, kWeightsAt = A::kBytes + (kStreamsB ? B::kBytes : 0);
  static constexpr int kStage = kWeightsAt + (Plan::kKeepB ? 0 : kWeights), kPipelineBytes = Plan::kStages * kStage;
  static constexpr int kPipelinesBytes = Plan::kTeams * kPipelineBytes;
  static constexpr int kPairs = (Depths::kWords + 1) / 2, kTileColumnBlocks = (Plan::kTileN + 7) / 8;
  static constexpr int kParts =
      kPreparesB ? kPairs * kTileColumnBlocks * 32 * 2 * (int)sizeof(typename Unit::Parts) : 0;
  static constexpr int kAllParts = (kStreamsB ? 2 : 1) * kParts;
  // With kKeepB, B is first copied to the stage of A that is filled last. If B is larger than a stage, it is copied to
  // the beginning of the pipelines before the pipelines are used.
  static constexpr bool kArrivesBeside = Plan::kKeepB && B::kBytes <= kStage;
  static constexpr int kArrivesAt = kArrivesBeside ? (Plan::kStages - 1) * kStage : 0;
  using Staging = EpilogueStaging<Sum, kAddsRows ? 8 * kSumBlocks : kColumns, kBlocks>;
  static constexpr int kStagingBytes = Staging::template kBytes<Epilogue>;
  static constexpr int kSplitSumBytes = kWarps / 2 * 32 * kRegisters * (int)sizeof(Sum);
  static constexpr int kSums = kWarps / Plan::kWarpsK * kStagingBytes;
  static constexpr int kScratch = Plan::kWarpsK > 1 && kSplitSumBytes > kSums ? kSplitSumBytes : kSums;
  static constexpr int kKeptWeightsAt = kPipelinesBytes + kAllParts + kScratch;
  static constexpr int kSharedBytes = kKeptWeightsAt + (Plan::kKeepB ? kWeights : 0);
  // Number of sums of one tile in `partial` (stream_k_fixup.cuh).
  static constexpr int kTileSums = Plan::kWarpsM * Plan::kWarpsN * 32 * kRegisters;
};

}  // namespace tsm2
