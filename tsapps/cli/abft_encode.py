"""``tsapps abft-encode``: encode a matrix and write its checksums to a sidecar."""

import os
import time
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsapps.cli.abft import AnyData, placing_unless_changed, same_file, sidecar_path
from tsapps.cli.abft_report import describe
from tsapps.cli.options import (
    AllowExternal,
    Device,
    Header,
    Index,
    Json,
    Quiet,
    check_disk_space,
    check_input,
    check_output_file,
    choose,
)
from tsapps.cli.output import byte_bar, gigabytes, print_json, print_table
from tsapps.cli.verbose import Verbose, show_logs
from tsapps.errors import UsageError
from tsapps.names import split_name

if TYPE_CHECKING:
    from tsapps.apps.abft import Sidecar
    from tsapps.matrix import Matrix

__all__ = ["abft_encode"]


class Code(StrEnum):
    """Kind of checksums."""

    exact = "exact"
    float = "float"
    both = "both"


class Block(StrEnum):
    """Rows or columns per float checksum."""

    b256 = "256"
    b512 = "512"
    b1024 = "1024"


CodeOption = Annotated[
    Code,
    typer.Option(
        help="exact: integer checksums, which detect every change of up to four 32-bit words per block and repair two, "
        "bit by bit. float: floating-point row and column checksums, which carry over to products. both: the two."
    ),
]
Weights = Annotated[int, typer.Option(min=1, max=4, help="Float checksums per row and per column of a block.")]
BlockOption = Annotated[Block, typer.Option(help="Rows and columns per float checksum.")]
OutSidecar = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="File to write.  [default: DATA.abft, next to DATA]")
]


def abft_encode(
    ctx: typer.Context,
    data: AnyData,
    code: CodeOption = Code.exact,
    weights: Weights = 2,
    block: BlockOption = Block.b512,
    out: OutSidecar = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    device: Device = "auto",
    allow_external: AllowExternal = False,
    header: Header = None,
    index: Index = None,
    as_json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Write the checksums of DATA to a sidecar, from which abft-verify and abft-correct detect and repair corruption.

    Reads DATA in blocks, whatever its size, and takes elements bit by bit (NaN payloads, negative zeros and denormals
    are kept). The exact code takes about 2 % of the size of DATA. The sidecar is written as a whole or not at all.
    """
    show_logs(verbose)
    began = time.perf_counter()
    out = out or sidecar_path(data)
    check_input(data)
    file = split_name(data)[0]
    if same_file(out, file):
        raise UsageError(f"{out}: is DATA itself: choose another --out")
    check_output_file(out, force=force)
    choose(device)

    from tsapps.apps.abft import encode
    from tsapps.apps.abft.at_rest.sidecar import sidecar_bytes
    from tsapps.matrix import open_matrix

    with byte_bar(quiet=quiet) as show:
        matrix = open_matrix(data, header=header, index=index, allow_external=allow_external)
        check_disk_space(out, sidecar_bytes(matrix.shape, matrix.dtype, str(code), weights, int(block)))

        def tell(done: int) -> None:
            show(f"encoding {data}", done, matrix.nbytes)

        sidecar = encode(matrix, code=code, weights=weights, block=int(block), device=device, progress=tell)
    check_output_file(out, force=force)  # again: encoding may take hours, in which another program may create `out`
    _write(sidecar, matrix, out, file)
    summary = {
        "kind": "tsapps abft-encode",
        "command": ctx.meta["tsapps.command"],
        "input": os.path.abspath(data),
        "output": os.path.abspath(out),
        "n": matrix.shape[0],
        "d": matrix.shape[1],
        "dtype": matrix.dtype.name,
        "bytes": matrix.nbytes,
        "code": str(code),
        "weights": weights if code != Code.exact else None,
        "block": int(block) if code != Code.exact else None,
        "sidecar_bytes": os.path.getsize(out),
        "seconds": time.perf_counter() - began,
    }
    if as_json:
        print_json(summary)
    elif not quiet:
        print_table(_table(summary, describe(data, matrix), out))


def _write(sidecar: "Sidecar", matrix: "Matrix", out: Path, file: str) -> None:
    """Write the sidecar to `out`; raise `MatrixError` if `file`, which holds the matrix, has changed."""
    from tsapps.apps.abft.at_rest.sidecar import dump_sidecar
    from tsapps.kernels.system.permissions import mode_of_result
    from tsapps.matrix import replacing

    with replacing(out, commit=partial(placing_unless_changed, matrix), mode=mode_of_result(out, [file])) as to:
        dump_sidecar(to, sidecar)


def _table(summary: dict[str, Any], described: str, out: Path) -> dict[str, str]:
    size, nbytes, seconds = summary["sidecar_bytes"], summary["bytes"], summary["seconds"]
    return {
        "data": described,
        "code": summary["code"],
        "seconds": f"{seconds:.2f} ({gigabytes(int(nbytes / seconds))} a second)",
        "written": f"{out}: {gigabytes(size)}, {100 * size / nbytes:.1f} % of the data",
    }
