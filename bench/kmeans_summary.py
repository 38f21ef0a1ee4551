"""What the records of bench/kmeans.py show, as text and as a plot.

python bench/kmeans_summary.py --plot docs/kmeans-floor.png
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import record
from bench.kmeans_data import GPU_SHAPES, Shape

__all__ = ["by_shape", "plot", "text"]

Record = dict[str, Any]
OURS = "tsapps"


def by_shape(records: Sequence[Record]) -> list[tuple[Shape, dict[str, Record]]]:
    """Return the shapes of record that there are records of, each with its records by engine."""
    found = []
    for shape in GPU_SHAPES:
        key = {"n": shape.n, "d": shape.d, "k": shape.k, "dtype": shape.dtype}
        some = {one["engine"]: one for one in records if key.items() <= one.items() and one["iter_ms"] is not None}
        if some:
            found.append((shape, some))
    return found


def text(records: Sequence[Record]) -> str:
    """Return a table of our times beside the floor and the best of all others but our own cuBLAS engine."""
    lines = ["| shape | floor | ours | times the floor | best peer | times as fast |", "|---|" + "---:|" * 5]
    for shape, engines in by_shape(records):
        ours = engines.get(OURS)
        peers = {name: one for name, one in engines.items() if name not in (OURS, "cublas")}
        if ours is None or not peers:
            continue
        best = min(peers, key=lambda name: peers[name]["iter_ms"])
        mine, theirs, floor = ours["iter_ms"], peers[best]["iter_ms"], ours["floor_ms"]
        lines.append(
            f"| {shape.name} | {floor:.2f} | {mine:.2f} | {mine / floor:.2f} | {best} {theirs:.2f} "
            f"| {theirs / mine:.2f} |"
        )
    return "\n".join(lines)


def plot(records: Sequence[Record], path: Path) -> None:
    """Draw each engine's time over the floor, a line a shape."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    shapes = by_shape(records)
    engines = sorted({name for _, some in shapes for name in some}, key=lambda name: (name != OURS, name))
    marks = dict(zip(engines, "oxs^dv<>", strict=False))
    colours = dict(
        zip(engines, ("tab:red", "tab:blue", "tab:orange", "tab:green", "tab:purple", "black"), strict=False)
    )
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
    figure.legend(loc="outside upper center", ncols=len(engines))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=Path, default=record.results_path("NVIDIA H200", "kmeans"))
    parser.add_argument("--plot", type=Path, help="a file to draw to")
    options = parser.parse_args()
    records = record.load(options.records)
    print(text(records))
    if options.plot:
        plot(records, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
