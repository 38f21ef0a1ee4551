"""Pictures of a clustering as SVG text, and images of centers as PNG.

Elements have classes and no colors: the page's style sheet colors them in its light and dark schemes. Cluster c has the
class `c` and its number modulo `COLORS`.
"""

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from math import ceil, floor, isfinite, log10
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np

__all__ = ["COLORS", "curve", "image", "scatter", "shares", "silhouettes", "sizes"]

#: Number of colors of clusters in the style sheet.
COLORS = 10
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 420, 264, 56, 34
# More clusters than this are drawn without their numbers.
_MOST_BARS = 40
# Up to so many points are drawn larger.
_MOST_LARGE_POINTS = 300


def _drawing(title: str, width: int = _WIDTH, height: int = _HEIGHT) -> Element:
    svg = Element("svg", {"viewBox": f"0 0 {width} {height}", "role": "img", "class": "chart"})
    SubElement(svg, "title").text = title
    return svg


def _text(parent: Element, x: float, y: float, text: str, **attributes: str) -> None:
    SubElement(parent, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", **attributes}).text = text


def _svg(drawing: Element) -> str:
    return tostring(drawing, encoding="unicode")


def _ticks(low: float, high: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Return round numbers, or whole ones, from `low` to `high`, at most `most` + 1."""
    if not high > low or not isfinite(high - low):
        return [low]
    step = 10 ** floor(log10((high - low) / most))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= most)
    step = max(step, 1) if whole else step
    return [round(index * step, 12) for index in range(ceil(low / step), floor(high / step) + 1)]


class _Axes:
    """A plot with axes: places of values in a drawing; `whole` is for values of x that are."""

    def __init__(
        self,
        svg: Element,
        x: tuple[float, float],
        y: tuple[float, float],
        names: tuple[str, str],
        *,
        whole: bool = False,
    ) -> None:
        self._x, self._y = _widened(x), _widened(y)
        for value in _ticks(*self._y):
            at = self.y(value)
            SubElement(svg, "line", {"x1": f"{_LEFT}", "x2": f"{_WIDTH - 8}", "y1": f"{at:.1f}", "y2": f"{at:.1f}"})
            _text(svg, _LEFT - 6, at + 4, f"{value:.4g}", **{"text-anchor": "end"})
        for value in _ticks(*self._x, whole=whole):
            _text(svg, self.x(value), _HEIGHT - _BOTTOM + 16, f"{value:.4g}", **{"text-anchor": "middle"})
        _text(svg, _WIDTH - 8, _HEIGHT - 4, names[0], **{"text-anchor": "end", "class": "name"})
        _text(svg, 2, 10, names[1], **{"class": "name"})

    def x(self, value: float) -> float:
        """Return the place of a value on the horizontal axis."""
        low, high = self._x
        return _LEFT + (value - low) / (high - low) * (_WIDTH - 8 - _LEFT)

    def y(self, value: float) -> float:
        """Return the place of a value on the vertical axis."""
        low, high = self._y
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - 18)


def _widened(limits: tuple[float, float]) -> tuple[float, float]:
    low, high = limits
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def sizes(counts: Sequence[int]) -> str:
    """Return bars of the numbers of rows of all clusters."""
    svg = _drawing("Rows of each cluster")
    axes = _Axes(svg, (-0.5, len(counts) - 0.5), (0, max(counts)), ("cluster", "rows"), whole=True)
    for cluster, count in enumerate(counts):
        left, right, top = axes.x(cluster - 0.4), axes.x(cluster + 0.4), axes.y(count)
        place = {"x": f"{left:.2f}", "width": f"{right - left:.2f}", "y": f"{top:.1f}"}
        bar = SubElement(svg, "rect", {**place, "height": f"{axes.y(0) - top:.1f}", "class": f"c{cluster % COLORS}"})
        SubElement(bar, "title").text = f"cluster {cluster}: {count:,} rows"
        if len(counts) <= _MOST_BARS // 2:
            _text(svg, (left + right) / 2, top - 3, f"{count:,}", **{"text-anchor": "middle"})
    return _svg(svg)


def silhouettes(values: np.ndarray, labels: np.ndarray, k: int) -> str:
    """Return the silhouettes of rows as areas, sorted within each cluster, and a line at their mean."""
    svg = _drawing("Silhouettes of a sample of rows", height=_HEIGHT)
    low = min(0.0, float(values.min()))
    axes = _Axes(svg, (0, len(values)), (low, 1), ("rows of the sample, by cluster", "silhouette"), whole=True)
    start = 0
    for cluster in range(k):
        own = np.sort(values[labels == cluster])[::-1]
        if not len(own):
            continue
        steps = [(start + i + side, value) for i, value in enumerate(own.tolist()) for side in (0, 1)]
        outline = [(start, 0.0), *steps, (start + len(own), 0.0)]
        points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in outline)
        area = SubElement(svg, "polygon", {"points": points, "class": f"c{cluster % COLORS}"})
        SubElement(area, "title").text = f"cluster {cluster}: {len(own)} rows, mean {own.mean():.3f}"
        if k <= _MOST_BARS:
            _text(svg, axes.x(start + len(own) / 2), axes.y(low) - 4, str(cluster), **{"text-anchor": "middle"})
        start += len(own)
    at = f"{axes.y(float(values.mean())):.1f}"
    SubElement(svg, "line", {"x1": f"{_LEFT}", "x2": f"{_WIDTH - 8}", "y1": at, "y2": at, "class": "mean"})
    return _svg(svg)


def scatter(points: np.ndarray, labels: np.ndarray, centers: np.ndarray, shares: tuple[float, float]) -> str:
    """Return points and centers on two axes, whose shares of the variance are named."""
    svg = _drawing("Rows and centers on the first two principal axes")
    both = np.concatenate([points, centers])
    edge = 0.03 * np.ptp(both, axis=0)
    low, high = (both.min(axis=0) - edge).tolist(), (both.max(axis=0) + edge).tolist()
    radius = "3" if len(points) <= _MOST_LARGE_POINTS else "1.6"
    names = f"axis 1: {shares[0]:.0%} of the variance", f"axis 2: {shares[1]:.0%}"
    axes = _Axes(svg, (low[0], high[0]), (low[1], high[1]), names)
    for (x, y), label in zip(points.tolist(), labels.tolist(), strict=True):
        place = {"cx": f"{axes.x(x):.1f}", "cy": f"{axes.y(y):.1f}"}
        SubElement(svg, "circle", {**place, "r": radius, "class": f"c{label % COLORS}"})
    for cluster, (x, y) in enumerate(centers.tolist()):
        place = {"cx": f"{axes.x(x):.1f}", "cy": f"{axes.y(y):.1f}"}
        center = SubElement(svg, "circle", {**place, "r": "5", "class": f"center c{cluster % COLORS}"})
        SubElement(center, "title").text = f"center {cluster}"
        if len(centers) <= _MOST_BARS:
            _text(svg, axes.x(x) + 7, axes.y(y) + 4, str(cluster), **{"class": "label"})
    return _svg(svg)


def curve(title: str, points: Sequence[tuple[float, float]], names: tuple[str, str], mark: float | None = None) -> str:
    """Return a line through points (x, y), x whole numbers; `mark` is the x of a point to stand out."""
    svg = _drawing(title)
    xs, ys = zip(*points, strict=True)
    axes = _Axes(svg, (min(xs), max(xs)), (min(ys), max(ys)), names, whole=True)
    places = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in points)
    SubElement(svg, "polyline", {"points": places, "class": "curve"})
    for x, y in points:
        style = "center c0" if x == mark else "dot"
        place = {"cx": f"{axes.x(x):.1f}", "cy": f"{axes.y(y):.1f}", "r": "5" if x == mark else "2.5", "class": style}
        SubElement(SubElement(svg, "circle", place), "title").text = f"{x:g}: {y:.6g}"
    return _svg(svg)


def shares(parts: Sequence[tuple[str, float]]) -> str:
    """Return parts of a whole, such as seconds of phases, as one bar with a legend."""
    total, left = sum(value for _, value in parts) or 1.0, 0.0
    height = 40 + 18 * len(parts)
    svg = _drawing("Seconds of each phase", height=height)
    for index, (name, value) in enumerate(parts):
        width = value / total * _WIDTH
        place = {"x": f"{left:.1f}", "y": "4", "width": f"{width:.1f}", "height": "22", "class": f"c{index % COLORS}"}
        SubElement(SubElement(svg, "rect", place), "title").text = f"{name}: {value:.3g} s"
        y = 44 + 18 * index
        swatch = {"x": "2", "y": f"{y - 9}", "width": "11", "height": "11", "class": f"c{index % COLORS}"}
        SubElement(svg, "rect", swatch)
        _text(svg, 20, y, f"{name}  {value:.3g} s")
        left += width
    return _svg(svg)


def image(pixels: np.ndarray, low: float, high: float) -> str:
    """Return a gray image of an array as a data URL of a PNG; `low` is black, `high` white."""
    scale = 255 / (high - low) if high > low else 0.0
    gray = ((np.asarray(pixels, np.float64) - low) * scale).clip(0, 255).astype(np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in gray)
    header = struct.pack(">IIBBBBB", gray.shape[1], gray.shape[0], 8, 0, 0, 0, 0)
    parts = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return "data:image/png;base64," + b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
