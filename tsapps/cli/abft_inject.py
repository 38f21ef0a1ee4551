"""``tsapps abft-inject``: inject faults into a matrix, to test detection and repair."""

import os
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from tsapps.cli.abft import (
    AnyData,
    Force,
    InPlace,
    JsonLines,
    OutNpy,
    check_copy,
    check_copy_space,
    check_target,
    mode_of_copy,
    placing_unless_changed,
)
from tsapps.cli.abft_report import describe, differences, print_changes, print_line
from tsapps.cli.options import AllowExternal, Header, Index, Quiet, check_input
from tsapps.cli.output import byte_bar, print_table
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.names import split_name

__all__ = ["abft_inject"]


class Kind(StrEnum):
    """Kind of fault."""

    bit = "bit"
    two_bits = "two-bits"
    word = "word"
    words = "words"
    burst = "burst"
    tile = "tile"
    rectangle = "rectangle"


Fault = Annotated[
    Kind,
    typer.Option(
        help="bit, two-bits: flip bits of one element. word, words: overwrite one or three 32-bit words. "
        "burst: overwrite 4,096 bytes. tile: zero 32 × 32 elements. rectangle: add 1 to two corners of a "
        "rectangle and subtract it from the others."
    ),
]


def abft_inject(
    data: AnyData,
    fault: Fault = Kind.bit,
    count: Annotated[int, typer.Option(min=1, help="Number of faults, injected one after the other.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the random faults.")] = 0,
    out: OutNpy = None,
    in_place: InPlace = False,
    force: Force = False,
    allow_external: AllowExternal = False,
    header: Header = None,
    index: Index = None,
    as_json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Inject faults into DATA, to try out abft-verify and abft-correct.

    Writes a corrupted copy, or with --in-place replaces DATA: keep another copy then. Prints the changed elements.
    """
    show_logs(verbose)
    check_target(data, out, in_place=in_place, force=force)
    check_input(data)

    import numpy as np

    from tsapps.apps.abft.inject import inject
    from tsapps.matrix import open_matrix, replacing
    from tsapps.matrix.copy import copy_as_npy, copy_file
    from tsapps.matrix.stored import matrix_of

    matrix = open_matrix(data, header=header, index=index, allow_external=allow_external)
    check_copy(data, matrix, out)
    check_copy_space(data, matrix, out)
    rng = np.random.default_rng(seed)
    target, commit, mode = out or split_name(data)[0], partial(placing_unless_changed, matrix), mode_of_copy(data, out)
    with byte_bar(quiet=quiet) as show, replacing(target, commit=commit, mode=mode) as file:
        write = copy_file if out is None else copy_as_npy
        stored = write(matrix, file, lambda done: show(f"copying {data}", done, matrix.nbytes))
        array = stored.map(file.name)
        places = sorted({place for _ in range(count) for place in inject(array, str(fault), rng)})
        found = list(differences(places, matrix_of(stored, file.name, data), matrix))
    if as_json:
        for change in found:
            print_line(change.as_json())
        print_line(
            {
                "what": "summary",
                "input": os.path.abspath(data),
                "output": os.path.abspath(data if out is None else out),
                "fault": str(fault),
                "count": count,
                "seed": seed,
                "elements": len(found),
            }
        )
    elif not quiet:
        print_table(
            {
                "data": describe(data, matrix),
                "damaged": f"{len(found):,} element{'s' if len(found) != 1 else ''}",
                "written": data if out is None else str(out),
            }
        )
        print_changes(found, len(found), ("is", "was"))
