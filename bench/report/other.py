"""Section of records of any other kind: a plain table of all their fields."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tsapps.bench.report.blocks import DASH, Block, Table, number
from tsapps.bench.report.records import Record, by
from tsapps.kernels.system.printable import shown

__all__ = ["blocks"]

# Fields that are no column: they are in the caption and at the top of the page.
_HIDDEN = ("what", "device", "versions", "commit", "date")


def blocks(records: Sequence[Record]) -> Iterator[Block]:
    """Yield a table for each kind of record and device, whose columns are the fields in the order of appearance."""
    for (what, device), some in by(records, "what device").items():
        columns = [name for name in dict.fromkeys(name for one in some for name in one) if name not in _HIDDEN]
        texts = [name for name in columns if any(isinstance(one.get(name), str) for one in some)]
        ordered = [*texts, *(name for name in columns if name not in texts)]
        rows = [[_text(one.get(name)) for name in ordered] for one in some]
        headings = [shown(name) for name in ordered]
        yield Table(shown(f"{what}, {device}"), headings, rows, some, texts=len(texts))


def _text(value: Any) -> str:
    """Return a JSON value as text; nested values as short JSON."""
    if value is None:
        return DASH
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
