import pytest

from bench import kmeans_summary

SHAPE = {"n": 10_000_000, "d": 128, "k": 64, "dtype": "float32", "floor_ms": 1.0}
RECORDS = [
    {**SHAPE, "engine": "cublas", "iter_ms": 3.0},
    {**SHAPE, "engine": "flashlib", "iter_ms": 3.5},
    {**SHAPE, "engine": "torch", "iter_ms": None},
    {**SHAPE, "engine": "tsapps", "iter_ms": 1.25},
    {**SHAPE, "engine": "tsapps", "iter_ms": 9.0, "k": 65},  # a shape of no table
]


def test_table_by_hand():
    line = "| 10M-128-64-f32 | 1.00 | 1.25 | 1.25 | flashlib 3.50 | 2.80 |"
    assert kmeans_summary.text(RECORDS).splitlines()[2:] == [line]


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    kmeans_summary.plot(RECORDS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
