"""``tsapps bench``: measure how fast this machine computes."""

import typer

from tsapps.cli.bench_ladder import ladder
from tsapps.cli.bench_report import report

__all__ = ["bench"]

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
bench.command(short_help="Matrix products, from a triple loop to today's kernels.")(ladder)
bench.command(short_help="One HTML page with the figures and tables of records.")(report)


@bench.callback()
def _bench() -> None:
    """Measure how fast this machine computes, and keep the records in one file."""
