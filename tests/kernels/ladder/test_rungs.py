"""The rungs of the ladder: the kernels' own source, run on the CPU, against float64."""

import re
from math import prod
from pathlib import Path

import numpy as np
import pytest
from exhaustive import property_test
from faults import replaced
from host_cuda import harness
from host_cuda.machine import HostMachine, build_together
from hypothesis import strategies as st
from ladder_products import SHAPES, assert_product, matrix

from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.ladder import rungs
from tsapps.kernels.ladder.launch import multiply
from tsapps.kernels.ladder.rungs import MOST_BLOCKS, RUNGS, rung_named

FOLDER = Path(rungs.__file__).parent
SCALARS = {"float32": "float", "float64": "double"}
BY_NAME = pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
UNTOUCHED = -12345.0

FILES = {
    file: [
        f"ladder::{kernel.format(scalar)}"
        for kernel in dict.fromkeys(rung.kernel for rung in RUNGS if rung.file == file)
        for scalar in SCALARS.values()
    ]
    for file in dict.fromkeys(rung.file for rung in RUNGS)
}
build_together([(FOLDER / file, names) for file, names in FILES.items()], share=1)


@BY_NAME
@pytest.mark.parametrize("dtype", SCALARS)
def test_two_by_two_by_hand(rung, dtype):
    A, B, C = (np.array(values, dtype) for values in ([[1, 2], [3, 4]], [[5, 6], [7, 8]], [[1, 0], [0, 1]]))
    np.testing.assert_array_equal(multiply(rung, A, B, machine=HostMachine()), [[19, 22], [43, 50]])
    found = multiply(rung, A, B, C, alpha=2, beta=-1, machine=HostMachine())
    assert found is C
    np.testing.assert_array_equal(C, [[37, 44], [86, 99]])


@pytest.mark.each_choice
@BY_NAME
@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("pad", [0, 3, 4])
def test_ragged_shapes(rung, dtype, shape, order, pad, rng):
    (m, n, k), of = shape, {"order": order, "pad": pad}
    A, B, C = (matrix(size, dtype, rng, **of) for size in ((m, k), (k, n), (m, n)))
    before = C.copy()
    whole = C.base
    found = multiply(rung, A, B, C, alpha=1.5, beta=0.5, machine=HostMachine())
    assert_product(found, A, B, 1.5, before, 0.5)
    assert np.isnan(whole).sum() == pad * (m if order == "C" else n)  # nothing is written beside C
    C[...] = np.nan  # which is not read without beta
    assert_product(multiply(rung, A, B, C, alpha=-2, machine=HostMachine()), A, B, -2)


@property_test(
    20,
    200,
    rung=st.sampled_from(RUNGS),
    dtype=st.sampled_from(list(SCALARS)),
    shape=st.tuples(*[st.integers(1, 140)] * 3),
    pad=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_any_shape_and_order_of_threads(rung, dtype, shape, pad, seed):
    rng, (m, n, k) = np.random.default_rng(seed), shape
    A, B = matrix((m, k), dtype, rng, pad=pad), matrix((k, n), dtype, rng, pad=pad)
    with harness.schedule(seed=seed):
        assert_product(multiply(rung, A, B, machine=HostMachine()), A, B)


@BY_NAME
def test_same_bits_in_any_order_of_threads(rung, rng):
    A, B = matrix((70, 40), "float32", rng), matrix((40, 50), "float32", rng)
    first = multiply(rung, A, B, machine=HostMachine())
    for seed in range(1, 4):
        with harness.schedule(seed=seed, threads=1 + seed % 2):
            np.testing.assert_array_equal(multiply(rung, A, B, machine=HostMachine()), first)


BARRIERS = [
    (rung, place)
    for rung in RUNGS
    for place in range((FOLDER / rung.file).read_text(encoding="utf-8").count("__syncthreads();"))
    if rung.name != "shared_tile_8"  # whose block is two warps
]


@pytest.mark.parametrize(("rung", "place"), BARRIERS, ids=lambda one: getattr(one, "name", one))
def test_a_missing_barrier_is_caught(rung, place, rng):
    machine = HostMachine(edit=lambda text: replaced(text, "__syncthreads();", "", place, "the source"))
    A, B = matrix((70, 90), "float32", rng), matrix((90, 140), "float32", rng)
    for seed in range(3):
        with harness.schedule(seed=seed):
            found = multiply(rung, A, B, machine=machine)
        with pytest.raises(AssertionError, match="elements are off"):
            assert_product(found, A, B)


BOTH = np.zeros((2, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"A": np.zeros((2, 3))}, r"A has shape \(2, 3\) and B \(4, 5\)"),
        ({"A": np.zeros((0, 4))}, "at least one row and column"),
        ({"A": np.zeros((2, 4), np.float32)}, "the same for both"),
        ({"C": np.zeros((2, 4))}, r"C has shape \(2, 4\) and dtype float64; expected \(2, 5\)"),
        ({"C": np.zeros((2, 5), np.float32)}, "expected .2, 5. and float64"),
        ({"beta": 1.0}, "there is no C"),
        ({"A": np.zeros((2, 4), order="F")}, "all of them column-major"),
        ({"A": np.zeros((2, 8))[:, ::2]}, "row-major"),
        ({"A": np.broadcast_to(np.zeros(4), (2, 4))}, "row-major"),
        ({"A": BOTH[:, :4], "B": np.zeros((4, 5)), "C": BOTH[:, 3:]}, "C overlaps A in memory"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        multiply(RUNGS[0], **{"A": np.zeros((2, 4)), "B": np.zeros((4, 5)), "machine": HostMachine(), **arguments})


def test_names():
    assert rung_named("pitched").file == "07_pitched.cuh"
    with pytest.raises(ValueError, match=r"rung must be one of one_thread_blocks, .*, got 'V0'"):
        rung_named("V0")


def test_grids_and_warps_by_hand():
    gpu = KNOWN["H200"]  # 132 multiprocessors of 64 warps
    one, stride, tiles = (rung_named(name) for name in ("one_thread_blocks", "grid_stride", "shared_tile_8"))
    assert one.blocks(10, 10, gpu) == one.resident_warps(10, 10, gpu, 32) == 100
    assert one.blocks(10**4, 10**4, gpu) == 132 * 32
    assert stride.blocks(100, 3, gpu) == 2
    assert stride.resident_warps(100, 3, gpu, 8) == 16
    assert stride.resident_warps(10**4, 10**4, gpu, 8) == 132 * 64
    assert tiles.blocks(17, 8, gpu) == 3
    assert tiles.resident_warps(17, 8, gpu, 32) == 6
    assert tiles.resident_warps(10**4, 10**4, gpu, 3) == 132 * 3 * 2
    with pytest.raises(ValueError, match="expected at most 2147483647 tiles of 8 × 8"):
        tiles.blocks(2**31 - 1, 2**10, gpu)
    assert tiles.blocks(8 * MOST_BLOCKS, 8, gpu) == MOST_BLOCKS


def test_every_file_is_a_rung():
    files = sorted(path.name for path in FOLDER.glob("[0-9]*.cuh"))
    assert files == sorted({rung.file for rung in RUNGS})
    for rung in RUNGS:
        text = (FOLDER / rung.file).read_text(encoding="utf-8")
        assert text.startswith(f"// Rung {rung.number}: ")
        for part in ("What limits it: ", "Next rung: "):
            assert part in text, (rung.file, part)
        assert re.search(r"^// {3,}\S.+   ", text, re.MULTILINE), f"{rung.file} has no drawing"


@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_every_rung_compiles_without_spills(arch):
    for file in {rung.file for rung in RUNGS}:
        mine = [rung for rung in RUNGS if rung.file == file]
        names = {
            f"ladder::{rung.kernel.format(scalar)}": prod(rung.block) for rung in mine for scalar in SCALARS.values()
        }
        used = build((FOLDER / file).read_text(encoding="utf-8"), list(names), arch).resources
        for name, threads in names.items():
            assert used[name].stack == used[name].spill_stores == used[name].spill_loads == 0, name
            assert used[name].registers * threads <= 65_536, name


# --- On a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@BY_NAME
@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("shape", [*SHAPES, (513, 700, 1030)], ids=str)
def test_on_a_gpu(rung, dtype, shape):
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    (m, n, k), rng = shape, np.random.default_rng(0)
    for order in "CF":
        A, B, before = (matrix(size, dtype, rng, order=order) for size in ((m, k), (k, n), (m, n)))
        on_gpu = [cupy.asarray(X, order=order) for X in (A, B, before)]
        found = multiply(rung, *on_gpu, alpha=1.5, beta=0.5).get()
        assert_product(found, A, B, 1.5, before, 0.5)
