"""Structures and constants that Python and C++ share: fields match the C++ members of the same names, values match.

Sizes of C++ classes that Python only makes room for match, too.
"""

from functools import cache

import numpy as np
import pytest
from host_cuda import harness

from tsapps.apps.abft.at_rest.gpu import compare
from tsapps.apps.abft.at_rest.gpu import plan as at_rest
from tsapps.apps.abft.at_rest.gpu.plan import TASK
from tsapps.apps.abft.modules import checked_product
from tsapps.apps.abft.modules import launch as modules
from tsapps.apps.abft.modules.faults import FAULT
from tsapps.apps.abft.product import gpu as abft_gpu
from tsapps.apps.abft.product import plan as abft
from tsapps.apps.abft.product.plan import detect_epilogue, row_sums_epilogue
from tsapps.apps.kmeans.assign import pivots
from tsapps.apps.kmeans.assign.large_k_plan import MANY_PRODUCTS, ONE_PRODUCT, SPLIT_ROWS
from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_BYTES,
    AMBIGUOUS_LARGE_K_BYTES,
    ARGMIN,
    LARGE_K_ARGMIN,
    MOST_LARGE_K,
    REASSIGNMENT_BYTES,
    TILE_BOUND,
)
from tsapps.apps.kmeans.batched import plan as batched
from tsapps.apps.kmeans.batched.plan import BATCH, CANDIDATE_LIST_BYTES, CANDIDATES, PLUSPLUS_ARGS
from tsapps.apps.kmeans.bounds.plan import BOUNDED, BOUNDS_STATE, DRIFT, ROW_BOUNDS
from tsapps.apps.kmeans.data.plan import CENTER_THREADS, ROWS
from tsapps.apps.kmeans.engines import device_step
from tsapps.apps.kmeans.inertia import plan as inertia
from tsapps.apps.kmeans.inertia.plan import RUNNING_SUMS
from tsapps.apps.kmeans.init import plan as init
from tsapps.apps.kmeans.init import pruned_launch, quantized_copy
from tsapps.apps.kmeans.init.plan import COPY
from tsapps.apps.kmeans.protect import plan as protect
from tsapps.apps.kmeans.protect.launch import FAULTS
from tsapps.apps.kmeans.protect.plan import CHECKED, HASHES
from tsapps.apps.kmeans.small_d import plan as small_d
from tsapps.apps.kmeans.small_d.plan import CONSTANT_CENTERS_BYTES, PRODUCTS
from tsapps.apps.kmeans.sweep import iterations
from tsapps.apps.kmeans.sweep import plan as sweep
from tsapps.apps.kmeans.update import fixed_point, launch, relocation
from tsapps.apps.kmeans.update.plan import COLUMN_ORDER, LISTS, MOST_RELOCATED, OUTCOME, SEGMENTS, UPDATE_CENTERS
from tsapps.kernels import square_gemm
from tsapps.kernels.gemm import store_epilogue
from tsapps.kernels.plan.accumulation_order import ORDER
from tsapps.kernels.plan.mma import MmaPlan
from tsapps.kernels.runtime.tensor_map import TENSOR_MAP

STORES = ("StorePairs", "StoreColumns", "StoreLines", "StoreFolded")
EPILOGUES = [
    *(detect_epilogue("float64", 16, lies) for lies in ("packed", "columns", "any")),
    *(detect_epilogue("float32", 16, lies) for lies in ("packed", "columns", "any")),
    *(detect_epilogue("float16", 16, lies) for lies in ("packed", "columns", "any")),
    *(row_sums_epilogue(dtype) for dtype in ("float64", "float32")),
    *(store_epilogue(MmaPlan(dtype, 64, 16, 16)) for dtype in ("float64", "float32", "float16")),
    *(store_epilogue(MmaPlan("float32", 64, 16, 16, fold=2, store=store)) for store in STORES),
]
STRUCTURES = {
    "abft::Task<double>": ("apps/abft/at_rest/gpu/tile_pipeline.cuh", TASK),
    "abft::Matrix<float>": ("apps/abft/product/row_checksums.cuh", abft.MATRIX),
    "abft::Operands<float>": ("apps/abft/product/exact_products.cuh", abft.OPERANDS),
    "abft::Counts": ("apps/abft/product/detect.cuh", abft.COUNTS),
    "abft::FlaggedRow": ("apps/abft/product/detect.cuh", abft.FLAGGED_ROW),
    "abft::FlaggedRows": ("apps/abft/product/detect.cuh", abft.FLAGGED_ROWS),
    "abft::RowBounds": ("apps/abft/product/row_checksums.cuh", abft.ROW_BOUNDS),
    "abft::ElementBounds": ("apps/abft/product/locate.cuh", abft.ELEMENT_BOUNDS),
    "abft::RecheckArgs<double>": ("apps/abft/product/locate.cuh", abft.RECHECK_ARGS),
    "abft::CheckArgs<double>": ("apps/abft/modules/row_check.cuh", modules.CHECK_ARGS),
    "abft::RowFault": ("apps/abft/modules/row_check.cuh", FAULT),
    "abft::PartialResiduals": ("apps/abft/modules/checked_product.cuh", checked_product.PARTIAL_RESIDUALS),
    "abft::RowResiduals<ptx::Bfloat16>": ("apps/abft/modules/checked_product.cuh", checked_product.ROW_RESIDUALS),
    "abft::Rows<float>": ("apps/abft/modules/vector_products.cuh", modules.ROWS),
    "abft::WrongElement": ("apps/abft/product/locate.cuh", abft.WRONG_ELEMENT),
    **{one.name: (one.header, one.arguments) for one in EPILOGUES},
    "kmeans::ArgminEpilogue": ("apps/kmeans/assign/small_k.cuh", ARGMIN),
    "kmeans::LargeKArgminEpilogue<kmeans::StreamedCandidates<128, 4, true, false>, 11>": (
        "apps/kmeans/assign/large_k.cuh",
        LARGE_K_ARGMIN,
    ),
    "kmeans::SplitRows<float, float, 16, true>": ("apps/kmeans/assign/split_rows.cuh", SPLIT_ROWS),
    "kmeans::ArgminEpilogueBounded": ("apps/kmeans/bounds/assign.cuh", BOUNDED),
    "kmeans::BoundsState": ("apps/kmeans/bounds/state.cuh", BOUNDS_STATE),
    "kmeans::DriftArgs": ("apps/kmeans/bounds/state.cuh", DRIFT),
    "kmeans::RowBounds": ("apps/kmeans/small_d/iteration_bounded.cuh", ROW_BOUNDS),
    "kmeans::CenteredRows<float, float>": ("apps/kmeans/assign/row_distances.cuh", ROWS),
    "kmeans::RunningSums<2>": ("apps/kmeans/protect/freivalds.cuh", RUNNING_SUMS),
    "kmeans::QuantizedCopy<float>": ("apps/kmeans/init/quantized_copy.cuh", COPY),
    "kmeans::Checked<int>": ("apps/kmeans/protect/check_iteration.cuh", CHECKED),
    "kmeans::Hashes": ("apps/kmeans/protect/check_iteration.cuh", HASHES),
    "kmeans::Products": ("apps/kmeans/small_d/half_centers.cuh", PRODUCTS),
    "kmeans::Lists<kmeans::AmbiguousRow>": ("apps/kmeans/update/sort_reassigned.cuh", LISTS),
    "kmeans::Segments": ("apps/kmeans/update/sort_reassigned.cuh", SEGMENTS),
    "kmeans::FarRow": ("apps/kmeans/update/farthest_rows.cuh", relocation.FAR_ROW),
    "kmeans::Selection": ("apps/kmeans/update/farthest_rows.cuh", relocation.SELECTION),
    "kmeans::Outcome": ("apps/kmeans/update/centers.cuh", OUTCOME),
    "kmeans::ColumnOrder": ("apps/kmeans/update/column_order.cuh", COLUMN_ORDER),
    "kmeans::TileBound": ("apps/kmeans/assign/error_bound.cuh", TILE_BOUND),
    "kmeans::UpdateCenters<float>": ("apps/kmeans/update/centers.cuh", UPDATE_CENTERS),
    "kmeans::FitsToLabel": ("apps/kmeans/sweep/fits_to_label.cuh", sweep.FITS_TO_LABEL),
    "kmeans::FitsToRescore<float>": ("apps/kmeans/sweep/rescore.cuh", sweep.FITS_TO_RESCORE),
    "kmeans::FitsToAdd": ("apps/kmeans/sweep/update.cuh", sweep.FITS_TO_ADD),
    "kmeans::AllFits": ("apps/kmeans/sweep/first_sums.cuh", sweep.ALL_FITS),
    "batched::Batch<float>": ("apps/kmeans/batched/problem.cuh", BATCH),
    "batched::PlusPlusArgs": ("apps/kmeans/batched/init.cuh", PLUSPLUS_ARGS),
    "tsm2::SquareOperands": ("kernels/square/square_pipeline.cuh", square_gemm.SQUARE_OPERANDS),
    "ptx::TensorMap": ("kernels/ptx/tensor_copy.cuh", TENSOR_MAP),
    "tsm2::OneProduct": ("kernels/tsm2/streamed_turns.cuh", ONE_PRODUCT),
    "tsm2::ManyProducts": ("kernels/tsm2/streamed_turns.cuh", MANY_PRODUCTS),
    "batched::CandidatesEpilogue<128, 3, true, false>": ("apps/kmeans/batched/candidates.cuh", CANDIDATES),
    "tsm2::Order": ("kernels/tsm2/emulated_gemm.cuh", ORDER),
}

_FARTHEST = "apps/kmeans/update/farthest_rows.cuh"
SIZES = {
    "kmeans::AmbiguousRow": ("apps/kmeans/assign/small_k.cuh", AMBIGUOUS_BYTES),
    "kmeans::Reassignment": ("apps/kmeans/assign/large_k_lists.cuh", REASSIGNMENT_BYTES),
    **{
        f"kmeans::AmbiguousLargeK<{most}>": ("apps/kmeans/assign/large_k_lists.cuh", size)
        for most, size in AMBIGUOUS_LARGE_K_BYTES.items()
    },
    "batched::CandidateList": ("apps/kmeans/batched/candidate_list.cuh", CANDIDATE_LIST_BYTES),
    "kmeans::PointTest": ("apps/kmeans/init/code_products.cuh", pruned_launch._TEST_BYTES),
    "kmeans::ConstantCenters": ("apps/kmeans/small_d/constant_centers.cuh", CONSTANT_CENTERS_BYTES),
}

_SMALL_D = "apps/kmeans/small_d/constant_centers.cuh"
_CHECKS = "apps/kmeans/protect/check_iteration.cuh"
_CHECKED = "apps/abft/modules/checked_product.cuh"
_SQUARE = "kernels/square/gemm_square.cuh"
_TILES = "apps/abft/at_rest/gpu/tile_pipeline.cuh"
CONSTANTS = {
    "abft::kCompareThreads": ("apps/abft/at_rest/gpu/compare.cuh", compare._THREADS),
    "abft::RowResiduals<ptx::Bfloat16>::kSharedBytes": (_CHECKED, checked_product._SHARED_BYTES),
    "abft::kCheckRows": ("apps/abft/modules/row_check.cuh", modules._CHECK_ROWS),
    "abft::kCheckThreads": ("apps/abft/modules/row_check.cuh", modules._CHECK_THREADS),
    "abft::kColumnThreads": ("apps/abft/modules/vector_products.cuh", modules._COLUMN_THREADS),
    "abft::kLineThreads": ("apps/abft/modules/vector_products.cuh", modules._LINE_THREADS),
    "abft::kPartThreads": ("apps/abft/modules/vector_products.cuh", modules._PART_THREADS),
    "abft::kVectorBytes": ("apps/abft/modules/vector_products.cuh", modules._VECTOR_BYTES),
    "abft::kLocateThreads": ("apps/abft/product/locate.cuh", abft_gpu._THREADS),
    "abft::kPitch": (_TILES, at_rest._PITCH),
    "abft::kProducts": ("apps/abft/at_rest/gpu/exact_sums.cuh", at_rest._PRODUCTS),
    "abft::kRows": (_TILES, at_rest._PIPELINE_ROWS),
    "abft::kRowsPerLane": ("apps/abft/product/row_checksums.cuh", abft.ROWS_PER_LANE),
    "abft::kStrip": (_TILES, at_rest._STRIP),
    "abft::kWarps": (_TILES, at_rest._WARPS),
    "batched::kSeedRows": ("apps/kmeans/batched/init.cuh", batched.SEED_ROWS),
    "batched::kSettleThreads": ("apps/kmeans/batched/settle.cuh", batched.SETTLE_ROWS),
    "batched::kLeastShare": ("apps/kmeans/batched/sums.cuh", batched.LEAST_SHARE),
    "batched::kMostShare": ("apps/kmeans/batched/sums.cuh", batched.MOST_SHARE),
    "batched::kMostSorted": ("apps/kmeans/batched/sums.cuh", batched.MOST_SORTED),
    "batched::kSlice": ("apps/kmeans/batched/sums.cuh", batched.SLICE),
    "batched::kListParts": ("apps/kmeans/batched/settle.cuh", batched.LIST_PARTS),
    "batched::kTileRows": ("apps/kmeans/batched/assign.cuh", batched.TILE_ROWS),
    "kmeans::kAddThreads": ("apps/kmeans/update/add_reassigned.cuh", launch._ADD_THREADS),
    "kmeans::kCenterThreads": ("kernels/device/block_reduce.cuh", CENTER_THREADS),
    "kmeans::kCheckCenters": (_CHECKS, protect.CENTERS),
    "tsm2::kSideRows": (_SQUARE, square_gemm.SIDE_ROWS),
    "tsm2::kTileColumns": (_SQUARE, square_gemm.TILE_COLUMNS),
    "tsm2::kTileRows": (_SQUARE, square_gemm._TILE_ROWS),
    "tsm2::SquarePipeline<3>::kBytes": (_SQUARE, 3 * square_gemm._STAGE_BYTES),
    "kmeans::kCheckColumns": (_CHECKS, protect.COLUMNS),
    "kmeans::kCheckRows": (_CHECKS, protect.ROWS),
    "kmeans::kCheckThreads": (_CHECKS, protect.THREADS),
    "kmeans::kCountThreads": ("apps/kmeans/update/sort_reassigned.cuh", launch._SORT_THREADS),
    "kmeans::kDistanceThreads": ("apps/kmeans/assign/center_distances.cuh", pivots._DISTANCE_THREADS),
    "kmeans::kPivotThreads": ("apps/kmeans/assign/rescore_by_pivot.cuh", pivots._THREADS),
    "kmeans::kTileCenters": ("apps/kmeans/assign/center_distances.cuh", pivots._TILE_CENTERS),
    "kmeans::kDigitBits": (_FARTHEST, relocation._DIGIT_BITS),
    "kmeans::kDistanceDigits<float>": (_FARTHEST, relocation._DISTANCE_DIGITS[4]),
    "kmeans::kDistanceDigits<double>": (_FARTHEST, relocation._DISTANCE_DIGITS[8]),
    "kmeans::kFarthestThreads": (_FARTHEST, relocation._SEARCH_THREADS),
    "kmeans::kFaults": (_CHECKS, len(FAULTS)),
    "kmeans::kDrawThreads": ("apps/kmeans/init/plusplus.cuh", init.DRAW_THREADS),
    "kmeans::kGroup": ("apps/kmeans/init/plusplus.cuh", init.GROUP),
    "kmeans::kHashFactor": (_CHECKS, protect.HASH_FACTOR),
    "kmeans::kInertiaRows": ("apps/kmeans/inertia/inertia.cuh", inertia.ROWS_TOGETHER),
    "kmeans::kInertiaThreads": ("apps/kmeans/inertia/inertia.cuh", inertia.THREADS),
    "kmeans::kInterval": ("apps/kmeans/init/candidate_distances.cuh", init.INTERVAL),
    "kmeans::kMostCenters": ("apps/kmeans/assign/large_k.cuh", MOST_LARGE_K),
    "kmeans::kMostElements": (_SMALL_D, small_d._MOST_ELEMENTS[0][1]),
    "kmeans::kMostRelocated": ("apps/kmeans/data/stopped.cuh", MOST_RELOCATED),
    "kmeans::kMostFits": ("apps/kmeans/sweep/share.cuh", sweep.MOST_FITS),
    "32 * kmeans::kScatterWarps": ("apps/kmeans/update/scatter_add.cuh", launch._SCATTER_THREADS),
    "kmeans::kScatterWarps * 32": ("apps/kmeans/update/scatter_add.cuh", iterations._ADD_THREADS),
    "kmeans::kAllWarps * 32": ("apps/kmeans/sweep/first_sums.cuh", iterations._ADD_THREADS),
    "kmeans::kMostPairBlocks * 4": ("apps/kmeans/sweep/candidate_bits.cuh", sweep._MOST_PAIRED),
    "kmeans::kMostFeatures": (_SMALL_D, small_d._MOST_ELEMENTS[-1][0]),
    "kmeans::kPlane<1>": ("apps/kmeans/update/scatter_add.cuh", fixed_point._PLANES // 4),
    "kmeans::kQuantizeThreads": ("apps/kmeans/init/quantized_copy.cuh", quantized_copy._THREADS),
    "kmeans::kRelocateThreads": ("apps/kmeans/update/relocate.cuh", relocation._THREADS),
    "kmeans::kRescoreThreads": ("apps/kmeans/assign/rescore_large_k.cuh", device_step.RESCORE_THREADS),
    "kmeans::kRowThreads": ("apps/kmeans/assign/rescore_by_block.cuh", device_step.RESCORE_THREADS),
    "kmeans::kScaleSamples": ("apps/kmeans/init/quantized_copy.cuh", init._SCALE_SAMPLES),
    "kmeans::kScaleThreads": ("apps/kmeans/init/quantized_copy.cuh", quantized_copy._SCALE_THREADS),
    "kmeans::kTryThreads": ("apps/kmeans/init/plusplus.cuh", init.TRY_THREADS),
    "kmeans::kTryRows<float, 8>": ("apps/kmeans/init/plusplus.cuh", init._ROWS_OF_SMALL),
    "kmeans::kTryRows<float, 9>": ("apps/kmeans/init/plusplus.cuh", init._ROWS_OF_LARGE),
    "kmeans::CodePipeline<float, true, 3>::kStage": (
        "apps/kmeans/init/code_pipeline.cuh",
        init._STAGE_ROWS * (init._STAGE_OF_ROW + 2 * 4),
    ),
    "kmeans::CodeQueue<9>::kBytes + kmeans::Queue<uint2, 32>::kBytes": (
        "apps/kmeans/init/plusplus_pruned.cuh",
        init._QUEUED * (4 * (10 + 1) + 8),
    ),
    "kmeans::OwnScores<4, 8>::kRow": ("apps/kmeans/small_d/own_score.cuh", small_d._OWN_BYTES),
    "kmeans::Difference<float, kmeans::RunningSums<3>>::kLastBits": (
        "apps/kmeans/protect/freivalds.cuh",
        inertia.LAST_BITS,
    ),
}


def leaves(dtype, path="", offset=0):
    """Yield (member, offset, size) of all fields of a structure, including nested ones; gaps are named padding."""
    for name, (kind, place, *_) in dtype.fields.items():
        if name.startswith("padding"):
            continue
        if kind.fields is None:
            yield path + name, offset + place, kind.itemsize
        else:
            yield from leaves(kind, f"{path}{name}.", offset + place)


@cache
def library():
    """Return a compiled library with the values of constants, and the size and members of every structure."""
    headers = dict.fromkeys(header for header, _ in (*STRUCTURES.values(), *SIZES.values(), *CONSTANTS.values()))
    parts = [f'#include "{header}"\n' for header in headers]
    sizes = ", ".join(f"sizeof({name})" for name in SIZES)
    parts.append(f'extern "C" void sizes(long long* to) {{ for (long long size : {{{sizes}}}) *to++ = size; }}\n')
    values = ", ".join(f"(unsigned long long)({name})" for name in CONSTANTS)
    parts.append(f'extern "C" void values(long long* to) {{ for (auto value : {{{values}}}) *to++ = value; }}\n')
    for number, (name, (_, dtype)) in enumerate(STRUCTURES.items()):
        members = "".join(
            f"  *to++ = (char*)&one->{path} - (char*)one; *to++ = sizeof one->{path};\n" for path, *_ in leaves(dtype)
        )
        parts.append(
            f'extern "C" void structure_{number}(long long* to) {{\n'
            f"  alignas(64) static unsigned char room[sizeof({name})];\n"
            f"  auto* one = reinterpret_cast<{name}*>(room);\n"
            f"  *to++ = sizeof({name});\n{members}}}\n"
        )
    return harness.build("".join(parts))


def test_sizes():
    found = np.zeros(len(SIZES), np.int64)
    library().call("sizes", found)
    assert dict(zip(SIZES, found.tolist(), strict=True)) == {name: size for name, (_, size) in SIZES.items()}


def test_constants():
    found = np.zeros(len(CONSTANTS), np.int64)
    library().call("values", found)
    values = found.view(np.uint64).tolist()
    assert dict(zip(CONSTANTS, values, strict=True)) == {name: value for name, (_, value) in CONSTANTS.items()}


@pytest.mark.parametrize("name", STRUCTURES)
def test_fields_are_the_members_of_their_names(name):
    dtype = STRUCTURES[name][1]
    expected = list(leaves(dtype))
    found = np.zeros(1 + 2 * len(expected), np.int64)
    library().call(f"structure_{list(STRUCTURES).index(name)}", found)
    places = zip(found[1::2].tolist(), found[2::2].tolist(), strict=True)
    assert [(path, *one) for (path, *_), one in zip(expected, places, strict=True)] == expected
    assert found[0] == dtype.itemsize
