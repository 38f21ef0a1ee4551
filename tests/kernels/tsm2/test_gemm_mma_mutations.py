"""gemm_mma.cuh on the CPU: nothing is touched out of bounds, and bugs that are put into it are found."""

from dataclasses import replace

import pytest
from exhaustive import every
from faults import fault
from host_cuda import harness
from products import Case, build_plans_together, check, check_in_any_order

from tsapps.kernels.plan.mma import MmaPlan

KERNEL, OPERAND, STORE, STAGING, SCHEDULER = (
    f"kernels/tsm2/{name}.cuh" for name in ("gemm_mma", "operand", "store", "epilogue_staging", "tile_scheduler")
)
SIMT = "kernels/device/simt.cuh"
BARRIER = "__syncthreads();"

# Each has blocks that go through several tiles, edges that are ragged, and warps that share what a barrier guards.
STREAM = Case(MmaPlan("float32", 64, 16, 32, warps_m=4, stages=3), 150, 203, 16, pads=(5, 0), C="tall", grid=4)
PREPARED = Case(MmaPlan("float32", 64, 24, 32, warps_m=4, stages=3, prepare_b=True), 150, 299, 24, grid=4)
KEPT = Case(MmaPlan("float32", 64, 9, 21, warps_m=4, stages=3, keep_b=True), 400, 21, 9, C="wide", grid=3)
LARGE = Case(MmaPlan("float32", 16, 40, 21, teams=2, stages=3, keep_b=True), 400, 21, 40, grid=3)
TEAMS = Case(MmaPlan("float32", 16, 9, 21, teams=4, stages=3, keep_b=True), 600, 21, 9, "FC", C="F", grid=2)
DEEP = Case(MmaPlan("float32", 33, 16, 128, warps_n=2, warps_k=4, stages=3), 33, 900, 16, "FC", C="wide", grid=3)
WIDE = Case(MmaPlan("float32", 64, 40, 32, warps_m=2, stages=3), 200, 99, 40, C="wide", grid=3)
FOLDED = Case(MmaPlan("float32", 12, 8, 32, warps_k=2, stages=3, fold=4), 3, 1001, 2, "FC", grid=3)
HALVES = Case(MmaPlan("float16", 32, 32, 64, warps_m=2, stages=3), 77, 150, 32, pads=(2, 0), grid=3)
DOUBLES = Case(MmaPlan("float64", 32, 5, 16, stages=3), 77, 133, 5, "FF", (1, 3), C="F", grid=4)
LINES = Case(MmaPlan("float32", 16, 24, 9, teams=2, stages=2, keep_b=True), 328, 9, 24, C="F", beta=-0.5, grid=2)

#: What is changed in which file, at which occurrence, and a product that shows it.
FAULTS = {
    "the first B is not whole": (KERNEL, BARRIER, "", 0, PREPARED),
    "a stage is used before it is whole": (KERNEL, BARRIER, "", 1, STREAM),
    "B is not whole before it is taken apart": (KERNEL, BARRIER, "", 2, KEPT),
    "the ring goes on before all have read B": (KERNEL, BARRIER, "", 3, TEAMS),
    "the ring begins before all have read a large B": (KERNEL, BARRIER, "", 3, LARGE),
    "sums are handed over where others are read": (KERNEL, BARRIER, "", 5, DEEP),
    "sums are taken before they are handed over": (KERNEL, BARRIER, "", 6, DEEP),
    "rows are handed over where sums are read": (KERNEL, BARRIER, "", 7, DEEP),
    "a warp's own stage is not whole": (KERNEL, "simt::sync_warp();", "", 0, TEAMS),
    "rows are overwritten while they are stored": (STAGING, "__syncwarp();", "", 0, WIDE),
    "rows are stored before they are whole": (STAGING, "__syncwarp();", "", 1, WIDE),
    "lines are overwritten while they are stored": (STORE, "__syncwarp();", "", 0, replace(LINES, beta=0.0)),
    "the old lines are not whole": (STORE, "__syncwarp();", "", 1, LINES),
    "lines are stored before they are whole": (STORE, "__syncwarp();", "", 2, LINES),
    "a wait for one stage too few": (KERNEL, "kPreparesNext ? 3 : 2", "kPreparesNext ? 2 : 1", 0, STREAM),
    "no wait for the B that stays": (KERNEL, "ptx::cp_async_wait<pending>();", "", 0, KEPT),
    "sums of the last tile": (KERNEL, "sum_at(sums, i) = 0;", "sum_at(sums, i) += 0;", 0, STREAM),
    "another block's place": (
        SCHEDULER,
        "while (begin(block + 1) <= unit) ++block;",
        "--block;",
        0,
        replace(STREAM, grid=8),
    ),
    "counts that stay": (SIMT, "if (last) *arrived = 0;", "", 0, STREAM),
    "told before the last has counted": (SIMT, "sync();", "", 1, replace(STREAM, m=400, grid=8)),
    "what lies between lines": (
        OPERAND,
        "if (!kPacked && present > length_ - at) present = length_ - at;",
        "",
        0,
        STREAM,
    ),
    "depths beyond the tile": (OPERAND, "if (kMasks && depth >= kDepth) return Word(0);", "", 0, KEPT),
    "rows that are not there": (STORE, "if (!present || c >= columns)", "if (c >= columns)", 0, STREAM),
    "an old result that counts for nothing": (STORE, "beta == Sum(0) ? alpha * sum : alpha", "alpha", 0, WIDE),
}


def test_a_change_that_changes_nothing_is_refused():
    source = f'#include "{KERNEL}"\n'
    assert fault(KERNEL, BARRIER, "// none")(source).count("// none") == 1
    with pytest.raises(ValueError, match="'no such text' is not in"):
        fault(KERNEL, "no such text")(source)
    with pytest.raises(ValueError, match="no header of the kernel"):
        fault("kernels/tsm2/simt/tsm2l_rows.cuh", BARRIER)(source)


@pytest.mark.parametrize("case", every(3, dict.fromkeys(case for *_, case in FAULTS.values())), ids=str)
def test_without_a_fault_nothing_is_found(case):
    check_in_any_order(case)


@pytest.mark.parametrize("name", every(6, FAULTS))
def test_a_fault_is_found(name):
    *change, case = FAULTS[name]
    edit = fault(*change)
    with pytest.raises((AssertionError, harness.KernelError)):
        check_in_any_order(case, edit=edit)


# --- Out of bounds --------------------------------------------------------------------------------------------------

# Of the last, the tile has as many lines as the operands, the last of them shorter.
EXACT = [
    replace(STREAM, C="C"),
    PREPARED,
    KEPT,
    TEAMS,
    DEEP,
    WIDE,
    HALVES,
    DOUBLES,
    FOLDED,
    LINES,
    replace(FOLDED, k=1023),
]

#: As FAULTS; these touch what is beyond an operand or the result.
OUTSIDE = {
    "the last line of folded ones": (OPERAND, "present = left_ - offset;", "present = length_;", 0, FOLDED),
    "rows that are not there": (*FAULTS["rows that are not there"][:-1], replace(STREAM, C="C")),
}


def run_in_exact_memory():
    """For a process under AddressSanitizer: operands whose memory ends with their last element."""
    build_plans_together((case.instance for case in EXACT), len(EXACT))
    for case in EXACT:
        check(case, flags=harness.SANITIZE)


def run_with_fault(name):
    """For a process under AddressSanitizer, which it ends."""
    *change, case = OUTSIDE[name]
    check(case, flags=harness.SANITIZE, edit=fault(*change))


def sanitized(function, *arguments):
    return harness.run_sanitized(f"import runpy; runpy.run_path({__file__!r})[{function!r}](*{arguments!r})")


@pytest.mark.exhaustive
def test_nothing_is_touched_out_of_bounds():
    run = sanitized("run_in_exact_memory")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", every(2, OUTSIDE))
def test_out_of_bounds_is_caught(name):
    run = sanitized("run_with_fault", name)
    assert run.returncode != 0
    assert "heap-buffer-overflow" in run.stderr
    assert "kernels.cuh" in run.stderr, "the place in the source is missing"
