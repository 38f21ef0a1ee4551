"""Plans of greedy k-means++, from sizes alone."""

import pytest

from tsapps.apps.kmeans.init.plan import (
    MOST_TRIALS,
    first_pruned_step,
    plusplus_chunk,
    plusplus_plan,
    point_pitch,
    point_words,
    pruned_plan,
    quantized_bytes,
    quantized_lanes,
    scale_samples,
)
from tsapps.kernels.gpu_specs import KNOWN


@pytest.mark.parametrize("n", [1, 1000, 10**7, 2**31 + 5])
@pytest.mark.parametrize("trials", [2, 6, 7, 8, 12])
@pytest.mark.parametrize("d", [1, 3, 4, 16, 128, 511, 512, 5000, 300_000])
def test_plans(n, d, trials):
    for device in ("A100", "H200"):
        for itemsize in (4, 8):
            plan = plusplus_plan(n, d, trials, itemsize, aligned=d % 4 == 0, device=KNOWN[device])
            assert plan.chunks <= 2**14
            assert plan.chunk // (plan.chunk & -plan.chunk) in (1, 3, 5, 7)
            assert plusplus_chunk(n, d, itemsize) % plan.chunk == 0
            # Nearly as many chunks as there may be, unless rows are few; of short rows, 256 or more per chunk.
            short = min(2**14, max(2**12, -(-n // 256))) if d * itemsize <= 64 else 2**14
            assert plan.chunks > 0.79 * short or plan.chunk <= 256
            assert (plan.chunks - 1) * plan.chunk < n <= plan.chunks * plan.chunk
            assert plan.shared_bytes == plan.window * (trials + 1) * itemsize
            assert plan.shared_bytes <= KNOWN[device].shared_memory_per_block
            assert plan.window >= d or (plan.window % 1024 == 0 and plan.lanes == 32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_shared_memory_of_pruned_steps(itemsize, weighted):
    assert first_pruned_step(6) == 24
    for d in (1, 16, 100, 128, 512, 768, 1500, 3000, 5000):
        plan = plusplus_plan(600_000, d, 6, itemsize, aligned=True, device=KNOWN["H200"])
        planned = pruned_plan(plan, d, itemsize, weighted=weighted, device=KNOWN["H200"])
        if d == 1:
            assert planned is None  # a lane reads a row
        elif planned is None:
            assert d >= 5000
        else:
            # Eight points of two bytes per element; for each of 8 · 64 rows in queues, nine numbers and two; stages of
            # eight warps.
            stage = 32 * (64 + 8 + itemsize * (1 + weighted))
            assert planned.shared_bytes == -(-d // 32) * 32 * 8 * 2 + 8 * 64 * 4 * (9 + 2) + 8 * planned.stages * stage
            assert planned.shared_bytes * planned.blocks <= 226 << 10
            assert planned.blocks == (2 if d <= 1500 else 1) or (d, planned.stages) == (3000, 2)
            assert planned.stages == 3 or d > 768


def test_quantized_copy():
    assert quantized_bytes(1000, 384) == 1000 * (384 + 12)
    assert quantized_bytes(10, 33) == 10 * (64 + 12)
    assert [1 << quantized_lanes(groups) for groups in (1, 2, 4, 12, 5, 48)] == [4, 8, 16, 16, 4, 32]


def test_points_of_a_step():
    assert [point_pitch(d, 4) for d in (1, 4, 5)] == [4, 4, 8]
    assert [point_pitch(d, 8) for d in (1, 4, 5)] == [2, 4, 6]
    assert point_words(3, 5, 4) == 4 * 4 + 3  # four rows of 32 bytes, and three indices


def test_rows_of_column_scales():
    assert scale_samples(3).tolist() == [0, 1, 2]
    assert scale_samples(10**9)[[1, 511]].tolist() == [10**9 // 512, 511 * 10**9 // 512]


def test_no_plan_for_more_trials_than_there_are_registers_for():
    assert plusplus_plan(1000, 4, MOST_TRIALS + 1, 4, aligned=True, device=KNOWN["H200"]) is None
