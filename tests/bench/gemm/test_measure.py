"""Measurement of products, on the CPU and on a stand-in for a GPU."""

import numpy as np
import pytest

from tsapps.bench.common import record
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.gemm import measure
from tsapps.bench.gemm.grid import Cell, Pools, cell_named, exact, largest_error
from tsapps.kernels.blas.cublaslt import LibraryError

NAMES = ["200-3-100-f32", "5-4-300-f64", "100-9-30-f32-col", "8-7-500-f64-col", "3-300-100-f64"]


@pytest.fixture
def common():
    return measure.common_fields(measure.CpuBench(3), "c" * 40)


@pytest.mark.parametrize("name", NAMES)
def test_products_on_the_cpu(name, tmp_path, common):
    path, cell = tmp_path / "gemm.json", cell_named(name)
    (one,) = measure.recorded(measure.CpuBench(3), cell, path, common)
    assert record.load(path) == [one]
    assert one["gbs"] == pytest.approx((cell.read + cell.written) / one["ms"] / 1e6)
    assert (one["library"], one["floor_ms"], one["seed"], one["what"]) == ("numpy", None, 3, "gemm")
    assert Cell(*(one[part] for part in ("shape", "dtype", "layout", "m", "k", "w"))) == cell
    assert one["max_rel_err"] < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_one_wrong_element_is_found(name):
    cell = cell_named(name)
    A, B, C = Pools(cell.dtype, cell.sizes, 0, np).operands(cell)
    reference = exact(cell, A, B)
    C[...] = (A.T if cell.shape == "tsmttsm" else A) @ B
    assert largest_error(cell, C, reference) < 1e-5
    C[-1, 0] += 1
    with pytest.raises(NotRightError, match="an element is off by"):
        largest_error(cell, C, reference)


def test_a_wrong_product_is_not_recorded(tmp_path, monkeypatch, common):
    def calls(self, cell, A, B, C):
        yield "right", "", lambda: np.matmul(A, B, out=C)
        yield "unwritten", "", lambda: None

    monkeypatch.setattr(measure.CpuBench, "calls", calls)
    bench, path = measure.CpuBench(3), tmp_path / "gemm.json"
    (line,) = measure.recorded(bench, cell_named(NAMES[0]), path, common)
    assert line.startswith("200-3-100-f32: wrong, not recorded: an element is off by nan")
    assert not path.exists()


def test_a_product_without_a_library(tmp_path, monkeypatch, common):
    def library(*_):
        raise LibraryError("no algorithm")

    monkeypatch.setattr(measure.CpuBench, "library", library)
    found = list(measure.recorded(measure.CpuBench(3), cell_named(NAMES[0]), tmp_path / "gemm.json", common))
    assert found == ["200-3-100-f32: not measured: LibraryError: no algorithm"]


def test_what_a_cpu_leaves_out(tmp_path, monkeypatch, common):
    monkeypatch.setattr(measure, "available_host_memory", lambda: 1 << 30)
    found = [
        one
        for name in ("100-3-100-f16", "100000-100-10000-f32")
        for one in measure.recorded(measure.CpuBench(3), cell_named(name), tmp_path / "gemm.json", common)
    ]
    assert found == [
        "100-3-100-f16: left out, float16 is only measured on a GPU",
        "100000-100-10000-f32: left out, needs about 4.8 GiB of memory, 1.0 are free",
    ]


def test_pools_are_kept_for_cells_of_equal_sizes():
    bench = measure.CpuBench(3)
    first = bench.pools("float32", (6, 6, 6))
    assert bench.pools("float32", (6, 6, 6)) is first
    assert bench.pools("float64", (6, 6, 6)) is not first
    second = bench.pools("float64", (6, 6, 8))
    bench.free_memory()
    assert bench.pools("float64", (6, 6, 8)) is not second


def test_devices_in_one_file_do_not_replace_each_other(tmp_path, common):
    path, bench = tmp_path / "gemm.json", measure.CpuBench(3)
    for device in ("a GPU", "a CPU", "a GPU"):
        list(measure.recorded(bench, cell_named(NAMES[0]), path, common | {"device": device}))
    assert [one["device"] for one in record.load(path)] == ["a CPU", "a GPU"]


@pytest.mark.gpu
def test_products_on_a_gpu(tmp_path):
    from tsapps.kernels.devices import choose_device

    bench = measure.opened(choose_device("cuda"), 3)
    for name in (*NAMES, "300-5-20-bf16", "256-4-256-f64-col"):
        found = list(measure.recorded(bench, cell_named(name), tmp_path / "g.json", measure.common_fields(bench, "c")))
        assert not [one for one in found if isinstance(one, str)], name
        assert found[0]["floor_ms"] > 0
        assert len(found) == (5 if name.startswith("256") else 1)
