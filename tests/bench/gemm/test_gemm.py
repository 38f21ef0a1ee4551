"""Parts of tsapps.bench.gemm that need no GPU: grid, floors, error bound, summary."""

from collections import Counter

import pytest

from tsapps.bench.common import record
from tsapps.bench.common.roofline import Streams
from tsapps.bench.gemm import summary as gemm_summary
from tsapps.bench.gemm.grid import CPU_CELLS, GPU_CELLS, Cell, bound, cell_named, grid, relative_bound

# A stream that writes half of its bytes has half the bandwidth.
STREAMS = Streams(((0.0, 4000.0), (0.5, 2000.0), (1.0, 4000.0)))


def test_grid_has_no_duplicates():
    cells = list(grid())
    assert len(set(cells)) == len(cells)
    # 3 sizes × 4 rectangles × 10 widths; 5 lengths × 7 × 7; each in four dtypes and two layouts.
    assert Counter(cell.shape for cell in cells) == {
        "tsm2r": 3 * 4 * 10 * 8,
        "tsm2l": 5 * 7 * 7 * 8,
        "tsmttsm": 5 * 7 * 7 * 8,
    }


@pytest.mark.parametrize(
    ("shape", "read", "written"),
    [("tsm2r", 4 * (100 * 10 + 10 * 2), 4 * 100 * 2), ("tsmttsm", 4 * (100 * 10 + 100 * 2), 4 * 10 * 2)],
)
def test_bytes_read_and_written(shape, read, written):
    cell = Cell(shape, "float32", "row", 100, 10, 2)
    assert (cell.read, cell.written) == (read, written)


def test_floors_by_hand():
    # 10⁹ bytes read and 10⁹ written: 2 · 10⁹ at 2000 GB/s take one millisecond. The time per byte is interpolated: at a
    # quarter of writes, it is (1/4000 + 1/2000) / 2 ms per 10⁶ bytes.
    assert STREAMS.milliseconds(10**9, 10**9) == pytest.approx(1.0)
    assert STREAMS.milliseconds(750 * 10**6, 250 * 10**6) == pytest.approx(0.375)
    cell = Cell("tsm2l", "float32", "row", 10**6, 32, 32)
    stream, arithmetic = cell.floors_ms(STREAMS, {"tf32": 300.0})
    assert stream == pytest.approx(2 * 4 * 32 * 1e6 / 2000e6, rel=1e-4)
    # A float32 product counts as three tf32 products.
    assert arithmetic == pytest.approx(2 * 1e6 * 32 * 32 * 3 / 300e9)
    assert cell.floors_ms(STREAMS, {})[1] == 0


def test_error_bound_matches_matmul_and_is_below_one():
    short = Cell("tsm2l", "float64", "row", 10**6, 28, 4)
    assert bound(short) == pytest.approx(32 * 2.0**-53 + 32 * 2.0**-53)
    long = Cell("tsmttsm", "float16", "row", 2 * 10**7, 4, 4)
    assert 0 < bound(long) < 0.01


def cell_record(ms, library_ms, **changes):
    one = {"shape": "tsm2l", "dtype": "float32", "layout": "row", "m": 10**7, "k": 16, "w": 16, "kernel": "tall_skinny"}
    one |= {"gbs": 1280 / ms, "ms": ms, "floor_ms": 0.3, "library": "cublas", "library_ms": library_ms}
    return one | {"bound": "memory"} | changes


def test_the_summary_by_hand():
    records = [
        cell_record(0.3, 0.6),
        cell_record(0.4, 0.39, k=32),
        cell_record(1.0, 9.9, kernel="tsm2_v3"),  # not a product of tsapps.matmul
        cell_record(0.003, 0.006, m=10**5, gbs=4000.0),  # small
    ]
    text = gemm_summary.text(records, worst=1)
    row = next(line for line in text.splitlines() if line.startswith("| tsm2l"))
    numbers = [one.strip() for one in row.strip("|").split("|")]
    assert numbers == ["tsm2l", "float32", "row", "3", "2", "0.875", "0.750", "1", "2.00", "0.97", "1"]
    assert "0.750  tsm2l float32 row 10,000,000 × 32 × 16" in text
    assert "0.975  tsm2l float32 row 10,000,000 × 32 × 16" in text


def test_plots_are_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = tmp_path / "plot.png"
    gemm_summary.plot([cell_record(0.3, 0.6)], path, gemm_summary.of_floor, "of the floor", log=False)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_new_records_of_a_cell_replace_all_older_ones(tmp_path):
    path, given = tmp_path / "gemm.json", (("shape", "m"), {"shape": (str,), "m": (int,)})
    common = record.of_run("gemm", "a GPU", {"numpy": "2"}, "0123abc")

    def one(shape, m, kernel):
        return {**common, "engine": "tsapps", "shape": shape, "m": m, "kernel": kernel}

    record.store_sorted(path, [one("b", 1, "x"), one("a", 2, "x"), one("a", 2, "y")], *given)
    record.store_sorted(path, [one("a", 2, "z")], *given)
    kept = [one("a", 2, "z"), one("b", 1, "x")]
    assert record.load(path) == kept
    with pytest.raises(ValueError, match=r"'m' is 0\.5"):
        record.store_sorted(path, [one("c", 3, "x"), one("c", 0.5, "x")], *given)
    assert record.load(path) == kept


def test_names_of_products():
    assert cell_named("20480-8-20480-f64-col") == Cell("tsm2r", "float64", "col", 20_480, 20_480, 8)
    assert cell_named("10000000-16-4-bf16") == Cell("tsm2l", "bfloat16", "row", 10_000_000, 4, 16)
    transposed = cell_named("16-4-10000000-f16")
    assert transposed == Cell("tsmttsm", "float16", "row", 10_000_000, 16, 4)
    assert transposed.shapes == ((10_000_000, 16), (10_000_000, 4), (16, 4))
    assert transposed.sizes == (160_000_000, 40_000_000, 64)
    assert transposed.flops == 2 * 16 * 4 * 10_000_000
    for cell in (*grid(), *CPU_CELLS, *GPU_CELLS):
        assert cell_named(cell.name) == cell
    assert len(set(GPU_CELLS)) == 18
    assert {cell.shape for cell in GPU_CELLS} == {cell.shape for cell in CPU_CELLS} == {"tsm2r", "tsm2l", "tsmttsm"}


@pytest.mark.parametrize(
    "name",
    ["", "5", "1-2-3", "1-2-3-f8", "0-2-3-f32", "1-2-3-f32-row", "1-2-3-f32-col-col", "a-2-3-f32", "1-2-3-4-f32"],
)
def test_names_that_are_none(name):
    with pytest.raises(ValueError, match="expected m-n-k-dtype or m-n-k-dtype-col, such as 20480-8-20480-f32"):
        cell_named(name)


def test_bound_of_results_in_16_bits():
    assert relative_bound(cell_named("100-4-8-f64")) == bound(cell_named("100-4-8-f64"))
    half = cell_named("100-4-8-f16")
    assert relative_bound(half) == pytest.approx(bound(half) + 2.0**-11, rel=1e-3)


def test_temporary_arrays():
    # Drawn in float64: A of 10⁶ × 16. The reference needs B twice, or blocks of 2²¹ rows of A and B twice.
    assert cell_named("1000000-4-16-f32").temporary_bytes == 8 * 16_000_000
    assert cell_named("8-10000-10000-f32").temporary_bytes == 16 * 10**8
    assert cell_named("64-64-10000000-f32").temporary_bytes == 16 * 2**21 * 128
