"""Sections of K-means: iterations and fits of every engine, and the speed-up over the fastest peer."""

from collections.abc import Iterator, Sequence

from tsapps.bench.kmeans.summary import OWN
from tsapps.bench.report.blocks import Block, Figure, Fold, Table, number, percent, times
from tsapps.bench.report.charts import Bar, Cell, Reference, bars, heat_map
from tsapps.bench.report.records import Record, by

__all__ = ["blocks", "blocks_of_kinds", "speedup"]

# Engines that are ours, in descending priority: on a GPU, and on a CPU.
_OURS = ("tsapps", "tsapps-cpu")
# What is added to titles, and the times of a record, of which the first is drawn.
_PROBLEMS = {
    "kmeans": ("", ("iter_ms", "fit_ms")),
    "kmeans-batched": (", batched", ("iter_ms", "fit_ms")),
    "kmeans-small": (", small data", ("fit_ms",)),
}
_UNITS = {"iter_ms": "ms per iteration", "fit_ms": "ms per fit"}
# Most shapes whose bars are shown at first, and least cells of a heat map, half of which must be filled.
_MOST_SHOWN, _LEAST_CELLS = 12, 4


def blocks(records: Sequence[Record]) -> Iterator[Block]:
    """Yield bars of each shape, a heat map of sizes, and tables of all times; kmeans, -batched and -small."""
    for (what, device), some in by(records, "what device").items():
        problem, fields = _PROBLEMS[what]
        field = fields[0]
        if what != "kmeans-batched":
            yield from _heat_maps(device, problem, some, field)
        shapes = sorted(by(some, _shape).items(), key=lambda pair: -len(pair[1]))
        figures = [
            _figure(f"{shape}{problem}, {device}", found, field)
            for shape, found in shapes
            if any(one[field] is not None for one in found)
        ]
        yield from figures[:_MOST_SHOWN]
        if len(figures) > _MOST_SHOWN:
            yield Fold(f"Other shapes{problem}, {device}: {len(figures) - _MOST_SHOWN}", figures[_MOST_SHOWN:])
        tables = [_table(f"{_UNITS[name]}{problem}, {device}", some, name) for name in fields]
        yield Fold(f"Tables{problem}, {device}", tables)


def blocks_of_kinds(records: Sequence[Record]) -> Iterator[Block]:
    """Yield heat maps of shapes and kinds of data, and a table of fits and wrong labels."""
    for (device, dtype), some in by(records, "device dtype").items():
        cells = {}
        for (shape, data), found in by(some, lambda one: (_sizes(one), one["data"])).items():
            value = speedup(found, "fit_ms")
            if value is not None:
                cells[shape, data] = Cell(value, number(value), f"{shape}, {data}: {times(value)}")
        if cells:
            title = f"Fits on kinds of data, {dtype}, {device}: speed-up over the fastest peer"
            yield Figure(title, heat_map(title, ("n × d, k", "kind of data"), cells), some)
        headings = ("n × d, k", "data", "engine", "ms per fit", "ms with k-means++", "wrong labels")
        rows = [
            (
                _sizes(one),
                one["data"],
                one["engine"],
                number(one["fit_ms"]),
                number(one["seeded_fit_ms"]),
                percent(one["wrong"]),
            )
            for one in some
        ]
        table = Table(f"Fits on kinds of data, {dtype}, {device}", headings, rows, some, texts=3)
        yield Fold(f"Table of all fits, {dtype}, {device}", [table])


def speedup(records: Sequence[Record], field: str) -> float | None:
    """Return how many times as fast as the fastest peer our engine is on one shape, or None without one of both."""
    found = {one["engine"]: one[field] for one in records if one[field] is not None}
    ours = next((found[name] for name in _OURS if name in found), None)
    peers = [ms for name, ms in found.items() if not _is_own(name)]
    return min(peers) / ours if ours is not None and peers else None


def _is_own(engine: str) -> bool:
    return engine in OWN or engine in _OURS


def _sizes(one: Record) -> str:
    batch = f"{one['b']:,} problems of " if one["what"] == "kmeans-batched" else ""
    return f"{batch}{one['n']:,} × {one['d']:,}, k = {one['k']:,}"


def _shape(one: Record) -> str:
    return f"{_sizes(one)}, {one['dtype']}"


def _heat_maps(device: str, problem: str, records: Sequence[Record], field: str) -> Iterator[Figure]:
    """Yield a heat map of n × d and k for each dtype with enough shapes that both our engine and a peer have."""
    unit = "fit" if field == "fit_ms" else "iteration"
    for dtype, some in by(records, "dtype").items():
        cells = {}
        for (n, d, k), found in by(some, "n d k").items():
            value = speedup(found, field)
            if value is not None:
                note = f"{n:,} × {d:,}, k = {k:,}: {times(value)}"
                cells[f"{n:,} × {d:,}", f"{k:,}"] = Cell(value, number(value), note)
        rows, columns = ({key[place] for key in cells} for place in range(2))
        if len(cells) >= max(_LEAST_CELLS, len(rows) * len(columns) / 2):
            title = f"{dtype}{problem}, {device}: speed-up of one {unit} over the fastest peer"
            yield Figure(title, heat_map(title, ("n × d", "clusters, k"), cells, order=_numbers), some)


def _numbers(label: str) -> list[int]:
    """Return the numbers of a label, such as 1,000 × 16."""
    return [int(part.replace(",", "")) for part in label.split(" × ")]


def _figure(title: str, some: Sequence[Record], field: str) -> Figure:
    measured = [one for one in some if one[field] is not None]
    ordered = sorted(measured, key=lambda one: (one["engine"] not in _OURS, not _is_own(one["engine"]), one[field]))
    rows = [Bar(one["engine"], one[field], f"{number(one[field])} ms", _style(one["engine"])) for one in ordered]
    floors = [one["floor_ms"] for one in measured if one["what"] != "kmeans-small" and one["floor_ms"] is not None]
    references = [Reference("roofline", min(floors), "floor")] if floors else []
    return Figure(title, bars(title, rows, _UNITS[field], references=references, width=190), some)


def _style(engine: str) -> str:
    if engine in _OURS:
        return "own"
    return "variant" if _is_own(engine) else "peer"


def _table(caption: str, some: Sequence[Record], field: str) -> Table:
    engines = sorted(by(some, "engine"), key=lambda name: (name not in _OURS, not _is_own(name)))
    rows = []
    for shape, found in by(some, _shape).items():
        measured = {one["engine"]: one[field] for one in found}
        rows.append((shape, *(number(measured.get(name)) for name in engines), times(speedup(found, field))))
    return Table(caption, ("shape", *engines, "over the fastest peer"), rows, some)
