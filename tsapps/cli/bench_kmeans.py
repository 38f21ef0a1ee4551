"""``tsapps bench kmeans``: K-means beside other libraries."""

from collections.abc import Sequence
from itertools import chain
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
from tsapps.cli.output import print_table, print_text
from tsapps.errors import UsageError

__all__ = ["kmeans"]

Shapes = Annotated[
    str | None,
    typer.Option(
        "--shapes",
        metavar="N-D-K-TYPE,...",
        show_default=False,
        help="Problems to measure, such as 10M-128-64-f32,100k-16-8-f64: samples, features and clusters; f64, f32, f16 "
        "or bf16.  [default: those that --list shows]",
    ),
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        show_default=False,
        help="Engine to measure on a GPU, one of those that --list shows; may be repeated.  [default: tsapps, cublas "
        "and the installed ones of torch, cuvs, flash-kmeans and flashlib]",
    ),
]
Seconds = Annotated[
    float,
    typer.Option(
        "--limit",
        metavar="SECONDS",
        min=0.001,
        help="Time for an engine and a shape; each is timed at least once, or left out if that takes longer.",
    ),
]

# Engines on a GPU, if none are named; most timings of each, as far as the time limit allows.
_ENGINES = ("tsapps", "cublas", "torch", "cuvs", "flash-kmeans", "flashlib")
_REPEATS = 9
_OURS = ("tsapps", "tsapps-cpu")


def kmeans(
    shapes: Shapes = None,
    engines: Engines = None,
    device: Device = "auto",
    out: Out = DEFAULT_OUT,
    limit: Seconds = 2.0,
    as_list: ListShapes = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure K-means: one Lloyd iteration, and a whole fit of 20 iterations from given centers.

    On a GPU, tsapps and other libraries; an iteration is first compared with float64: its labels, and its new centers.
    On a CPU, TSKMeans(device="cpu") and scikit-learn; the labels of a fit are compared.

    "× tsapps" is the time of an iteration divided by that of tsapps. "of roofline" is the time to read the data once,
    or of the arithmetic, divided by the time of an iteration. It can exceed 100 %, because tsapps skips points whose
    label cannot change.
    """
    from tsapps.bench.kmeans.peers import PEERS
    from tsapps.bench.kmeans.problems import CPU_SHAPES, QUICK_GPU_SHAPES, shapes_named

    if as_list:
        print_table(
            {
                "engines on a GPU": ", ".join(PEERS),
                "engines on a CPU": "tsapps-cpu, scikit-learn",
                **listed_shapes(QUICK_GPU_SHAPES, CPU_SHAPES),
            }
        )
        return
    groups = shapes_of(shapes, shapes_named)
    asked = None if groups is None else list(dict.fromkeys(chain.from_iterable(groups)))
    for name in engines or ():
        if name not in PEERS:
            raise UsageError(f"--engine: {name!r} is unknown: expected one of {', '.join(PEERS)}")
    check_records(out)
    choice = choose(device)
    if engines and not choice.is_gpu:
        raise UsageError("--engine selects engines on a GPU: omit it to compare TSKMeans and scikit-learn on the CPU")
    installed, absent = _installed(engines or _ENGINES)
    if not installed:
        raise UsageError(f"--engine: not installed: {', '.join(absent)}: install one of them, or omit --engine")
    if choice.is_gpu and absent and not (quiet or as_json):
        print_text(f"Not installed: {', '.join(absent)}.")
    say_why_cpu("K-means", choice, device, silent=quiet or as_json)
    from tsapps.bench.common.record import commit_of
    from tsapps.bench.kmeans import run

    on = run.opened(choice, randbelow(2**31))
    limits, commit = run.Limits(_REPEATS, limit), commit_of()
    findings = Findings(out, quiet=quiet, as_json=as_json)
    for shape in asked or (QUICK_GPU_SHAPES if choice.is_gpu else CPU_SHAPES):
        findings.take(shape.name, _columns(), run.recorded(on, shape, installed, out, commit, limits))
    findings.report()


def _installed(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the engines that are installed, in the order of a table, and those that are not."""
    from tsapps.bench.kmeans.peers import PEERS

    ordered = [name for name in PEERS if name in names]
    found = [name for name in ordered if PEERS[name].installed()]
    return found, [name for name in ordered if name not in found]


def _columns() -> Columns:
    """Return the columns of the table of one shape; tsapps comes first."""
    ours: list[float] = []

    def over_tsapps(one: dict[str, Any]) -> str:
        if one["engine"] in _OURS:
            ours.append(one["iter_ms"])
        return number(one["iter_ms"] / ours[0] if ours else None, ",.2f")

    def of_floor(one: dict[str, Any]) -> float | None:
        return one["floor_ms"] and one["floor_ms"] / one["iter_ms"]

    return (
        ("engine", lambda one: one["engine"]),
        ("ms per iteration", lambda one: f"{one['iter_ms']:,.4g}"),
        ("ms per fit", lambda one: number(one["fit_ms"], ",.4g")),
        ("iterations", lambda one: number(one["n_iter"], "d")),
        ("of roofline", lambda one: number(of_floor(one), ".1%")),
        ("× tsapps", over_tsapps),
    )
