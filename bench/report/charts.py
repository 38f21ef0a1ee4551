"""Charts as SVG text: horizontal bars, lines over sizes, heat maps.

Elements have classes and no colors: the page's style sheet colors them in its light and dark schemes. All text of a
chart is escaped, because the elements are built as a tree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from tsapps.bench.report.blocks import number
from tsapps.bench.report.scales import Scale, linear, logarithmic

__all__ = [
    "HEAT",
    "SHARES",
    "Band",
    "Bar",
    "Cell",
    "Legend",
    "Line",
    "Reference",
    "bars",
    "heat_map",
    "heat_of",
    "lines",
]

# Width of a character in wide fonts, height of a row, and most characters of a label.
_CHARACTER, _ROW, _MOST_LABEL = 7.4, 20, 40
# Size of a line chart's plot.
_PLOT_WIDTH, _PLOT_HEIGHT = 280, 170
# Least width and height of a heat map's cell.
_CELL_WIDTH, _CELL_HEIGHT = 42, 20
# Width at which a legend continues in its next row, and most characters of a name in it.
_LEGEND_WIDTH, _MOST_NAME = 350, 48

#: Classes of a heat map in ascending order, each with its least value and the label of that.
Legend = Sequence[tuple[str, float, str]]
#: Speed-ups: a diverging scale, symmetric in the logarithm, whose middle class is within 5 % of 1.
HEAT: Legend = (
    ("d0", 0.0, ""),
    ("d1", 0.25, "¼"),
    ("d2", 0.5, "½"),
    ("d3", 0.8, "0.8"),
    ("d4", 1 / 1.05, "0.95"),
    ("d5", 1.05, "1.05"),
    ("d6", 1.25, "1.25"),
    ("d7", 2.0, "2"),
    ("d8", 4.0, "4×"),
)
#: Shares: a sequential scale, whose last class is the whole.
SHARES: Legend = (("q0", 0.0, ""), ("q1", 0.5, "50 %"), ("q2", 0.9, "90 %"), ("q3", 0.99, "99 %"), ("q4", 1.0, "100 %"))


@dataclass(frozen=True)
class Bar:
    """A horizontal bar; `style` is a class, and `mark` is a value marked by a tick across the bar."""

    label: str
    value: float
    text: str
    style: str = "peer"
    mark: float | None = None


@dataclass(frozen=True)
class Reference:
    """A labelled line across all bars, or across all sizes of a line chart."""

    label: str
    value: float
    style: str


@dataclass(frozen=True)
class Line:
    """A named line through points (size, value), in ascending order of size."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str


@dataclass(frozen=True)
class Band:
    """A labelled range of values, and a value in it."""

    label: str
    low: float
    high: float
    mean: float | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of a heat map: its value, its text, and the text shown by pointing at it."""

    value: float
    text: str
    note: str


def heat_of(value: float, legend: Legend = HEAT) -> str:
    """Return the class of a value: the last one whose least value it reaches."""
    return [style for style, least, _ in legend if value >= least][-1]


def bars(title: str, rows: Sequence[Bar], axis: str, *, references: Sequence[Reference] = (), width: int = 360) -> str:
    """Return a chart of horizontal bars, in the order given.

    The axis is logarithmic if no value is negative and the largest is more than 50 times the smallest.

    Parameters
    ----------
    title : str
    rows : sequence of Bar
        At least one.
    axis : str
        Quantity and unit.
    references : sequence of Reference
    width : int
        Width of the plot without labels.
    """
    values = [*(row.value for row in rows), *(one.value for one in references)]
    values += [row.mark for row in rows if row.mark is not None]
    is_log = min(values) > 0 and max(values) > 50 * min(values)
    left = 8 + _CHARACTER * max(len(_cut(row.label)) for row in rows)
    # The axis begins well below the smallest value, so that its bar is visible.
    scale = (
        logarithmic([min(values) / 1.5, *values], left, left + width) if is_log else linear(values, left, left + width)
    )
    top = 6 + 14 * len(references)
    bottom = top + _ROW * len(rows)
    described = "; ".join(f"{row.label}: {row.text}" for row in rows)
    svg = _svg(title, described, left + width + 12 + _CHARACTER * max(len(row.text) for row in rows), bottom + 34)
    _value_axis(svg, scale, top, bottom, f"{axis} (logarithmic)" if is_log else axis)
    zero = scale(scale.low if is_log else 0)
    for place, row in enumerate(rows):
        x, y = scale(row.value), top + _ROW * place
        _add(svg, "rect", x=min(x, zero), y=y + 3, width=abs(x - zero), height=_ROW - 6, class_=f"bar {row.style}")
        if row.mark is not None:
            _add(svg, "line", x1=scale(row.mark), x2=scale(row.mark), y1=y + 1, y2=y + _ROW - 1, class_="mark")
    for place, one in enumerate(references):
        x = scale(one.value)
        _add(svg, "line", x1=x, x2=x, y1=4 + 14 * place, y2=bottom, class_=f"line {one.style}")
    # Text comes last, so that no line crosses it.
    for place, one in enumerate(references):
        is_left = scale(one.value) < left + width / 2
        x = scale(one.value) + (5 if is_left else -5)
        _text(svg, x, 12 + 14 * place, one.label, "start" if is_left else "end", "small")
    for place, row in enumerate(rows):
        _text(svg, left - 6, top + _ROW * place + 14, _cut(row.label), "end")
        _text(svg, max(scale(row.value), zero) + 5, top + _ROW * place + 14, row.text)
    return tostring(svg, encoding="unicode")


def lines(
    title: str,
    some: Sequence[Line],
    axes: tuple[str, str],
    *,
    band: Band | None = None,
    reference: Reference | None = None,
    is_log: bool = True,
) -> str:
    """Return a chart of lines over a logarithmic axis of sizes.

    Parameters
    ----------
    title : str
    some : sequence of Line
        At least one, each with at least one point.
    axes : tuple of str
        Labels of the horizontal and the vertical axis.
    band : Band, optional
    reference : Reference, optional
    is_log : bool
        Whether the vertical axis is logarithmic; a linear one includes zero.
    """
    sizes = sorted({size for line in some for size, _ in line.points})
    values = [value for line in some for _, value in line.points]
    values += [band.low, band.high] if band else []
    values += [reference.value] if reference else []
    entries = [(line.name, f"line {line.style}") for line in some]
    entries += [(reference.label, f"line {reference.style}")] if reference else []
    entries += [(band.label, "band")] if band else []
    left, top = 52, 24 + _legend_height(entries)
    right, bottom = left + _PLOT_WIDTH, top + _PLOT_HEIGHT
    across = Scale(sizes[0], sizes[-1], left + 10, right - 10, is_log=True)
    up = logarithmic(values, bottom - 4, top + 4) if is_log else linear(values, bottom, top + 4)
    described = "; ".join(f"{line.name}: {number(line.points[0][1])} to {number(line.points[-1][1])}" for line in some)
    svg = _svg(title, f"{axes[1]} by {axes[0]}, smallest to largest. {described}", right + 16, bottom + 40)
    _draw_legend(svg, entries)
    _text(svg, 4, top - 8, axes[1], style="small")
    for value in up.ticks():
        _add(svg, "line", x1=left, x2=right, y1=up(value), y2=up(value), class_="grid")
        _text(svg, left - 5, up(value) + 4, _tick(value), "end", "small")
    _size_labels(svg, across, sizes, bottom)
    _text(svg, (left + right) / 2, bottom + 32, axes[0], "middle", "small")
    if band:
        _add(
            svg, "rect", x=left, y=up(band.high), width=_PLOT_WIDTH, height=up(band.low) - up(band.high), class_="band"
        )
        if band.mean is not None:
            _add(svg, "line", x1=left, x2=right, y1=up(band.mean), y2=up(band.mean), class_="band-mean")
    if reference:
        y = up(reference.value)
        _add(svg, "line", x1=left, x2=right, y1=y, y2=y, class_=f"line {reference.style}")
    for line in some:
        points = [(across(size), up(value)) for size, value in line.points]
        _add(svg, "polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=f"line {line.style}")
        for (x, y), (size, value) in zip(points, line.points, strict=True):
            dot = _add(svg, "circle", cx=x, cy=y, r=2.6, class_=f"dot {line.style}")
            _add(dot, "title", f"{line.name}, {_tick(size)}: {number(value)}")
    return tostring(svg, encoding="unicode")


def heat_map(
    title: str,
    axes: tuple[str, str],
    cells: Mapping[tuple[str, str], Cell],
    *,
    legend: Legend = HEAT,
    order: Callable[[str], Any] | None = None,
) -> str:
    """Return a heat map.

    Parameters
    ----------
    title : str
    axes : tuple of str
        Labels of the rows and of the columns.
    cells : mapping
        Cells by the labels of their row and column.
    legend : Legend
    order : callable, optional
        Key by which the labels of rows and of columns are sorted; by default, they keep the order of the cells.
    """
    rows, columns = (list(dict.fromkeys(key[place] for key in cells)) for place in range(2))
    if order is not None:
        rows.sort(key=order)
        columns.sort(key=order)
    left = 10 + _CHARACTER * max(len(_cut(label)) for label in [*rows, axes[0]])
    widths = [max(_CELL_WIDTH, 8 + _CHARACTER * len(_cut(label))) for label in columns]
    edges = dict(zip(columns, accumulate(widths, initial=left), strict=False))
    top, bottom = 38, 38 + _CELL_HEIGHT * len(rows)
    right = max(left + sum(widths), 10 + 40 * len(legend), left + _CHARACTER * len(axes[1]))
    values = sorted(cell.value for cell in cells.values())
    described = f"{len(cells)} cells from {number(values[0])} to {number(values[-1])}; median {number(median(values))}"
    svg = _svg(title, described, right + 6, bottom + 44)
    _text(svg, left - 6, 32, axes[0], "end", "small")
    _text(svg, left, 14, axes[1], style="small")
    for label, width in zip(columns, widths, strict=True):
        _text(svg, edges[label] + width / 2, 32, _cut(label), "middle")
    for place, label in enumerate(rows):
        _text(svg, left - 6, top + _CELL_HEIGHT * place + 14, _cut(label), "end")
    for (row, column), cell in cells.items():
        x, y, width = edges[column], top + _CELL_HEIGHT * rows.index(row), widths[columns.index(column)]
        group = _add(svg, "g", class_=heat_of(cell.value, legend))
        _add(group, "title", cell.note)
        _add(group, "rect", x=x, y=y, width=width - 1, height=_CELL_HEIGHT - 1)
        _text(group, x + (width - 1) / 2, y + 14, cell.text, "middle")
    for place, (style, _, label) in enumerate(legend):
        group = _add(svg, "g", class_=style)
        _add(group, "rect", x=6 + 40 * place, y=bottom + 10, width=40, height=12)
        if label:
            _text(svg, 6 + 40 * place, bottom + 36, label, "middle", "small")  # below the class's lower end
    return tostring(svg, encoding="unicode")


def _svg(title: str, description: str, width: float, height: float) -> Element:
    """Return an SVG element that assistive technology reads as an image with a title and a description."""
    w, h = round(width), round(height)
    svg = Element("svg", {"role": "img", "width": str(w), "height": str(h), "viewBox": f"0 0 {w} {h}"})
    _add(svg, "title", title)
    _add(svg, "desc", description)
    return svg


def _add(parent: Element, tag: str, text: str | None = None, **attributes: float | str) -> Element:
    """Append an element; coordinates have one decimal."""
    child = SubElement(parent, tag)
    for name, value in attributes.items():
        child.set(name.removesuffix("_"), value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0"))
    child.text = text
    return child


def _text(parent: Element, x: float, y: float, text: str, anchor: str = "start", style: str = "") -> None:
    attributes = {"text-anchor": anchor} if anchor != "start" else {}
    attributes |= {"class": style} if style else {}
    _add(parent, "text", text, x=x, y=y, **attributes)


def _cut(label: str, most: int = _MOST_LABEL) -> str:
    """Return a label of at most `most` characters."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _tick(value: float) -> str:
    """Return a tick's label, with an SI prefix from ten thousand on."""
    if abs(value) < 1e4:
        return f"{value:.4g}"
    unit, prefix = next((one for one in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if abs(value) >= one[0]), (1e3, "k"))
    return f"{value / unit:.4g}{prefix}"


def _value_axis(svg: Element, scale: Scale, top: float, bottom: float, label: str) -> None:
    """Draw a horizontal axis below bars: a line and a label a tick, without labels that overlap."""
    end = -1e9
    for value in scale.ticks():
        x, text = scale(value), _tick(value)
        _add(svg, "line", x1=x, x2=x, y1=top, y2=bottom, class_="grid")
        if x - _CHARACTER * len(text) / 2 > end:
            _text(svg, x, bottom + 13, text, "middle", "small")
            end = x + _CHARACTER * len(text) / 2
    _text(svg, scale.start, bottom + 29, label, style="small")


def _size_labels(svg: Element, across: Scale, sizes: Sequence[float], bottom: float) -> None:
    """Label the measured sizes, from the largest down, without labels that overlap."""
    start = 1e9
    for size in reversed(sizes):
        x, text = across(size), _tick(size)
        _add(svg, "line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis")
        if x + _CHARACTER * len(text) / 2 < start:
            _text(svg, x, bottom + 17, text, "middle", "small")
            start = x - _CHARACTER * len(text) / 2


def _legend_places(entries: Sequence[tuple[str, str]]) -> list[tuple[float, float]]:
    """Return the place of each entry of a legend; rows are at most `_LEGEND_WIDTH` wide if an entry fits."""
    places, x, y = [], 4.0, 14.0
    for label, _ in entries:
        width = 36 + _CHARACTER * len(_cut(label, _MOST_NAME))
        if x > 4 and x + width > _LEGEND_WIDTH:
            x, y = 4.0, y + 16
        places.append((x, y))
        x += width
    return places


def _legend_height(entries: Sequence[tuple[str, str]]) -> float:
    return max(y for _, y in _legend_places(entries))


def _draw_legend(svg: Element, entries: Sequence[tuple[str, str]]) -> None:
    for (label, style), (x, y) in zip(entries, _legend_places(entries), strict=True):
        if style == "band":
            _add(svg, "rect", x=x, y=y - 9, width=22, height=10, class_="band")
        else:
            _add(svg, "line", x1=x, x2=x + 22, y1=y - 4, y2=y - 4, class_=style)
        _text(svg, x + 27, y, _cut(label, _MOST_NAME), style="small")
