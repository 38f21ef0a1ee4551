"""``tsapps bench abft``: checksums, and computations that they protect."""

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

__all__ = ["abft"]

Shapes = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        metavar="JOB-M-N[-K]-TYPE,...",
        show_default=False,
        help="What to measure: encode-M-N-TYPE and verify-M-N-TYPE of a matrix; on a GPU also matmul-M-N-K-TYPE and "
        "kmeans-N-D-K-TYPE, such as kmeans-10M-128-64-f32; f64, f32, f16 or bf16.  [default: those that --list shows]",
    ),
]


def abft(
    shapes: Shapes = None,
    device: Device = "auto",
    out: Out = DEFAULT_OUT,
    as_list: ListShapes = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure checksums: to encode and verify a matrix in memory; on a GPU also protected products and K-means.

    "of read" is the time to read the operands, and to write a product, divided by the time of the job; on a GPU, a
    K-means has its roofline there. "of library" is the same with the time of a library: on a GPU, cuBLAS computes the
    sums of the float code; on a CPU, hashlib computes SHA-256. "overhead" is the time that protection adds.

    Every result is checked before it is timed. A verification must accept the matrix, and find one wrong element.
    """
    from tsapps.bench.abft.tasks import CPU_TASKS, QUICK_GPU_TASKS, task_named

    if as_list:
        print_table(listed_shapes(QUICK_GPU_TASKS, CPU_TASKS))
        return
    tasks = shapes_of(shapes, task_named)
    check_records(out)
    choice = choose(device)
    say_why_cpu("Checksums", choice, device, silent=quiet or as_json)
    from tsapps.bench.abft import run, speed

    bench = run.opened(choice, randbelow(2**31))
    common = run.common_of("cuda" if choice.is_gpu else "cpu", "abft", None)
    findings = Findings(out, quiet=quiet, as_json=as_json)
    found = (one for task in tasks or bench.tasks for one in speed.recorded(bench, task, out, common))
    findings.take(f"Checksums on {common['device']}", _columns(), found)
    findings.report()


def _columns() -> Columns:
    """Return the columns of the table."""
    from tsapps.bench.abft.tasks import Task

    def task(one: dict[str, Any]) -> Task:
        return Task(one["job"], one["dtype"], one["m"], one["n"], one["k"], ())

    def share(one: dict[str, Any], name: str) -> float | None:
        return None if one[name] is None else one[name] / one["ms"]

    def overhead(one: dict[str, Any]) -> float | None:
        return None if one["unprotected_ms"] is None else one["ms"] / one["unprotected_ms"] - 1

    return (
        ("job", lambda one: task(one).name),
        ("code", lambda one: one["code"]),
        ("ms", lambda one: f"{one['ms']:,.4g}"),
        ("GB/s", lambda one: f"{task(one).n_bytes / one['ms'] / 1e6:,.4g}"),
        ("of read", lambda one: number(share(one, "floor_ms"), ".1%")),
        ("of library", lambda one: number(share(one, "library_ms"), ".1%")),
        ("overhead", lambda one: number(overhead(one), "+.1%")),
    )
