"""Which step iterates, and why: a table of cases, without a GPU."""

from dataclasses import replace

import pytest

from tsapps.apps.kmeans.engines.select_step import Facts, Norms, Options, iteration_bytes, select_step, why_cublas
from tsapps.kernels.gpu_specs import KNOWN

H200, A100, L4 = KNOWN["H200"], KNOWN["A100"], KNOWN["L4"]
NORMS = Norms(shift=0.0, rows=10.0, digits=2)
FACTS = Facts(n=1_000_000, d=128, dtype="float32", x_dtype="float32", norms=NORMS)
DOUBLE = replace(FACTS, dtype="float64", x_dtype="float64", norms=replace(NORMS, digits=3))

CASES = [
    # facts, k, GPU, options, step, part of the reason
    (replace(FACTS, d=4), 16, H200, Options(), "small_d", "d = 4 and k = 16"),
    (replace(FACTS, d=16, x_dtype="float16"), 16, A100, Options(), "small_d", "one launch reads X in place"),
    (replace(FACTS, d=4, weighted=True), 16, H200, Options(), "small_k", "k = 16 <= 64"),
    (replace(FACTS, d=4, x_address=8), 16, H200, Options(), "small_k", "k = 16 <= 64"),
    (replace(FACTS, d=4, norms=replace(NORMS, digits=3)), 16, H200, Options(), "small_k", "k = 16 <= 64"),
    (FACTS, 64, A100, Options(), "small_k", "centers stay in shared memory"),
    (DOUBLE, 64, H200, Options(), "small_k", "k = 64 <= 64"),
    (FACTS, 65, H200, Options(), "large_k", "k = 65 > 64: centers are streamed"),
    (FACTS, 65, A100, Options(), "large_k", "k = 65 > 64: centers are streamed"),
    (replace(FACTS, d=16), 256, A100, Options(), "large_k", "centers are streamed"),
    (replace(FACTS, d=200), 64, L4, Options(), "large_k", "does not hold 64 centers of 200 features: centers are str"),
    (replace(FACTS, d=100), 64, L4, Options(), "small_k", "k = 64"),
    (FACTS, 65, replace(A100, shared_memory_per_block=48 << 10), Options(), "cublas", "no kernel for d = 128"),
    (replace(FACTS, n=2**31), 65, H200, Options(), "large_k", "centers are streamed"),
    (FACTS, 2**16 + 1, H200, Options(), "cublas", "k = 65537 exceeds the limit"),
    (FACTS, 64, H200, Options(kernels=False), "cublas", "engine='cublas' was asked for"),
    (replace(FACTS, why_streamed="no rows"), 64, H200, Options(), "small_k", "X is read in windows: no rows"),
    (replace(FACTS, d=16, why_streamed="no rows"), 16, H200, Options(), "small_k", "in windows"),
    (replace(FACTS, d=16, why_streamed="no rows"), 256, H200, Options(), "large_k", "in windows"),
    (replace(FACTS, weights_alike=False), 64, H200, Options(), "cublas", "weights differ"),
    (replace(FACTS, n=2**32), 64, H200, Options(), "cublas", "32-bit row indices"),
    (replace(FACTS, d=2**18 + 1), 64, H200, Options(), "cublas", "262145 features exceed 262144"),
    (replace(FACTS, free_bytes=1000), 64, H200, Options(), "small_k", "but 1000 are free"),
    (replace(FACTS, free_bytes=1000), 65, H200, Options(), "large_k", "X is read in windows: a half-precision copy"),
    (replace(DOUBLE, small=True), 64, H200, Options(), "cublas", "scikit-learn's rounding"),
    (replace(DOUBLE, small=True), 64, H200, Options(always=True), "small_k", "k = 64"),
    (replace(FACTS, small=True), 64, H200, Options(), "small_k", "k = 64"),
    (replace(FACTS, small=True, single_pass=True), 64, H200, Options(), "cublas", "a single pass"),
    (replace(FACTS, single_pass=True), 64, H200, Options(), "small_k", "k = 64"),
    (FACTS, 64, replace(H200, compute_capability="7.5"), Options(), "cublas", "compute capability 7.5"),
]


@pytest.mark.parametrize(("facts", "k", "gpu", "options", "step", "reason"), CASES)
def test_the_step_and_its_reason(facts, k, gpu, options, step, reason):
    selected = select_step(facts, k, gpu, options)
    assert selected.step == step
    assert reason in selected.reason
    assert (selected.plan is None) == (step == "cublas")


def test_room_by_hand():
    # 1000 rows of 128 float16 and a norm; a list entry and a place for each, twice; and the centers in three types.
    assert iteration_bytes(1000, 128, 64, 0) == 1000 * (256 + 4 + 2 * (16 + 4)) + 64 * (256 + 3 * 8 * 129)
    needed = iteration_bytes(FACTS.n, FACTS.d, 64, 0)
    for free, streamed in ((needed, False), (needed - 1, True)):
        assert select_step(replace(FACTS, free_bytes=free), 64, H200, Options(bounds=True)).streamed is streamed


def test_room_for_large_k_by_hand():
    """16 features need no copy: norms of all rows, and lists of at most 2²⁶."""
    for n, listed in ((1000, 1000), (10**9, 2**26)):
        needed = n * 4 + listed * (16 + 32) + 256 * (2 * 64 + 3 * 8 * 17)
        facts = replace(FACTS, n=n, d=16, free_bytes=needed)
        assert select_step(facts, 256, H200, Options()).step == "large_k"
        selected = select_step(replace(facts, free_bytes=needed - 1), 256, H200, Options())
        assert selected.step == "cublas"
        assert "lists of rows need" in selected.reason


@pytest.mark.parametrize(
    ("change", "options", "bounds"),
    [
        ({"n": 1 << 19}, Options(), True),
        ({"n": (1 << 19) - 1}, Options(), False),
        ({"n": 1 << 22, "d": 257}, Options(), False),
        ({"n": 1000}, Options(bounds=True), True),
        ({}, Options(bounds=False), False),
    ],
)
def test_bounds_by_default_where_they_pay(change, options, bounds):
    assert select_step(replace(FACTS, **change), 64, H200, options).bounds is bounds


@pytest.mark.parametrize(("x_dtype", "certifies"), [("float32", False), ("float16", True)])
def test_tf32_certifies_no_labels_of_float32(x_dtype, certifies):
    facts = replace(FACTS, x_dtype=x_dtype)
    assert select_step(facts, 64, H200, Options(precision="tf32")).certifies is certifies
    assert select_step(facts, 64, H200, Options()).certifies


def test_norms_are_needed_where_kernels_may_iterate():
    facts = replace(FACTS, norms=None)
    assert why_cublas(facts, H200, Options()) is None
    with pytest.raises(ValueError, match=r"needs facts\.norms"):
        select_step(facts, 64, H200, Options())
