"""Figures of README.md and docs/ from the records. ``python -m tsapps.bench.figures`` writes them.

A page has ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``, or ``<!-- table: NAME -->`` and ``<!-- end of
table -->`` for a table that needs no records; what stands between is generated.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.common.timing import median
from tsapps.bench.file_figures import FILE_FIGURES
from tsapps.bench.gemm.summary import memory_bound, of_floor, ours, over_library, untuned_table
from tsapps.bench.kmeans.batched import PEERS as BATCHED_PEERS
from tsapps.bench.kmeans.batched import SHAPES as BATCHED_SHAPES
from tsapps.bench.kmeans.gpu_table import gpu_table
from tsapps.bench.kmeans.problems import GPU_SHAPES
from tsapps.bench.kmeans.summary import FITS, OURS, OWN, PEERS, by_shape, fits, grid_cells, grid_text, without_wgmma
from tsapps.bench.kmeans.sweep import sweep_table
from tsapps.bench.scale.scale_tables import gpus_table, scale_table, workers_table

__all__ = [
    "FIGURES",
    "TABLES",
    "abft_table",
    "batched_table",
    "fits_table",
    "fits_text",
    "gemm_table",
    "kinds_table",
    "kinds_text",
    "kmeans_table",
    "ladder_table",
    "pages",
    "paper_kmeans_table",
    "paper_table",
    "scikit_learn_text",
    "small_table",
    "with_figures",
]

RECORDS = record.ROOT / "bench" / "results"
_BLOCK = re.compile(r"<!-- figures: (?P<name>.+?) -->\n.*?<!-- end of figures -->", re.DOTALL)
_TABLE = re.compile(r"<!-- table: (?P<name>.+?) -->\n.*?<!-- end of table -->", re.DOTALL)
#: Products in the tables: shape, m, k, and widths w.
PRODUCTS = (
    ("tsm2r", 20_480, 20_480, (2, 8, 16, 32, 64)),
    ("tsm2l", 10_000_000, 4, (4,)),
    ("tsm2l", 10_000_000, 16, (16,)),
    ("tsm2l", 10_000_000, 64, (64,)),
    ("tsmttsm", 10_000_000, 4, (4,)),
    ("tsmttsm", 10_000_000, 16, (16,)),
    ("tsmttsm", 10_000_000, 64, (64,)),
)
#: Products in the table of the ladder on a GPU: m, n, k and layout. The skinny ones are column-major, as in the paper.
GPU_LADDER = (
    *((edge, edge, edge, "row") for edge in (1024, 2048, 4096)),
    *((20_480, 8, 20_480, "col"), (10_000_000, 16, 16, "col"), (1_000_000, 64, 64, "col")),
)
_PRODUCT_DTYPES = ("float64", "float32", "float16")
_DRAWN = {"tsm2r": "{m:,} × {k:,} · {w}", "tsm2l": "{m:,} × {k} · {w}", "tsmttsm": "({m:,} × {k})ᵀ · {w}"}


def gemm_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of row-major products in ms (floor, ours, best library), and how many are slower."""
    cells = ours(records)
    found = {
        tuple(one[name] for name in ("shape", "m", "k", "w", "dtype")): one for one in cells if one["layout"] == "row"
    }
    lines = [
        "| A · columns of B | " + " | ".join(f"{dtype}: floor | ours | library" for dtype in _PRODUCT_DTYPES) + " |",
        "|---|" + "---:|" * (3 * len(_PRODUCT_DTYPES)),
    ]
    for shape, m, k, widths in PRODUCTS:
        for w in widths:
            row = [found.get((shape, m, k, w, dtype)) for dtype in _PRODUCT_DTYPES]
            if any(row):
                times = " | ".join(
                    " | ".join(f"{one[name]:.3f}" if one else "–" for name in ("floor_ms", "ms", "library_ms"))
                    for one in row
                )
                lines.append(f"| {_DRAWN[shape].format(m=m, k=k, w=w)} | {times} |")
    fractions = [of_floor(one) for one in memory_bound(cells)]
    behind = (
        f"Of all {len(cells):,} products, {sum(over_library(one) < 0.98 for one in cells):,} are more than 2 % slower "
        f"than the library's best; of the {len(fractions):,} that move 256 MB or more and are bound by that, "
        f"{sum(one < 0.85 for one in fractions):,} stay below 85 % of the floor."
    )
    return "\n".join([*lines, "", behind])


def kmeans_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of ms per iteration, one row per shape and one column per engine; then the grid."""
    of_table = {name for _, some in by_shape(records) for name in some}
    # In file order, ours first.
    engines = [name for name in dict.fromkeys(one["engine"] for one in records) if name in of_table]
    engines.sort(key=lambda name: not name.startswith("tsapps"))
    lines = [
        f"| n | d | k | dtype | floor | {' | '.join(engines)} |",
        f"|---:|---:|---:|---|---:|{'---:|' * len(engines)}",
    ]
    found = {(one["n"], one["d"], one["k"], one["dtype"], one["engine"]): one for one in records}
    for shape in GPU_SHAPES:
        key = (shape.n, shape.d, shape.k, shape.dtype)
        row = [found.get((*key, engine)) for engine in engines]
        floors = [one["floor_ms"] for one in row if one]
        if floors:
            times = " | ".join(f"{one['iter_ms']:.2f}" if one else "–" for one in row)
            lines.append(f"| {shape.n:,} | {shape.d:,} | {shape.k:,} | {shape.dtype} | {min(floors):.2f} | {times} |")
    return "\n".join(lines)


def fits_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of whole fits in ms, one row per shape and one column per engine."""
    engines = [OURS, *PEERS]
    lines = [f"| n | d | k | dtype | {' | '.join(engines)} |", f"|---:|---:|---:|---|{'---:|' * len(engines)}"]
    for shape, found in by_shape(records):
        times = [found[name]["fit_ms"] if name in found else None for name in engines]
        if times[0] is not None:
            cells = " | ".join("–" if ms is None else f"{ms:,.1f}" for ms in times)
            lines.append(f"| {shape.n:,} | {shape.d:,} | {shape.k:,} | {shape.dtype} | {cells} |")
    return "\n".join(lines)


def fits_text(records: Sequence[dict[str, Any]]) -> str:
    """Return what the plot of whole fits shows, and the speedup over the grid of shapes, in sentences."""
    device = {one["device"] for _, engines in by_shape(records, FITS) for one in engines.values()}
    best = [min(ms for name, ms in times.items() if name != OURS) / times[OURS] for _, times in fits(records)]
    peers = [one for one in records if one["engine"] not in OWN and one["dtype"] == "float32"]
    wrong = max(1 - one["labels_equal_f64"] for one in peers if one["engine"] in ("flash-kmeans", "flashlib"))
    speedups = sorted(cell.speedup for cell in grid_cells(records))
    return (
        f"Whole fits of 20 iterations from given centers, on one {' and one '.join(sorted(device))}: "
        f"{min(best):.1f} to {max(best):.1f} times as fast as the fastest of the other libraries. "
        f"Drawing initial centers and compiling kernels are not included. tsapps assigns every label as float64 would; "
        f"flashlib and flash-kmeans assign up to {100 * wrong:.2g} % otherwise.\n"
        f"One iteration, over {len(speedups)} other shapes: {speedups[0]:.1f} to {speedups[-1]:.1f} times as fast as "
        f"the fastest of the others, {speedups[len(speedups) // 2]:.1f} in the median. The data are synthetic: round "
        f"Gaussian clusters."
    )


def batched_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of ms per iteration of batched problems; empty without records."""
    if not records:
        return ""
    engines = [name for name in BATCHED_PEERS if any(one["engine"] == name for one in records)]
    lines = [
        "And of `kmeans_batched`, milliseconds for one iteration of all problems:",
        "",
        f"| problems | n | d | k | dtype | floor | {' | '.join(engines)} |",
        f"|---:|---:|---:|---:|---|---:|{'---:|' * len(engines)}",
    ]
    for shape in BATCHED_SHAPES:
        key = {"b": shape.b, **asdict(shape.each)}
        row = {one["engine"]: one for one in records if key.items() <= one.items()}
        if row:
            times = " | ".join(f"{row[name]['iter_ms']:.3f}" if name in row else "–" for name in engines)
            floor = min(one["floor_ms"] for one in row.values())
            sizes = f"{shape.b:,} | {shape.each.n:,} | {shape.each.d:,} | {shape.each.k:,} | {shape.each.dtype}"
            lines.append(f"| {sizes} | {floor:.3f} | {times} |")
    return "\n".join(lines)


def small_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of whole fits of small data in ms."""
    engines = list(dict.fromkeys(one["engine"] for one in records))
    rows: dict[tuple[Any, ...], dict[str, float]] = {}
    for one in records:
        rows.setdefault(tuple(one[name] for name in ("n", "d", "k", "dtype")), {})[one["engine"]] = one["fit_ms"]
    lines = [f"| n | d | k | dtype | {' | '.join(engines)} |", f"|---:|---:|---:|---|{'---:|' * len(engines)}"]
    for (n, d, k, dtype), times in rows.items():
        lines.append(f"| {n:,} | {d} | {k} | {dtype} | {' | '.join(f'{times[name]:.1f}' for name in engines)} |")
    return "\n".join(lines)


def scikit_learn_text(records: Sequence[dict[str, Any]]) -> str:
    """Return the speedup of whole fits of small data over scikit-learn, in a sentence."""
    times: dict[tuple[Any, ...], dict[str, float]] = {}
    for one in records:
        times.setdefault(tuple(one[name] for name in ("n", "d", "k", "dtype")), {})[one["engine"]] = one["fit_ms"]
    speedups = sorted(row["scikit-learn"] / row[OURS] for row in times.values())
    rows = sorted({one["n"] for one in records})
    return (
        f"Against scikit-learn on a CPU ({records[0]['cpu']}), whole fits with k-means++ of {rows[0]:,} to "
        f"{rows[-1]:,} rows: {speedups[0]:.1f} to {speedups[-1]:.0f} times as fast, {median(speedups):.0f} in the "
        f"median. cuML was not measured: its K-means is that of cuVS."
    )


def _by_data(records: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, dict[str, Any]]]:
    """Return the records of every shape and kind of data by engine."""
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for one in records:
        found.setdefault(tuple(one[name] for name in ("n", "d", "k", "data")), {})[one["engine"]] = one
    return found


def kinds_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of whole fits of kinds of data in ms, and of wrong labels of the other engines.

    An engine without a record has a dash.
    """
    engines = list(dict.fromkeys(one["engine"] for one in records))
    others = [name for name in engines if name != OURS]
    wrong_of = " | ".join(f"{name}: wrong labels" for name in others)
    lines = [
        f"| n | d | k | data | {' | '.join([OURS, *others])} | {OURS}, k-means++ | {wrong_of} |",
        f"|---:|---:|---:|---|{'---:|' * (len(engines) + len(others) + 1)}",
    ]
    for (n, d, k, data), found in _by_data(records).items():
        times = " | ".join(f"{found[name]['fit_ms']:,.1f}" if name in found else "–" for name in [OURS, *others])
        times += f" | {found[OURS]['seeded_fit_ms']:,.1f}" if OURS in found else " | –"
        wrong = " | ".join(f"{100 * found[name]['wrong']:.2g} %" if name in found else "–" for name in others)
        lines.append(f"| {n:,} | {d} | {k:,} | {data} | {times} | {wrong} |")
    return "\n".join(lines)


def kinds_text(records: Sequence[dict[str, Any]]) -> str:
    """Return the range of speedups over the fastest other engine, by shape, where both have records."""
    speedups: dict[tuple[Any, ...], list[tuple[float, str]]] = {}
    for (n, d, k, data), found in _by_data(records).items():
        others = [one["fit_ms"] for name, one in found.items() if name not in OWN]
        if OURS in found and others:
            speedups.setdefault((n, d, k), []).append((min(others) / found[OURS]["fit_ms"], data))
    kinds = list(dict.fromkeys(one["data"] for one in records))
    parts = []
    for (n, d, k), some in speedups.items():
        (worst, data), (most, _) = min(some), max(some)
        parts.append(f"{n:,} × {d} with {k:,} clusters, {worst:.1f} ({data}) to {most:.1f}")
    return (
        f"On {len(kinds)} kinds of data ({', '.join(kinds)}), as many times as fast as the fastest of the other "
        f"libraries, whole fits from given centers: {'; '.join(parts)}."
    )


def abft_table(records: Sequence[dict[str, Any]]) -> str:
    """Return Markdown tables of the overhead of checksums: at rest, in products, in K-means."""
    found = {tuple(one[name] for name in ("job", "code", "dtype", "m", "n", "k")): one for one in records}
    lines = [
        "| matrix | one read | `encode`, both codes | cuBLAS, the float code | `verify`, its sidecar there |",
        "|---|---:|---:|---:|---:|",
    ]
    for (job, code, dtype, m, n, k), one in found.items():
        if job == "encode" and code == "both":
            verify = found.get(("verify", "exact", dtype, m, n, k))
            share, times = one["floor_ms"] / one["ms"], one["library_ms"] / one["ms"]
            encode = f"{one['ms']:.3f} ({100 * share:.0f} % of its rate)"
            library = f"{one['library_ms']:.3f} ({times:.2f} ×)"
            verified = f"{verify['ms']:.3f}" if verify else "–"
            lines.append(f"| {m:,} × {n:,} {dtype} | {one['floor_ms']:.3f} | {encode} | {library} | {verified} |")
    lines += ["", f"| product | {' | '.join(_PRODUCT_DTYPES)} |", "|---|" + "---:|" * len(_PRODUCT_DTYPES)]
    products: dict[str, dict[str, str]] = {}
    for (job, _, dtype, m, n, k), one in found.items():
        if job == "matmul":
            name = f"10,000,000 × {k} · {n}" if m != k else f"square · {n}"
            products.setdefault(name, {})[dtype] = _beside(one)
    lines += [
        f"| {name} | {' | '.join(row.get(dtype, '–') for dtype in _PRODUCT_DTYPES)} |" for name, row in products.items()
    ]
    lines += ["", "| n | d | k | dtype | an iteration, `protect=True` |", "|---:|---:|---:|---|---:|"]
    for (job, _, dtype, m, n, k), one in found.items():
        if job == "kmeans":
            lines.append(f"| {m:,} | {n:,} | {k} | {dtype} | {_beside(one)} |")
    return "\n".join(lines)


def ladder_table(records: Sequence[dict[str, Any]], shapes: Sequence[tuple[Any, ...]] = ()) -> str:
    """Return a Markdown table of the rungs in ms and as many times as fast as the triple loop, float32.

    `shapes` are m, n, k and the layout of each column; by default all that are row-major.
    """
    of_shape = ("m", "n", "k", "layout")
    every = dict.fromkeys(tuple(one[name] for name in of_shape) for one in records)
    shapes = shapes or [shape for shape in every if shape[-1] == "row"]
    found = {(one["title"], *(one[name] for name in of_shape)): one for one in records if one["dtype"] == "float32"}
    lines = [
        f"| | {' | '.join(f'{m:,} × {k:,} · {n:,}' for m, n, k, _ in shapes)} |",
        f"|---|{'---:|' * len(shapes)}",
    ]
    for title in dict.fromkeys(one["title"] for one in records):
        cells = [found.get((title, *shape)) for shape in shapes]
        lines.append(f"| {title} | {' | '.join('–' if one is None else _times_of(one) for one in cells)} |")
    library = {key[1:]: one for key, one in found.items()}
    times = (f"{library[shape]['library_ms']:,.3g}" if shape in library else "–" for shape in shapes)
    lines.append(f"| the library | {' | '.join(times)} |")
    return "\n".join(lines)


def paper_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of the ranges of speed-ups in the experiments of the paper, here and there."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in records:
        found.setdefault(tuple(one[name] for name in ("run", "engine", "baseline", "dtype")), []).append(one)
    lines = [
        "| experiment | measured | baseline | dtype | sizes | speed-up | in the paper, on a |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    for key, some in found.items():
        speedups = [one["speedup"] for one in some]
        here = f"{min(speedups):.2f} to {max(speedups):.2f}, median {median(speedups):.2f}"
        least, mean, most = some[0]["paper_speedup"]
        there = f"{least:g} to {most:g}" + ("" if mean is None else f", mean {mean:g}")
        lines.append(f"| {' | '.join(key)} | {len(some)} | {here} | {there}, {some[0]['paper_device']} |")
    return "\n".join(lines)


def paper_kmeans_table(records: Sequence[dict[str, Any]]) -> str:
    """Return a Markdown table of the fits in the paper's experiment on K-means."""
    lines = ["| n | tsapps | its engine on cuBLAS | speed-up |", "|---:|---:|---:|---:|"]
    for one in sorted((one for one in records if one["run"] == "kmeans"), key=lambda one: one["m"]):
        lines.append(f"| {one['m']:,} | {one['ms']:.1f} | {one['baseline_ms']:.1f} | {one['speedup']:.2f} |")
    return "\n".join(lines)


def _times_of(one: dict[str, Any]) -> str:
    """Return a record's time in ms with its speed-up over the triple loop."""
    serial = "" if one["speedup_serial"] is None else f" ({_three_digits(one['speedup_serial'])} ×)"
    return f"{_three_digits(one['ms'])}{serial}"


def _three_digits(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def _beside(one: dict[str, Any]) -> str:
    """Return a record's time in ms with its overhead relative to no protection."""
    return f"{one['ms']:.3f} ({100 * (one['ms'] / one['unprotected_ms'] - 1):+.1f} %)"


#: The records and the text of each block of figures, by its name.
FIGURES: dict[str, tuple[str, Callable[[Sequence[dict[str, Any]]], str]]] = {
    "products": ("h200/gemm.json", gemm_table),
    "fits": ("h200/kmeans.json", fits_text),
    "whole fits": ("h200/kmeans.json", fits_table),
    "iterations": ("h200/kmeans.json", kmeans_table),
    "grid": ("h200/kmeans.json", grid_text),
    "plans without a table": ("h200/gemm-untuned.json", untuned_table),
    "without wgmma": ("h200/kmeans-without-wgmma.json", without_wgmma),
    "batched": ("h200/kmeans-batched.json", batched_table),
    "against scikit-learn": ("h200/kmeans-small.json", scikit_learn_text),
    "several k": ("h200/kmeans-sweep.json", sweep_table),
    "small data": ("h200/kmeans-small.json", small_table),
    "kinds of data": ("h100-80gb-hbm3/kmeans-data.json", kinds_table),
    "kinds of data in words": ("h100-80gb-hbm3/kmeans-data.json", kinds_text),
    "ladder on a CPU": ("amd-epyc/ladder.json", ladder_table),
    "ladder on a GPU": ("h100-80gb-hbm3/ladder.json", partial(ladder_table, shapes=GPU_LADDER)),
    "experiments of the paper": ("h100-80gb-hbm3/paper.json", paper_table),
    "K-means of the paper": ("h100-80gb-hbm3/paper.json", paper_kmeans_table),
    "larger than the GPU": ("h200/scale.json", scale_table),
    "several GPUs": ("h200/scale-gpus.json", gpus_table),
    "workers of Dask": ("intel-xeon/scale-workers.json", workers_table),
    **FILE_FIGURES,
    "checksums on an H200": ("h200/abft.json", abft_table),
    "checksums on an H100": ("h100-80gb-hbm3/abft.json", abft_table),
}


#: Tables that need no records, by their names.
TABLES: dict[str, Callable[[], str]] = {"GPUs": gpu_table}


def pages() -> list[Path]:
    """Return the pages that may have figures."""
    docs = (path for path in sorted((record.ROOT / "docs").rglob("*.md")) if "_generated" not in path.parts)
    return [record.ROOT / "README.md", *docs]


def with_figures(page: Path) -> str:
    """Return the text of a page with its figures generated anew."""

    def generated(match: re.Match[str]) -> str:
        file, text_of = FIGURES[match["name"]]
        records = record.load(RECORDS / file)
        source = os.path.relpath(RECORDS / file, page.parent)
        dates, commits = ({one[field] for one in records} for field in ("date", "commit"))
        when = f"on {min(dates)}" if len(dates) == 1 else f"between {min(dates)} and {max(dates)}"
        at = f"commit {next(iter(commits))[:7]}" if len(commits) == 1 else f"{len(commits)} commits"
        line = f"[Records]({source}): measured on an {records[0]['device']}, at {at} {when}."
        wrapped = "\n".join(one if one[:1] in "|!" else fill(one, 118) for one in text_of(records).splitlines())
        line = fill(line, 118, break_on_hyphens=False)
        return f"<!-- figures: {match['name']} -->\n{wrapped}\n\n{line}\n<!-- end of figures -->"

    text = _BLOCK.sub(generated, page.read_text(encoding="utf-8"))
    return _TABLE.sub(
        lambda match: f"<!-- table: {match['name']} -->\n{TABLES[match['name']]()}\n<!-- end of table -->", text
    )


if __name__ == "__main__":
    for one in pages():
        text = with_figures(one)
        if text != one.read_text(encoding="utf-8"):
            one.write_text(text, encoding="utf-8")
