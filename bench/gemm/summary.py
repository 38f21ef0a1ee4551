"""Text summary and plots of the records of tsapps.bench.gemm.

python -m tsapps.bench.gemm.summary --plots docs
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.common.dtypes import ITEMSIZE
from tsapps.bench.gemm.grid import LAYOUTS, SHAPES

__all__ = ["UNTUNED", "memory_bound", "of_floor", "ours", "over_library", "text", "untuned_rows", "untuned_table"]

#: Smallest product that counts as large: launch and memory latency are a few hundredths of its time.
LARGE_BYTES = 256e6

Record = dict[str, Any]


def ours(records: Iterable[Record]) -> list[Record]:
    """Return the records of `tsapps.matmul`: one per cell, without TSM2 as published."""
    return [one for one in records if not one["kernel"].startswith("tsm2_v")]


def large(cells: Iterable[Record]) -> list[Record]:
    """Return the large cells."""
    return [one for one in cells if one["gbs"] * one["ms"] * 1e6 >= LARGE_BYTES]


def memory_bound(cells: Iterable[Record]) -> list[Record]:
    """Return the large memory-bound cells."""
    return [one for one in large(cells) if one["bound"] == "memory"]


def of_floor(one: Record) -> float:
    """Return the achieved fraction of the floor rate."""
    return one["floor_ms"] / one["ms"]


def over_library(one: Record) -> float:
    """Return the speedup over the best vendor library."""
    return one["library_ms"] / one["ms"]


def name(one: Record) -> str:
    """Return a description of a cell."""
    return f"{one['shape']} {one['dtype']} {one['layout']} {one['m']:,} × {one['k']:,} × {one['w']}"


#: Columns of `untuned_rows`.
UNTUNED = ("product", "dtype", "number", "of the tuned speed", "without wgmma", "of cuBLAS's speed", "without wgmma")


def untuned_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return for each kind of product how fast plans without a table are (records of tsapps.bench.gemm.untuned)."""
    rows = []
    for shape, dtype in dict.fromkeys((one["shape"], one["dtype"]) for one in records):
        some = [one for one in records if (one["shape"], one["dtype"]) == (shape, dtype)]
        speeds = [
            [one[f"{base}_ms"] / one[f"{plan}_ms"] for one in some]
            for base in ("tuned", "library")
            for plan in ("untuned", "untuned_sm80")
        ]
        rows.append([shape, dtype, str(len(some)), *(f"{median(each):.2f} ({min(each):.2f})" for each in speeds)])
    return rows


def untuned_table(records: Sequence[Record]) -> str:
    """Return `untuned_rows` as a Markdown table, and how many products are much slower than tuned, or than cuBLAS."""
    lines = [f"| {' | '.join(line)} |" for line in (UNTUNED, ("---", "---", *5 * ("---:",)), *untuned_rows(records))]
    of_tuned = [one["tuned_ms"] / one["untuned_ms"] for one in records]
    slow = [one["untuned_ms"] for one in records if one["untuned_ms"] > one["library_ms"] / 0.9]
    text = (
        f"Median (lowest). Of all {len(records)} products, plans without a table have {median(of_tuned):.2f} of the "
        f"tuned speed in the median; {sum(one < 1 / 1.3 for one in of_tuned)} take more than 1.3 times as long. "
        f"{len(slow)} take longer than cuBLAS / 0.9, at most {1e3 * max(slow, default=0.0):.0f} µs."
    )
    return "\n".join([*lines, "", text])


def text(records: Sequence[Record], worst: int = 12) -> str:
    """Return tables that summarize the records, and the cells with the largest deficits."""
    cells = ours(records)
    streams = memory_bound(cells)
    lines = [
        "| shape | dtype | layout | cells | large | floor: median | worst | <85 % | library: median | worst | < 98 % |",
        "|---|---|---|" + "---:|" * 8,
    ]
    for shape, dtype, layout in product(SHAPES, ITEMSIZE, LAYOUTS):
        key = {"shape": shape, "dtype": dtype, "layout": layout}
        some = [one for one in cells if key.items() <= one.items()]
        big = [of_floor(one) for one in streams if key.items() <= one.items()]
        if not some or not big:
            continue
        ratios = [over_library(one) for one in some]
        lines.append(
            f"| {shape} | {dtype} | {layout} | {len(some)} | {len(big)} | {median(big):.3f} | {min(big):.3f} "
            f"| {sum(one < 0.85 for one in big)} | {median(ratios):.2f} | {min(ratios):.2f} "
            f"| {sum(one < 0.98 for one in ratios)} |"
        )
    for title, some, by in (
        ("furthest from the floor", streams, of_floor),
        ("furthest behind the library", cells, over_library),
    ):
        lines += ["", f"{title}:"]
        lines += [
            f"  {by(one):.3f}  {name(one)}: {one['kernel']} {one['ms']:.4f} ms, floor {one['floor_ms']:.4f}, "
            f"{one['library']} {one['library_ms']:.4f}"
            for one in sorted(some, key=by)[:worst]
        ]
    return "\n".join(lines)


def plot(records: Sequence[Record], path: Path, by: Callable[[Record], float], label: str, log: bool) -> None:
    """Plot a value of the large cells by shape: one point per cell, dtypes side by side, layouts in colors."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    cells = large(ours(records))
    figure, axes = plt.subplots(1, len(SHAPES), figsize=(12, 4.2), sharey=True, constrained_layout=True)
    for axis, shape in zip(axes, SHAPES, strict=True):
        for place, (dtype, layout) in enumerate(product(ITEMSIZE, LAYOUTS)):
            some = [one for one in cells if (one["shape"], one["dtype"], one["layout"]) == (shape, dtype, layout)]
            narrow = sorted(some, key=lambda one: max(one["w"], 0 if shape == "tsm2r" else one["k"]))
            spread = [place + 0.7 * i / max(1, len(narrow) - 1) - 0.35 for i in range(len(narrow))]
            colour = {"row": "tab:blue", "col": "tab:orange"}[layout]
            axis.plot(spread, [by(one) for one in narrow], ".", color=colour, markersize=3)
            if narrow:
                axis.hlines(median(map(by, narrow)), place - 0.4, place + 0.4, color=colour)
        axis.set_title({"tsm2r": "TSM2R", "tsm2l": "TSM2L", "tsmttsm": "TSMTTSM"}[shape])
        axis.set_xticks([2 * i + 0.5 for i in range(len(ITEMSIZE))], list(ITEMSIZE), rotation=20)
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.grid(axis="y", alpha=0.3)
    if log:
        axes[0].set_yscale("log", base=2)
        axes[0].set_yticks([0.5, 1, 2, 4, 8, 16], ["0.5", "1", "2", "4", "8", "16"])
    else:
        axes[0].set_ylim(0, 1.1)
    axes[0].set_ylabel(label)
    figure.supxlabel("one point per product, from narrow to wide; row-major blue, column-major orange; lines: medians")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=Path, default=record.results_path("NVIDIA H200", "gemm"))
    parser.add_argument("--plots", type=Path, help="folder for gemm-floor.png and gemm-library.png")
    parser.add_argument("--worst", type=int, default=12, help="number of worst cells to list")
    options = parser.parse_args()
    records = record.load(options.records)
    print(text(records, options.worst))
    if options.plots:
        plot(records, options.plots / "gemm-floor.png", of_floor, "fraction of the floor rate", log=False)
        plot(records, options.plots / "gemm-library.png", over_library, "times the library's rate", log=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
