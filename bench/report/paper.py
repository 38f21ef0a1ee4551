"""Section of the papers' experiments: speed-ups by size, with the range that the paper reports as a band."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from tsapps.bench.report.blocks import DASH, Block, Figure, Fold, Table, number, product, times
from tsapps.bench.report.charts import Band, Line, Reference, lines
from tsapps.bench.report.records import Record, by

__all__ = ["blocks", "points_of"]

_RUNS = {
    "versions": "Versions of TSM2",
    "bandwidth": "Bandwidth of TSM2",
    "kmeans": "K-means",
    "checksums": "Checksums",
}
# Number of styles of lines in the style sheet.
_STYLES = 8


def blocks(records: Sequence[Record]) -> Iterator[Block]:
    """Yield charts of speed-ups and of gains in bandwidth, each with the paper's range, and a table of each run."""
    for (device, run), some in by(records, "device run").items():
        experiments = by(some, lambda one: (one["engine"], one["baseline"], one["dtype"], one["paper_device"]))
        for (engine, baseline, dtype, paper_device), found in experiments.items():
            title = f"{_RUNS.get(run, run)}: {engine} over {baseline}, {dtype}, {device}"
            paper = f"paper, {paper_device}:"
            yield from _figures(title, paper, found, "paper_speedup", _speedup, ("speed-up", "×"))
            yield from _figures(
                f"{title}: gain in bandwidth", paper, found, "paper_points", points_of, ("points of peak", "")
            )
        yield Fold(f"Table: {_RUNS.get(run, run)}, {device}", [_table(f"{_RUNS.get(run, run)} on {device}", some)])


def points_of(one: Record) -> float | None:
    """Return the gain in bandwidth over the baseline in percentage points of the peak, or None if it is not known."""
    if one["gbs"] is None or one["baseline_gbs"] is None or one["peak_gbs"] is None:
        return None
    return 100 * (one["gbs"] - one["baseline_gbs"]) / one["peak_gbs"]


def _speedup(one: Record) -> float | None:
    return one["speedup"]


def _figures(
    title: str,
    paper: str,
    records: Sequence[Record],
    field: str,
    value_of: Callable[[Record], float | None],
    unit: tuple[str, str],
) -> Iterator[Figure]:
    """Yield a chart of the records with each range of the paper."""
    for values, some in by(records, lambda one: None if one[field] is None else tuple(one[field])).items():
        measured = [one for one in some if value_of(one) is not None]
        if not measured or (values is None and field == "paper_points"):
            continue
        band = None
        if values is not None:
            least, mean, most = values
            middle = "" if mean is None else f", mean {number(mean)}{unit[1]}"
            band = Band(f"{paper} {number(least)} to {number(most)}{unit[1]}{middle}", least, most, mean)
        reference = Reference("equally fast", 1, "floor") if field == "paper_speedup" else None
        drawn, size = _lines(measured, value_of)
        svg = lines(title, drawn, (f"size, {size}", unit[0]), band=band, reference=reference, is_log=False)
        yield Figure(title, svg, measured)


def _lines(records: Sequence[Record], value_of: Callable[[Record], Any]) -> tuple[list[Line], str]:
    """Return a line for each combination of the other sizes, and the size that has the most values.

    Sizes that are constant, or equal to the size of the horizontal axis, distinguish no lines.
    """
    size = max("mkn", key=lambda name: len({one[name] for one in records}))
    others = [
        name
        for name in "mkn"
        if name != size and len({one[name] for one in records}) > 1 and any(one[name] != one[size] for one in records)
    ]
    drawn = []
    groups = by(records, lambda one: tuple(one[name] for name in others))
    for place, values in zip(count(), sorted(groups), strict=False):
        name = ", ".join(f"{other} = {value:,}" for other, value in zip(others, values, strict=True)) or "measured"
        points = sorted((one[size], value_of(one)) for one in groups[values])
        drawn.append(Line(name, points, f"s{place % _STYLES}"))
    return drawn, size


def _table(caption: str, records: Sequence[Record]) -> Table:
    headings = ("engine", "baseline", "dtype", "m × k · n", "ms", "baseline ms", "speed-up", "speed-up in the paper")
    headings += ("GB/s", "baseline GB/s", "points of peak", "points in the paper", "paper's device")
    rows = []
    for one in records:
        sizes = product(one["m"], one["k"], one["n"])
        ours = (number(one["ms"]), number(one["baseline_ms"]), times(one["speedup"]), _range(one["paper_speedup"]))
        rates = (number(one["gbs"]), number(one["baseline_gbs"]), number(points_of(one)), _range(one["paper_points"]))
        rows.append((one["engine"], one["baseline"], one["dtype"], sizes, *ours, *rates, one["paper_device"]))
    return Table(caption, headings, rows, records, texts=4)


def _range(values: Sequence[float | None] | None) -> str:
    if values is None:
        return DASH
    least, mean, most = values
    return f"{number(least)} to {number(most)}" + ("" if mean is None else f", mean {number(mean)}")
