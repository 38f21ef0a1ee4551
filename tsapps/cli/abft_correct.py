"""``tsapps abft-correct``: repair a matrix bit by bit from its sidecar."""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsapps.cli.abft import (
    AnyData,
    Force,
    InPlace,
    JsonLines,
    OutNpy,
    SidecarFile,
    check_copy,
    check_copy_space,
    check_target,
    mode_of_copy,
    open_protected,
    placing_unless_changed,
    sidecar_path,
)
from tsapps.cli.abft_report import changes, describe, print_changes, print_line, regions
from tsapps.cli.options import AllowExternal, Header, Index, Quiet
from tsapps.cli.output import byte_bar, print_table
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.errors import CorruptionError
from tsapps.names import split_name

if TYPE_CHECKING:
    from tsapps.apps.abft import Sidecar, Verdict
    from tsapps.matrix import Matrix

__all__ = ["abft_correct"]


def abft_correct(
    data: AnyData,
    out: OutNpy = None,
    in_place: InPlace = False,
    sidecar: SidecarFile = None,
    force: Force = False,
    allow_external: AllowExternal = False,
    header: Header = None,
    index: Index = None,
    as_json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Restore DATA bit by bit to its state when abft-encode wrote its sidecar.

    The exact code repairs up to two corrupted 32-bit words in every block of 512 words; the float code, elements whose
    sums determine every bit. If there is more corruption, or the sidecar itself is damaged, the command exits with 3
    and writes nothing. --in-place writes a copy next to DATA, verifies it, and only
    then renames it: DATA is either unchanged or repaired, whenever the command is stopped. If nothing is corrupted,
    --in-place writes nothing.
    """
    show_logs(verbose)
    began = time.perf_counter()
    check_target(data, out, in_place=in_place, force=force)
    path = sidecar or sidecar_path(data)
    matrix, checksums = open_protected(data, path, header, index, allow_external=allow_external)
    check_copy(data, matrix, out)
    if out is not None:
        check_copy_space(data, matrix, out)

    from tsapps.apps.abft import verify

    # With --in-place, the report reads the corrupted elements after DATA was replaced: `held` keeps the old file open.
    with matrix.held() if in_place else nullcontext(matrix) as found:
        with byte_bar(quiet=quiet) as show:

            def report(what: str) -> Callable[[int], None]:
                return lambda done: show(f"{what} {data}", done, matrix.nbytes)

            verdict = verify(matrix, checksums, progress=report("verifying"))
            _check_repairable(data, verdict)
            written = out is not None or not verdict.clean
            if written:
                _write(matrix, verdict, checksums, data, path, out, report)
        seconds = time.perf_counter() - began
        place = None if not written else data if out is None else str(out)
        if as_json:
            _print_json(found, verdict, checksums, data, path, place, seconds)
        elif not quiet:
            _print(found, verdict, checksums, data, path, place, seconds)


def _check_repairable(data: str, verdict: "Verdict") -> None:
    """Raise `CorruptionError` if there is more corruption than can be repaired."""
    if lost := regions(verdict):
        others = f" and {len(lost) - 1:,} other regions" if len(lost) > 1 else ""
        raise CorruptionError(
            f"{data}: has more corruption than can be repaired, in rows {lost[0].row:,} to "
            f"{lost[0].row_end - 1:,}, columns {lost[0].column:,} to {lost[0].column_end - 1:,}{others} (tsapps "
            f"abft-verify lists all): restore these from a copy"
        )


def _print_json(
    found: "Matrix",
    verdict: "Verdict",
    checksums: "Sidecar",
    data: str,
    sidecar: Path,
    place: str | None,
    seconds: float,
) -> None:
    for change in changes(found, verdict, checksums):
        print_line(change.as_json())
    summary: dict[str, Any] = {
        "what": "summary",
        "input": os.path.abspath(data),
        "sidecar": os.path.abspath(sidecar),
        "output": None if place is None else os.path.abspath(place),
        "elements": len(verdict.elements(checksums)),
        "seconds": seconds,
    }
    print_line(summary)


def _print(
    found: "Matrix",
    verdict: "Verdict",
    checksums: "Sidecar",
    data: str,
    sidecar: Path,
    place: str | None,
    seconds: float,
) -> None:
    count = len(verdict.elements(checksums))
    print_table(
        {
            "data": describe(data, found),
            "sidecar": str(sidecar),
            "repaired": f"{count:,} element{'s' if count != 1 else ''}"
            if count
            else "nothing: no element is corrupted",
            "seconds": f"{seconds:.2f}",
            "written": "nothing" if place is None else f"{place}, and verified",
        }
    )
    if count:
        print_changes(changes(found, verdict, checksums), count)


def _write(
    matrix: "Matrix",
    verdict: "Verdict",
    checksums: "Sidecar",
    data: str,
    sidecar: Path,
    out: Path | None,
    report: Callable[[str], Callable[[int], None]],
) -> None:
    """Write the repaired matrix to `out`, or over DATA if `out` is None; verify the new file before it is renamed."""
    from tsapps.apps.abft import verify
    from tsapps.matrix import replacing
    from tsapps.matrix.copy import copy_as_npy, copy_file
    from tsapps.matrix.stored import matrix_of

    check_copy_space(data, matrix, out)
    mode = mode_of_copy(data, out, sidecar)
    with replacing(out or split_name(data)[0], commit=partial(placing_unless_changed, matrix), mode=mode) as file:
        stored = (copy_file if out is None else copy_as_npy)(matrix, file, report("copying"))
        for offset, was in zip(*(part.tolist() for part in verdict.patches()), strict=True):
            os.pwrite(file.fileno(), bytes([was]), stored.place(offset))
        again = verify(matrix_of(stored, file.name, data), checksums, progress=report("verifying the copy of"))
        if not again.clean:
            raise CorruptionError(
                f"{data}: the repaired copy fails verification and was removed: memory or disk of this machine is "
                f"faulty, or another program writes to {data}: try again, or on another machine"
            )
