"""Benchmarks of checksums: result checks and records that need no GPU."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from exhaustive import every

from tsapps.apps.abft.at_rest.interleave import layout
from tsapps.apps.abft.at_rest.source import as_source
from tsapps.apps.abft.at_rest.verify import sums_of
from tsapps.bench.abft import campaign
from tsapps.bench.abft import run as abft
from tsapps.bench.abft import speed as abft_speed
from tsapps.bench.abft.tasks import FITS
from tsapps.bench.common import record
from tsapps.bench.common.roofline import Streams
from tsapps.bench.common.timing import CpuClock
from tsapps.bench.gemm.grid import wide
from tsapps.kernels.gpu_specs import KNOWN


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_sums_are_checked(dtype, rng):
    A = rng.standard_normal((1024, 2048)).astype(dtype)
    sums, of = sums_of(as_source(A), "both", 2, 512), layout(A.shape, A.itemsize)
    abft_speed.check_sums(A, dtype, of, sums)
    for name, by in (("exact", 1), ("rows", 0.1), ("columns", 0.1)):
        wrong = sums | {name: sums[name].copy()}
        wrong[name].flat[0] += sums[name].dtype.type(by)
        with pytest.raises(ValueError, match="sum"):
            abft_speed.check_sums(A, dtype, of, wrong)


def test_every_benchmark_has_kernels():
    every = list(abft_speed.tasks())
    assert {task.job for task in every} == set(abft.JOBS)
    for task in abft_speed.tasks(["encode"]):
        assert task.m * task.n * np.dtype(f"u{abft_speed.ITEMSIZE[task.dtype]}").itemsize > 10**9
        assert set(abft_speed.plans_of(task, KNOWN["H200"])) == {"both", "exact", "float"}
    fits = [task.dtype for task in abft_speed.tasks(["kmeans"])]
    assert len(fits) == len(FITS)
    assert [fits.count(dtype) for dtype in abft_speed.ITEMSIZE] == [1, 6, 1, 1]


def test_only_correct_results_are_recorded(tmp_path, monkeypatch):
    measured = {"code": "exact", "weights": 0, "ms": 1.5, "floor_ms": 1.0, "library_ms": None, "unprotected_ms": None}

    class Fake:
        def __init__(self, seed):
            self.seed = seed

        def measure(self, task):
            if task.dtype == "float64":
                raise ValueError("wrong result")
            yield measured

    monkeypatch.setattr(abft_speed, "Speed", Fake)
    options = SimpleNamespace(job=["verify"], dtype=None, minutes=1, seed=3)
    common = {"what": "abft", "engine": "cuda", "device": "NVIDIA H200", "versions": {}, "commit": "abc"}
    path = tmp_path / "abft.json"
    assert abft_speed.run_speed(options, common, path, set()) == 1
    assert [one["dtype"] for one in record.load(path)] == ["float32", "float16", "bfloat16"]
    assert [one["ms"] for one in record.load(path)] == [1.5] * 3
    options.dtype = ["float32"]
    done = abft.recorded(path, common, abft_speed.KEY)
    monkeypatch.setattr(Fake, "measure", lambda *_: pytest.fail("there is a record"))
    assert abft_speed.run_speed(options, common, path, done) == 0


@pytest.fixture
def speed(numpy_for_cupy, monkeypatch):
    monkeypatch.setattr(abft_speed, "GpuClock", CpuClock)
    monkeypatch.setattr(abft_speed.roofline, "measure_streams", lambda _: Streams(((0.0, 4000.0), (1.0, 4000.0))))
    asked = []

    def best(A, W, out, *, dtype, trans_a, time_ms, quick_ms, check):
        a, w = (wide(x, dtype) for x in (A, W))
        product = (a.swapaxes(-1, -2) if trans_a else a) @ w
        out[...] = (product.astype("f4").view("u4") >> 16) if dtype == "bfloat16" else product
        assert check() >= 0
        out[..., 3, 1] = 0x7000 if dtype == "bfloat16" else 6e4
        with pytest.raises(ValueError, match="a vendor library's sum is off by"):
            check()
        by_columns = out.strides[-1] > out.strides[-2]
        asked.append((trans_a, A.shape, by_columns))
        # Row sums are faster by blocks, column sums over whole columns.
        return "numpy", (2.0 if by_columns else 3.0) + 0.5 * ((A.shape == asked[0][1]) != trans_a)

    monkeypatch.setattr(abft_speed.libraries, "best", best)
    found = abft_speed.Speed(3)
    found.asked = asked
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", every(2, abft_speed.ITEMSIZE))
def test_encoding_is_timed(dtype, speed, monkeypatch):
    def add_checksums(machine, A, plan):
        code = ("both" if plan.weights else "exact") if plan.exact else "float"
        return sums_of(as_source(A.view(campaign.numpy_dtype(dtype))), code, plan.weights, 512)

    machine = SimpleNamespace(gpu=KNOWN["H200"])
    monkeypatch.setattr("tsapps.kernels.runtime.machine.cuda_machine", lambda index: machine)
    monkeypatch.setattr("tsapps.apps.abft.at_rest.gpu.encode.add_checksums", add_checksums)
    side = 16384 // abft_speed.ITEMSIZE[dtype]  # rows of 16 KiB, which are not folded
    task = abft_speed.Task("encode", dtype, 1024, side, None, ("both", "exact", "float"))
    found = {one["code"]: one for one in speed.measure(task)}
    assert list(found) == ["both", "exact", "float"]
    assert found["both"]["floor_ms"] == pytest.approx(1024 * 16384 / 4e9)
    assert (found["both"]["library_ms"], found["exact"]["library_ms"], found["both"]["weights"]) == (4.0, None, 2)
    wholes, rows, stripes = (1024, side), (2 * side, 512), (2, 512, side)
    ways = (False, wholes), (False, rows), (True, wholes), (True, stripes)
    assert speed.asked == [(*way, by_columns) for way in ways for by_columns in (False, True)]
    (one,) = speed.measure(replace(task, job="verify", codes=("exact",)))
    assert one["ms"] > 0


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_products_are_timed(dtype, speed):
    (one,) = speed.measure(abft_speed.Task("matmul", dtype, 5000, 16, 64, ("proven",)))
    assert one["ms"] > 0
    assert one["unprotected_ms"] > 0
    itemsize = abft_speed.ITEMSIZE[dtype]
    assert one["floor_ms"] == pytest.approx(itemsize * (5000 * 64 + 64 * 16 + 5000 * 16) / 4e9)
