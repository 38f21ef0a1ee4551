"""``tsapps abft-verify``: find which numbers of a matrix are not what they were when its sidecar was written."""

import os
import sys
import time
from typing import Any

import typer

from tsapps.cli.abft import AnyData, JsonLines, SidecarFile, open_protected, sidecar_path
from tsapps.cli.abft_report import changes, describe, print_changes, print_line, print_regions, region_as_json, regions
from tsapps.cli.options import Device, Quiet, choose
from tsapps.cli.output import byte_bar, gigabytes, print_table
from tsapps.errors import CorruptionError, ExitCode

__all__ = ["abft_verify"]

# Where there are sums of words, they alone decide.
_CLEAN = dict.fromkeys(["exact", "both"], "clean: every bit is as it was") | {
    "float": "clean: what was changed, if anything, is within rounding of the checksums"
}


def abft_verify(
    data: AnyData,
    sidecar: SidecarFile = None,
    device: Device = "auto",
    as_json: JsonLines = False,
    quiet: Quiet = False,
) -> None:
    """Find which numbers of DATA are not what they were when abft-encode wrote its sidecar.

    Exits with 0 if all are, and with 3 if some are not or the sidecar itself is damaged. Prints where they are, what
    they are and, where that is certain, what they were; abft-correct writes that. DATA is read once, and nothing is
    written.
    """
    began = time.perf_counter()
    choose(device)
    path = sidecar or sidecar_path(data)
    try:
        matrix, checksums = open_protected(data, path)
    except CorruptionError as error:
        if as_json:
            print_line({"what": "sidecar", "sidecar": os.path.abspath(path), "message": str(error)})
        raise

    from tsapps.apps.abft import verify

    with byte_bar(quiet=quiet) as show:
        verdict = verify(
            matrix, checksums, device=device, progress=lambda done: show(f"verifying {data}", done, matrix.nbytes)
        )
    seconds = time.perf_counter() - began
    count, lost = len(verdict.elements(checksums)), regions(verdict)
    if as_json:
        for change in changes(matrix, verdict, checksums):
            print_line(change.as_json())
        for region in lost:
            print_line(region_as_json(region))
        summary: dict[str, Any] = {
            "what": "summary",
            "clean": verdict.clean,
            "input": os.path.abspath(data),
            "sidecar": os.path.abspath(path),
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
                "sidecar": f"{path}: {checksums.code}",
                "verdict": _CLEAN[checksums.code] if verdict.clean else _found(count, len(lost)),
                "seconds": f"{seconds:.2f} ({gigabytes(int(matrix.nbytes / seconds))} a second)",
            }
        )
        if count:
            print_changes(changes(matrix, verdict, checksums), count)
        if lost:
            print_regions(lost)
    if not verdict.clean:
        sys.stdout.flush()  # who reads no more of it ends the command as others are ended
        raise typer.Exit(ExitCode.CORRUPTION)


def _found(count: int, lost: int) -> str:
    """Return a line on what was found."""
    elements = f"{count:,} element{'s' if count != 1 else ''} that can be repaired"
    return f"corrupted: {elements}, {lost:,} region{'s' if lost != 1 else ''} that cannot"
