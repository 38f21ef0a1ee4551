"""``tsapps bench ladder``: matrix products from a triple loop to today's kernels."""

from secrets import randbelow
from typing import Annotated, Any

import typer

from tsapps.cli.bench_options import (
    DEFAULT_OUT,
    Columns,
    Findings,
    Limit,
    ListShapes,
    Out,
    check_records,
    listed_shapes,
    number,
    say_why_cpu,
    shapes_of,
    split_names,
)
from tsapps.cli.options import Device, Json, Quiet, choose
from tsapps.cli.output import print_table
from tsapps.errors import UsageError

__all__ = ["ladder"]

Shapes = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        metavar="M-N-K-TYPE,...",
        show_default=False,
        help="Products to measure, such as 512-512-512-f32,20480-4-2048-f64-col; f32 or f64, row-major, or "
        "column-major with -col.  [default: those that --list shows]",
    ),
]
Rungs = Annotated[
    str | None,
    typer.Option(
        "--rungs", metavar="NAME,...", show_default=False, help="Rungs to measure.  [default: those that --list shows]"
    ),
]
_COLUMNS: Columns = (
    ("rung", lambda one: one["title"]),
    ("ms", lambda one: f"{one['ms']:,.4g}"),
    ("GFLOP/s", lambda one: f"{one['gflops']:,.1f}"),
    ("× serial", lambda one: number(one["speedup_serial"], ",.1f")),
    ("per warp", lambda one: number(one["efficiency"], ".3f")),
    ("of library", lambda one: f"{one['library_ms'] / one['ms']:.1%}"),
    ("of roofline", lambda one: "" if one["floor_ms"] is None else f"{one['floor_ms'] / one['ms']:.1%}"),
)


def ladder(
    shapes: Shapes = None,
    rungs: Rungs = None,
    device: Device = "auto",
    out: Out = DEFAULT_OUT,
    limit: Limit = 5.0,
    as_list: ListShapes = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the rungs of the ladder: matrix products from a triple loop to today's kernels.

    On a GPU, the rungs are CUDA kernels, beside cuBLAS and the roofline. On a CPU, they are C files, which the
    machine's compiler builds, beside NumPy. Every result is checked before it is timed.

    "× serial" is the speed-up over the triple loop on one core; "per warp" is that divided by the number of warps that
    the GPU holds at the same time, on a CPU by the number of threads.
    """
    from tsapps.bench.ladder import run
    from tsapps.bench.ladder.cases import case_named

    if as_list:
        print_table(_listed(run.OnGpu, run.OnCpu))
        return
    cases = shapes_of(shapes, case_named)
    check_records(out)
    choice = choose(device)
    try:
        on = run.opened(choice, split_names(rungs))
    except ValueError as error:
        raise UsageError(f"--rungs: {error}") from error
    say_why_cpu("The rungs", choice, device, silent=quiet or as_json)
    common, seed = run.common_fields(on, None), randbelow(2**31)
    rates: dict[str, float] = {}
    findings = Findings(out, quiet=quiet, as_json=as_json)
    for case in cases or on.cases:
        findings.take(case.name, _COLUMNS, run.recorded(on, case, out, common, seed, limit, rates))
    findings.report()


def _listed(on_gpu: Any, on_cpu: Any) -> dict[str, str]:
    """Return the names of all rungs and shapes."""
    rungs = {"rungs on a GPU": ", ".join(on_gpu.names), "rungs on a CPU": ", ".join(on_cpu.names)}
    return rungs | listed_shapes(on_gpu.cases, on_cpu.cases)
