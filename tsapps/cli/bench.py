"""``tsapps bench``: measure how fast this machine computes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import randbelow
from typing import Annotated, Any

import typer

from tsapps import signals
from tsapps.cli.options import Device, Json, Quiet, check_output_file, choose
from tsapps.cli.output import print_json, print_table, print_text
from tsapps.errors import UsageError, one_line

__all__ = ["bench"]

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

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
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FILE",
        help="File of records (JSON) to add the measurements to; they replace older ones of the same device.",
    ),
]
Limit = Annotated[
    float, typer.Option("--limit", metavar="SECONDS", min=0.001, help="Leave out what would take longer per call.")
]

# Least width of a table that does not go to a terminal.
_WIDTH = 100
# Columns of the table: heading, and a function from a record to its text.
_COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("rung", lambda one: one["title"]),
    ("ms", lambda one: f"{one['ms']:,.4g}"),
    ("GFLOP/s", lambda one: f"{one['gflops']:,.1f}"),
    ("× serial", lambda one: _number(one["speedup_serial"], ",.1f")),
    ("per warp", lambda one: _number(one["efficiency"], ".3f")),
    ("of library", lambda one: f"{one['library_ms'] / one['ms']:.1%}"),
    ("of roofline", lambda one: "" if one["floor_ms"] is None else f"{one['floor_ms'] / one['ms']:.1%}"),
)


@bench.callback()
def _bench() -> None:
    """Measure how fast this machine computes, and keep the records in one file."""


@bench.command(short_help="Matrix products, from a triple loop to today's kernels.")
def ladder(
    shapes: Shapes = None,
    device: Device = "auto",
    out: Out = Path("tsapps-bench.json"),
    limit: Limit = 5.0,
    as_list: Annotated[bool, typer.Option("--list", help="List the rungs and the shapes, and exit.")] = False,
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
    from tsapps.bench.ladder.cases import CPU_CASES, GPU_CASES, case_named

    if as_list:
        print_table(_listed(GPU_CASES, CPU_CASES))
        return
    try:
        cases = [case_named(name.strip()) for name in shapes.split(",")] if shapes is not None else None
    except ValueError as error:
        raise UsageError(f"--shapes: {error}") from error
    _check_records(out)
    choice = choose(device)
    if not (quiet or as_json or choice.is_gpu) and device == "auto":
        print_text(f"The rungs on the CPU: {choice.reason}.")
    on = run.opened(choice)
    common, seed = run.common_fields(on, None), randbelow(2**31)
    rates: dict[str, float] = {}
    records, left_out = [], []
    for case in cases or on.cases:
        with _table(case.name, live=not (quiet or as_json)) as add:
            for one in run.recorded(on, case, out, common, seed, limit, rates):
                add(one)
                if isinstance(one, str):
                    left_out.append(f"{case.name} {one}")
                else:
                    records.append(one)
    signals.placed()
    wrong = [line for line in left_out if line.endswith(run.WRONG)]
    if as_json:
        print_json({"file": str(out), "records": records, "left_out": left_out})
    elif not quiet:
        print_text(f"{len(records)} records in {out}")
    if wrong:
        raise ValueError(f"wrong results: {len(wrong)} ({'; '.join(wrong[:3])})")


def _check_records(path: Path) -> None:
    """Raise `UsageError` unless records can be added to a file."""
    from tsapps.bench.common import record

    check_output_file(path, force=True)
    try:
        for one in record.load(path):
            record.check(one, {})
    except ValueError as error:
        raise UsageError(f"{path} is no file of records: {error}; name another with --out") from error


@contextmanager
def _table(title: str, *, live: bool) -> Iterator[Callable[[dict[str, Any] | str], None]]:
    """Yield a function that adds a record, or a line on a rung without one, to a table that grows on stdout."""
    if not live:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=title, title_justify="left", caption_justify="left", box=None)
    for heading, _ in _COLUMNS:
        table.add_column(heading, justify="left" if heading == "rung" else "right", no_wrap=True)

    def add(one: dict[str, Any] | str) -> None:
        if isinstance(one, str):
            table.caption = f"{table.caption}\n{one_line(one)}" if table.caption else one_line(one)
        else:
            table.add_row(*(text(one) for _, text in _COLUMNS))

    if console.is_terminal:
        with Live(table, console=console):
            yield add
        return
    try:
        yield add
    finally:  # also what was measured before Ctrl-C
        console.width = max(console.width, _WIDTH)
        console.print(table)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _listed(on_gpu: Any, on_cpu: Any) -> dict[str, str]:
    """Return the names of all rungs and shapes."""
    from tsapps.kernels.ladder.launch import PAPER_KERNELS
    from tsapps.kernels.ladder.on_cpu import CPU_RUNGS
    from tsapps.kernels.ladder.rungs import RUNGS

    return {
        "rungs on a GPU": ", ".join([*(rung.name for rung in RUNGS), *PAPER_KERNELS, "tsapps"]),
        "rungs on a CPU": ", ".join(rung.name for rung in CPU_RUNGS),
        "shapes on a GPU": ", ".join(case.name for case in on_gpu),
        "shapes on a CPU": ", ".join(case.name for case in on_cpu),
    }
