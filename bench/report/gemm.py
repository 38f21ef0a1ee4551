"""Section of tall-and-skinny products: speed-up over the fastest library, as heat maps of sizes."""

from collections.abc import Iterator, Sequence
from statistics import median

from tsapps.bench.report.blocks import DASH, Block, Figure, Fold, Table, major, number, percent, product, times
from tsapps.bench.report.charts import Cell, heat_map
from tsapps.bench.report.records import Record, by, is_tsm2_paper

__all__ = ["blocks", "cells_of"]

# Most sizes of A with a row each; of more, the rows are k, with the median over m.
_MOST_ROWS = 16


def blocks(records: Sequence[Record]) -> Iterator[Block]:
    """Yield a table of medians, the heat maps, and a table of TSM2 as published."""
    ours = [one for one in records if not is_tsm2_paper(one)]
    for device, some in by(ours, "device").items():
        yield _summary(device, some)
        # On a CPU, tsapps.matmul is NumPy, the library: its times differ by chance.
        kernels = [one for one in some if one["kernel"] != "numpy"]
        for (shape, dtype, layout), found in by(kernels, "shape dtype layout").items():
            title = f"{shape.upper()}, {dtype}, {major(layout)}, {device}: speed-up over the library"
            rows, cells = cells_of(found)
            yield Figure(title, heat_map(title, (rows, "columns of B, w"), cells), found)
    versions = [one for one in records if is_tsm2_paper(one)]
    if versions:
        headings = ("kernel", "device", "A · w", "dtype", "layout", "ms", "of the library", "of the roofline")
        rows = [
            (
                one["kernel"],
                one["device"],
                product(one["m"], one["k"], one["w"]),
                one["dtype"],
                one["layout"],
                number(one["ms"]),
                percent(one["library_ms"] / one["ms"]),
                percent(one["floor_ms"], one["ms"]),
            )
            for one in versions
        ]
        table = Table("TSM2 as published", headings, rows, versions, texts=5)
        yield Fold(f"TSM2 as published: {len(rows)} products", [table])


def cells_of(records: Sequence[Record]) -> tuple[str, dict[tuple[str, str], Cell]]:
    """Return the label of the rows and the cells of a heat map of products of one shape class, dtype and layout."""
    ordered = sorted(records, key=lambda one: (one["m"], one["k"], one["w"]))
    if len(by(ordered, "m k")) > _MOST_ROWS:
        ordered.sort(key=lambda one: (one["k"], one["w"]))
        label, groups = "k, median over m", by(ordered, lambda one: (f"{one['k']:,}", f"{one['w']}"))
    else:
        label, groups = "m × k", by(ordered, lambda one: (f"{one['m']:,} × {one['k']:,}", f"{one['w']}"))
    return label, {key: _cell(key, some) for key, some in groups.items()}


def _cell(key: tuple[str, str], some: Sequence[Record]) -> Cell:
    speedups = sorted(one["library_ms"] / one["ms"] for one in some)
    value = median(speedups)
    note = f"{key[0]} · {key[1]}: {times(value)}"
    if len(some) > 1:
        note += f" ({times(speedups[0])} to {times(speedups[-1])}, {len(some)} products)"
    return Cell(value, number(value), note)


def _summary(device: str, records: Sequence[Record]) -> Table:
    headings = ("shape", "dtype", "layout", "products", "over the library: least", "median", "most", "slower")
    headings += ("of the roofline: least", "median")
    rows = []
    for key, some in by(records, "shape dtype layout").items():
        speedups = sorted(one["library_ms"] / one["ms"] for one in some)
        floors = [one["floor_ms"] / one["ms"] for one in some if one["floor_ms"] is not None]
        of_floor = (percent(min(floors)), percent(median(floors))) if floors else (DASH, DASH)
        rates = (times(speedups[0]), times(median(speedups)), times(speedups[-1]), f"{sum(x < 1 for x in speedups):,}")
        rows.append((*key, f"{len(some):,}", *rates, *of_floor))
    return Table(f"tsapps.matmul on {device}", headings, rows, records, texts=3)
