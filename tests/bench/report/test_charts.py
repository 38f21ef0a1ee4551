"""Charts: elements, coordinates and classes by hand."""

from xml.etree.ElementTree import fromstring

import pytest

from tsapps.bench.report.charts import HEAT, SHARES, Band, Bar, Cell, Line, Reference, bars, heat_map, heat_of, lines

HOSTILE = "</svg><script>alert(1)</script>\"'&"


def texts(svg):
    return [one.text for one in svg.iter("text")]


def rectangles(svg, style):
    return [one for one in svg.iter("rect") if one.get("class") == style]


def test_bars_are_as_long_as_their_values():
    svg = fromstring(bars("rates", [Bar("a", 50, "50 x", "own"), Bar("b", 100, "100 x")], "GFLOP/s", width=200))
    (own,), (peer,) = rectangles(svg, "bar own"), rectangles(svg, "bar peer")
    assert (float(own.get("width")), float(peer.get("width"))) == (100, 200)
    assert own.get("x") == peer.get("x")
    assert {"a", "b", "50 x", "100 x", "GFLOP/s"} <= set(texts(svg))


def test_a_negative_bar_ends_at_zero():
    svg = fromstring(bars("overhead", [Bar("a", -1, "-1 %"), Bar("b", 3, "+3 %")], "%", width=200))
    left, right = rectangles(svg, "bar peer")
    assert float(left.get("width")) == 50
    assert float(right.get("width")) == 150
    assert float(left.get("x")) + 50 == float(right.get("x"))


def test_bars_of_very_different_values_have_a_logarithmic_axis():
    # From 1 (the largest of 1, 2 and 5 times a power of ten below 2 / 1.5) to 1000: three decades.
    svg = fromstring(bars("rates", [Bar("a", 2, ""), Bar("b", 1000, "")], "GFLOP/s", width=300))
    short, long = (float(one.get("width")) for one in rectangles(svg, "bar peer"))
    assert long == 300
    assert short == pytest.approx(30.1, abs=0.06)
    assert "GFLOP/s (logarithmic)" in texts(svg)


def test_references_and_marks():
    rows = [Bar("a", 50, "", mark=75), Bar("b", 100, "")]
    svg = fromstring(bars("rates", rows, "ms", references=[Reference("library", 80, "library")], width=100))
    start = float(rectangles(svg, "bar peer")[0].get("x"))
    places = {one.get("class"): float(one.get("x1")) - start for one in svg.iter("line")}
    assert places["line library"] == pytest.approx(80)
    assert places["mark"] == pytest.approx(75)
    assert "library" in texts(svg)


def test_a_line():
    svg = fromstring(
        lines("rate", [Line("ours", [(1, 10.0), (2, 20.0), (4, 40.0)], "own")], ("w", "GB/s"), is_log=False)
    )
    (line,) = svg.iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
    assert points[1][0] - points[0][0] == pytest.approx(points[2][0] - points[1][0], abs=0.1)  # sizes are logarithmic
    assert points[0][1] - points[1][1] == pytest.approx((points[1][1] - points[2][1]) / 2, abs=0.1)
    assert [one[0].text for one in svg.iter("circle")] == ["ours, 1: 10", "ours, 2: 20", "ours, 4: 40"]
    assert {"ours", "w", "GB/s", "1", "2", "4"} <= set(texts(svg))


def test_a_band_spans_its_values():
    band = Band("paper", 1.0, 3.0, 2.0)
    svg = fromstring(lines("speed-up", [Line("ours", [(1, 4.0)], "s0")], ("m", "×"), band=band, is_log=False))
    drawn = max(rectangles(svg, "band"), key=lambda one: float(one.get("height")))  # the other is the legend's
    (mean,) = (one for one in svg.iter("line") if one.get("class") == "band-mean")
    (dot,) = svg.iter("circle")
    top, height = float(drawn.get("y")), float(drawn.get("height"))
    assert float(mean.get("y1")) == pytest.approx(top + height / 2, abs=0.1)
    assert float(dot.get("cy")) == pytest.approx(top - height / 2, abs=0.1)  # 4 is half a band above 3


def test_size_labels_do_not_overlap():
    points = [(size, 1.0) for size in (16, 17, 32, 33, 64)]
    svg = fromstring(lines("rate", [Line("ours", points, "own")], ("w", "GB/s")))
    assert [label for label in texts(svg) if label in {"16", "17", "32", "33", "64"}] == ["64", "33", "17"]


@pytest.mark.parametrize(
    ("value", "style"),
    [
        *((0.1, "d0"), (0.25, "d1"), (0.5, "d2"), (0.79, "d2"), (0.8, "d3"), (0.95, "d3")),
        *((0.96, "d4"), (1, "d4"), (1.049, "d4"), (1.05, "d5"), (1.25, "d6"), (2, "d7"), (3.99, "d7"), (4, "d8")),
    ],
)
def test_classes_of_speedups(value, style):
    assert heat_of(value) == style


def test_classes_of_speedups_are_symmetric():
    # A ratio and its inverse are equally far from the middle class.
    for value in (1.03, 1.1, 1.5, 3.0, 9.0):
        assert int(heat_of(value)[1]) + int(heat_of(1 / value)[1]) == len(HEAT) - 1


@pytest.mark.parametrize(("value", "style"), [(0, "q0"), (0.5, "q1"), (0.9, "q2"), (0.9999, "q3"), (1, "q4")])
def test_classes_of_shares(value, style):
    assert heat_of(value, SHARES) == style


def test_a_heat_map():
    cells = {("r1", "c1"): Cell(0.4, "0.4", "slow"), ("r2", "c2"): Cell(5.0, "5", "fast")}
    svg = fromstring(heat_map("map", ("rows", "columns"), cells))
    drawn = {one.find("text").text: one for one in svg.iter("g") if one.find("text") is not None}
    assert {text: one.get("class") for text, one in drawn.items()} == {"0.4": "d1", "5": "d8"}
    assert {text: one.find("title").text for text, one in drawn.items()} == {"0.4": "slow", "5": "fast"}
    (slow, fast) = (one.find("rect") for one in drawn.values())
    assert float(fast.get("x")) > float(slow.get("x"))
    assert float(fast.get("y")) == float(slow.get("y")) + 20
    assert {"r1", "r2", "c1", "c2", "rows", "columns", "½", "4×"} <= set(texts(svg))


def test_labels_of_a_heat_map_can_be_sorted():
    cells = {(row, "8"): Cell(1, row, "") for row in ("30", "4", "100")}
    svg = fromstring(heat_map("map", ("d", "k"), cells, order=int))
    assert [text for text in texts(svg) if text in {"30", "4", "100"}][:3] == ["4", "30", "100"]


CHARTS = {
    "bars": lambda text: bars(text, [Bar(text, 1, text)], text, references=[Reference(text, 2, "library")]),
    "lines": lambda text: lines(text, [Line(text, [(1, 1.0)], "own")], (text, text), band=Band(text, 1, 2)),
    "heat map": lambda text: heat_map(text, (text, text), {(text, text): Cell(1, text, text)}),
}


@pytest.mark.parametrize("chart", CHARTS)
def test_charts_are_images_with_a_title_and_a_description(chart):
    svg = fromstring(CHARTS[chart]("name"))
    assert svg.tag == "svg"
    assert svg.get("role") == "img"
    assert [one.tag for one in svg[:2]] == ["title", "desc"]
    assert svg[0].text == "name"
    assert svg[1].text


@pytest.mark.parametrize("chart", CHARTS)
def test_text_is_escaped(chart):
    text = CHARTS[chart](HOSTILE)
    assert "<script" not in text
    assert fromstring(text)[0].text == HOSTILE


@pytest.mark.parametrize("chart", CHARTS)
def test_long_labels_are_cut(chart):
    svg = fromstring(CHARTS[chart]("x" * 3000))
    labels = [label for label in texts(svg) if label.endswith("…")]
    assert labels
    assert max(map(len, labels)) <= 48
