"""`kmeans_batched` on the CPU, where it is TSKMeans problem by problem; and how kernels are chosen for a batch."""

import dataclasses
import doctest

import ml_dtypes
import numpy as np
import pytest
from host_cuda import harness

import tsapps
from tsapps import TSKMeans, kmeans_batched
from tsapps.apps.kmeans.assign.large_k_mma_plan import MmaStreamPlan
from tsapps.apps.kmeans.assign.large_k_plan import StreamPlan
from tsapps.apps.kmeans.batched import api as batched
from tsapps.apps.kmeans.batched.lloyd import product_kernel
from tsapps.apps.kmeans.batched.plan import KERNELS, batch_plan, center_blocks, update_blocks, wide_bits
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import architecture_of, build


@pytest.fixture(name="X")
def blobs(rng):
    middles = 4 * rng.standard_normal((5, 6, 3))
    return middles[np.arange(5)[:, np.newaxis], rng.integers(0, 6, (5, 200))] + rng.standard_normal((5, 200, 3))


def test_examples_of_the_docstring():
    assert doctest.testmod(batched).failed == 0
    assert tsapps.kmeans_batched is kmeans_batched


def test_by_hand():
    # Two pairs on a line each; the second problem has its pairs the other way round.
    X = np.array([[[0.0], [1], [10], [11]], [[10], [12], [0], [0]]])
    found = kmeans_batched(X, 2, init=np.array([[[0.0], [10]]] * 2), device="cpu")
    assert found.labels.tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]
    assert found.centers.tolist() == [[[0.5], [10.5]], [[0], [11]]]
    assert found.inertia.tolist() == [1.0, 2.0]
    assert found.n_iter.tolist() == [2, 2]
    assert (found.labels.dtype, found.inertia.dtype, found.n_iter.dtype) == (np.int32, np.float64, np.int32)
    assert repr(found) == (
        "<BatchedClustering: 2 problems of 4 × 1 into 2 clusters, inertia 1 to 2, 2 to 2 iterations>"
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.labels = None


def test_repr():
    labels, n_iter = np.zeros((2, 3000), np.int32), np.array([7, 12], np.int32)
    found = batched.BatchedClustering(labels, np.zeros((2, 4, 16)), np.array([0.5, 1234567.0]), n_iter)
    assert repr(found) == (
        "<BatchedClustering: 2 problems of 3000 × 16 into 4 clusters, inertia 0.5 to 1.23457e+06, 7 to 12 iterations>"
    )
    one = batched.BatchedClustering(labels[:1], np.zeros((1, 4, 16)), np.array([0.5]), n_iter[:1])
    assert repr(one) == (
        "<BatchedClustering: 1 problem of 3000 × 16 into 4 clusters, inertia 0.5 to 0.5, 7 to 7 iterations>"
    )


@pytest.mark.each_choice
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
@pytest.mark.parametrize("init", ["k-means++", "random", "array"])
def test_each_is_what_tskmeans_finds(X, dtype, init):
    X = X.astype(dtype)
    given = X[:, :6].astype(np.float64) if init == "array" else init
    found = kmeans_batched(X, 6, init=given, max_iter=7, tol=1e-3, random_state=40, device="cpu")
    for i in range(5):
        first = given[i] if init == "array" else init
        one = TSKMeans(6, init=first, n_init=1, max_iter=7, tol=1e-3, random_state=40 + i, device="cpu")
        one.fit(X[i].astype(np.float64) if dtype is ml_dtypes.bfloat16 else X[i])
        np.testing.assert_array_equal(found.labels[i], one.labels_)
        np.testing.assert_allclose(found.centers[i], one.cluster_centers_, rtol=1e-6 if dtype is np.float32 else 1e-14)
        assert found.centers.dtype == one.cluster_centers_.dtype
        assert (found.inertia[i], found.n_iter[i]) == (pytest.approx(one.inertia_, rel=1e-6), one.n_iter_)


def test_random_states(X):
    by_state = kmeans_batched(X, 4, random_state=np.random.RandomState(3), device="cpu")
    seeds = np.random.RandomState(3).randint(2**31 - 1, size=5)
    for i, seed in enumerate(seeds):
        one = TSKMeans(4, n_init=1, random_state=seed, device="cpu").fit(X[i])
        np.testing.assert_array_equal(by_state.labels[i], one.labels_)
    last = kmeans_batched(X[:2], 4, random_state=2**32 - 1, device="cpu")
    np.testing.assert_array_equal(last.labels[1], TSKMeans(4, n_init=1, random_state=0, device="cpu").fit(X[1]).labels_)
    assert kmeans_batched(X, 4, device="cpu").labels.shape == (5, 200)


def test_outputs_follow_the_input(X):
    torch = pytest.importorskip("torch")
    found = kmeans_batched(torch.from_numpy(X), 3, random_state=0, device="cpu")
    assert all(isinstance(value, torch.Tensor) for value in vars(found).values())
    assert kmeans_batched(X[::2, ::-1].tolist(), 3, random_state=0, device="cpu").labels.shape == (3, 200)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": np.zeros((4, 3))}, r"X has shape \(4, 3\); expected \(b, n, d\)"),
        ({"X": np.zeros((4, 0, 3))}, r"X has shape \(4, 0, 3\); expected"),
        ({"X": np.zeros((2, 4, 3), complex)}, "X has dtype complex128; expected real numbers"),
        ({"n_clusters": 0}, "n_clusters must be an int, at least 1, got 0"),
        ({"n_clusters": 2.0}, "n_clusters must be an int, at least 1, got 2.0"),
        ({"n_clusters": 201}, "n_clusters=201, but each problem has 200 samples"),
        ({"max_iter": 0}, "max_iter must be an int, at least 1, got 0"),
        ({"tol": -1.0}, "tol must be a finite number, at least 0, got -1.0"),
        ({"tol": np.nan}, "tol must be a finite number"),
        ({"init": "best"}, "init must be one of 'k-means\\+\\+', 'random' or an array, got 'best'"),
        ({"init": np.zeros((2, 3))}, r"init has shape \(2, 3\); expected \(b, n_clusters, d\) = \(5, 2, 3\)"),
        ({"init": np.full((5, 2, 3), np.inf)}, "init has a NaN or an infinity"),
        ({"random_state": -1}, "Seed must be between 0"),
        ({"random_state": "x"}, "'x' cannot be used to seed"),
        ({"device": "tpu"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:<number>', got 'tpu'"),
    ],
)
def test_bad_arguments(X, change, message):
    given = {"X": X, "n_clusters": 2, "device": "cpu"} | change
    with pytest.raises(ValueError, match=message):
        kmeans_batched(**given)


def test_bad_numbers_name_the_problem(X):
    X[3, 17, 1] = np.nan
    with pytest.raises(ValueError, match=r"problem 3 of X: .*NaN"):
        kmeans_batched(X, 2, device="cpu")


# --- How kernels are chosen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["A100", "L4", "H200", "B200"])
@pytest.mark.parametrize("k", [1, 16, 17, 33, 64, 65, 1024])
@pytest.mark.parametrize("d", [1, 16, 64, 100, 128, 256])
def test_plans(d, k, device):
    plan = batch_plan(75_000, d, k, KNOWN[device])
    assert plan is not None
    assert plan.padded % 16 == 0
    assert d <= plan.padded < d + (16 * plan.stream.chunks if plan.stream else 16)
    assert plan.columns % plan.width == 0
    assert k <= plan.columns < k + plan.width
    assert isinstance(plan.stream, MmaStreamPlan if device != "H200" else StreamPlan) == (k > 32)
    assert plan.width % 8 == 0 and plan.width <= 128 if plan.stream else plan.width in (16, 32, 64)
    assert 0 <= plan.rows - 75_000 < (256 if plan.stream else 1)
    assert plan.assign_bytes <= KNOWN[device].shared_memory_per_block
    assert plan.update_bytes <= 100 << 10


def test_no_plan_where_rows_do_not_fit_a_block():
    assert batch_plan(1000, 768, 32, KNOWN["H200"]) is None
    assert batch_plan(1000, 768, 33, KNOWN["H200"]).stream.stays is False
    assert batch_plan(1000, 768, 33, KNOWN["L4"]).stream.stays is False
    assert batch_plan(255, 768, 33, KNOWN["L4"]) is None
    assert batch_plan(2**32, 16, 16, KNOWN["H200"]) is None


@pytest.mark.parametrize("n", [1, 2, 3, 65_536, 65_537, 75_000, 2**32 - 1])
def test_sums_do_not_overflow(n):
    assert 2.0 ** wide_bits(n) * n < 2.0**63
    assert wide_bits(n) == 46 or 2.0 ** (wide_bits(n) + 1) * n > 2.0**62


def test_rows_that_a_block_sorts():
    gpu = KNOWN["H200"]
    plans = [batch_plan(n, 64, k, gpu) for n, k in ((100, 5), (1000, 5), (75_000, 5), (75_000, 8192), (75_000, 8193))]
    assert [plan.share for plan in plans] == [256, 1000, 4096, 4096, 4096]
    assert [plan.update_bytes for plan in plans] == [4116, 16_020, 65_556, 98_304, 65_536]


def test_blocks_of_the_update():
    assert [update_blocks(75_000, 32, b, 132) for b in (1, 32, 1024)] == [264, 19, 19]
    assert [update_blocks(75_000, 33, b, 132) for b in (1, 32, 1024)] == [2 * 132, 2 * 19, 2 * 19]
    assert [update_blocks(1000, 16, b, 132) for b in (1, 32, 1024)] == [4, 4, 1]
    assert update_blocks(10, 1, 1, 132) == 1


def test_blocks_of_the_centers():
    plan = batch_plan(75_000, 64, 300, KNOWN["H200"])
    assert plan.update_threads == 256
    assert [center_blocks(300, b, 132, plan) for b in (1, 32, 1024)] == [38, 17, 1]


@pytest.mark.compile
@pytest.mark.parametrize("name", ["A100", "A10", "L4", "H200", "B200", "RTX 5090"])
def test_products_compile_without_spills(name):
    gpu = KNOWN[name]
    shapes = (16, 64), (64, 256), (128, 293), (128, 1000), (256, 100), (256, 1000), (768, 100), (768, 1000)
    for plan in {batch_plan(10_000, d, k, gpu).stream for d, k in shapes}:
        source, kernel = product_kernel(plan)
        used = build(source, [kernel], architecture_of(gpu.compute_capability)).resources[kernel]
        assert (used.spill_stores, used.spill_loads, used.waits) == (0, 0, 0), plan


@pytest.mark.each_choice
@pytest.mark.compile
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("scalar", ["float", "ptx::Half", "ptx::Bfloat16"])
def test_kernels_compile_without_spills(scalar, arch):
    rows = [f", {aligned}, {rows}" for aligned in ("true", "false") for rows in (8, 16)]
    options = {
        "assign": [", 16", ", 32", ", 64"],
        "update_sums": [", true, 256", ", false, 256", ", true, 128", ", false, 128"],
        "prepare_centers": [", 256", ", 128"],
        "update_centers": [", 256", ", 128"],
        "make_half_copy": rows,
        "inertias": rows,
    }
    for file in {file for file, _ in KERNELS.values()}:
        source = (harness.ROOT / "apps" / "kmeans" / file).read_text(encoding="utf-8")
        names = {
            f"batched::{kernel}<{scalar}{option}>": threads
            for kernel, (home, threads) in KERNELS.items()
            for option in options.get(kernel, [""])
            if home == file
        }
        for kernel, used in build(source, list(names), arch).resources.items() if names else ():
            assert used.stack == used.spill_stores == used.spill_loads == 0, kernel
            if "assign" in kernel:  # three blocks a multiprocessor
                assert -(-used.registers // 8) * 8 * names[kernel] * 3 <= 65_536
