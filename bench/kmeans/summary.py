"""Text summary and plots of the records of tsapps.bench.kmeans.

python -m tsapps.bench.kmeans.summary --plot kmeans-floor.png --grid kmeans-grid.png --fits kmeans-fits.png
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.timing import median
from tsapps.bench.kmeans.problems import GPU_SHAPES, GRIDS, Shape

__all__ = [
    "OURS",
    "OWN",
    "Cell",
    "by_shape",
    "fits",
    "grid_cells",
    "grid_text",
    "plot",
    "plot_fits",
    "plot_grid",
    "text",
    "without_wgmma",
]

Record = dict[str, Any]
OURS = "tsapps"
#: Engines of this package, which are not peers.
OWN = (OURS, "tsapps-all-rows", "tsapps-tf32", "tsapps-protected", "tsapps-sm80", "tsapps-sm90", "cublas")
#: Shapes whose whole fits are drawn, and the engines beside ours.
FITS = tuple(Shape.parse(name) for name in ("50M-16-16-f32", "10M-128-64-f32", "1M-768-1000-f32", "262144-4096-16-f32"))
PEERS = ("flashlib", "flash-kmeans", "torch", "cuvs")
#: Engines beside each other on a GPU whose wgmma ours may not use.
WITHOUT_WGMMA = ("tsapps-sm80", "tsapps-sm90", "flashlib", "flash-kmeans")
_COLOURS = ("tab:red", "tab:blue", "tab:orange", "tab:green", "tab:purple", "black", "tab:brown", "tab:pink")


def by_shape(records: Sequence[Record], shapes: Sequence[Shape] = GPU_SHAPES) -> list[tuple[Shape, dict[str, Record]]]:
    """Return the shapes that have records (by default, among the recorded shapes), each with its records by engine."""
    found = []
    for shape in shapes:
        key = {"n": shape.n, "d": shape.d, "k": shape.k, "dtype": shape.dtype}
        some = {one["engine"]: one for one in records if key.items() <= one.items() and one["iter_ms"] is not None}
        if some:
            found.append((shape, some))
    return found


def text(records: Sequence[Record]) -> str:
    """Return a table of our times, the floor, and the best peer (our cuBLAS engine excluded)."""
    lines = ["| shape | floor | ours | times the floor | best peer | times as fast |", "|---|" + "---:|" * 5]
    for shape, engines in by_shape(records):
        ours = engines.get(OURS)
        peers = {name: one for name, one in engines.items() if name not in OWN}
        if ours is None or not peers:
            continue
        best = min(peers, key=lambda name: peers[name]["iter_ms"])
        mine, theirs, floor = ours["iter_ms"], peers[best]["iter_ms"], ours["floor_ms"]
        lines.append(
            f"| {shape.name} | {floor:.2f} | {mine:.2f} | {mine / floor:.2f} | {best} {theirs:.2f} "
            f"| {theirs / mine:.2f} |"
        )
    return "\n".join(lines)


def without_wgmma(records: Sequence[Record]) -> str:
    """Return a Markdown table of iterations and whole fits in ms, and in how many ours are the fastest."""
    engines = [name for name in WITHOUT_WGMMA if any(one["engine"] == name for one in records)]
    titles = " | ".join(f"{what}: {' | '.join(engines)}" for what in ("iteration", "fit"))
    lines = [f"| n | d | k | dtype | {titles} |", f"|---:|---:|---:|---|{'---:|' * (2 * len(engines))}"]
    ahead = {name: [0, 0] for name in engines if name in OWN}
    shapes = by_shape(records)
    for shape, found in shapes:
        cells = []
        for at, field in enumerate(("iter_ms", "fit_ms")):
            cells += [f"{found[name][field]:,.{2 - at}f}" for name in engines]
            for name, counts in ahead.items():
                counts[at] += found[name][field] < min(found[other][field] for other in engines if other not in OWN)
        lines.append(f"| {shape.n:,} | {shape.d} | {shape.k:,} | {shape.dtype} | {' | '.join(cells)} |")
    won = [
        f"`{name}` is faster than both others in {of_iterations} iterations and {of_fits} fits of {len(shapes)}"
        for name, (of_iterations, of_fits) in ahead.items()
    ]
    return "\n".join([*lines, "", f"{'; '.join(won)}."])


def plot(records: Sequence[Record], path: Path) -> None:
    """Plot each engine's time over the floor, one line per shape."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shapes = by_shape(records)
    engines = sorted({name for _, some in shapes for name in some}, key=lambda name: (name != OURS, name))
    marks = dict(zip(engines, "oxs^dv<>", strict=False))
    colours = dict(zip(engines, _COLOURS, strict=False))
    figure, axis = plt.subplots(figsize=(9, 0.32 * len(shapes) + 1.4), constrained_layout=True)
    for name, mark in marks.items():
        points = [
            (some[name]["iter_ms"] / some[name]["floor_ms"], i) for i, (_, some) in enumerate(shapes) if name in some
        ]
        axis.plot(*zip(*points, strict=True), mark, color=colours[name], label=name)
    axis.set_xscale("log", base=2)
    axis.set_xticks([0.5, 1, 2, 4, 8, 16, 32, 64], ["0.5", "1", "2", "4", "8", "16", "32", "64"])
    axis.set_yticks(range(len(shapes)), [shape.name for shape, _ in shapes])
    axis.invert_yaxis()
    axis.axvline(1, color="grey", linewidth=0.8)
    axis.grid(axis="x", alpha=0.3)
    axis.set_xlabel("time of an iteration over the floor: one read of the data, or its arithmetic (n-d-k-dtype)")
    figure.legend(loc="outside upper center", ncols=4)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def fits(records: Sequence[Record]) -> list[tuple[Shape, dict[str, float]]]:
    """Return the times in ms of whole fits, ours first, of the shapes that are drawn."""
    found = []
    for shape, engines in by_shape(records, FITS):
        times = {name: engines[name]["fit_ms"] for name in (OURS, *PEERS) if name in engines}
        found.append((shape, {name: ms for name, ms in times.items() if ms is not None}))
    return found


def plot_fits(records: Sequence[Record], path: Path) -> None:
    """Plot whole fits as bars, the fastest first, one panel for each shape."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shapes = fits(records)
    figure, axes = plt.subplots(2, 2, figsize=(9, 4.8), constrained_layout=True)
    figure.suptitle("Time of a whole fit (20 iterations) in milliseconds: lower is better", fontsize=11)
    for axis, (shape, times) in zip(axes.flat, shapes, strict=True):
        names = sorted(times, key=lambda name: times[name])
        bars = axis.barh(
            names,
            [times[name] for name in names],
            color=["tab:red" if name == OURS else "silver" for name in names],
        )
        axis.bar_label(bars, [f"{times[name]:,.0f} ms" for name in names], padding=3, fontsize=8)
        axis.set_xlim(0, 1.2 * max(times.values()))
        axis.invert_yaxis()
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.set_title(f"{shape.n:,} × {shape.d:,} {shape.dtype}, k = {shape.k:,}", fontsize=9, loc="left")
    figure.savefig(path, dpi=160)
    plt.close(figure)


@dataclass(frozen=True)
class Cell:
    """A shape of the grid: times in ms of our engine and of the fastest peer, the peer's name, and the floor."""

    shape: Shape
    ours: float
    peer: str
    theirs: float
    floor: float

    @property
    def speedup(self) -> float:
        """Return our speedup over the best peer."""
        return self.theirs / self.ours


def grid_cells(records: Sequence[Record]) -> list[Cell]:
    """Return the grid shapes with records of our engine and a peer; empty until all shapes have one of ours."""
    shapes = by_shape(records, GRIDS["grid"])
    if sum(OURS in engines for _, engines in shapes) < len(GRIDS["grid"]):
        return []
    cells = []
    for shape, engines in shapes:
        peers = {name: one["iter_ms"] for name, one in engines.items() if name not in OWN}
        if peers:
            best = min(peers, key=lambda name: peers[name])
            cells.append(Cell(shape, engines[OURS]["iter_ms"], best, peers[best], engines[OURS]["floor_ms"]))
    return cells


def grid_text(records: Sequence[Record]) -> str:
    """Return a sentence on the grid; empty without cells."""
    cells = grid_cells(records)
    if not cells:
        return ""
    grid = GRIDS["grid"]
    peers = sorted({name for _, engines in by_shape(records, grid) for name in engines if name not in OWN})
    sizes = [f"{name.removeprefix('grid-')}" for name in GRIDS if name != "grid"]
    speedups, of_floor = [cell.speedup for cell in cells], [cell.ours / cell.floor for cell in cells]
    shapes = (
        f"n = {_listed(sizes)}, d = {_range(shape.d for shape in grid)}, k = {_range(shape.k for shape in grid)} "
        f"({len(grid)} shapes, float32)"
    )
    among = _listed(peers) if len(peers) == 1 else f"the fastest of {_listed(peers)}"
    return (
        f"Over a grid of {shapes}, `{OURS}` is faster than {among} on {sum(one > 1 for one in speedups)} of the "
        f"{len(cells)} that one of them ran: {min(speedups):.2f} times as fast at least, {median(speedups):.2f} in the "
        f"median, {max(speedups):.2f} at most. An iteration takes {min(of_floor):.2f} to {max(of_floor):.2f} times the "
        f"floor, {median(of_floor):.2f} in the median."
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _range(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return f"{found[0]:,} to {found[-1]:,}"


def plot_grid(records: Sequence[Record], path: Path) -> bool:
    """Plot our time over the floor and our speedup over the best peer as maps of d and k, one for each n.

    Returns False if there is nothing to plot.
    """
    cells = grid_cells(records)
    if not cells:
        return False
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm, TwoSlopeNorm

    sizes, features, clusters = (sorted({getattr(cell.shape, name) for cell in cells}) for name in "ndk")
    figure, axes = plt.subplots(2, len(sizes), figsize=(11, 6), constrained_layout=True, squeeze=False)
    speedups = [log2(cell.speedup) for cell in cells]
    rows = (
        # White: equally fast.
        (
            "times as fast as the best peer",
            lambda cell: cell.speedup,
            log2,
            "RdBu",
            TwoSlopeNorm(0, min(-1, *speedups), max(1, *speedups)),
        ),
        ("times the floor", lambda cell: cell.ours / cell.floor, lambda value: value, "YlOrBr", LogNorm(0.5, 8)),
    )
    for of_row, (title, value_of, shade, colours, norm) in zip(axes, rows, strict=True):
        for axis, n in zip(of_row, sizes, strict=True):
            shades = np.full((len(features), len(clusters)), np.nan)
            for cell in cells:
                if cell.shape.n == n:
                    row, column = features.index(cell.shape.d), clusters.index(cell.shape.k)
                    shades[row, column] = shade(value_of(cell))
                    axis.text(column, row, f"{value_of(cell):.2g}", ha="center", va="center", fontsize=8)
            axis.imshow(shades, cmap=colours, norm=norm, alpha=0.7, aspect="auto")
            axis.set_xticks(range(len(clusters)), [f"{k:,}" for k in clusters])
            axis.set_yticks(range(len(features)), [str(d) for d in features])
            axis.set_title(f"n = {n:,}: {title}", fontsize=9)
            axis.set_xlabel("k")
            axis.set_ylabel("d")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=Path, default=record.results_path("NVIDIA H200", "kmeans"))
    parser.add_argument("--plot", type=Path, help="file of the plot")
    parser.add_argument("--grid", type=Path, help="file of the grid's plot")
    parser.add_argument("--fits", type=Path, help="file of the plot of whole fits")
    options = parser.parse_args()
    records = record.load(options.records)
    print(text(records))
    print(f"\n{grid_text(records) or 'There are not yet records of every shape of the grid.'}")
    if options.grid and not plot_grid(records, options.grid):
        print(f"{options.grid} was not drawn")
    if options.fits:
        plot_fits(records, options.fits)
    if options.plot:
        plot(records, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
