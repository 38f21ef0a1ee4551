"""The command line: one module per command, each of which parses arguments, calls the package and prints.

NumPy and modules that need it are imported inside the commands, so that ``tsapps --help`` is fast. Every error that a
user can cause prints one line on stderr and exits with an `ExitCode`.
"""

import shlex
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from tsapps import __version__, signals
from tsapps.cli.abft_calibrate import abft_calibrate
from tsapps.cli.abft_correct import abft_correct
from tsapps.cli.abft_encode import abft_encode
from tsapps.cli.abft_inject import abft_inject
from tsapps.cli.abft_verify import abft_verify
from tsapps.cli.bench import bench
from tsapps.cli.compile import compile_kernels
from tsapps.cli.failures import REPORTED, ParameterError, explain, explain_usage
from tsapps.cli.help import CONTEXT_SETTINGS, Command
from tsapps.cli.info import info
from tsapps.cli.kmeans import kmeans
from tsapps.cli.predict import predict
from tsapps.cli.protect import protect
from tsapps.cli.repair import repair
from tsapps.cli.report import report
from tsapps.cli.sample import sample
from tsapps.cli.tune import tune
from tsapps.cli.verbose import Verbose, show_logs, showing_logs
from tsapps.cli.verify import verify
from tsapps.errors import ExitCode, one_line

__all__ = ["app"]


class _Commands(TyperGroup):
    """The group of all commands; reports their errors and warnings."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["tsapps.command"] = shlex.join(["tsapps", *args])
        if not args:
            return super().parse_args(ctx, args)  # prints the help
        try:
            return super().parse_args(ctx, args)
        except ParameterError as error:
            _fail(explain_usage(error, ctx.command_path), ExitCode.USAGE)

    def invoke(self, ctx: Any) -> Any:
        try:
            signals.begin()
            with _one_line_warnings(), showing_logs():
                result = super().invoke(ctx)
                sys.stdout.flush()
                return result
        except BrokenPipeError:
            raise  # the reader of our output closed the pipe: typer exits without a message
        except KeyboardInterrupt:
            _fail("interrupted", 128 + signal.SIGINT)
        except ParameterError as error:
            command = " ".join(filter(None, [ctx.command_path, ctx.invoked_subcommand]))
            _fail(explain_usage(error, command), ExitCode.USAGE)
        except REPORTED as error:
            explained = explain(error)
            if explained is None:
                raise
            _fail(*explained)


def _fail(message: object, code: int) -> NoReturn:
    signals.check()
    signals.end_with(one_line(message), code)
    raise typer.Exit(code)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Print each warning as one line, without its source file and line."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"tsapps: warning: {one_line(message)}", file=sys.stderr)

    with warnings.catch_warnings():
        # Non-finite values are reported by row and column, so NumPy's less specific warnings are not shown.
        warnings.filterwarnings("ignore", "(overflow|invalid value|divide by zero) encountered", RuntimeWarning)
        warnings.showwarning = show
        yield


app = typer.Typer(
    name="tsapps",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help, which needs no import of rich
    pretty_exceptions_enable=False,  # an unexpected error is a bug: the report needs its full traceback
    context_settings=CONTEXT_SETTINGS,
)
app.command(cls=Command, short_help="Cluster the rows of a matrix.")(kmeans)
app.command(cls=Command, short_help="Find the nearest center of every row.")(predict)
app.command(cls=Command, short_help="Write a page on a clustering.")(report)
app.command(cls=Command, short_help="Protect files: write their sidecars and a manifest.")(protect)
app.command(cls=Command, short_help="Verify every byte of protected files.")(verify)
app.command(cls=Command, short_help="Restore protected files bit by bit.")(repair)
app.command(cls=Command, short_help="Write the checksums of a matrix.")(abft_encode)
app.command(cls=Command, short_help="Detect and locate corrupted elements of matrices.")(abft_verify)
app.command(cls=Command, short_help="Repair the corrupted elements of a matrix.")(abft_correct)
app.command(cls=Command, short_help="Corrupt a copy of a matrix, for tests.")(abft_inject)
app.command(
    "abft-calibrate", cls=Command, short_help="Measure rounding errors, for the thresholds of protected products."
)(abft_calibrate)
app.command(cls=Command, short_help="Write a sample data set.")(sample)
app.command(cls=Command, short_help="Show versions, devices and memory.")(info)
app.command("compile", cls=Command, short_help="Compile the GPU kernels of K-means ahead of a fit.")(compile_kernels)
app.command(cls=Command, short_help="Measure which kernels are fastest on this GPU.")(tune)
app.add_typer(bench, name="bench", short_help="Measure how fast this machine computes.")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tsapps {__version__}")
        raise typer.Exit


@app.callback()
def _tsapps(
    version: Annotated[  # noqa: ARG001 (its callback prints it)
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Exact K-means for large matrices on the CPU and on NVIDIA GPUs, and checksums that detect and repair corruption.

    Exit codes: 0 success, 1 failure (bad data, full disk, closed pipe), 2 usage error (bad option, existing output,
    missing file, unknown format), 3 corruption found, 4 requested GPU not available, 130 interrupted (Ctrl-C), 143
    terminated.

    After 130 and 143 the output is unchanged. If a signal comes once the result is in place, the command finishes and
    exits with 0. tune, abft-calibrate and bench keep the measurements made before the signal, compile its kernels, and
    kmeans its last checkpoint.
    """
    show_logs(verbose)
