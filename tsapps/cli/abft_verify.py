"""``tsapps abft-verify``: detect and locate corrupted elements of matrices from their sidecars."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import typer

from tsapps.cli.abft import JsonLines, SeveralData, SidecarFile, open_protected, sidecar_path
from tsapps.cli.abft_report import (
    changes,
    describe,
    print_changes,
    print_line,
    print_regions,
    region_as_json,
    regions,
)
from tsapps.cli.failures import REPORTED, explain, print_error
from tsapps.cli.options import AllowExternal, Device, Header, Index, Quiet, choose
from tsapps.cli.output import byte_bar, gigabytes, print_table
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.errors import ExitCode, UsageError, one_line
from tsapps.names import split_name

__all__ = ["abft_verify"]

# Messages for data without a detected change, by the code of the sidecar. If the sidecar has exact checksums, only the
# exact checksums are compared.
_CLEAN = dict.fromkeys(["exact", "both"], "clean: every bit is unchanged") | {
    "float": "clean: changes, if any, are within the rounding of the checksums"
}


def abft_verify(
    data: SeveralData,
    sidecar: SidecarFile = None,
    device: Device = "auto",
    allow_external: AllowExternal = False,
    header: Header = None,
    index: Index = None,
    as_json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Detect and locate the elements of each DATA that changed since abft-encode wrote its sidecar.

    Prints their positions, their values and, where that is certain, the original values, which abft-correct restores.
    Reads each DATA in blocks and writes nothing. With --json, a summary ends the lines of each DATA.

    Every DATA is verified, even if others fail. Exits with 3 if an element changed or a sidecar is damaged. Otherwise
    exits with the code of the first DATA that cannot be verified (1 or 2), or with 0.
    """
    show_logs(verbose)
    if sidecar is not None and len(data) > 1:
        raise UsageError(f"--sidecar {sidecar}: holds the checksums of one DATA, but {len(data)} are given: name one")
    choose(device)
    codes = []
    for number, one in enumerate(data):
        if number and not (as_json or quiet):
            print()
        reading = {"header": header, "index": index, "allow_external": allow_external}
        codes.append(_told(one, sidecar or sidecar_path(one), device, reading, as_json=as_json, quiet=quiet))
    code = ExitCode.CORRUPTION if ExitCode.CORRUPTION in codes else next(filter(None, codes), ExitCode.DONE)
    if code:
        sys.stdout.flush()  # raises BrokenPipeError for a closed pipe, as other commands do
        raise typer.Exit(code)


def _told(data: str, sidecar: Path, device: str, reading: dict[str, Any], *, as_json: bool, quiet: bool) -> ExitCode:
    """Verify one DATA, print the result or the error, and return the exit code.

    `reading` holds the keyword arguments for `open_protected`.
    """
    try:
        return _verify(data, sidecar, device, reading, as_json=as_json, quiet=quiet)
    except BrokenPipeError:
        raise
    except REPORTED as error:
        explained = explain(error)
        if explained is None:
            raise
        message, code = explained
        if one_line(split_name(data)[0]) not in one_line(message):
            message = f"{data}: {message}"
        print_error(message)
        if as_json:
            what = "sidecar" if code == ExitCode.CORRUPTION else "error"
            where = {"input": os.path.abspath(data), "sidecar": os.path.abspath(sidecar)}
            print_line({"what": what, **where, "message": message, "code": int(code)})
        return code


def _verify(data: str, sidecar: Path, device: str, reading: dict[str, Any], *, as_json: bool, quiet: bool) -> ExitCode:
    """Verify one DATA, print the result, and return the exit code; raise the error if that is impossible."""
    began = time.perf_counter()
    matrix, checksums = open_protected(data, sidecar, **reading)

    from tsapps.apps.abft import verify

    with byte_bar(quiet=quiet) as show:
        verdict = verify(
            matrix, checksums, device=device, progress=lambda done: show(f"verifying {data}", done, matrix.nbytes)
        )
    seconds = time.perf_counter() - began
    count, lost = len(verdict.elements(checksums)), regions(verdict)
    if as_json:
        place = {"input": os.path.abspath(data)}
        for change in changes(matrix, verdict, checksums):
            print_line(change.as_json() | place)
        for region in lost:
            print_line(region_as_json(region) | place)
        summary: dict[str, Any] = {
            "what": "summary",
            "clean": verdict.clean,
            **place,
            "sidecar": os.path.abspath(sidecar),
            "n": matrix.shape[0],
            "d": matrix.shape[1],
            "dtype": matrix.dtype.name,
            "bytes": matrix.nbytes,
            "code": checksums.code,
            "elements": count,
            "regions": len(lost),
            "seconds": seconds,
        }
        print_line(summary)
    elif not quiet:
        print_table(
            {
                "data": describe(data, matrix),
                "sidecar": f"{sidecar}: {checksums.code}",
                "verdict": _CLEAN[checksums.code] if verdict.clean else _found(count, len(lost)),
                "seconds": f"{seconds:.2f} ({gigabytes(int(matrix.nbytes / seconds))} a second)",
            }
        )
        if count:
            print_changes(changes(matrix, verdict, checksums), count)
        if lost:
            print_regions(lost)
    if verdict.clean:
        return ExitCode.DONE
    if quiet:
        print_error(f"{data}: {_found(count, len(lost))}")
    return ExitCode.CORRUPTION


def _found(count: int, lost: int) -> str:
    """Return a one-line summary of the corruption."""
    elements = f"{count:,} repairable element{'s' if count != 1 else ''}"
    return f"corrupted: {elements}, {lost:,} region{'s' if lost != 1 else ''} that cannot be repaired"
