from dataclasses import asdict

import pytest

from tsapps.bench.kmeans import summary as kmeans_summary
from tsapps.bench.kmeans.peers import PEERS
from tsapps.bench.kmeans.problems import GRIDS

SHAPE = {"n": 10_000_000, "d": 128, "k": 64, "dtype": "float32", "floor_ms": 1.0}
RECORDS = [
    {**SHAPE, "engine": "cublas", "iter_ms": 3.0},
    {**SHAPE, "engine": "flashlib", "iter_ms": 3.5},
    {**SHAPE, "engine": "torch", "iter_ms": None},
    {**SHAPE, "engine": "tsapps", "iter_ms": 1.25},
    {**SHAPE, "engine": "tsapps", "iter_ms": 9.0, "k": 65},  # not a recorded shape
]


def test_table_by_hand():
    line = "| 10M-128-64-f32 | 1.00 | 1.25 | 1.25 | flashlib 3.50 | 2.80 |"
    assert kmeans_summary.text(RECORDS).splitlines()[2:] == [line]


def test_table_without_wgmma_by_hand():
    times = {
        "tsapps-sm80": (2.5, 60.0),
        "tsapps-sm90": (2.0, 50.0),
        "flashlib": (3.0, 55.0),
        "flash-kmeans": (2.25, 80),
    }
    records = [{**SHAPE, "engine": name, "iter_ms": ms, "fit_ms": fit} for name, (ms, fit) in times.items()]
    lines = kmeans_summary.without_wgmma(records).splitlines()
    assert lines[2] == "| 10,000,000 | 128 | 64 | float32 | 2.50 | 2.00 | 3.00 | 2.25 | 60.0 | 50.0 | 55.0 | 80.0 |"
    assert lines[-1] == (
        "`tsapps-sm80` is faster than both others in 0 iterations and 0 fits of 1; `tsapps-sm90` is faster than both "
        "others in 1 iterations and 1 fits of 1."
    )


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    kmeans_summary.plot(RECORDS, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def of_grid(iter_ms, engine="tsapps", shapes=GRIDS["grid"]):
    return [{**asdict(shape), "engine": engine, "iter_ms": iter_ms, "floor_ms": 0.5} for shape in shapes]


def test_the_grid_by_hand(tmp_path):
    ours = of_grid(1.0)
    ours[0]["iter_ms"], ours[1]["iter_ms"] = 0.4, 4.0
    records = [
        *ours,
        *of_grid(2.0, "flashlib"),
        *of_grid(1.5, "flash-kmeans", GRIDS["grid-3M"]),
        *of_grid(0.1, "cublas"),
        *of_grid(0.1, "tsapps-tf32"),
    ]
    assert kmeans_summary.grid_text(records) == (
        "Over a grid of n = 1M, 3M and 10M, d = 16 to 256, k = 16 to 16,384 (75 shapes, float32), `tsapps` is faster "
        "than the fastest of flash-kmeans and flashlib on 74 of the 75 that one of them ran: 0.50 times as fast at "
        "least, 2.00 in the median, 5.00 at most. An iteration takes 0.80 to 8.00 times the floor, 2.00 in the median."
    )
    cells = kmeans_summary.grid_cells(records)
    assert [cell.peer for cell in cells[24:26]] == ["flashlib", "flash-kmeans"]
    assert (cells[25].theirs, cells[25].speedup) == (1.5, 1.5)
    # A shape without a peer's record is not a cell.
    only_3M = [*ours, *of_grid(1.5, "flash-kmeans", GRIDS["grid-3M"])]
    assert len(kmeans_summary.grid_cells(only_3M)) == 25
    assert "is faster than flash-kmeans on 25 of the 25" in kmeans_summary.grid_text(only_3M)


@pytest.mark.parametrize("records", [[], RECORDS, [*of_grid(1.0)[1:], *of_grid(2.0, "flashlib")]])
def test_an_incomplete_grid_has_no_sentence(records, tmp_path):
    assert kmeans_summary.grid_text(records) == ""
    assert not kmeans_summary.plot_grid(records, tmp_path / "grid.png")
    assert not (tmp_path / "grid.png").exists()


@pytest.mark.parametrize("theirs", [2.0, 0.5])
def test_the_grid_is_drawn(tmp_path, theirs):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    records = [*of_grid(1.0), *of_grid(theirs, "flashlib", GRIDS["grid"][:70])]
    assert kmeans_summary.plot_grid(records, tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 10_000


def test_every_engine_has_a_color(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    kmeans_summary.plot([{**SHAPE, "engine": name, "iter_ms": 1.0} for name in PEERS], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
