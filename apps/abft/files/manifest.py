"""The manifest of a directory's protected files: ``tsapps-manifest.json``.

    {
      "format": "tsapps-manifest", "version": 1, "hash": "blake3",
      "files": {
        "model.safetensors": {
          "bytes": 4096, "modified": 1764450000000000000, "blake3": "…",
          "tensors": {"norm.weight": {"dtype": "BF16", "shape": [1024], "begin": 80, "end": 2128, "blake3": "…"}, …}
        }, …
      },
      "directories": ["subdirectory", …],
      "parity": [{"files": ["a", "b", …], "parity": ["tsapps-parity-001-1", …], "of": "…", "per": 8}, …],
      "digest": "…"
    }

A manifest names the files of its own directory only, and the subdirectories that have manifests. `modified` is the
time of the last modification in nanoseconds since 1970; `begin` and `end` are offsets in the file. "blake3" is "sha256"
if that hash was chosen; both are what b3sum and sha256sum print. `digest` is the SHA-256 of the manifest without it, as
JSON with sorted keys and no spaces; `of`, that of the hashes of the group's files, so that it is known whether parity
is that of their present state; `per` is the number of files that was asked for per group.

In a directory of sidecars (``--sidecars``), the manifest is ``tsapps-sidecars.json``: this name marks the directory.
Every version of the format has `format`, `version` and `digest`, which tell a later version from corruption.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import blake3

from tsapps.kernels.system.atomic_write import replacing
from tsapps.kernels.system.printable import OneLineError
from tsapps.kernels.system.strict_json import JsonError, parse_json

__all__ = [
    "HASHES",
    "MANIFEST",
    "PARITY",
    "SIDECARS_MANIFEST",
    "FileEntry",
    "LaterVersionError",
    "Manifest",
    "ManifestError",
    "ParityGroup",
    "Tensor",
    "hasher",
]

#: The name of the manifest beside its files, and in a directory of sidecars; and the hashes.
MANIFEST, SIDECARS_MANIFEST, HASHES = "tsapps-manifest.json", "tsapps-sidecars.json", ("blake3", "sha256")
#: What the names of parity files begin with.
PARITY = "tsapps-parity-"
_FORMAT, _VERSION = "tsapps-manifest", 1


class ManifestError(OneLineError):
    """A file is not a manifest, or it is a manifest that is corrupted."""


class LaterVersionError(OneLineError):
    """An intact manifest or sidecar is of a later version of the format: nothing may be written in its place.

    Attributes
    ----------
    path : str
    reason : str
        The message without the path.
    """

    def __init__(self, path: str | PathLike[str], found: int, known: int) -> None:
        self.path = fspath(path)
        self.reason = (
            f"was made by a later version of tsapps: has format version {found}, expected version {known} or lower: "
            "upgrade tsapps"
        )
        super().__init__(f"{self.path}: {self.reason}")


def hasher(name: str) -> Any:
    """Return a new hash object of `HASHES`, with `update` and `hexdigest`."""
    return blake3.blake3() if name == "blake3" else hashlib.new(name)


class Tensor(NamedTuple):
    """A tensor, or another named part, of a file.

    Attributes
    ----------
    begin, end : int
        Offsets of its first byte and after its last byte.
    dtype : str or None
        As the file names it; None if the file does not say, or the bytes are compressed.
    shape : tuple of int or None
    hash : str
        The hash of the bytes, in hexadecimal; empty if not known yet.
    """

    begin: int
    end: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    hash: str = ""


@dataclass(frozen=True)
class FileEntry:
    """What a manifest says of a file.

    Attributes
    ----------
    n_bytes : int
    modified : int
        Time of the last modification, in nanoseconds since 1970.
    hash : str
        The hash of all bytes, in hexadecimal.
    tensors : dict of str to Tensor
        The parts that the file's format names; empty if it names none, or is not known.
    group : ParityGroup or None
        In the sidecar of a parity file: the group, so that the manifest can be restored from the sidecars.
    """

    n_bytes: int
    modified: int
    hash: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    group: "ParityGroup | None" = None

    def as_json(self, hash_name: str) -> dict[str, Any]:
        """Return the entry as a JSON object."""
        tensors = {}
        for name, tensor in self.tensors.items():
            found: dict[str, Any] = {"begin": tensor.begin, "end": tensor.end, hash_name: tensor.hash}
            if tensor.dtype is not None:
                found = {"dtype": tensor.dtype, "shape": list(tensor.shape or ())} | found
            tensors[name] = found
        entry = {"bytes": self.n_bytes, "modified": self.modified, hash_name: self.hash, "tensors": tensors}
        return entry if self.group is None else entry | {"group": asdict(self.group)}

    @classmethod
    def of_json(cls, found: dict[str, Any], hash_name: str) -> "FileEntry":
        """Return the entry that a JSON object describes; raises KeyError, TypeError or ValueError if it is none."""
        tensors = {
            str(name): Tensor(
                _count(one["begin"]),
                _count(one["end"]),
                None if "dtype" not in one else str(one["dtype"]),
                None if "dtype" not in one else tuple(map(_count, one["shape"])),
                str(one[hash_name]),
            )
            for name, one in found["tensors"].items()
        }
        group = None if "group" not in found else ParityGroup.of_json(found["group"])
        return cls(_count(found["bytes"]), _time(found["modified"]), str(found[hash_name]), tensors, group)


@dataclass(frozen=True)
class ParityGroup:
    """Files of a directory, and the parity files from which as many of them can be rebuilt.

    Attributes
    ----------
    files, parity : tuple of str
        Names in the directory.
    of : str
        `Manifest.contents` of the files when the parity was computed; empty if not known.
    per : int
        The number of files that was asked for per group; 0 if not known.
    """

    files: tuple[str, ...]
    parity: tuple[str, ...]
    of: str = ""
    per: int = 0

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> "ParityGroup":
        """Return the group that a JSON object describes; raises as `FileEntry.of_json`."""
        files, parity = tuple(map(_plain, found["files"])), tuple(map(_plain, found["parity"]))
        if any(name.startswith(PARITY) for name in files) or not all(name.startswith(PARITY) for name in parity):
            raise ValueError("a group has parity files among its files, or others among its parity files")
        if not files or not parity or len({*files, *parity}) < len(files) + len(parity):
            raise ValueError("a group has no files, or has one twice")
        return cls(files, parity, str(found.get("of", "")), _count(found.get("per", 0)))


@dataclass
class Manifest:
    """The protected files of a directory.

    Attributes
    ----------
    hash_name : str
        One of `HASHES`.
    files : dict of str to FileEntry
        All protected files, parity files too, by name.
    directories : list of str
        Subdirectories with a manifest.
    parity : list of ParityGroup
    """

    hash_name: str = "blake3"
    files: dict[str, FileEntry] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    parity: list[ParityGroup] = field(default_factory=list)

    @property
    def parity_files(self) -> set[str]:
        """The names of all parity files."""
        return {name for group in self.parity for name in group.parity}

    def contents(self, names: Iterable[str]) -> str:
        """Return the SHA-256 of the hashes of files, one a line."""
        return hashlib.sha256("\n".join(self.files[name].hash for name in names).encode()).hexdigest()

    def is_stale(self, group: ParityGroup) -> bool:
        """Return whether the parity of a group was computed from other contents of its files."""
        return bool(group.of) and not (self.files.keys() >= {*group.files} and group.of == self.contents(group.files))

    def write(self, path: str | PathLike[str], mode: int = 0o666) -> None:
        """Write the manifest atomically; `mode` are its permissions, minus the umask."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "hash": self.hash_name,
            "files": {
                name: replace(entry, group=None).as_json(self.hash_name) for name, entry in sorted(self.files.items())
            },
            "directories": sorted(self.directories),
            "parity": [asdict(group) for group in self.parity],
        }
        content["digest"] = _digest(content)
        with replacing(path, mode=mode) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> "Manifest":
        """Read a manifest, and check its digest.

        Raises
        ------
        ManifestError
            If the file is no manifest, or is corrupted.
        LaterVersionError
            If it is of a later version of the format.
        OSError
            If the file cannot be read.
        """
        name = fspath(path)
        try:
            found = parse_json(Path(path).read_bytes().decode("utf-8", "surrogateescape"))
            if found["format"] != _FORMAT or type(found["version"]) is not int or found["version"] < 1:
                raise ManifestError(f"{name}: is no manifest of tsapps protect")
            digest = found.pop("digest")
            if digest != _digest(found):
                raise ManifestError(f"{name}: was corrupted: tsapps repair writes it again")
            if found["version"] > _VERSION:
                raise LaterVersionError(name, found["version"], _VERSION)
            hash_name = HASHES[HASHES.index(found["hash"])]
            return cls(
                hash_name,
                {_plain(file): FileEntry.of_json(entry, hash_name) for file, entry in found["files"].items()},
                [_plain(one) for one in found["directories"]],
                [ParityGroup.of_json(one) for one in found["parity"]],
            )
        except (JsonError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, (ManifestError, LaterVersionError)):
                raise
            raise ManifestError(f"{name}: is no manifest of tsapps protect, or was corrupted: {error}") from error


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _count(found: Any) -> int:
    if type(found) is not int or found < 0:
        raise TypeError(f"{str(found)[:40]} is not a count")
    return found


def _time(found: Any) -> int:
    if type(found) is not int or abs(found) >= 1 << 63:
        raise TypeError(f"{str(found)[:40]} is not a time")
    return found


def _plain(name: Any) -> str:
    """Return a name if it names a file of the same directory; otherwise raise ValueError."""
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{str(name)[:80]!r} is not the name of a file")
    os.fsencode(name)  # raises UnicodeEncodeError for names that no file can have
    return name
