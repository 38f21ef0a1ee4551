from dataclasses import asdict

import pytest

from tsapps.bench import figures
from tsapps.bench.common import record
from tsapps.bench.kmeans.problems import GRIDS
from tsapps.bench.kmeans.summary import FITS
from tsapps.bench.scale import scale_tables


@pytest.mark.parametrize("page", figures.pages(), ids=lambda page: str(page.relative_to(record.ROOT)))
def test_pages_match_the_records(page):
    assert figures.with_figures(page) == page.read_text(encoding="utf-8")


def test_all_figures_are_shown():
    text = "".join(page.read_text(encoding="utf-8") for page in figures.pages())
    assert [name for name in figures.FIGURES if f"<!-- figures: {name} -->" not in text] == []


def test_table_of_products_by_hand():
    common = {"layout": "row", "k": 16, "w": 16, "m": 10_000_000, "shape": "tsm2l", "dtype": "float32"}
    times = {"ms": 0.30001, "floor_ms": 0.29949, "library_ms": 1.2, "gbs": 4e3, "bound": "memory"}
    records = [
        {**common, **times, "kernel": "tall_skinny"},
        {**common, **times, "kernel": "tall_skinny", "layout": "col", "ms": 9.0},
        {**common, **times, "kernel": "tsm2_v3", "ms": 9.0},
        {**common, **times, "kernel": "tall_skinny", "w": 17},
    ]
    expected = "| 10,000,000 × 16 · 16 | – | – | – | 0.299 | 0.300 | 1.200 | – | – | – |"
    lines = figures.gemm_table(records).splitlines()
    assert lines[2:-2] == [expected]
    assert lines[-1] == (
        "Of all 3 products, 1 are more than 2 % slower than the library's best; of the 3 that move 256 MB or more and "
        "are bound by that, 1 stay below 85 % of the floor."
    )


def test_table_of_iterations_by_hand():
    common = {"n": 1_000_000, "d": 64, "k": 64, "dtype": "float32"}
    records = [
        {**common, "engine": "cublas", "iter_ms": 1.118, "floor_ms": 0.06},
        {**common, "engine": "torch", "iter_ms": 1.808, "floor_ms": 0.06},
    ]
    assert figures.kmeans_table(records).splitlines()[2:] == ["| 1,000,000 | 64 | 64 | float32 | 0.06 | 1.12 | 1.81 |"]


def test_table_of_batched_problems_by_hand():
    common = {"b": 32, "n": 65_536, "d": 128, "k": 1000, "dtype": "float32", "floor_ms": 1.3}
    records = [
        {**common, "engine": "flash-kmeans", "iter_ms": 3.456},
        {**common, "engine": "tsapps", "iter_ms": 1.25},
        {**common, "engine": "tsapps", "iter_ms": 9.0, "b": 33},  # not a recorded shape
    ]
    assert figures.batched_table(records).splitlines()[2:] == [
        "| problems | n | d | k | dtype | floor | tsapps | flash-kmeans |",
        "|---:|---:|---:|---:|---|---:|---:|---:|",
        "| 32 | 65,536 | 128 | 1,000 | float32 | 1.300 | 1.250 | 3.456 |",
    ]
    assert figures.batched_table([]) == ""


def test_table_of_small_data_by_hand():
    sizes = {"n": 1000, "d": 16, "k": 8, "dtype": "float32"}
    records = [{**sizes, "engine": "tsapps", "fit_ms": 6.84}, {**sizes, "engine": "scikit-learn", "fit_ms": 4.26}]
    assert figures.small_table(records).splitlines() == [
        "| n | d | k | dtype | tsapps | scikit-learn |",
        "|---:|---:|---:|---|---:|---:|",
        "| 1,000 | 16 | 8 | float32 | 6.8 | 4.3 |",
    ]


def test_grid_and_table_by_hand():
    shape = {"floor_ms": 0.06}
    records = [
        {**shape, **asdict(one), "engine": engine, "iter_ms": ms}
        for engine, ms in (("cuvs", 3.0), ("tsapps", 1.0))
        for one in GRIDS["grid"]
    ]
    lines = figures.kmeans_table([*records, {**records[0], "engine": "of no shape of record"}]).splitlines()
    # Shapes of the grid that are also in the table, with their engines.
    assert lines[0] == "| n | d | k | dtype | floor | tsapps | cuvs |"
    assert lines[2] == "| 1,000,000 | 64 | 64 | float32 | 0.06 | 1.00 | 3.00 |"
    assert figures.grid_text(records).startswith("Over a grid of n = 1M, 3M and 10M, ")


def test_whole_fits_by_hand():
    sizes = [{"n": one.n, "d": one.d, "k": one.k, "dtype": one.dtype} for one in (*FITS, *GRIDS["grid"])]
    common = {"floor_ms": 0.1, "device": "NVIDIA H200", "labels_equal_f64": 0.999}
    records = [
        {**common, **size, "engine": engine, "iter_ms": ms, "fit_ms": 20 * ms}
        for engine, ms in (("tsapps", 1.0), ("flashlib", 2.5), ("torch", 4.0))
        for size in sizes
    ]
    lines = figures.fits_text(records).splitlines()
    assert "on one NVIDIA H200: 2.5 to 2.5 times as fast" in lines[0]
    assert "assign up to 0.1 % otherwise" in lines[0]
    assert lines[1].startswith("One iteration, over 75 other shapes: 2.5 to 2.5 times as fast as the")
    assert "fastest of the others, 2.5 in the median" in lines[1]
    table = figures.fits_table([*records, {**records[0], "fit_ms": None}]).splitlines()
    assert table[0] == "| n | d | k | dtype | tsapps | flashlib | flash-kmeans | torch | cuvs |"
    assert "| 10,000,000 | 128 | 64 | float32 | 20.0 | 50.0 | – | 80.0 | – |" in table


def test_kinds_of_data_by_hand():
    shape = {"n": 2000, "d": 4, "k": 30}
    of = {("mixture", "tsapps"): (2, 0), ("mixture", "other"): (5, 0.01), ("mixture", "third"): (8, 0)}
    of |= {("zipf", "tsapps"): (4, 0), ("zipf", "other"): (3, 0.002), ("zipf", "third"): (9, 0.5)}
    records = [
        {**shape, "data": data, "engine": engine, "fit_ms": ms, "seeded_fit_ms": 10.0 * ms, "wrong": wrong}
        for (data, engine), (ms, wrong) in of.items()
    ]
    assert figures.kinds_table(records).splitlines()[2:] == [
        "| 2,000 | 4 | 30 | mixture | 2.0 | 5.0 | 8.0 | 20.0 | 1 % | 0 % |",
        "| 2,000 | 4 | 30 | zipf | 4.0 | 3.0 | 9.0 | 40.0 | 0.2 % | 50 % |",
    ]
    assert figures.kinds_text(records).endswith(": 2,000 × 4 with 30 clusters, 0.8 (zipf) to 2.5.")
    some = [one for one in records if (one["data"], one["engine"]) not in (("mixture", "third"), ("zipf", "tsapps"))]
    assert figures.kinds_table(some).splitlines()[2:] == [
        "| 2,000 | 4 | 30 | mixture | 2.0 | 5.0 | – | 20.0 | 1 % | – |",
        "| 2,000 | 4 | 30 | zipf | – | 3.0 | 9.0 | – | 0.2 % | 50 % |",
    ]
    assert figures.kinds_text(some).endswith(": 2,000 × 4 with 30 clusters, 2.5 (mixture) to 2.5.")
    ours_on_cublas = {**records[0], "engine": "cublas", "fit_ms": 0.1}
    assert figures.kinds_text([*records, ours_on_cublas]) == figures.kinds_text(records)


def test_tables_of_checksums_by_hand():
    common = {"code": "both", "dtype": "float32", "m": 2048, "n": 2048, "k": None, "floor_ms": 0.3}
    common |= {"library_ms": None, "unprotected_ms": None}
    records = [
        {**common, "job": "encode", "ms": 0.4, "library_ms": 1.0},
        {**common, "job": "encode", "code": "exact", "ms": 0.35},  # not in a table
        {**common, "job": "verify", "code": "exact", "ms": 0.5},
        {**common, "job": "encode", "dtype": "float64", "ms": 0.4, "library_ms": 1.0},  # no verification
        {**common, "job": "matmul", "code": "proven", "n": 16, "k": 2048, "ms": 1.02, "unprotected_ms": 1.0},
        {**common, "job": "kmeans", "code": "protect", "n": 8, "k": 4, "ms": 1.98, "unprotected_ms": 2.0},
    ]
    lines = figures.abft_table(records).splitlines()
    assert lines[2] == "| 2,048 × 2,048 float32 | 0.300 | 0.400 (75 % of its rate) | 1.000 (2.50 ×) | 0.500 |"
    assert lines[3] == "| 2,048 × 2,048 float64 | 0.300 | 0.400 (75 % of its rate) | 1.000 (2.50 ×) | – |"
    assert lines[7] == "| square · 16 | – | 1.020 (+2.0 %) | – |"
    assert lines[11:] == ["| 2,048 | 8 | 4 | float32 | 1.980 (-1.0 %) |"]


def test_speedups_over_scikit_learn_by_hand():
    times = {1000: (6.0, 3.0), 5000: (2.0, 10.0), 20_000: (1.0, 40.0)}
    records = [
        {"n": n, "d": 16, "k": 8, "dtype": "float32", "cpu": "a CPU", "engine": engine, "fit_ms": ms}
        for n, both in times.items()
        for engine, ms in zip(("tsapps", "scikit-learn"), both, strict=True)
    ]
    text = figures.scikit_learn_text(records)
    assert "(a CPU), whole fits with k-means++ of 1,000 to 20,000 rows: 0.5 to 40 times as fast, 5 in the" in text


def test_table_of_data_that_the_gpu_does_not_hold_by_hand():
    def one(n, k, source, held, copied=True):
        shape = {"n": n, "d": 250, "k": k, "source": source, "copied": copied, "parts": 1, "held_iter_ms": held}
        return {**shape, "first_ms": 1540.0, "iter_ms": 20.06, "pass_gbs": 49.0, "link_gbs": 51.55}

    given = (9_000_000, 64, "memory", None), (1_000_000, 64, "memory", 2.0), (1_000_000, 64, "file", 2.0)
    records = [one(1_000_000, 64, "files", 2.0, copied=False), *(one(*some) for some in given)]
    assert scale_tables.scale_table(records).splitlines()[2:] == [
        "| 1,000,000 × 250, 1 GB | file | yes | 64 | 1 | 1.5 | 20.1 | 2.0 | 49.0 | 51.5 |",
        "| 1,000,000 × 250, 1 GB | memory | yes | 64 | 1 | 1.5 | 20.1 | 2.0 | 49.0 | 51.5 |",
        "| 9,000,000 × 250, 9 GB | memory | yes | 64 | 1 | 1.5 | 20.1 | – | 49.0 | 51.5 |",
        "| 1,000,000 × 250, 1 GB | files | no | 64 | 1 | 1.5 | 20.1 | 2.0 | 49.0 | 51.5 |",
    ]


def test_table_of_workers_by_hand():
    times = {"iter_ms": 700.0, "single_ms": 634.4, "fit_ms": 13_957.0, "seed_ms": 47_927.0, "single_seed_ms": 19_375.0}
    records = [{"n": 4_000_000, "d": 32, "k": 64, "parts": parts, "cores": 2, **times} for parts in (2, 1)]
    assert scale_tables.workers_table(records).splitlines()[2:] == [
        f"| 4,000,000 × 32, 1 GB | 64 | {parts} | 634 | 700 | 19.4 | 47.9 | 14.0 |" for parts in (1, 2)
    ]


def test_table_of_several_gpus_by_hand():
    times = {"iter_ms": 0.5, "single_ms": 0.975, "exchange_ms": 0.0274, "seed_ms": 70.4, "single_seed_ms": 130.6}
    records = [{"n": n, "d": 125, "k": k, "parts": 2, **times} for n, k in ((4_000_000, 64), (2_000_000, 1024))]
    assert scale_tables.gpus_table(records).splitlines()[2:] == [
        "| 2,000,000 × 125, 1 GB | 1,024 | 2 | 0.97 | 0.50 | 1.95 | 27 | 131 | 70 |",
        "| 4,000,000 × 125, 2 GB | 64 | 2 | 0.97 | 0.50 | 1.95 | 27 | 131 | 70 |",
    ]


def test_tables_of_the_paper_by_hand():
    def one(run, m, ms, baseline_ms, **fields):
        shared = {"engine": "tsapps", "baseline": "cublas", "dtype": "float64", "paper_device": "Tesla K40c"}
        times = {"ms": ms, "baseline_ms": baseline_ms, "speedup": baseline_ms / ms}
        return {**shared, "run": run, "m": m, **times, "paper_speedup": [1.06, 1.53, 1.89], **fields}

    records = [one("kmeans", 2048, 5.0, 20.0), one("kmeans", 1024, 4.0, 5.0), one("kmeans", 4096, 1.0, 2.0)]
    records.append(one("versions", 10_240, 1.0, 3.0, paper_speedup=[2.2, None, 4.7]))
    assert figures.paper_table(records).splitlines()[2:] == [
        "| kmeans | tsapps | cublas | float64 | 3 | 1.25 to 4.00, median 2.00 | 1.06 to 1.89, mean 1.53, Tesla K40c |",
        "| versions | tsapps | cublas | float64 | 1 | 3.00 to 3.00, median 3.00 | 2.2 to 4.7, Tesla K40c |",
    ]
    assert figures.paper_kmeans_table(records).splitlines()[2:] == [
        "| 1,024 | 4.0 | 5.0 | 1.25 |",
        "| 2,048 | 5.0 | 20.0 | 4.00 |",
        "| 4,096 | 1.0 | 2.0 | 2.00 |",
    ]


def test_ladder_table_by_hand():
    def one(title, m, ms, speedup, dtype="float32"):
        shape = {"m": m, "n": m, "k": m, "dtype": dtype, "layout": "row"}
        return {**shape, "title": title, "ms": ms, "speedup_serial": speedup, "library_ms": ms / 10}

    records = [one("loop", 8, 2.0, 1.0), one("loop", 16, 1234.5, None), one("tiles", 8, 0.25, 8.0)]
    records.append(one("tiles", 8, 99.0, 9.0, "float64"))  # not shown
    assert figures.ladder_table(records).splitlines() == [
        "| | 8 × 8 · 8 | 16 × 16 · 16 |",
        "|---|---:|---:|",
        "| loop | 2 (1 ×) | 1,234 |",
        "| tiles | 0.25 (8 ×) | – |",
        "| the library | 0.025 | 123 |",
    ]
    records.append({**one("tiles", 4, 5.0, 2.0), "layout": "col"})
    assert figures.ladder_table(records, [(4, 4, 4, "col"), (8, 8, 8, "row")]).splitlines()[2:] == [
        "| loop | – | 2 (1 ×) |",
        "| tiles | 5 (2 ×) | 0.25 (8 ×) |",
        "| the library | 0.5 | 0.025 |",
    ]
