"""Plans of greedy k-means++, from sizes alone."""

import pytest

from tsapps.apps.kmeans.data.plan import padded
from tsapps.apps.kmeans.init.plan import MOST_TRIALS, first_pruned_step, plusplus_plan, pruned_plan
from tsapps.kernels.gpu_specs import KNOWN


@pytest.mark.parametrize("n", [1, 1000, 10**7, 2**31 + 5])
@pytest.mark.parametrize("trials", [2, 6, 7, 8, 12])
@pytest.mark.parametrize("d", [1, 3, 4, 16, 128, 511, 512, 5000, 300_000])
def test_plans(n, d, trials):
    for device in ("A100", "H200"):
        for itemsize in (4, 8):
            plan = plusplus_plan(n, d, trials, itemsize, aligned=d % 4 == 0, device=KNOWN[device])
            assert plan.chunks <= 2**14
            assert (plan.chunks - 1) * plan.chunk < n <= plan.chunks * plan.chunk
            assert plan.shared_bytes == plan.window * (trials + 1) * itemsize
            assert plan.shared_bytes <= KNOWN[device].shared_memory_per_block
            assert plan.window >= d or (plan.window % 1024 == 0 and plan.lanes == 32)


@pytest.mark.parametrize("panels", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("itemsize", [4, 8])
def test_plans_of_screens(itemsize, weighted, panels):
    assert first_pruned_step(6) == 7
    for d in (1, 16, 100, 128, 256, 511, 512, 768, 1500, 5000):
        for n in (1000, 600_000, 2**20, 10**7):
            plan = plusplus_plan(n, d, 6, itemsize, aligned=True, device=KNOWN["H200"])
            screen = pruned_plan(plan, d, padded(d), itemsize, panels=panels, weighted=weighted, device=KNOWN["H200"])
            if d == 1 or (plan.chunk % 64 and panels):
                assert d == 1 or n < 2**20
                assert screen is None
                continue
            assert screen is None or d < 1500
            assert screen is not None or d >= (1500 if itemsize == 4 else 511)
            if screen is not None:
                assert screen.shared_bytes <= 113 << 10
                assert screen.stages == 3 if d <= 100 and not panels else screen.stages >= 2


def test_no_plan_for_more_trials_than_there_are_registers_for():
    assert plusplus_plan(1000, 4, MOST_TRIALS + 1, 4, aligned=True, device=KNOWN["H200"]) is None
