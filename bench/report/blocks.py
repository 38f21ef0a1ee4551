"""Parts of a section (figures, tables, parts that unfold), and numbers as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tsapps.bench.report.records import Record, provenance

__all__ = ["DASH", "Block", "Figure", "Fold", "Table", "major", "number", "percent", "product", "times"]

#: Text of a missing value.
DASH = "–"


@dataclass(frozen=True)
class Figure:
    """A chart: its title, the SVG, and the records that it shows."""

    kind: ClassVar[str] = "figure"
    title: str
    svg: str
    records: Sequence[Record]

    @property
    def source(self) -> str:
        """Return the source of the records."""
        return provenance(self.records)


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes
    ----------
    caption : str
    headings : sequence of str
    rows : sequence of sequence of str
        The first cell of a row is its header.
    records : sequence of dict
        Records that it shows.
    texts : int
        Number of leading columns with text, which are aligned left; the others hold numbers.
    """

    kind: ClassVar[str] = "table"
    caption: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    records: Sequence[Record]
    texts: int = 1

    @property
    def source(self) -> str:
        """Return the source of the records."""
        return provenance(self.records)


@dataclass(frozen=True)
class Fold:
    """Blocks that are shown when the reader unfolds their summary."""

    kind: ClassVar[str] = "fold"
    summary: str
    blocks: "Sequence[Block]"

    @property
    def records(self) -> list[Record]:
        """Return the records of all blocks."""
        return [one for block in self.blocks for one in block.records]


Block = Figure | Table | Fold


def number(value: float | None) -> str:
    """Return a number with three significant digits, or without decimals from 1000 on; a dash for None."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def times(value: float | None) -> str:
    """Return a speed-up, such as 1.23×; a dash for None."""
    return DASH if value is None else f"{number(value)}×"


def percent(part: float | None, whole: float | None = 1.0) -> str:
    """Return a share in percent, such as 98.5 %; a dash if there is none. Only the whole is 100 %."""
    if part is None or not whole:
        return DASH
    share = 100 * part / whole
    if share > 100:
        return f"{share:,.0f} %"
    # Rounding must not turn one failure in a million into none.
    rounded = f"{share:.3g}" if share < 99.95 else f"{share:.6g}"
    return "> 99.9999 %" if part < whole and float(rounded) == 100 else f"{rounded} %"


def product(m: int, k: int, n: int) -> str:
    """Return the shapes of A (m × k) and B (k × n) as text."""
    return f"{m:,} × {k:,} · {n:,}"


def major(layout: str) -> str:
    """Return the name of a layout, such as row-major."""
    return {"row": "row-major", "col": "column-major"}.get(layout, layout)
