"""``tsapps bench``: measure how fast this machine computes."""

import typer

from tsapps.cli.bench_abft import abft
from tsapps.cli.bench_gemm import gemm
from tsapps.cli.bench_kmeans import kmeans
from tsapps.cli.bench_ladder import ladder
from tsapps.cli.bench_paper import paper
from tsapps.cli.bench_report import report

__all__ = ["bench"]

bench = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
bench.command(short_help="Matrix products, from a triple loop to today's kernels.")(ladder)
bench.command(short_help="Tall-and-skinny products, beside cuBLAS or NumPy.")(gemm)
bench.command(short_help="K-means, beside other libraries.")(kmeans)
bench.command(short_help="Checksums: encode, verify, and protected computations.")(abft)
bench.command(short_help="The experiments of the TSM2 paper.")(paper)
bench.command(short_help="One HTML page with the figures and tables of records.")(report)


@bench.callback()
def _bench() -> None:
    """Measure how fast this machine computes, and keep the records in one file."""
