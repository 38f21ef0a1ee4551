"""Which files are protected, and where their sidecars, manifests and parity files lie."""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import glob, has_magic
from os import PathLike, fspath
from pathlib import Path

from tsapps.apps.abft.files.manifest import (
    MANIFEST,
    PARITY,
    SIDECARS_MANIFEST,
    LaterVersionError,
    Manifest,
    ManifestError,
)
from tsapps.apps.abft.files.report import FileReport
from tsapps.kernels.system.logs import logger_of, timed
from tsapps.kernels.system.printable import OneLineError

__all__ = [
    "PARITY",
    "SIDECAR",
    "Place",
    "PlaceError",
    "Target",
    "is_data",
    "is_regular",
    "kind_of",
    "reports_of",
    "targets_of",
]

_log = logger_of(__name__)
#: What the names of sidecars end in.
SIDECAR = ".sidecar"
# Temporary files of kernels/system/atomic_write.py.
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.(tmp|old)", re.DOTALL)


class PlaceError(OneLineError):
    """A path names nothing that can be protected, verified or repaired."""


@dataclass(frozen=True)
class Place:
    """A directory of files, and the directory of their sidecars, manifest and parity files: the same by default."""

    directory: Path
    sidecars: Path

    @property
    def is_apart(self) -> bool:
        """Whether the sidecars lie in another directory than the files."""
        return self.sidecars != self.directory

    @property
    def manifest(self) -> Path:
        """The path of the manifest."""
        return self.sidecars / (SIDECARS_MANIFEST if self.is_apart else MANIFEST)

    def file(self, name: str) -> Path:
        """Return the path of a protected file or parity file."""
        return (self.sidecars if name.startswith(PARITY) else self.directory) / name

    def sidecar(self, name: str) -> Path:
        """Return the path of a file's sidecar."""
        return self.sidecars / (name + SIDECAR)

    def below(self, name: str) -> "Place":
        """Return the place of a subdirectory."""
        return Place(self.directory / name, self.sidecars / name)

    def is_protected(self) -> bool:
        """Return whether there is a manifest or a sidecar of the directory's files."""
        return not self.holds_other_sidecars() and (os.path.exists(self.manifest) or bool(self.sidecar_names()))

    def holds_other_sidecars(self) -> bool:
        """Return whether the directory is one of sidecars of the files of another directory."""
        return os.path.exists(self.directory / SIDECARS_MANIFEST)

    def leftovers(self) -> set[str]:
        """Return the first 40 characters of the names of which there are temporaries."""
        return {name[1:].rsplit(".", 2)[0] for name in _listed(self.sidecars) if _TEMPORARY.fullmatch(name)}

    def sidecar_names(self) -> list[str]:
        """Return the names of all files with a sidecar."""
        return sorted(name.removesuffix(SIDECAR) for name in _listed(self.sidecars) if name.endswith(SIDECAR))

    def file_names(self) -> list[str]:
        """Return the names of all files of the directory that can be protected."""
        return sorted(
            name for name in _listed(self.directory) if is_data(name) and os.path.isfile(self.directory / name)
        )

    def subdirectories(self) -> list[str]:
        """Return the names of subdirectories, and of missing ones with sidecars, without symbolic links."""
        found = _directories(self.directory)
        if self.is_apart and (others := _directories(self.sidecars) - found):
            found |= others & self._protected_directories(others)
        return sorted(found)

    def _protected_directories(self, names: Iterable[str]) -> set[str]:
        """Return the subdirectories in the manifest; if it cannot be used, which of `names` have one of their own."""
        try:
            if is_regular(self.manifest):
                return {*Manifest.read(self.manifest).directories}
        except (ManifestError, LaterVersionError):
            pass  # known_files reports it
        return {name for name in names if os.path.exists(self.below(name).manifest)}


@dataclass(frozen=True)
class Target:
    """A place, and the names of its files that are asked for; None for all, and for those of subdirectories.

    `left_alone` is the report of a directory that is not looked into: of sidecars, or one that may not be listed.
    """

    place: Place
    names: tuple[str, ...] | None
    left_alone: FileReport | None = None

    @property
    def n_bytes(self) -> int:
        """The number of bytes of the target's files, without those of subdirectories."""
        if self.left_alone is not None:
            return 0
        names = self.place.file_names() if self.names is None else self.names
        found = 0
        for path in map(self.place.file, names):
            with suppress(OSError):  # it may vanish at any moment
                found += os.path.getsize(path)
        return found


def reports_of(target: Target, function: Callable[[Target], Iterator[FileReport]]) -> Iterator[FileReport]:
    """Yield the reports of a function about a target, unless it is left alone or was made by a later version."""
    if target.left_alone is not None:
        yield target.left_alone
        return
    try:
        with timed(_log, "finished %s", target.place.directory):
            yield from function(target)
    except LaterVersionError as error:
        kind = "sidecar" if error.path.endswith(SIDECAR) else "manifest"
        yield FileReport(error.path, kind, "failed", error.reason)


def kind_of(name: str) -> str:
    """Return the kind of a protected file in reports."""
    return "parity" if name.startswith(PARITY) else "file"


def is_data(name: str) -> bool:
    """Return whether a file of this name can be protected: it is neither a file of tsapps nor a temporary."""
    of_tsapps = name in (MANIFEST, SIDECARS_MANIFEST) or name.endswith(SIDECAR) or name.startswith(PARITY)
    return not of_tsapps and _TEMPORARY.fullmatch(name) is None


def targets_of(
    paths: Iterable[str | PathLike[str]], sidecars: str | PathLike[str] | None = None, *, exist: bool = True
) -> list[Target]:
    """Return the targets that paths, globs and directories name, each directory once, in order of their paths.

    Parameters
    ----------
    paths : iterable of path-like
        A glob is expanded if no file has its name.
    sidecars : path-like, optional
        A directory for all sidecars, a tree like that of the only path; by default they lie beside their files.
    exist : bool
        Whether every path must exist. If not, a path may name a file that was deleted.

    Raises
    ------
    PlaceError
        If a path does not exist or is no regular file, or if `sidecars` is given with files of several directories, or
        holds the files or others that are protected.
    """
    wanted: dict[Path, set[str] | None] = {}
    for path in _expanded(paths):
        if os.path.isdir(path):
            wanted[Path(path)] = None
            continue
        directory, name = os.path.split(path)
        if not os.path.isfile(path) and (exist or os.path.lexists(path)):
            what = "is no regular file" if os.path.lexists(path) else "no such file or directory"
            raise PlaceError(f"{path}: {what}; expected a file, a directory or a glob")
        if not is_data(name):
            raise PlaceError(f"{path}: is a file of tsapps protect: name the files that it protects")
        names = wanted.setdefault(Path(directory or "."), set())
        if names is not None:
            names.add(name)
    if sidecars is not None and len(wanted) > 1:
        raise PlaceError(f"{fspath(sidecars)}: holds the sidecars of one directory, and {len(wanted)} are given")
    found: dict[Path, Target] = {}
    for root, names in sorted(wanted.items()):
        top = None if sidecars is None else Path(sidecars).resolve()
        place = Place(root, root if sidecars is None or top == root.resolve() else Path(sidecars))
        if names is None and top in root.resolve().parents:
            raise PlaceError(f"{place.sidecars}: holds {root} itself: give a directory of its own for the sidecars")
        for target in _with_subdirectories(Target(place, None if names is None else tuple(sorted(names))), top):
            key = target.place.directory.resolve()
            known = found.get(key)
            if known is None or target.names is None:
                found[key] = target
            elif known.names is not None:  # the same directory by another path
                found[key] = replace(known, names=tuple(sorted({*known.names, *target.names})))
    return list(found.values())


def _with_subdirectories(target: Target, sidecars: Path | None) -> Iterator[Target]:
    """Yield a target, and those of its subdirectories, without the directory of all sidecars."""
    place = target.place
    left_alone = _left_alone(target)
    if left_alone is not None:
        yield replace(target, left_alone=left_alone)
        return
    if place.is_apart and os.path.exists(place.sidecars / MANIFEST):
        raise PlaceError(
            f"{place.sidecars}: has protected files of its own: give a directory without them for the sidecars"
        )
    yield target
    if target.names is not None:
        return
    for name in place.subdirectories():
        below = place.below(name)
        if sidecars is None or below.directory.resolve() != sidecars:
            yield from _with_subdirectories(Target(below, None), sidecars)


def _left_alone(target: Target) -> FileReport | None:
    """Return the report of a directory that is not looked into."""
    place = target.place
    if os.path.isdir(place.directory) and not os.access(place.directory, os.R_OK | os.X_OK):
        return FileReport(str(place.directory), "directory", "failed", "cannot be listed: Permission denied")
    if place.holds_other_sidecars():
        message = "holds the sidecars of another directory: is left alone, with all in it"
        state = "skipped" if target.names is None else "failed"  # files in it were asked for
        return FileReport(str(place.directory), "directory", state, message)
    return None


def _expanded(paths: Iterable[str | PathLike[str]]) -> Iterator[str]:
    for path in [fspath(one) for one in paths]:
        if has_magic(path) and not os.path.lexists(path):
            found: Sequence[str] = sorted(glob(path, recursive=True))
            if not found:
                raise PlaceError(f"{path}: no file has a name like this")
            yield from (one for one in found if os.path.isdir(one) or is_data(os.path.basename(one)))
        else:
            yield path


def _directories(directory: Path) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
    except FileNotFoundError:
        return set()


def _listed(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def is_regular(path: Path) -> bool:
    """Return whether a path leads to a regular file."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return False
        raise
