"""Every plan that a table of kernels/tuned/ picks compiles for every architecture, without spills and as planned.

A table's picks were found among the plans that fit the device it was measured on; that they do is checked against what
the compiler says.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import pytest
from host_cuda import harness

from tsapps.kernels.dispatch import compile_any
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import architecture_of
from tsapps.kernels.plan import select
from tsapps.kernels.plan.candidates import RESERVED
from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan
from tsapps.kernels.plan.select import ALGORITHM, KEY, LIBRARY, configuration_of
from tsapps.kernels.plan.user_table import write_table
from tsapps.kernels.tune import CELLS, Cell

ARCHITECTURES = ["sm_80", "sm_90a", "sm_100a"]
WARPGROUPS = "sm_90a"  # the one that has their instructions
#: Products whose fastest predicted plans once needed more registers than estimated: they spilled.
UNDER_PRESSURE = [
    Cell("tsm2r", "float16", 30_720, 15_360, 16, False),
    Cell("tsm2l", "float32", 20_000_000, 4, 8, True),
    Cell("tsm2l", "float32", 1_000_000, 33, 33, True),
    Cell("tsmttsm", "float32", 32, 1_000_000, 32, False),
]
TABLES = sorted(path.stem for path in select._TUNED.glob("*.json"))
# Registers are given out by eight to a thread, shared memory by 128 bytes.
REGISTERS_AT_ONCE, SHARED_AT_ONCE = 8, 128


def rounded_up(number, step):
    return -(-number // step) * step


def device_of(table):
    """Return the device that a table was measured on, from its file's name: nvidia-h200, nvidia-a100-sxm4-80gb."""
    return next(device for short, device in KNOWN.items() if short.lower() in table.split("-"))


def rows_of(table):
    return select.tuned_table(table.replace("-", " "))


def picks_of(table):
    """Return a table's rows that have a pick, without what they say of the library's algorithms."""
    return [{name: row[name] for name in row if name != ALGORITHM} for row in rows_of(table) if "kernel" in row]


def unlike_planned(plan, device, used):
    """Return how the kernel of a plan differs from what it was taken to be when it was chosen, or ""."""
    found = []
    if used.stack or used.spill_stores or used.spill_loads:
        found.append(f"stack {used.stack}, spills {used.spill_stores} + {used.spill_loads} bytes")
    if used.waits:
        found.append("waits for products of warpgroups")
    if isinstance(plan, WgmmaPlan) and used.registers != plan.registers[0]:
        found.append(f"{used.registers} registers, which setmaxnreg takes to be {plan.registers[0]}")
    blocks, dynamic = (plan.blocks, plan.shared_bytes) if isinstance(plan, MmaPlan) else (1, 0)
    registers = rounded_up(used.registers, REGISTERS_AT_ONCE) * plan.threads * blocks
    if registers > device.registers:
        found.append(f"{used.registers} registers a thread, {registers} of {device.registers} in all")
    shared = rounded_up(dynamic + used.shared, SHARED_AT_ONCE)
    if shared > device.shared_memory_per_block:
        found.append(f"{shared} bytes of shared memory of a block's {device.shared_memory_per_block}")
    if blocks * (shared + RESERVED) > device.shared_memory:
        found.append(f"{blocks} blocks of {shared} bytes of shared memory of {device.shared_memory} in all")
    return ", ".join(found)


def complaints(plans, device, arch):
    """Compile plans, each given with what it is for, and return what is wrong with which."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        running = {plan: pool.submit(compile_any, plan, arch) for plan in plans}
    found = []
    for plan, future in running.items():
        wrong = str(future.exception() or unlike_planned(plan, device, future.result()))
        found += [f"{cell}: {wrong}" for cell in plans[plan] if wrong]
    return found


def problem_of(row):
    """Return a problem that a row is for."""
    problem = Cell(row["shape"], row["dtype"], row["m"], row["depth"], row["w"], row["along"]).problem()
    return replace(problem, c="packed" if row["c_by_rows"] else "aligned columns")


@pytest.mark.compile
# Of the table's own architecture, and of others, every so many: all take many minutes.
@pytest.mark.parametrize("steps", [(8, 20), pytest.param((1, 5), marks=pytest.mark.exhaustive)], ids=["some", "all"])
@pytest.mark.parametrize(
    "arch",
    [WARPGROUPS, *(pytest.param(arch, marks=pytest.mark.exhaustive) for arch in ARCHITECTURES if arch != WARPGROUPS)],
)
@pytest.mark.parametrize("table", TABLES)
def test_picks_compile_without_spills_and_as_small_as_planned(monkeypatch, capfd, table, arch, steps):
    # Machine code stays in pytest's cache, whose key is all that it is made of.
    monkeypatch.setenv("XDG_CACHE_HOME", str(harness.CACHE.parent))
    device, plans = device_of(table), {}
    for row in picks_of(table):
        plan = select.plan(problem_of(row), device, picks_of(table))
        if plan != LIBRARY and not (isinstance(plan, WgmmaPlan) and arch != WARPGROUPS):
            plans.setdefault(plan, []).append({name: row[name] for name in KEY})
    own = arch.startswith(f"sm_{device.compute_capability.replace('.', '')}")
    plans = dict(list(plans.items())[:: steps[0] if own else steps[1]])
    found = complaints(plans, device, arch)
    capfd.readouterr()  # that compiling took long
    if found:
        pytest.fail(f"{len(found)} picks of {table} are not as planned on {arch}:\n" + "\n".join(found), pytrace=False)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(("A100", 29), ("RTX 4090", 29), ("H200", 29)),
        pytest.param("A100", 3, marks=pytest.mark.exhaustive),
        pytest.param("RTX 4090", 3, marks=pytest.mark.exhaustive),
    ],
)
def test_plans_without_a_table_compile_without_spills(monkeypatch, capfd, name, step):
    monkeypatch.setenv("XDG_CACHE_HOME", str(harness.CACHE.parent))
    device, plans = KNOWN[name], {}
    for cell in (*CELLS[::step], *UNDER_PRESSURE):
        plan = select.plan(cell.problem(), device, [])
        if isinstance(plan, MmaPlan):
            plans.setdefault(plan, []).append(str(cell))
    found = complaints(plans, device, architecture_of(device.compute_capability))
    capfd.readouterr()  # that compiling took long
    assert len(plans) >= 4
    assert not found, "\n".join(found)


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("table", TABLES)
def test_every_row_decides_what_it_is_for(table, step):
    rows, picks, device = rows_of(table), picks_of(table), device_of(table)
    assert len({tuple(row[name] for name in KEY) for row in rows}) == len(rows)
    for row in rows[::step]:
        assert "kernel" in row or ALGORITHM in row
        problem = problem_of(row)
        if "kernel" in row:
            assert configuration_of(select.plan(problem, device, picks)).items() <= row.items()
        if ALGORITHM in row:
            (algorithm,) = configuration_of(select.plan(problem, device, rows)).values()
            assert algorithm.items() <= row[ALGORITHM].items()


def test_a_gpu_of_the_same_generation_has_the_picks_of_an_h200(tmp_path):
    def row(w, **others):
        sizes = {"k": 64, "w": w, "m": 20_480, "depth": 20_480}
        return {"shape": "tsm2r", "dtype": "float32", "along": True, "c_by_rows": True} | sizes | others

    algorithm = {"rank": 3, "own_orders": False, "version": 1, "ms": 0.1}
    own, theirs = row(8, kernel="tsm2r_columns"), row(8, kernel="tall_skinny")
    both, best = row(16, kernel="tall_skinny", algorithm=algorithm), row(32, algorithm=algorithm)
    library = row(64, kernel=LIBRARY)
    write_table(tmp_path / "nvidia-h200.json", [theirs, both, best, library])
    write_table(tmp_path / "nvidia-h100-nvl.json", [own])
    expected = [row(16, kernel="tall_skinny"), row(32, kernel=LIBRARY), library]
    assert select.tuned_table("NVIDIA H100 NVL", tmp_path) == (own, *expected)
    assert select.tuned_table("NVIDIA GH200 480GB", tmp_path) == (theirs, *expected)
    assert select.tuned_table("NVIDIA H200", tmp_path) == (theirs, both, best, library)
    assert select.tuned_table("NVIDIA A100-SXM4-80GB", tmp_path) == ()
