"""The pass that adds up checksums: its launcher on a `HostMachine`, against the CPU; its plans; its machine code."""

from dataclasses import replace

import numpy as np
import pytest
from host_cuda import harness
from host_cuda.machine import HostMachine, placed
from hypothesis import given, settings
from hypothesis import strategies as st

from tsapps.apps.abft.at_rest.exact_code import ExactSums, last_weight
from tsapps.apps.abft.at_rest.float_code import WeightedSums, gamma
from tsapps.apps.abft.at_rest.gpu.encode import (
    COLUMN_THREADS,
    COLUMNS_KERNEL,
    add_checksums,
    build_columns,
    compiled,
    pieces_on_gpu,
    plans,
    sum_columns,
    sums_on_gpu,
)
from tsapps.apps.abft.at_rest.gpu.plan import elements_plan, words_plan
from tsapps.apps.abft.at_rest.interleave import ROWS, Layout, layout
from tsapps.apps.abft.at_rest.source import as_source
from tsapps.apps.abft.at_rest.verify import sums_of
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import architecture_of

DTYPES = ["float64", "float32", "float16"]
H200, BOTH = KNOWN["H200"], {"code": "both", "weights": 2, "block": ROWS}
#: Whole stripes, strips and segments, and parts; rows of words that are several of elements, or parts of one.
SHAPES = [(512, 512), (600, 272), (1100, 704), (513, 136), (1030, 520), (2053, 128), (4100, 40), (300, 4096)]


def sums_by(plan, A, multiprocessors):
    """Return the checksums of a matrix by a plan's kernel on so many blocks."""
    machine = HostMachine(multiprocessors)
    tensors = add_checksums(machine, placed(A), plan)
    assert not machine.counts.any()
    return tensors


def sums_are_as_on_the_cpu(A, code, weights, blocks, gpu=H200):
    """Compare every tensor: words exactly, elements within what two orders of additions may differ by."""
    of = layout(A.shape, A.itemsize)
    passes = plans(*A.shape, A.dtype.name, of, code=code, weights=weights, block=ROWS, gpu=gpu)
    assert passes is not None
    found = {name: tensor for plan in passes for name, tensor in sums_by(plan, A, blocks).items()}
    expected = sums_of(as_source(A), code, weights, ROWS)
    assert found.keys() == expected.keys()
    if "exact" in found:
        np.testing.assert_array_equal(found["exact"], expected["exact"])
    if "rows" in found:
        absolute = WeightedSums(A.shape, A.dtype.name, weights, ROWS, absolute=True)
        absolute.add(0, 0, A)
        for name, bound in (("rows", absolute.rows), ("columns", absolute.columns)):
            assert found[name].dtype == expected[name].dtype
            difference = np.abs(found[name].astype(np.float64) - expected[name])
            assert (difference <= 2 * gamma(ROWS, found[name].dtype) * bound).all()


def test_by_hand():
    """Four columns of ones: sums of rows are 4 and 1 + 2 + 3 + 4, those of columns count rows."""
    A = np.ones((600, 4), np.float32)
    (plan,) = (elements_plan(600, 4, "float32", 2, ROWS, None),)
    found = sums_by(plan, A, 1)
    np.testing.assert_array_equal(found["rows"], np.broadcast_to([[[4.0], [10.0]]], (1, 2, 600)))
    first, last = ROWS * (ROWS + 1) / 2, 88 * 89 / 2
    np.testing.assert_array_equal(found["columns"][:, :, 0], [[ROWS, first], [88, last]])


@pytest.mark.each_choice
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_those_of_the_cpu(shape, dtype, rng):
    sums_are_as_on_the_cpu((rng.standard_normal(shape) * 8).astype(dtype), "both", 2, 3)


@pytest.mark.each_choice
@pytest.mark.parametrize(("code", "weights"), [("exact", 2), ("float", 1), ("float", 2), ("both", 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_and_weights(code, weights, dtype, rng):
    sums_are_as_on_the_cpu(rng.standard_normal((1100, 520)).astype(dtype), code, weights, 2)


def test_words_are_any_bits(rng):
    """All ones, as large as sums get; NaN payloads; and bytes of no number at all."""
    for A in (np.full((512, 64), 2**32 - 1, np.uint32), rng.integers(0, 256, (1500, 320), np.uint8)):
        sums_are_as_on_the_cpu(A, "exact", 0, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_in_its_rows_and_columns(dtype, rng):
    A = rng.standard_normal((700, 520)).astype(dtype)
    A[600, 300], A[40, 515] = np.inf, np.nan
    (plan,) = plans(*A.shape, dtype, layout(A.shape, A.itemsize), code="both", weights=2, block=ROWS, gpu=H200)
    found = sums_by(plan, A, 2)
    rows, columns = (np.isfinite(found[name]).all(axis=1) for name in ("rows", "columns"))
    assert np.argwhere(~rows).tolist() == [[0, 600], [1, 40]]
    assert np.argwhere(~columns).tolist() == [[0, 515], [1, 300]]


@settings(max_examples=25, deadline=None)
@given(
    m=st.integers(1, 1600),
    n=st.integers(1, 90),
    dtype=st.sampled_from(DTYPES),
    blocks=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
    copies=st.sampled_from(["early", "late"]),
)
def test_any_shape_and_any_order(m, n, dtype, blocks, seed, copies):
    A = (np.random.default_rng(seed).standard_normal((m, 8 * n)) * 100).astype(dtype)
    if plans(m, 8 * n, dtype, layout(A.shape, A.itemsize), code="both", weights=2, block=ROWS, gpu=H200) is None:
        return
    with harness.schedule(seed=seed, copies=copies):
        sums_are_as_on_the_cpu(A, "both", 2, blocks)


def test_what_is_served():
    square, skinny = layout((20480, 20480), 4), layout((10**7, 128), 4)
    assert len(plans(20480, 20480, "float32", square, code="both", weights=2, block=512, gpu=H200)) == 1
    assert len(plans(10**7, 128, "float32", skinny, code="both", weights=2, block=512, gpu=H200)) == 2
    for refused in ({"weights": 3}, {"block": 256}):
        wanted = {"code": "both", "weights": 2, "block": 512} | refused
        assert plans(20480, 20480, "float32", square, gpu=H200, **wanted) is None
    assert plans(20480, 20480, "int32", square, code="both", weights=2, block=512, gpu=H200) is None
    assert plans(20480, 20480, "int32", square, code="exact", weights=0, block=0, gpu=H200) is not None
    assert words_plan(layout((1000, 3), 4)) is None  # rows of words that are no multiple of 16 bytes


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["A100", "RTX 5090"])
@pytest.mark.parametrize("shape", [(1100, 704), (2053, 128)])
def test_gpus_with_less_shared_memory_compute_each_code_by_itself(shape, name, dtype, rng):
    """By 4 and 3 stages, or 2, with 163 and 99 KiB a block."""
    sums_are_as_on_the_cpu((rng.standard_normal(shape) * 8).astype(dtype), "both", 2, 3, KNOWN[name])
    passes = plans(*shape, dtype, layout(shape, np.dtype(dtype).itemsize), **BOTH, gpu=KNOWN[name])
    assert [(plan.exact, plan.weights) for plan in passes] == [(True, 0), (False, 2)]
    assert all(plan.shared_bytes <= KNOWN[name].shared_memory_per_block for plan in passes)
    assert {plan.stages for plan in passes} <= ({3, 4} if name == "A100" else {2})


@pytest.mark.parametrize(
    ("shared_bytes", "stages"), [(232_448, (5,)), (101_376, (2, 2)), (100_408, (2, 2)), (100_407, None), (49_152, None)]
)
def test_gpus_without_shared_memory_for_two_stages_leave_it_to_the_cpu(shared_bytes, stages):
    """The table of weights of words takes 32 KiB, and each stage 33 KiB."""
    A, gpu = np.ones((1100, 704), np.float32), replace(H200, shared_memory_per_block=shared_bytes)
    found = plans(*A.shape, "float32", layout(A.shape, 4), **BOTH, gpu=gpu)
    assert (found and tuple(plan.stages for plan in found)) == stages
    pieces = pieces_on_gpu(HostMachine(gpu=gpu), as_source(A), layout(A.shape, 4), **BOTH)
    assert (pieces is None) == (stages is None)


def test_plans_know_the_kernels_sizes():
    of = layout((4096, 4096), 4)
    kernels = [elements_plan(4096, 4096, dtype, weights, ROWS, None) for dtype in DTYPES for weights in (1, 2)]
    parts = ['#include "apps/abft/at_rest/gpu/encode.cuh"', '#include "apps/abft/at_rest/gpu/compare.cuh"']
    for plan in (*kernels, *(replace(one, stages=2) for one in kernels), words_plan(of)):
        of_plan = plan.kernel.replace("add_checksums", "ChecksumPass")
        parts.append(f"static_assert({of_plan}::kSharedBytes == {plan.shared_bytes});")
        parts.append(f"static_assert({of_plan}::kThreads == {plan.threads});")
    parts.append("static_assert(abft::kCompareThreads == 256);")
    parts.append('#include "apps/abft/at_rest/gpu/word_columns.cuh"')
    parts.append(f"static_assert(abft::kColumnThreads == {COLUMN_THREADS} && abft::kColumnRows == {ROWS});")
    harness.build("\n".join(parts))


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("name", ["A100", "L4", "H200", "B200", "RTX 5090"])
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
@pytest.mark.parametrize("weights", [1, 2])
def test_no_plan_spills(name, dtype, weights):
    gpu = KNOWN[name]
    shape, size = (4096, 4096), 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    for code in ("both", "exact", "float"):
        given = {"code": code, "weights": weights, "block": ROWS, "gpu": gpu}
        for plan in plans(*shape, dtype, layout(shape, size), **given):
            used = compiled(plan, architecture_of(gpu.compute_capability)).resources[plan.kernel]
            assert (used.spill_stores, used.spill_loads) == (0, 0)


@pytest.mark.compile
@pytest.mark.parametrize("name", ["A100", "L4", "H200", "B200", "RTX 5090"])
def test_columns_of_words_do_not_spill(name):
    used = build_columns(architecture_of(KNOWN[name].compute_capability)).resources[COLUMNS_KERNEL]
    assert (used.spill_stores, used.spill_loads) == (0, 0)


def test_columns_of_words_by_hand():
    """Two words of one column and their sums: S₀ = a + b, S₁ = 2a + b, S₂ = 3a + b, S₃ = 4a + b."""
    words = np.array([5, 7], "<u4").view(np.uint8)
    sums = sum_columns(HostMachine(), placed(words), 1)
    assert sums[0, :4, 0].tolist() == [12, 17, 22, 27]
    assert sums[0, 4, 0] == 5 * last_weight(2) + 7 * last_weight(1)


@pytest.mark.parametrize(
    "size", [1, 3, 4, 4099, 512 * 4 * 7 - 2, 512 * 4 * 7, 512 * 4 * 7 + 1, 3 * 512 * 4 * 9 + 4 * 9 * 8]
)
def test_columns_of_words_are_those_of_the_cpu(size, rng):
    data = rng.integers(0, 256, (1, size), np.uint8)
    of = layout(data.shape, 1)
    for width in {of.width, 7, 9}:
        ended = []
        sums = ExactSums(Layout(size, width), lambda _, found, ended=ended: ended.append(found))
        sums.add(data[0])
        sums.finish()
        np.testing.assert_array_equal(sum_columns(HostMachine(), placed(data[0]), width), np.stack(ended))


def test_a_row_of_any_length_is_summed_in_pieces_of_stripes(rng, monkeypatch):
    """Bytes at an odd address are copied, piece by piece; the last piece ends within a word."""
    monkeypatch.setattr("tsapps.apps.abft.at_rest.gpu.encode._PIECE_BYTES", 1 << 23)
    machine = HostMachine(multiprocessors=2)
    monkeypatch.setattr("tsapps.apps.abft.at_rest.gpu.encode.machine_of", lambda *_: machine)
    data = rng.integers(0, 256, (1, (2 << 23) + 4099), np.uint8)
    of = layout(data.shape, 1)
    seen = []
    found = sums_on_gpu(as_source(data), 0, of, code="exact", weights=0, block=0, progress=seen.append)
    np.testing.assert_array_equal(found["exact"], sums_of(as_source(data), "exact", 0, 0)["exact"])
    assert seen == [1 << 23, 2 << 23, data.size]
