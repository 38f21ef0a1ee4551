"""Sections of checksums: their cost, and what became of injected faults."""

from collections.abc import Iterator, Sequence

from tsapps.bench.report.blocks import Block, Figure, Fold, Table, number, percent, times
from tsapps.bench.report.charts import SHARES, Bar, Cell, Reference, bars, heat_map
from tsapps.bench.report.records import KINDS, Record, by

__all__ = ["blocks_of_campaign", "blocks_of_cost"]

_COUNTS = KINDS["abft-campaign"].counts.split()


def blocks_of_cost(records: Sequence[Record]) -> Iterator[Block]:
    """Yield bars of overheads and of times relative to the roofline, and a table of all times."""
    for device, some in by(records, "device").items():
        protected = [one for one in some if one["unprotected_ms"] is not None]
        if protected:
            title = f"Overhead of protection on {device}"
            rows = []
            for one in protected:
                overhead = 100 * (one["ms"] / one["unprotected_ms"] - 1)
                rows.append(Bar(_name(one), overhead, f"{overhead:+.1f} %", "own"))
            svg = bars(title, rows, "percent of the time without protection")
            yield Figure(title, svg, protected)
        at_rest = [one for one in some if one["unprotected_ms"] is None and one["floor_ms"] is not None]
        if at_rest:
            title = f"Checksums of data at rest on {device}"
            yield Figure(title, _at_rest(title, at_rest), at_rest)
        yield Fold(f"Table of all times, {device}", [_cost(device, some)])


def _name(one: Record) -> str:
    sizes = f"{one['m']:,} × {one['n']:,}"
    if one["job"] == "matmul" and one["k"] is not None:
        sizes = f"{one['m']:,} × {one['k']:,} · {one['n']:,}"
    elif one["k"] is not None:
        sizes += f", k = {one['k']:,}"
    return f"{one['job']} {sizes}, {one['dtype']}"


def _at_rest(title: str, records: Sequence[Record]) -> str:
    rows = []
    for one in records:
        value, library = one["ms"] / one["floor_ms"], one["library_ms"]
        mark = None if library is None else library / one["floor_ms"]
        text = times(value) if mark is None else f"{times(value)} (library {times(mark)})"
        label = f"{one['job']}, {one['code']}: {one['m']:,} × {one['n']:,}, {one['dtype']}"
        rows.append(Bar(label, value, text, "own", mark))
    reference = Reference("one read of the matrix", 1, "floor")
    return bars(title, rows, "time relative to one read of the matrix; tick: library", references=[reference])


def _cost(device: str, records: Sequence[Record]) -> Table:
    headings = ("measurement", "code", "ms", "unprotected ms", "overhead", "roofline ms", "library ms")
    rows = []
    for one in records:
        plain = one["unprotected_ms"]
        overhead = "–" if plain is None else f"{100 * (one['ms'] / plain - 1):+.1f} %"
        limits = (number(one["floor_ms"]), number(one["library_ms"]))
        rows.append((_name(one), one["code"], number(one["ms"]), number(plain), overhead, *limits))
    return Table(f"Cost of checksums on {device}", headings, rows, records, texts=2)


def blocks_of_campaign(records: Sequence[Record]) -> Iterator[Block]:
    """Yield, for each device, a heat map of guaranteed detections and a table of what became of faults."""
    for (device, engine), some in by(records, "device engine").items():
        cells, rows = {}, []
        for (target, code, dtype, distribution), found in by(some, "target code dtype distribution").items():
            sums = {name: sum(one[name] for one in found) for name in _COUNTS}
            row = f"{target}, {code}, {dtype}"
            if sums["certain"]:
                note = f"{row}, {distribution}: {sums['certain_detected']:,} of {sums['certain']:,}"
                value = sums["certain_detected"] / sums["certain"]
                # Only the whole is 100.
                text = "100" if value == 1 else f"{min(99.9, 100 * value):.1f}"
                cells[row, distribution] = Cell(value, text, note)
            rows.append((target, code, dtype, distribution, *_outcomes(sums)))
        on = f"{device} ({engine})"
        if cells:
            title = f"Faults whose detection is guaranteed, on {on}: detected, in percent"
            axes = ("target, code, dtype", "distribution of the elements")
            yield Figure(title, heat_map(title, axes, cells, legend=SHARES), some)
        headings = ("target", "code", "dtype", "distribution", "faults", "harmless", "detected", "located")
        headings += (
            "repaired",
            "guaranteed",
            "of them detected",
            "repaired",
            "miscorrected",
            "checked without a fault",
            "false positives",
        )
        table = Table(f"Injected faults on {on}", headings, rows, some, texts=4)
        yield Fold(f"Table of injected faults on {on}", [table])


def _outcomes(sums: dict[str, int]) -> tuple[str, ...]:
    """Return the cells of a table of what became of faults."""
    return (
        f"{sums['trials']:,}",
        *(percent(sums[name], sums["trials"]) for name in ("harmless", "detected", "located", "repaired")),
        f"{sums['certain']:,}",
        *(percent(sums[name], sums["certain"]) for name in ("certain_detected", "certain_repaired")),
        *(f"{sums[name]:,}" for name in ("miscorrected", "clean", "false_alarms")),
    )
