"""Parts of tsapps.bench.gemm.untuned that need no GPU: the plans that it times, and the table of its records."""

from dataclasses import replace

import pytest
from problems import problem

from tsapps.bench.gemm import untuned
from tsapps.bench.gemm.summary import untuned_table
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.plan.mma import WgmmaPlan
from tsapps.kernels.plan.select import LIBRARY, plan

H200 = replace(KNOWN["H200"], name="NVIDIA H200")


@pytest.mark.parametrize("one", [problem(20_480, 20_480, 32), problem(10**6, 64, 64)], ids=lambda one: one.shape)
def test_plans_of_a_product(one):
    found = untuned.plans_of(one, H200)
    assert tuple(found) == untuned.PLANS
    assert isinstance(found["tuned"], WgmmaPlan)
    assert found["untuned"] == plan(one, H200, [])
    assert not isinstance(found["untuned_sm80"], WgmmaPlan)
    assert found["library"] == LIBRARY


def test_table_by_hand():
    times = {"tuned_ms": 1.0, "untuned_ms": 1.25, "untuned_sm80_ms": 2.0, "library_ms": 1.5}
    one = {"shape": "tsm2r", "dtype": "float32", **times}
    lines = untuned_table(
        [one, {**one, "untuned_ms": 2.0}, {**one, "dtype": "float16", "untuned_ms": 1.0}]
    ).splitlines()
    assert lines[2:4] == [
        "| tsm2r | float32 | 2 | 0.65 (0.50) | 0.50 (0.50) | 0.97 (0.75) | 0.75 (0.75) |",
        "| tsm2r | float16 | 1 | 1.00 (1.00) | 0.50 (0.50) | 1.50 (1.50) | 0.75 (0.75) |",
    ]
    assert lines[-1] == (
        "Median (lowest). Of all 3 products, plans without a table have 0.80 of the tuned speed in the median; 1 take "
        "more than 1.3 times as long. 1 take longer than cuBLAS / 0.9, at most 2000 µs."
    )
