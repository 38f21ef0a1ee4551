"""Sections of a report: charts and tables of records by hand."""

from xml.etree.ElementTree import fromstring

import pytest
from report_records import record_of

from tsapps.bench.report import abft, gemm, kmeans, ladder, other, paper, skinny, untuned
from tsapps.bench.report.blocks import Figure, Fold, Table


def flat(blocks):
    """Return all blocks, with those that unfold."""
    return [one for block in blocks for one in ([block, *flat(block.blocks)] if isinstance(block, Fold) else [block])]


def of(kind, blocks):
    return [one for one in flat(list(blocks)) if isinstance(one, kind)]


def cells(svg):
    """Return the class and the text of each cell of a heat map by its note."""
    found = [one for one in fromstring(svg).iter("g") if one.find("text") is not None]
    return {one.find("title").text: (one.get("class"), one.find("text").text) for one in found}


def test_plans_without_a_table():
    (table,) = untuned.blocks([record_of("gemm-untuned"), record_of("gemm-untuned", w=8, untuned_ms=0.5)])
    assert table.rows == [
        ["tsm2r", "float32", "2", "0.90 (0.80)", "0.50 (0.50)", "1.80 (1.60)", "1.00 (1.00)"],
    ]


class TestLadder:
    def rungs(self, edge, names, **fields):
        sizes = dict.fromkeys(("m", "n", "k"), edge)
        return [record_of("ladder", rung=name, title=name, **{**sizes, **fields}) for name in names]

    def test_the_square_is_the_largest_of_those_that_the_most_rungs_have(self):
        records = [*self.rungs(256, "abc"), *self.rungs(512, "abc"), *self.rungs(1024, "ab")]
        assert ladder.shown_square(records) == (512, 512, 512, "row")
        assert ladder.shown_square(self.rungs(256, "a", n=8)) is None

    def test_a_chart_and_a_table(self):
        # 2 · 1000³ operations in 2 ms are 1000 GFLOP/s; the library takes half of the time, the roofline a quarter.
        figure, table = ladder.blocks([record_of("ladder")])
        svg = fromstring(figure.svg)
        assert "Rungs on NVIDIA H200: 1,000 × 1,000 · 1,000, row-major, float32" == figure.title
        places = {one.get("class"): float(one.get("x1")) for one in svg.iter("line") if "line" in one.get("class")}
        (bar,) = (one for one in svg.iter("rect") if one.get("class") == "bar peer")
        start, end = float(bar.get("x")), float(bar.get("x")) + float(bar.get("width"))
        assert places["line library"] - start == pytest.approx(2 * (end - start), abs=0.2)
        assert places["line floor"] - start == pytest.approx(4 * (end - start), abs=0.2)
        assert table.rows == [("register tile", "2", "1,000", "1,000×", "0.5", "50 %", "25 %")]
        assert figure.source == "NVIDIA H200; commit 0123456; 2026-11-28; 1 record"

    def test_without_a_roofline(self):
        figure, table = ladder.blocks([record_of("ladder", floor_ms=None, speedup_serial=None, efficiency=None)])
        assert "roofline" not in figure.svg
        assert table.rows[0][3:] == ("–", "–", "50 %", "–")

    def test_other_shapes_unfold(self):
        _, table, fold = ladder.blocks([*self.rungs(256, "ab"), *self.rungs(128, "ab")])
        assert [len(table.rows), fold.summary] == [2, "Other shapes, float32, NVIDIA H200: 1"]
        assert fold.blocks[0].caption == "128 × 128 · 128, row-major, float32"

    def test_only_skinny_shapes(self):
        (fold,) = ladder.blocks([record_of("ladder", n=4)])
        assert isinstance(fold.blocks[0], Table)

    def test_a_chart_for_each_device_and_dtype(self):
        records = [record_of("ladder", device=device, dtype=dtype) for device in "ab" for dtype in ("f4", "f8")]
        assert len(of(Figure, ladder.blocks(records))) == 4


class TestSkinnyShapes:
    def test_products_of_the_ladder(self):
        # 2 · 1000 · 1000 · n operations in n ms: 2 GFLOP/s for ours at each width, twice that by the library.
        times = {"ms": lambda n: float(n), "library_ms": lambda n: n / 2, "floor_ms": lambda n: n / 4}
        records = [
            record_of("ladder", rung=rung, n=n, **{name: factor * of(n) for name, of in times.items()})
            for n in (2, 4, 8)
            for rung, factor in (("tsapps", 1), ("slow", 4), ("less_slow", 2))
        ]
        (figure,) = skinny.from_ladder(records)
        notes = [one[0].text for one in fromstring(figure.svg).iter("circle")]
        assert notes[:3] == ["tsapps, 2: 2", "tsapps, 4: 2", "tsapps, 8: 2"]
        assert notes[3] == "fastest other rung, 2: 1"
        assert {"library, 2: 4", "roofline, 8: 8"} <= set(notes)

    def test_two_widths_are_no_sweep(self):
        assert not list(skinny.from_ladder([record_of("ladder", n=n) for n in (2, 4)]))
        assert not list(skinny.from_gemm([record_of("gemm", w=w) for w in (2, 4)]))

    def test_products_of_the_grid_are_those_of_the_largest_matrix_with_the_most_widths(self):
        records = [record_of("gemm", m=m, w=w) for m in (10, 20) for w in (1, 2, 3)] + [record_of("gemm", m=99)]
        (figure,) = skinny.from_gemm(records)
        assert figure.title == "TSM2R: A (20 × 20,480), float32, row-major, NVIDIA H200"
        assert len(figure.records) == 3

    def test_tsm2_as_published_is_a_line_of_its_own(self):
        records = [record_of("gemm", kernel=kernel, w=w) for kernel in ("mma", "tsm2_v0", "tsm2_v3") for w in (1, 2, 4)]
        (figure,) = skinny.from_gemm(records)
        assert len(list(fromstring(figure.svg).iter("polyline"))) == 4
        assert "TSM2 as published" in figure.svg


class TestProducts:
    def test_a_row_for_each_size(self):
        records = [record_of("gemm", w=w, ms=1.0, library_ms=ms) for w, ms in ((2, 0.5), (16, 1.0), (4, 3.0))]
        label, found = gemm.cells_of(records)
        assert label == "m × k"
        assert list(found) == [("20,480 × 20,480", w) for w in ("2", "4", "16")]  # in ascending order
        assert [(cell.value, cell.text) for cell in found.values()] == [(0.5, "0.5"), (3.0, "3"), (1.0, "1")]

    def test_of_many_sizes_the_median_over_m(self):
        records = [record_of("gemm", m=m, k=8, ms=1.0, library_ms=float(m)) for m in range(1, 18)]
        label, found = gemm.cells_of(records)
        assert label == "k, median over m"
        (cell,) = found.values()
        assert (cell.value, cell.note) == (9, "8 · 16: 9× (1× to 17×, 17 products)")

    def test_maps_and_summary(self):
        records = [
            *(
                record_of("gemm", layout=layout, w=w, ms=1.0, library_ms=w / 8)
                for layout in ("row", "col")
                for w in (2, 16)
            ),
            record_of("gemm", kernel="tsm2_v3", ms=4.0),
        ]
        table, by_rows, by_columns, _, published = flat(gemm.blocks(records))
        assert table.rows[0] == ("tsm2r", "float32", "row", "2", "0.25×", "1.12×", "2×", "1", "40 %", "40 %")
        assert by_rows.title == "TSM2R, float32, row-major, NVIDIA H200: speed-up over the library"
        assert by_columns.title == "TSM2R, float32, column-major, NVIDIA H200: speed-up over the library"
        assert list(cells(by_rows.svg).values()) == [("d1", "0.25"), ("d7", "2")]
        assert published.rows[0][0] == "tsm2_v3"
        assert published.rows[0][-2:] == ("25 %", "10 %")


class TestKMeans:
    def test_speedup_over_the_fastest_peer(self):
        times = {"tsapps": 2.0, "tsapps-tf32": 0.1, "cublas": 0.1, "flashlib": 6.0, "torch": 9.0}
        records = [record_of("kmeans", engine=name, iter_ms=ms) for name, ms in times.items()]
        assert kmeans.speedup(records, "iter_ms") == 3.0
        assert kmeans.speedup(records[:3], "iter_ms") is None  # no peer
        assert kmeans.speedup(records[1:], "iter_ms") is None  # not ours
        assert kmeans.speedup([*records[:1], record_of("kmeans", engine="torch", iter_ms=None)], "iter_ms") is None

    def test_on_a_cpu_ours_is_tsapps_cpu(self):
        records = [
            record_of("kmeans", engine=name, iter_ms=ms) for name, ms in (("tsapps-cpu", 2), ("scikit-learn", 3))
        ]
        assert kmeans.speedup(records, "iter_ms") == 1.5

    def test_bars_have_ours_first_and_peers_by_time(self):
        times = {"torch": 9.0, "flashlib": 6.0, "cublas": 7.0, "tsapps": 2.0}
        figure, _ = kmeans.blocks([record_of("kmeans", engine=name, iter_ms=ms) for name, ms in times.items()])
        svg = fromstring(figure.svg)
        assert [one.text for one in svg.iter("text")][-8::2] == ["tsapps", "cublas", "flashlib", "torch"]
        assert [one.get("class") for one in svg.iter("rect")] == ["bar own", "bar variant", "bar peer", "bar peer"]
        assert figure.title == "1,000 × 16, k = 8, float32, NVIDIA H200"

    def test_an_engine_without_a_time(self):
        records = [record_of("kmeans", iter_ms=None), record_of("kmeans", engine="torch", fit_ms=None)]
        blocks = list(kmeans.blocks(records))
        (figure,) = of(Figure, blocks)
        assert len(list(fromstring(figure.svg).iter("rect"))) == 1
        iterations, fits = of(Table, blocks)
        assert iterations.rows == [("1,000 × 16, k = 8, float32", "–", "1", "–")]
        assert fits.rows == [("1,000 × 16, k = 8, float32", "20", "–", "–")]

    def test_nothing_was_measured(self):
        assert not of(Figure, kmeans.blocks([record_of("kmeans", iter_ms=None, fit_ms=None)]))

    def test_a_grid_is_a_heat_map(self):
        records = [
            record_of("kmeans", engine=engine, n=n, k=k, iter_ms=float(ms))
            for n in (3000, 10000)
            for k in (64, 8)
            for engine, ms in (("tsapps", 1), ("torch", k // 8))
        ]
        figure, *others = of(Figure, kmeans.blocks(records))
        found = cells(figure.svg)
        assert found["3,000 × 16, k = 64: 8×"] == ("d8", "8")
        assert found["10,000 × 16, k = 8: 1×"] == ("d4", "1")
        assert len(others) == 4

    def test_a_diagonal_is_no_grid(self):
        sizes = [(n, 2**place) for place, n in enumerate((10, 20, 30, 40, 50))]
        records = [record_of("kmeans", engine=engine, n=n, k=k) for n, k in sizes for engine in ("tsapps", "torch")]
        assert len(of(Figure, kmeans.blocks(records))) == 5  # bars only

    def test_more_than_twelve_shapes_unfold(self):
        blocks = list(kmeans.blocks([record_of("kmeans", n=n) for n in range(1, 15)]))
        assert [isinstance(one, Figure) for one in blocks] == [True] * 12 + [False, False]
        assert (blocks[12].summary, len(blocks[12].blocks)) == ("Other shapes, NVIDIA H200: 2", 2)

    def test_batched_and_small(self):
        batched, fold, small, _ = kmeans.blocks([record_of("kmeans-batched"), record_of("kmeans-small")])
        assert batched.title == "32 problems of 1,000 × 16, k = 8, float32, batched, NVIDIA H200"
        assert len(fold.blocks) == 2
        assert "ms per fit" in small.svg

    def test_kinds_of_data(self):
        records = [
            record_of("kmeans-data", engine=engine, data=data, fit_ms=ms, wrong=wrong)
            for data, engine, ms, wrong in (
                *(("zipf", "tsapps", 10.0, 0), ("zipf", "flashlib", 30.0, 0.001), ("zipf", "torch", 40.0, 0)),
                *(("uniform", "tsapps", 10.0, 0), ("uniform", "flashlib", 9.0, 0), ("sorted", "torch", 9.0, 0)),
            )
        ]
        figure, _, table = flat(kmeans.blocks_of_kinds(records))
        assert cells(figure.svg) == {
            "1,000 × 16, k = 8, zipf: 3×": ("d7", "3"),
            "1,000 × 16, k = 8, uniform: 0.9×": ("d3", "0.9"),
        }
        assert len(table.rows) == 6
        assert table.rows[1] == ("1,000 × 16, k = 8", "zipf", "flashlib", "30", "–", "0.1 %")


class TestChecksums:
    def test_cost(self):
        records = [
            record_of("abft"),
            record_of("abft", job="kmeans", ms=0.9, k=8),
            record_of("abft", job="encode", k=None, ms=1.2, floor_ms=1.0, library_ms=2.0, unprotected_ms=None),
            record_of("abft", job="verify", k=None, floor_ms=None, unprotected_ms=None),
        ]
        overhead, at_rest, _, table = flat(abft.blocks_of_cost(records))
        labels = [one.text for one in fromstring(overhead.svg).iter("text")]
        assert {"+10.0 %", "-10.0 %", "matmul 1,000 × 64 · 16, float64", "kmeans 1,000 × 16, k = 8, float64"} <= set(
            labels
        )
        assert "1.2× (library 2×)" in at_rest.svg
        assert [row[4] for row in table.rows] == ["+10.0 %", "-10.0 %", "–", "–"]

    def test_injected_faults_are_summed_over_sizes_and_faults(self):
        records = [record_of("abft-campaign", m=8), record_of("abft-campaign", m=9, certain_detected=50)]
        figure, _, table = flat(abft.blocks_of_campaign(records))
        assert cells(figure.svg) == {"at-rest, exact, float32, normal: 150 of 200": ("q1", "75.0")}
        outcome = ("400", "1 %", "99.5 %", "99 %", "98.5 %", "200", "75 %", "99 %", "2", "10,000", "6")
        assert table.rows == [("at-rest", "exact", "float32", "normal", *outcome)]

    @pytest.mark.parametrize(
        ("detected", "cell"), [(10**6, ("q4", "100")), (10**6 - 1, ("q3", "99.9")), (0, ("q0", "0.0"))]
    )
    def test_only_the_whole_is_100_percent(self, detected, cell):
        one = record_of("abft-campaign", certain=10**6, certain_detected=detected, certain_repaired=0)
        figure, _ = abft.blocks_of_campaign([one])
        assert list(cells(figure.svg).values()) == [cell]

    def test_a_campaign_without_faults(self):
        counts = dict.fromkeys(("trials", "detected", "located", "repaired", "certain", "certain_detected"), 0)
        (fold,) = abft.blocks_of_campaign([record_of("abft-campaign", **counts, certain_repaired=0)])
        assert fold.blocks[0].rows[0][4:8] == ("0", "–", "–", "–")


class TestPaper:
    def test_speedups_with_the_range_of_the_paper(self):
        records = [record_of("paper", m=m, k=m, n=n, speedup=m / 10240 * n) for m in (10240, 20480) for n in (1, 2)]
        speedup, points, fold = paper.blocks(records)
        svg = fromstring(speedup.svg)
        assert speedup.title == "Bandwidth of TSM2: tsapps over cublas, float32, NVIDIA H200"
        notes = [one[0].text for one in svg.iter("circle")]
        assert notes == ["n = 1, 10.24k: 1", "n = 1, 20.48k: 2", "n = 2, 10.24k: 2", "n = 2, 20.48k: 4"]
        labels = {one.text for one in svg.iter("text")}
        assert {"paper, Tesla K40c: 1.1 to 3×, mean 1.5×", "size, m", "equally fast"} <= labels
        assert "paper, Tesla K40c: 10 to 40" in points.svg
        (table,) = fold.blocks
        assert table.rows[0][4:8] == ("1", "2", "1×", "1.1 to 3, mean 1.5")
        assert table.rows[0][10:] == ("30", "10 to 40", "Tesla K40c")

    def test_points_of_bandwidth(self):
        assert paper.points_of(record_of("paper")) == 30.0  # 3000 and 1500 of 5000 GB/s
        assert paper.points_of(record_of("paper", peak_gbs=None)) is None

    def test_ranges_have_a_chart_each(self):
        records = [record_of("paper", n=n, paper_speedup=[1, None, n], paper_points=None) for n in (2, 4)]
        assert len(of(Figure, paper.blocks(records))) == 2

    def test_without_a_range_or_a_speedup(self):
        (figure,) = of(Figure, paper.blocks([record_of("paper", paper_speedup=None, paper_points=None)]))
        assert "band" not in figure.svg
        nothing = record_of("paper", speedup=None, gbs=None)
        (fold,) = paper.blocks([nothing])
        assert fold.blocks[0].records == [nothing]

    def test_the_size_with_the_most_values_is_the_axis(self):
        records = [record_of("paper", run="kmeans", m=1000, k=64, n=n, paper_points=None) for n in (8, 16, 32)]
        (figure,) = of(Figure, paper.blocks(records))
        assert "size, n" in figure.svg
        assert "measured, 16: 2" in figure.svg


class TestOtherRecords:
    def test_a_table_of_all_fields(self):
        (table,) = other.blocks([record_of("first-call"), record_of("first-call", ms=3, extra="x<y")])
        assert table.headings == ["engine", "kernel", "stage", "extra", "ms", "nested", "note"]
        assert table.rows[0] == ["tsapps", "tall_skinny", "compile", "–", "782", '{"a": [1, 2]}', "–"]
        assert table.rows[1] == ["tsapps", "tall_skinny", "compile", "x<y", "3", '{"a": [1, 2]}', "–"]

    def test_a_table_for_each_kind_and_device(self):
        records = [record_of("first-call", what=what, device=device) for what in "ab" for device in "cd"]
        assert [table.caption for table in other.blocks(records)] == ["a, c", "a, d", "b, c", "b, d"]
