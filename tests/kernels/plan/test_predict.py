"""Predicted times against measured ones: of the plans in the shipped tables, on the GPUs that they were measured on."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from problems import problem

from tsapps.kernels.gpu_specs import KNOWN, file_name_of
from tsapps.kernels.plan import select
from tsapps.kernels.plan.candidates import candidates
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.mma import MmaPlan
from tsapps.kernels.plan.predict import library_seconds, predict
from tsapps.kernels.plan.select import ALGORITHM, LIBRARY, plan
from tsapps.kernels.system.strict_json import read_json
from tsapps.kernels.tune import Cell

TUNED = Path(select.__file__).parent / "tuned"


def relative_errors(name):
    """Return predicted / measured − 1 of the plans of our kernels in a GPU's own table, by shape and dtype."""
    found, gpu = {}, KNOWN[name.split()[0]]
    for row in read_json(TUNED / f"{file_name_of(f'NVIDIA {name}')}.json"):
        if "ms" not in row or row["kernel"] == LIBRARY:
            continue
        one = Cell(row["shape"], row["dtype"], row["m"], row["depth"], row["w"], row["along"]).problem()
        if one.c_by_rows == row["c_by_rows"]:
            made = plan(one, gpu, [{field: row[field] for field in row if field != ALGORITHM}])
            found.setdefault((row["shape"], row["dtype"]), []).append(1e3 * predict(made, one, gpu) / row["ms"] - 1)
    return found


def test_times_on_a_gpu_that_the_constants_do_not_come_from():
    """An H100: another bandwidth and, in its own table, products bound by arithmetic in part."""
    errors = [abs(one) for some in relative_errors("H100 80GB HBM3").values() for one in some]
    assert len(errors) >= 20
    assert median(errors) <= 0.1
    assert max(errors) <= 0.3


def test_times_on_the_gpu_that_the_constants_come_from():
    found = relative_errors("H200")
    assert len(found) == 9
    for errors in found.values():
        assert median(map(abs, errors)) <= 0.2
    every = sorted(abs(one) for some in found.values() for one in some)
    assert len(every) > 400
    assert median(every) <= 0.1
    assert every[len(every) * 9 // 10] <= 0.3


@pytest.mark.parametrize("name", [name for name, gpu in KNOWN.items() if float(gpu.compute_capability) >= 8])
@pytest.mark.parametrize(
    "one", [problem(20_480, 20_480, 16), problem(10**7, 16, 16), problem(32, 10**7, 32, a_along=False)]
)
def test_no_plan_is_faster_than_the_memory(one, name):
    """By more than the tenth by which a GPU may exceed the bandwidth that is published."""
    floor = one.bytes / KNOWN[name].bandwidth
    for made in candidates(one, KNOWN[name]):
        assert predict(made, one, KNOWN[name]) >= 0.9 * floor
    assert library_seconds(one, KNOWN[name]) >= floor


def test_float64_is_as_slow_as_the_gpu():
    """An RTX 4090 has one float64 multiply-add unit for every 64 of float32, and no tensor cores for it."""
    one, gpu = problem(20_480, 20_480, 16, "float64"), KNOWN["RTX 4090"]
    seconds = 2 * one.m * one.k * one.w / gpu.peak("float64")
    assert seconds > 3 * one.bytes / gpu.bandwidth
    for made in candidates(one, gpu):
        if isinstance(made, MmaPlan):
            assert predict(made, one, gpu) >= seconds


def test_a_cublaslt_algorithm_has_no_time():
    assert predict(LibraryAlgorithm(1, own_orders=False), problem(20_480, 20_480, 16), KNOWN["H200"]) == float("inf")


def test_twice_the_bandwidth_and_the_arithmetic_take_half_the_time():
    """Of a large product, whose launches do not count."""
    one, slow = problem(40_000, 40_000, 32), KNOWN["A100"]
    peaks = tuple((unit, 2 * rate) for unit, rate in slow.peaks)
    fast = replace(slow, clock_hz=2 * slow.clock_hz, bandwidth=2 * slow.bandwidth, peaks=peaks)
    made = plan(one, slow, [])
    assert predict(made, one, fast) == pytest.approx(predict(made, one, slow) / 2, rel=0.02)
