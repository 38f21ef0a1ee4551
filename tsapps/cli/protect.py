"""``tsapps protect``: write the sidecars and manifests of whole files."""

import time
from enum import StrEnum
from typing import Annotated

import typer

from tsapps.cli.options import Quiet
from tsapps.cli.protected_files import Jobs, JsonLines, Paths, Sidecars, counting, end, print_reports
from tsapps.cli.verbose import Verbose, show_logs

__all__ = ["protect"]


class Hash(StrEnum):
    """Hash of files and tensors."""

    blake3 = "blake3"
    sha256 = "sha256"


def protect(
    paths: Paths,
    parity: Annotated[
        str | None,
        typer.Option(
            metavar="M/N",
            help="Write M parity files for every N files, such as 1/8: M files of each N that are lost can be rebuilt.",
        ),
    ] = None,
    sidecars: Sidecars = None,
    hash_name: Annotated[
        Hash | None, typer.Option("--hash", help="Hash of files and tensors in the manifest.  [default: blake3]")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Protect files that changed in their present state; forget missing ones.")
    ] = False,
    jobs: Jobs = None,
    as_json: JsonLines = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> None:
    """Protect files: write for each a sidecar, from which tsapps repair restores its bytes, and a manifest of hashes.

    Any file is taken as bytes, headers and all; nothing is unpickled. A sidecar, FILE.sidecar, takes 2 % of its file.
    The manifest, tsapps-manifest.json in each directory, has a hash of every file, and of every tensor of .safetensors,
    .npy, .npz, .gguf, .pt, .h5 and .parquet.

    Run it again to continue where it was stopped, or for new files. A protected file that changed is not protected
    again without --update. Exits with 3 if there is one, or if one is missing.
    """
    show_logs(verbose)
    began = time.perf_counter()

    from tsapps.apps.abft.files.protect import protect_files

    with counting("protecting", paths, quiet=quiet) as progress:
        reports = protect_files(
            paths,
            hash_name=None if hash_name is None else str(hash_name),
            parity=parity,
            sidecars=sidecars,
            update=update,
            workers=jobs,
            progress=progress,
        )
        states, n_bytes = print_reports(reports, as_json=as_json, quiet=quiet)
    end(states, n_bytes, began, as_json=as_json, quiet=quiet)
