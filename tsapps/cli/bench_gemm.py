"""``tsapps bench gemm``: tall-and-skinny products beside the library and the roofline."""

from secrets import randbelow
from typing import Annotated, Any

import typer

from tsapps.cli.bench_options import (
    DEFAULT_OUT,
    Columns,
    Findings,
    ListShapes,
    Out,
    check_records,
    listed_shapes,
    number,
    say_why_cpu,
    shapes_of,
)
from tsapps.cli.options import Device, Json, Quiet, choose
from tsapps.cli.output import print_table

__all__ = ["gemm"]

Shapes = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        metavar="M-N-K-TYPE,...",
        show_default=False,
        help="Products to measure, such as 20480-8-20480-f32,16-16-10000000-f64-col: rows and columns of the result, "
        "and the length of its sums; f64, f32, f16 or bf16, row-major, or column-major with -col.  [default: those "
        "that --list shows]",
    ),
]


def gemm(
    shapes: Shapes = None,
    device: Device = "auto",
    out: Out = DEFAULT_OUT,
    as_list: ListShapes = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure tall-and-skinny matrix products by tsapps.matmul.

    On a GPU, the library is the fastest of cuBLAS and all algorithms of cublasLt, and the roofline is the rate of a
    plain stream, or of large products. On a CPU, tsapps.matmul multiplies by NumPy, the library. Every result is
    checked before it is timed.

    A shape with long sums and at most 64 rows and columns, such as 16-16-10000000-f32, is a product Aᵀ · B of two tall
    matrices. "error / bound" is the largest error of an element, divided by the bound that tsapps.matmul states.
    """
    from tsapps.bench.gemm.grid import CPU_CELLS, GPU_CELLS, cell_named

    if as_list:
        print_table(listed_shapes(GPU_CELLS, CPU_CELLS))
        return
    cells = shapes_of(shapes, cell_named)
    check_records(out)
    choice = choose(device)
    say_why_cpu("Products", choice, device, silent=quiet or as_json)
    from tsapps.bench.gemm import measure

    bench = measure.opened(choice, randbelow(2**31))
    common = measure.common_fields(bench, None)
    findings = Findings(out, quiet=quiet, as_json=as_json)
    found = (one for cell in cells or bench.cells for one in measure.recorded(bench, cell, out, common))
    findings.take(f"Products on {bench.device}", _columns(), found)
    findings.report()


def _columns() -> Columns:
    """Return the columns of the table."""
    from tsapps.bench.gemm.grid import Cell, relative_bound

    def cell(one: dict[str, Any]) -> Cell:
        return Cell(*(one[name] for name in ("shape", "dtype", "layout", "m", "k", "w")))

    def of_floor(one: dict[str, Any]) -> float | None:
        return None if one["floor_ms"] is None else one["floor_ms"] / one["ms"]

    return (
        ("product", lambda one: cell(one).name),
        ("kernel", lambda one: one["kernel"]),
        ("ms", lambda one: f"{one['ms']:,.4g}"),
        ("GB/s", lambda one: f"{one['gbs']:,.0f}"),
        ("GFLOP/s", lambda one: f"{cell(one).flops / one['ms'] / 1e6:,.0f}"),
        ("of library", lambda one: f"{one['library_ms'] / one['ms']:.1%}"),
        ("of roofline", lambda one: number(of_floor(one), ".1%")),
        ("error / bound", lambda one: f"{one['max_rel_err'] / relative_bound(cell(one)):.2g}"),
    )
