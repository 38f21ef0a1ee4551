"""Section of the ladder: the rungs as bars next to the library and the roofline, and a table for each shape."""

from collections.abc import Iterator, Sequence
from typing import Any

from tsapps.bench.report.blocks import Block, Figure, Fold, Table, major, number, percent, product, times
from tsapps.bench.report.charts import Bar, Reference, bars
from tsapps.bench.report.records import Record, by

__all__ = ["blocks", "gflops", "shown_square"]

_HEADINGS = ("rung", "ms", "GFLOP/s", "speed-up over serial", "efficiency", "of the library", "of the roofline")


def blocks(records: Sequence[Record]) -> Iterator[Block]:
    """Yield the charts and tables of ladder records: for each device and dtype, a square first."""
    for (device, dtype), some in by(records, "device dtype").items():
        square = shown_square(some)
        shapes = by(some, "m k n layout")
        if square is not None:
            chosen = shapes.pop(square)
            yield _figure(f"Rungs on {device}: {_shape(square)}, {dtype}", chosen)
            yield _table(f"{_shape(square)}, {dtype}", chosen)
        others = [_table(f"{_shape(shape)}, {dtype}", found) for shape, found in shapes.items()]
        if others:
            yield Fold(f"{'Other shapes' if square else 'Shapes'}, {dtype}, {device}: {len(others)}", others)


def shown_square(records: Sequence[Record]) -> tuple[Any, ...] | None:
    """Return m, k, n and layout of the largest of the squares that the most rungs have, or None without a square."""
    squares = by((one for one in records if one["m"] == one["k"] == one["n"]), "m k n layout")
    # Of two layouts, the first in the file.
    return max(squares, key=lambda shape: (len(squares[shape]), shape[0]), default=None)


def gflops(m: int, n: int, k: int, ms: float) -> float:
    """Return the rate of a product (m × k) · (k × n) that takes `ms` milliseconds."""
    return 2 * m * n * k / ms / 1e6


def _rate(one: Record, ms: float) -> float:
    return gflops(one["m"], one["n"], one["k"], ms)


def _shape(shape: tuple[Any, ...]) -> str:
    m, k, n, layout = shape
    return f"{product(m, k, n)}, {major(layout)}"


def _figure(title: str, some: Sequence[Record]) -> Figure:
    rows = []
    for one in some:
        rate = _rate(one, one["ms"])
        rows.append(Bar(one["title"], rate, number(rate), "own" if one["rung"] == "tsapps" else "peer"))
    references = [Reference("library", _rate(some[0], min(one["library_ms"] for one in some)), "library")]
    floors = [one["floor_ms"] for one in some if one["floor_ms"] is not None]
    if floors:
        references.append(Reference("roofline", _rate(some[0], min(floors)), "floor"))
    return Figure(title, bars(title, rows, "GFLOP/s", references=references), some)


def _table(caption: str, some: Sequence[Record]) -> Table:
    rows = [
        (
            one["title"],
            number(one["ms"]),
            number(_rate(one, one["ms"])),
            times(one["speedup_serial"]),
            number(one["efficiency"]),
            percent(one["library_ms"] / one["ms"]),
            percent(None if one["floor_ms"] is None else one["floor_ms"] / one["ms"]),
        )
        for one in some
    ]
    return Table(caption, _HEADINGS, rows, some)
