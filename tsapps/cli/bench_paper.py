"""``tsapps bench paper``: the experiments of the TSM2 paper, beside what it reports."""

from math import inf
from secrets import randbelow
from typing import Annotated, Any

import typer

from tsapps.cli.bench_options import DEFAULT_OUT, Columns, Findings, ListShapes, Out, check_records
from tsapps.cli.options import Device, Json, Quiet, choose
from tsapps.cli.output import print_table
from tsapps.errors import NoDeviceError, UsageError

__all__ = ["paper"]

Experiments = Annotated[
    list[str] | None,
    typer.Argument(metavar="EXPERIMENT", help="Experiments to run, which --list shows.  [default: all]"),
]
Largest = Annotated[
    float,
    typer.Option("--largest", metavar="ROWS", min=1, help="Leave out matrices with more rows.", show_default="none"),
]


def paper(
    experiments: Experiments = None,
    device: Device = "auto",
    out: Out = DEFAULT_OUT,
    largest: Largest = inf,
    as_list: ListShapes = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the experiments of the TSM2 paper (ICS 2019) on this GPU.

    "speed-up" is the baseline's time divided by that of what is measured; "paper" is the range of that in the paper, on
    the GPU named. Every result is checked before it is timed.
    """
    from tsapps.bench.paper.experiments import EXPERIMENTS, cases

    if as_list:
        print_table(EXPERIMENTS)
        return
    for name in experiments or ():
        if name not in EXPERIMENTS:
            raise UsageError(f"experiment {name!r}: expected {', '.join(EXPERIMENTS)}")
    check_records(out)
    choice = choose(device)
    if device == "cpu":
        raise UsageError("--device cpu: the experiments of the paper need a GPU")
    if not choice.is_gpu:
        raise NoDeviceError(f"the experiments of the paper need a GPU: {choice.reason}")
    from tsapps.bench.paper import run

    on = run.opened(choice, randbelow(2**31))
    common = run.common_fields(on, None)
    findings = Findings(out, quiet=quiet, as_json=as_json)
    for name in experiments or EXPERIMENTS:
        chosen = (case for case in cases(name) if case.m <= largest)
        found = (one for case in chosen for one in run.recorded(on, case, out, common))
        findings.take(f"{name} on {on.device}", _COLUMNS, found)
    findings.report()


def _paper(one: dict[str, Any]) -> str:
    from tsapps.bench.paper.experiments import range_text

    return f"{range_text(one['paper_speedup'])} ({one['paper_device']})"


def _bandwidth(one: dict[str, Any]) -> str:
    """Return the bandwidth of what is measured and of the baseline, in percent of a plain stream."""
    if one["gbs"] is None:
        return ""
    return " : ".join(f"{one[name] / one['peak_gbs']:.0%}" for name in ("gbs", "baseline_gbs"))


_COLUMNS: Columns = (
    ("size", lambda one: f"{one['m']} × {one['k']} · {one['n']} {one['dtype']}"),
    ("measured", lambda one: one["engine"]),
    ("ms", lambda one: f"{one['ms']:,.4g}"),
    ("baseline", lambda one: one["baseline"]),
    ("ms", lambda one: f"{one['baseline_ms']:,.4g}"),
    ("of stream", _bandwidth),
    ("speed-up", lambda one: f"{one['speedup']:.2f}"),
    ("paper", _paper),
)
