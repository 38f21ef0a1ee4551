"""The sidecar of a whole file: the exact sums of its bytes, and its entry of the manifest.

Every version of the format is a container with a format, a version and a digest (`at_rest/sidecar.py`), which tell a
later version from corruption.
"""

import errno
import json
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import sums_shape
from tsapps.apps.abft.at_rest.sidecar import (
    FORMAT,
    VERSION,
    Sidecar,
    SidecarError,
    container_digest,
    dump_container,
    load_container,
    sidecar_of,
)
from tsapps.apps.abft.files.manifest import HASHES, FileEntry, LaterVersionError
from tsapps.apps.abft.files.places import is_regular
from tsapps.apps.abft.files.scan import file_layout, read_at
from tsapps.kernels.system.atomic_write import replacing
from tsapps.kernels.system.strict_json import JsonError, parse_json

__all__ = [
    "FileSidecar",
    "check_version",
    "read_damaged_sums",
    "read_file_sidecar",
    "read_file_sums",
    "remove_file_sidecar",
    "write_file_sidecar",
]

# Bytes of the length of a container's header, and maximum bytes of the header.
_LENGTH_BYTES, _MOST_HEADER = 8, 1 << 20


class FileSidecar:
    """What the sidecar of a file holds.

    Parameters
    ----------
    hash_name : str
        One of `HASHES`.
    entry : FileEntry or callable
        The entry, or a function that returns it: parsing that of a file with many tensors takes time.
    sums : Sidecar or None
        None for an empty file.
    """

    def __init__(self, hash_name: str, entry: FileEntry | Callable[[], FileEntry], sums: Sidecar | None) -> None:
        self.hash_name, self._entry, self.sums = hash_name, entry, sums

    @property
    def entry(self) -> FileEntry:
        """The entry of the file in its manifest."""
        if not isinstance(self._entry, FileEntry):
            self._entry = self._entry()
        return self._entry


def write_file_sidecar(
    path: Path, sidecar: FileSidecar, mode: int, *, leftovers: Collection[str] | None = None
) -> None:
    """Write a sidecar atomically, with the permissions `mode` minus the umask; replace one of any version.

    `leftovers` is what `Place.leftovers` returned; by default the directory is searched for them.
    """
    text = np.frombuffer(json.dumps(sidecar.entry.as_json(sidecar.hash_name)).encode(), np.uint8)
    sums = sidecar.sums
    metadata = {"format": FORMAT, "version": VERSION} if sums is None else sums.metadata
    tensors = {} if sums is None else sums.tensors
    with replacing(path, mode=mode, leftovers=leftovers is None or path.name[:40] in leftovers) as file:
        dump_container(file, metadata | {"hash": sidecar.hash_name}, tensors | {"entry": text})


def remove_file_sidecar(path: Path) -> None:
    """Remove a sidecar, if there is one.

    Raises
    ------
    LaterVersionError
        If it is of a later version of the format.
    OSError
        If it cannot be read or removed.
    """
    check_version(path)
    path.unlink(missing_ok=True)


def read_file_sidecar(path: Path) -> FileSidecar:
    """Read a sidecar, and check its digest.

    Raises
    ------
    SidecarError
        If the file is no sidecar of a file, or is corrupted.
    LaterVersionError
        If it is of a later version of the format.
    OSError
        If the file cannot be read.
    """
    sidecar = read_file_sums(path)
    with _told_of_later_versions(path):
        _ = sidecar.entry  # raises its errors here
    return sidecar


@contextmanager
def _told_of_later_versions(path: Path) -> Iterator[None]:
    """Raise LaterVersionError instead of SidecarError if a sidecar is of a later version."""
    try:
        yield
    except SidecarError:
        check_version(path)
        raise


def check_version(path: Path) -> None:
    """Raise `LaterVersionError` if a file is an intact sidecar of a later version: nothing may replace it."""
    if not is_regular(path):
        return
    try:
        found = _later_version(path)
    except (JsonError, KeyError, TypeError, ValueError, AttributeError):
        return  # it is no container, or was corrupted
    except OSError as error:
        if error.errno == errno.EIO:  # the disk has lost a part of it
            return
        raise
    if found is not None:
        raise LaterVersionError(path, found, int(VERSION))


def _later_version(path: Path) -> int | None:
    """Return the version of a sidecar if it is a later one and the content matches its digest."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = parse_json(file.read(min(size, _MOST_HEADER)))
        metadata = header.pop("__metadata__")
        found, digest = int(metadata["version"]), metadata.pop("digest")
        if metadata["format"] != FORMAT or found <= int(VERSION):
            return None
        content = memoryview(file.read())
    places = {name: tensor["data_offsets"] for name, tensor in header.items()}
    contents = {name: content[begin:end] for name, (begin, end) in places.items()}
    return found if digest == container_digest(metadata, contents) else None


def read_file_sums(path: Path) -> FileSidecar:
    """Read a sidecar as `read_file_sidecar` does, and parse its entry only when it is asked for."""
    with _told_of_later_versions(path):
        metadata, tensors = load_container(path)
    if "entry" not in tensors or "hash" not in metadata:
        raise SidecarError(f"{path}: is no sidecar of tsapps protect, but one of abft-encode")
    hash_name = metadata["hash"]

    def entry() -> FileEntry:
        try:
            return FileEntry.of_json(parse_json(tensors["entry"].tobytes()), HASHES[HASHES.index(hash_name)])
        except (JsonError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise SidecarError(f"{path}: is no sidecar of tsapps protect: {error}") from error

    return FileSidecar(hash_name, entry, sidecar_of(metadata, tensors, str(path)) if "exact" in tensors else None)


def read_damaged_sums(path: Path, n_bytes: int) -> Sidecar | None:
    """Return the sums in a sidecar whose digest does not match; None if its size is wrong.

    The sums are the last bytes of the file, so a damaged header does not matter; those that the disk has lost are
    zeros. What is repaired with such sums must be checked by the file's hash.
    """
    of = file_layout(n_bytes)
    shape = sums_shape(of)
    size = 8 * shape[0] * shape[1] * shape[2]
    try:
        begin = os.path.getsize(path) - size
        if begin < 0:
            return None
        sums = read_at(path, begin, size, []).view("<u8").reshape(shape)
    except FileNotFoundError:
        return None
    return Sidecar((1, n_bytes), "uint8", n_bytes, exact=sums.astype(np.uint64))
