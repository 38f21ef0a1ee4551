"""Structures that Python packs for kernels: offsets and sizes of fields match the C++ members of the same names.

Sizes of C++ classes that Python only makes room for match, too.
"""

from functools import cache

import numpy as np
import pytest
from host_cuda import harness

from tsapps.apps.abft.at_rest.gpu.plan import TASK
from tsapps.apps.abft.product import plan as abft
from tsapps.apps.abft.product.plan import detect_epilogue, row_sums_epilogue
from tsapps.apps.kmeans.assign.plan import (
    AMBIGUOUS_BYTES,
    AMBIGUOUS_LARGE_K_BYTES,
    ARGMIN,
    REASSIGNMENT_BYTES,
    STREAMED_ARGMIN,
)
from tsapps.apps.kmeans.batched.plan import BATCH, PLUSPLUS_ARGS
from tsapps.apps.kmeans.bounds.plan import BOUNDED, BOUNDS_STATE, DRIFT, ROW_BOUNDS
from tsapps.apps.kmeans.data.plan import ROWS
from tsapps.apps.kmeans.inertia.plan import RUNNING_SUMS
from tsapps.apps.kmeans.init.plan import COPY
from tsapps.apps.kmeans.protect.plan import CHECKED, HASHES
from tsapps.apps.kmeans.small_d.plan import CONSTANT_CENTERS_BYTES, PRODUCTS
from tsapps.apps.kmeans.update.plan import LISTS, OUTCOME, SEGMENTS, UPDATE_CENTERS
from tsapps.kernels.plan.accumulation_order import ORDER

EPILOGUES = [
    *(detect_epilogue("float64", 16, lies) for lies in ("packed", "columns", "any")),
    *(detect_epilogue("float32", 16, lies) for lies in ("packed", "columns", "any")),
    *(detect_epilogue("float16", 16, lies) for lies in ("packed", "columns", "any")),
    *(row_sums_epilogue(dtype) for dtype in ("float64", "float32")),
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
    "abft::WrongElement": ("apps/abft/product/locate.cuh", abft.WRONG_ELEMENT),
    **{one.name: (one.header, one.arguments) for one in EPILOGUES},
    "kmeans::ArgminEpilogue": ("apps/kmeans/assign/small_k.cuh", ARGMIN),
    "kmeans::StreamedArgminEpilogue<128, 4, true>": ("apps/kmeans/assign/large_k.cuh", STREAMED_ARGMIN),
    "kmeans::ArgminEpilogueBounded": ("apps/kmeans/bounds/assign.cuh", BOUNDED),
    "kmeans::BoundsState": ("apps/kmeans/bounds/state.cuh", BOUNDS_STATE),
    "kmeans::DriftArgs": ("apps/kmeans/bounds/state.cuh", DRIFT),
    "kmeans::RowBounds": ("apps/kmeans/small_d/iteration_bounded.cuh", ROW_BOUNDS),
    "kmeans::CenteredRows<float, float>": ("apps/kmeans/assign/rescore.cuh", ROWS),
    "kmeans::RunningSums<2>": ("apps/kmeans/protect/freivalds.cuh", RUNNING_SUMS),
    "kmeans::Copy": ("apps/kmeans/init/copy_pipeline.cuh", COPY),
    "kmeans::Checked<int>": ("apps/kmeans/protect/check_iteration.cuh", CHECKED),
    "kmeans::Hashes": ("apps/kmeans/protect/check_iteration.cuh", HASHES),
    "kmeans::Products": ("apps/kmeans/small_d/half_centers.cuh", PRODUCTS),
    "kmeans::Lists<kmeans::AmbiguousRow>": ("apps/kmeans/update/sort_reassigned.cuh", LISTS),
    "kmeans::Segments": ("apps/kmeans/update/sort_reassigned.cuh", SEGMENTS),
    "kmeans::Outcome": ("apps/kmeans/update/centers.cuh", OUTCOME),
    "kmeans::UpdateCenters<float>": ("apps/kmeans/update/centers.cuh", UPDATE_CENTERS),
    "batched::Batch<float>": ("apps/kmeans/batched/problem.cuh", BATCH),
    "batched::PlusPlusArgs": ("apps/kmeans/batched/init.cuh", PLUSPLUS_ARGS),
    "tsm2::Order": ("kernels/tsm2/emulated_gemm.cuh", ORDER),
}

SIZES = {
    "kmeans::AmbiguousRow": ("apps/kmeans/assign/small_k.cuh", AMBIGUOUS_BYTES),
    "kmeans::Reassignment": ("apps/kmeans/assign/large_k.cuh", REASSIGNMENT_BYTES),
    "kmeans::AmbiguousLargeK": ("apps/kmeans/assign/large_k.cuh", AMBIGUOUS_LARGE_K_BYTES),
    "kmeans::ConstantCenters": ("apps/kmeans/small_d/constant_centers.cuh", CONSTANT_CENTERS_BYTES),
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
    """Return a compiled library with the size of every structure and the offset and size of its members."""
    headers = dict.fromkeys(header for header, _ in (*STRUCTURES.values(), *SIZES.values()))
    parts = [f'#include "{header}"\n' for header in headers]
    sizes = ", ".join(f"sizeof({name})" for name in SIZES)
    parts.append(f'extern "C" void sizes(long long* to) {{ for (long long size : {{{sizes}}}) *to++ = size; }}\n')
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


@pytest.mark.parametrize("name", STRUCTURES)
def test_fields_are_the_members_of_their_names(name):
    dtype = STRUCTURES[name][1]
    expected = list(leaves(dtype))
    found = np.zeros(1 + 2 * len(expected), np.int64)
    library().call(f"structure_{list(STRUCTURES).index(name)}", found)
    places = zip(found[1::2].tolist(), found[2::2].tolist(), strict=True)
    assert [(path, *one) for (path, *_), one in zip(expected, places, strict=True)] == expected
    assert found[0] == dtype.itemsize
