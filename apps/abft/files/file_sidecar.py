"""The sidecar of a whole file: the exact sums of its bytes, and its entry of the manifest."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import SUMS
from tsapps.apps.abft.at_rest.sidecar import (
    FORMAT,
    VERSION,
    Sidecar,
    SidecarError,
    dump_container,
    load_container,
    sidecar_of,
)
from tsapps.apps.abft.files.manifest import HASHES, FileEntry
from tsapps.apps.abft.files.scan import file_layout
from tsapps.kernels.system.atomic_write import replacing
from tsapps.kernels.system.strict_json import JsonError, parse_json

__all__ = ["FileSidecar", "read_damaged_sums", "read_file_sidecar", "write_file_sidecar"]


@dataclass(frozen=True)
class FileSidecar:
    """What the sidecar of a file holds.

    Attributes
    ----------
    hash_name : str
        One of `HASHES`.
    entry : FileEntry
    sums : Sidecar or None
        None for an empty file.
    """

    hash_name: str
    entry: FileEntry
    sums: Sidecar | None


def write_file_sidecar(path: Path, sidecar: FileSidecar, mode: int) -> None:
    """Write a sidecar atomically, with the permissions `mode` minus the umask."""
    entry = {"hash": sidecar.hash_name, "entry": sidecar.entry.as_json(sidecar.hash_name)}
    text = np.frombuffer(json.dumps(entry, ensure_ascii=True).encode(), np.uint8)
    sums = sidecar.sums
    metadata = {"format": FORMAT, "version": VERSION} if sums is None else sums.metadata
    tensors = {} if sums is None else sums.tensors
    with replacing(path, mode=mode) as file:
        dump_container(file, metadata, tensors | {"entry": text})


def read_file_sidecar(path: Path) -> FileSidecar:
    """Read a sidecar, and check its digest.

    Raises
    ------
    SidecarError
        If the file is no sidecar of a file, is corrupted, or has an unknown version.
    OSError
        If the file cannot be read.
    """
    metadata, tensors = load_container(path)
    try:
        found: Any = parse_json(tensors["entry"].tobytes())
        hash_name = HASHES[HASHES.index(found["hash"])]
        entry = FileEntry.of_json(found["entry"], hash_name)
    except (JsonError, KeyError, TypeError, ValueError) as error:
        raise SidecarError(f"{path}: is no sidecar of tsapps protect: {error}") from error
    return FileSidecar(hash_name, entry, sidecar_of(metadata, tensors, str(path)) if "exact" in tensors else None)


def read_damaged_sums(path: Path, n_bytes: int) -> Sidecar | None:
    """Return the sums in a sidecar whose digest does not match; None if its size is wrong.

    The sums are the last bytes of the file, so a damaged header does not matter. What is repaired with such sums must
    be checked by the file's hash.
    """
    of = file_layout(n_bytes)
    shape = of.stripes, SUMS, of.width
    size = 8 * shape[0] * shape[1] * shape[2]
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size < size:
                return None
            file.seek(-size, os.SEEK_END)
            sums = np.frombuffer(file.read(size), "<u8").reshape(shape)
    except FileNotFoundError:
        return None
    return Sidecar((1, n_bytes), "uint8", n_bytes, exact=sums.astype(np.uint64))
