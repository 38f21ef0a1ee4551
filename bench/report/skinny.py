"""Section of skinny shapes: the rate of products as the matrices become narrower."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tsapps.bench.report.blocks import Block, Figure, major
from tsapps.bench.report.charts import Line, lines
from tsapps.bench.report.ladder import gflops
from tsapps.bench.report.records import Record, by, is_tsm2_paper

__all__ = ["blocks", "from_gemm", "from_ladder"]

# Least number of widths of a sweep.
_LEAST_WIDTHS = 3


def blocks(records: Sequence[Record]) -> Iterator[Block]:
    """Yield the charts of ladder and gemm records."""
    yield from from_ladder([one for one in records if one["what"] == "ladder"])
    yield from from_gemm([one for one in records if one["what"] == "gemm"])


def from_ladder(records: Sequence[Record]) -> Iterator[Figure]:
    """Yield a chart for each A whose product was measured for several numbers of columns of B, n."""
    for (device, dtype, layout, m, k), some in by(records, "device dtype layout m k").items():
        if len(by(some, "n")) < _LEAST_WIDTHS:
            continue
        ours = [one for one in some if one["rung"] == "tsapps"]
        others = [one for one in some if one["rung"] != "tsapps"]
        title = f"A ({m:,} × {k:,}), {dtype}, {major(layout)}, {device}"
        named = [
            ("tsapps", ours, "ms", "own"),
            ("fastest other rung" if ours else "fastest rung", others, "ms", "variant"),
        ]
        yield _figure(title, [*named, *_limits(some)], "n", some)


def from_gemm(records: Sequence[Record]) -> Iterator[Figure]:
    """Yield a chart for each class of shapes, dtype and layout: the largest A with the most widths w."""
    for (device, shape, dtype, layout), found in by(records, "device shape dtype layout").items():
        by_size = by(found, "m k")
        m, k = max(by_size, key=lambda size: (len(by(by_size[size], "w")), size[0] * size[1]))
        some = by_size[m, k]
        if len(by(some, "w")) < _LEAST_WIDTHS:
            continue
        ours = [one for one in some if not is_tsm2_paper(one)]
        versions = [one for one in some if is_tsm2_paper(one)]
        A = "transposed A" if shape == "tsmttsm" else "A"
        title = f"{shape.upper()}: {A} ({m:,} × {k:,}), {dtype}, {major(layout)}, {device}"
        named = [("tsapps", ours, "ms", "own"), ("TSM2 as published", versions, "ms", "variant")]
        yield _figure(title, [*named, *_limits(some)], "w", some)


def _limits(some: Sequence[Record]) -> list[tuple[str, Sequence[Record], str, str]]:
    floors = [one for one in some if one["floor_ms"] is not None]
    return [("library", some, "library_ms", "library"), ("roofline", floors, "floor_ms", "floor")]


def _figure(title: str, named: Iterable[tuple[Any, ...]], width: str, some: Sequence[Record]) -> Figure:
    """Return a chart of rates by width; of several times of a width, the least counts."""
    drawn = []
    for name, found, field, style in named:
        least = {size: min(one[field] for one in group) for size, group in by(found, width).items()}
        points = [(size, gflops(some[0]["m"], size, some[0]["k"], least[size])) for size in sorted(least)]
        if points:
            drawn.append(Line(name, points, style))
    axes = (f"number of columns of B, {width}", "GFLOP/s (logarithmic)")
    return Figure(title, lines(title, drawn, axes), some)
