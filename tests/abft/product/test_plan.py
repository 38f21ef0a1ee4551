"""Plans of protected products, and the registers and spills of their compiled kernels."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from host_cuda import harness

from tsapps.apps.abft.product.plan import (
    MOST_SPILLED,
    checked_plan,
    detect_epilogue,
    half_step,
    is_fused,
    measured,
    padded_depth,
    row_sums_epilogue,
    store_of,
    with_row_sums,
)
from tsapps.kernels import gemm
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.plan.candidates import candidates
from tsapps.kernels.plan.mma import ELEMENT, SUM, MmaPlan
from tsapps.kernels.plan.predict import predict
from tsapps.kernels.plan.select import configuration_of, tuned_table
from tsapps.kernels.problem import ITEMSIZE, Layout, Problem
from tsapps.kernels.tune import Cell

ARCHITECTURES = {"sm_80": ("A100", ""), "sm_90a": ("H200", "NVIDIA H200"), "sm_100a": ("H200", "")}
FOLDER = harness.ROOT / "apps" / "abft"


def problem_of(dtype, k, w, *, along=True, aligned=True, c="packed"):
    unit = 16 if aligned else ITEMSIZE[dtype]

    def layout(along, lead):
        return Layout(along, lead, int(np.gcd(unit, lead * ITEMSIZE[dtype])), unit)

    return Problem(10**6, k, w, dtype, layout(along, k if along else 10**6), layout(not along, w if along else k), c=c)


@pytest.mark.parametrize(
    ("m", "k", "w", "fused"),
    [(65, 1, 1, True), (10**6, 4096, 64, True), (64, 100, 8, False), (10**6, 10, 65, False), (100, 0, 3, False)],
)
def test_products_checked_by_their_own_kernel(m, k, w, fused):
    assert is_fused(m, k, w) is fused
    assert not is_fused(m, k, 0)


def test_weights_by_hand():
    # N is 16 up to 64 columns, which have 16 values of n; then a power of two.
    assert [half_step(w) for w in (1, 64, 65, 128, 129)] == [1 / 32, 1 / 32, 1 / 64, 1 / 64, 1 / 128]
    plan = checked_plan(problem_of("float32", 100, 16), KNOWN["H200"], ())
    assert padded_depth(100, plan) == -(-100 // plan.depth) * plan.depth + 16


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", ELEMENT)
@pytest.mark.parametrize(("device", "name"), ARCHITECTURES.values())
def test_there_is_a_plan(device, name, dtype):
    for k in (1, 33, 64, 1000):
        for w in (1, 16, 64):
            for along, aligned in ((True, True), (True, False), (False, True)):
                problem = problem_of(dtype, k, w, along=along, aligned=aligned)
                plan = checked_plan(problem, KNOWN[device], tuned_table(name))
                if plan is None:
                    # Too large for shared memory or registers: such products are checked afterwards.
                    assert dtype == "float64", (k, w, along, aligned)
                    continue
                # The epilogue needs warps with all columns of a row, and checksums of A's rows.
                assert (plan.warps_n, plan.tile_n, plan.fold, plan.row_sums) == (1, problem.w, 1, True)


def test_tuned_configurations_are_selected():
    device, rows = replace(KNOWN["H200"], name="NVIDIA H200"), measured("NVIDIA H200")
    assert len(rows) > 90
    for row in rows:
        cell = Cell(row["shape"], row["dtype"], row["m"], row["depth"], row["w"], row["along"])
        plan = checked_plan(cell.problem(), device, ())
        assert row.items() >= configuration_of(plan).items(), row
        assert plan.row_sums


def test_without_a_table_the_plan_is_the_fastest_by_the_model():
    problem, device = problem_of("float32", 1000, 16), KNOWN["A100"]
    times = {
        predict(made, problem, device)
        for one in candidates(problem, device)
        if type(one) is MmaPlan and (made := with_row_sums(one, device, roomy=True)) is not None
    }
    assert len(times) > 3
    assert predict(checked_plan(problem, device, ()), problem, device) == min(times)


def test_no_checks_where_warps_share_the_columns_of_a_row():
    problem, device = problem_of("float16", 4096, 64), KNOWN["H200"]
    plans = [one for one in candidates(problem, device) if isinstance(one, MmaPlan)]
    shared, alone = ([one for one in plans if (one.warps_n > 1) is several] for several in (True, False))
    assert shared
    assert all(with_row_sums(one, device) is None for one in shared)
    assert any(with_row_sums(one, device) is not None for one in alone)


def test_stores():
    assert store_of("float32", 16, "packed") == "tsm2::StorePairs<float, float>"
    assert store_of("float16", 24, "packed") == "abft::StoreEach<ptx::Half, float>"
    assert store_of("float16", 32, "rows") == "tsm2::StorePairs<ptx::Half, float>"
    assert store_of("float64", 16, "columns") == "tsm2::StoreColumns<double, double>"
    assert store_of("float64", 16, "any") == "abft::StoreEach<double, double>"
    name = "abft::DetectEpilogue<float, abft::StoreEach<ptx::Bfloat16, float>>"
    assert detect_epilogue("bfloat16", 3, "any").name == name
    assert row_sums_epilogue("float64").name == "abft::StoreRowSums<double>"


#: Compiled products: columns of A, w, layout of C.
COMPILED = [(8, 16, "packed"), (64, 64, "packed"), (1000, 5, "any"), (4096, 16, "packed"), (4096, 56, "packed")]
COMPILED += [(4096, 64, "columns")]


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_products_compile_without_spills(arch, dtype):
    device, name = ARCHITECTURES[arch]
    known = replace(KNOWN[device], name=name or device)
    plans = [checked_plan(problem_of(dtype, k, w, c=c), known, tuned_table(name)) for k, w, c in COMPILED]
    epilogues = [detect_epilogue(dtype, w, c) for _, w, c in COMPILED]
    wanted = [(plan, epilogue) for plan, epilogue in zip(plans, epilogues, strict=True) if plan is not None]
    assert len(wanted) >= len(COMPILED) - 1
    compiled = partial(_compiled, arch)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for one, used in zip(wanted, pool.map(compiled, wanted), strict=True):
            # A spill once per tile is not measurable.
            assert max(used.stack, used.spill_stores, used.spill_loads) <= MOST_SPILLED, one
            assert not used.waits


def _compiled(arch, wanted):
    plan, epilogue = wanted
    cubin, name = gemm.compiled_plan(plan, arch, epilogue)
    return cubin.resources[name]


@pytest.mark.compile
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_other_kernels_compile_without_spills(arch):
    wanted = []
    for dtype, element in ELEMENT.items():
        total, vector = SUM[dtype], 16 // ITEMSIZE[dtype]
        wanted.append(("product/locate.cuh", f"locate<{element}, {total}>"))
        wanted += [
            *(
                ("product/row_checksums.cuh", f"row_checksums<{element}, {total}, {how}>")
                for how in ("1, 1", "8, 1", f"8, {vector}")
            ),
            *(("product/row_checksums.cuh", f"check_rows<{element}, {total}, {lanes}>") for lanes in (1, 8)),
        ]
    for file, kernel in wanted:
        name = f"abft::{kernel}"
        used = build((FOLDER / file).read_text(encoding="utf-8"), [name], arch).resources[name]
        assert used.spill_stores == used.spill_loads == 0, kernel
        # locate keeps the sums of a plan's splits on the stack (emulated_gemm.cuh).
        assert used.stack == 0 or "locate" in kernel, kernel
