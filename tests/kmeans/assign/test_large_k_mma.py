"""Steps for large k without wgmma, on a HostMachine: labels against float64, sums against integers; and their plans."""

from dataclasses import replace

import numpy as np
import pytest
from exhaustive import property_test
from host_cuda import harness
from hypothesis import strategies as st
from kmeans.host_steps import FAR_KINDS, KINDS, assert_right, blobs
from kmeans.large_k_steps import (
    assert_labels_and_sums,
    assert_lowest_of_equal_centers,
    assert_right_whatever_the_data,
    assign,
    step_of,
)

from tsapps.apps.kmeans.assign.large_k_mma_plan import MmaStreamPlan, mma_stream_plan
from tsapps.apps.kmeans.assign.large_k_plan import RESERVED, depth_of
from tsapps.kernels.gpu_specs import KNOWN

#: d and a plan: row tiles of one turn and of two, in one chunk and in several, rows that stream by, rows split into two
#: parts, lanes that keep the candidates of all column tiles, and bulk copies.
PLANS = [
    (100, MmaStreamPlan(7, 1, 4, 1, 2)),
    (50, MmaStreamPlan(2, 2, 4, 2, 4, 64)),
    (70, MmaStreamPlan(1, 5, 4, 0, 3, 96, stays=False)),
    (16, MmaStreamPlan(3, 1, 2, 2, 3, split=True)),
    (40, MmaStreamPlan(3, 1, 2, 1, 5, 112, tiles=3)),
    (70, MmaStreamPlan(1, 5, 4, 0, 3, 96, stays=False, bulk=True)),
    (50, MmaStreamPlan(2, 2, 4, 1, 3, 64, bulk=True)),
]
IDS = ["one turn", "two turns", "streams", "split", "keeps all", "streams in bulk", "in bulk"]
#: Shared memory of a block in KiB: of sm_86, sm_89 and sm_120, of sm_80, and of sm_90 and sm_100.
SHARED = {"99": "8.6", "163": "8.0", "227": "10.0"}


def test_by_hand():
    """Center j at j, on a line: a sample goes to the integer next to it, and of two as near to the lower."""
    k, n = 140, 450  # more than the blocks take in one turn
    centers, X = np.zeros((k, 3)), np.zeros((n, 3))
    centers[:, 1] = np.arange(k)
    X[:, 1] = np.arange(n) % k + np.where(np.arange(n) % 2, 0.25, -0.25)
    X[-1, 1] = 41.5
    step = step_of(X, k, KINDS[3], MmaStreamPlan(1, 1, 2, 1, 2))
    _, n_reassigned = assign(step, centers)
    assert n_reassigned == n
    expected = np.arange(n) % k
    expected[-1] = 41
    assert step.labels.tolist() == expected.tolist()
    sums, scales = step.buffers.sums, step.buffers.scales
    assert (sums[:, 3] == np.bincount(expected, minlength=k) * scales[3]).all()
    assert assign(step, centers)[1] == 0


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", [*KINDS, *FAR_KINDS], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "plan"), PLANS, ids=IDS)
def test_labels_and_sums(d, plan, kind, rng):
    """Of a row tile of every warpgroup, the last not full; the plans with fewer of them have two blocks."""
    assert_labels_and_sums(d, plan, kind, 200, plan.columns + 12, 50, rng)


@pytest.mark.each_choice
@pytest.mark.parametrize("copies", ["late", "early"])
@pytest.mark.parametrize(
    ("d", "plan", "k"),
    [
        (3, MmaStreamPlan(1, 1, 4, 1, 2, 64), 180),
        (20, MmaStreamPlan(1, 2, 4, 2, 3, 64), 180),
        (3, MmaStreamPlan(1, 1, 4, 1, 3, 64), 180),  # B stays: as many column tiles as stages, and fewer
        (3, MmaStreamPlan(1, 1, 4, 2, 4, 64), 90),
        (3, MmaStreamPlan(1, 1, 4, 2, 2, 64, tiles=1), 50),
        (20, MmaStreamPlan(1, 2, 4, 0, 2, 64, stays=False), 180),
        (20, MmaStreamPlan(1, 2, 4, 0, 2, 64, stays=False, bulk=True), 180),
        (20, MmaStreamPlan(1, 2, 4, 1, 3, 64, bulk=True), 180),
        (3, MmaStreamPlan(1, 1, 4, 1, 3, 64, bulk=True), 180),
    ],
    ids=str,
)
def test_many_turns_of_a_block(d, plan, k, copies, rng):
    X, centers = blobs(3 * 256 * 3, d, k, rng, apart=1.0)
    step = step_of(X, k, KINDS[0], plan)
    with harness.schedule(seed=1, copies=copies):
        assign(step, centers)
    assert_right(step, centers)


@pytest.mark.parametrize("places", [[0, 1], [3, 139, 200]], ids=["two", "three"])
def test_equal_centers(places, rng):
    assert_lowest_of_equal_centers(*PLANS[0], places, 49, rng)


@property_test(
    3,
    60,
    of=st.sampled_from(PLANS),
    kind=st.sampled_from([KINDS[0], KINDS[3]]),
    n=st.integers(1, 300),
    k=st.integers(1, 270),
    grain=st.sampled_from([None, 1.0, 0.25]),
    seed=st.integers(0, 2**16),
)
def test_any_data(of, kind, n, k, grain, seed):
    assert_right_whatever_the_data(*of, kind, n, k, grain, seed)


#: (d, k) of plans with other chunks, buffers, stages and candidates.
SHAPES = ((16, 100), (96, 4096), (128, 256), (128, 1024), (200, 1024), (256, 1024), (768, 1000))


def gpu_with(kib):
    return replace(KNOWN["A100"], compute_capability=SHARED[kib], shared_memory_per_block=int(kib) << 10)


def test_plans_know_sizes_of_the_kernel():
    shapes = (3, 100), (128, 1024), (768, 1000), (4096, 70)
    plans = {*(plan for _, plan in PLANS), *(mma_stream_plan(d, k, gpu_with(kib)) for d, k in shapes for kib in SHARED)}
    assertions = [
        f"static_assert({name}::kSharedBytes == {plan.shared_bytes} && {name}::kThreads == {plan.threads});"
        for plan in plans
        for name in [plan.kernel.replace(plan.NAME, plan.CLASS)]
    ]
    headers = ['#include "kernels/tsm2/gemm_mma_streamed.cuh"', '#include "apps/kmeans/assign/large_k.cuh"']
    harness.build("\n".join([*headers, *assertions]))  # which raises if one is false


@pytest.mark.parametrize("kib", SHARED)
@pytest.mark.parametrize("k", [65, 256, 1000, 4096, 2**16])
@pytest.mark.parametrize("d", [1, 16, 17, 96, 128, 200, 256, 257, 500, 768, 4096])
def test_plans(d, k, kib):
    gpu = gpu_with(kib)
    plan = mma_stream_plan(d, k, gpu)
    assert plan.split == (d == 1 or (d == 16 and k <= 512))
    assert depth_of(d, split=plan.split) <= 16 * plan.row_panels < depth_of(d, split=plan.split) + 16 * plan.chunks
    assert plan.shared_bytes <= gpu.shared_memory_per_block - RESERVED
    assert plan.stays == (plan.stages_a > 0)
    assert plan.columns % 16 == 0
    assert (plan.tiles is None) == (k > 3 * 128 or (plan.stays and plan.chunks > 1))
    assert plan.bulk == (float(gpu.compute_capability) >= 9)
    for n in (1, 64, 65, 10**6, 2**31 - 1):
        blocks = plan.blocks(n, 108)
        assert 1 <= blocks <= 108
        assert blocks * plan.capacity(n, blocks) >= n


def test_gpus_without_asynchronous_copies():
    assert mma_stream_plan(128, 100, KNOWN["V100"]) is None


@pytest.mark.compile
@pytest.mark.parametrize("name", ["A100", "A10", "L4", "H200", "B200", "RTX 5090"])
def test_kernels_do_not_spill(name):
    from tsapps.kernels.jit import compiler

    include = '#include "{}.cuh"\n'.format
    plans = {mma_stream_plan(d, k, KNOWN[name]) for d, k in SHAPES}
    source = include("kernels/tsm2/gemm_mma_streamed") + include("apps/kmeans/assign/large_k")
    arch = compiler.architecture_of(KNOWN[name].compute_capability)
    made = compiler.build(source, [plan.kernel for plan in plans], arch)
    for plan in plans:
        used = made.resources[plan.kernel]
        assert (used.spill_stores, used.spill_loads) == (0, 0), plan
        assert used.registers * plan.threads <= 65536
