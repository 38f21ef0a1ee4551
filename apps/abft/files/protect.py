"""Protection of files: a sidecar for each, a manifest for each directory, and parity if wanted.

Running it again continues where it was stopped: a file with a sidecar, and with the size and time of modification of
its entry, is not read. A file that differs from its entry is not protected again unless `update` says that the change
is meant: corruption must not become the protected state.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

from tsapps.apps.abft.at_rest.sidecar import SidecarError
from tsapps.apps.abft.files.file_sidecar import (
    FileSidecar,
    check_version,
    read_file_sidecar,
    remove_file_sidecar,
    write_file_sidecar,
)
from tsapps.apps.abft.files.inspect_files import known_files, write_manifest
from tsapps.apps.abft.files.manifest import HASHES, FileEntry, LaterVersionError, Manifest, ManifestError
from tsapps.apps.abft.files.parity import ParityRatio, parse_ratio
from tsapps.apps.abft.files.places import Place, PlaceError, Target, is_regular, reports_of, targets_of
from tsapps.apps.abft.files.report import FileReport
from tsapps.apps.abft.files.run import Progress, Workers
from tsapps.apps.abft.files.scan import ChangedFileError, Step, hash_of, scan
from tsapps.apps.abft.files.write_parity import parity_written
from tsapps.kernels.system.atomic_write import taking_turns
from tsapps.kernels.system.permissions import mode_of_result

__all__ = ["protect_files"]


@dataclass(frozen=True)
class _Result:
    """What became of a file, and its entry in the manifest; None if it has none."""

    name: str
    report: FileReport
    entry: FileEntry | None


def protect_files(
    paths: Iterable[str | PathLike[str]],
    *,
    hash_name: str | None = None,
    parity: str | None = None,
    sidecars: str | PathLike[str] | None = None,
    update: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[FileReport]:
    """Write the sidecars and manifests of files, from which they can be verified and repaired.

    Parameters
    ----------
    paths : iterable of path-like
        Files, globs and directories; a directory stands for all files in it and below.
    hash_name : {"blake3", "sha256"}, optional
        The hash of files and tensors; by default that of the existing manifest, or "blake3".
    parity : str, optional
        Parity files per files, such as "1/8": from them, as many files of each group can be rebuilt if they are lost.
        By default that of the existing manifest, or none.
    sidecars : path-like, optional
        The directory for all that is written, if not beside the files.
    update : bool, optional
        Whether to protect changed files in their present state, and to forget missing ones.
    workers : int, optional
        Number of threads; by default, that of the cores.
    progress : callable, optional
        Called with the number of bytes read since the last call.

    Yields
    ------
    FileReport

    Raises
    ------
    PlaceError
        If a path does not exist, or a manifest has another hash.
    ParityError
        If `parity` is invalid, or needs a library that is not installed.
    ValueError
        If `hash_name` is unknown.
    """
    if hash_name is not None and hash_name not in HASHES:
        raise ValueError(f"hash {hash_name!r}: expected one of {', '.join(HASHES)}")
    ratio = None if parity is None else parse_ratio(parity)
    threads = Workers(workers, progress)
    targets = targets_of(paths, sidecars)
    below = _directories_with_files(targets)
    for target in targets:
        yield from reports_of(
            target,
            partial(_protect_directory, below=below, hash_name=hash_name, ratio=ratio, workers=threads, update=update),
        )


def _protect_directory(
    target: Target,
    *,
    below: Mapping[Path, set[str]],
    hash_name: str | None,
    ratio: ParityRatio | None,
    workers: Workers,
    update: bool,
) -> Iterator[FileReport]:
    place = target.place
    manifest, state = known_files(place)
    if state == "corrupt" and not manifest.files:
        raise PlaceError(
            f"{place.manifest}: is no manifest of tsapps protect, or was corrupted, and no sidecar is there from which "
            "it could be written again: move it away"
        )
    before = {*manifest.files}
    if not manifest.files:
        manifest.hash_name = hash_name or HASHES[0]
    elif hash_name not in (None, manifest.hash_name):
        raise PlaceError(
            f"{place.manifest}: has {manifest.hash_name} hashes: leave --hash out, or remove the manifest and sidecars"
        )
    names = place.file_names() if target.names is None else list(target.names)
    if names:
        place.sidecars.mkdir(parents=True, exist_ok=True)
        if place.is_apart and state == "missing":  # marks a directory of sidecars before it has any
            write_manifest(place, manifest)
    leftovers = place.leftovers()
    for result in workers.map(partial(_protect_file, place, manifest, update, leftovers), names):
        if result.entry is not None:
            manifest.files[result.name] = result.entry
        yield result.report
    if target.names is None:
        yield from _missing(place, manifest, names, update=update)
        yield from _missing_directories(place, manifest, below.get(place.directory, set()), update=update)
    yield from parity_written(place, manifest, ratio, workers)
    if manifest.files or manifest.directories or state != "missing":
        place.sidecars.mkdir(parents=True, exist_ok=True)
        with taking_turns(place.sidecars):
            _take_over(place, manifest, before)
            write_manifest(place, manifest)


def _directories_with_files(targets: list[Target]) -> dict[Path, set[str]]:
    """Return, for each directory, its subdirectories that have files to protect, at any depth."""
    found: dict[Path, set[str]] = {}
    for target in targets:
        directory = target.place.directory
        if target.left_alone is None and target.place.file_names():
            for parent in directory.parents:
                found.setdefault(parent, set()).add(directory.relative_to(parent).parts[0])
    return found


def _take_over(place: Place, manifest: Manifest, before: set[str]) -> None:
    """Add the files that another process has entered in the manifest since this one has read it.

    Raises
    ------
    LaterVersionError
        If that process is of a later version.
    """
    try:
        now = Manifest.read(place.manifest)
    except (FileNotFoundError, ManifestError):
        return
    if now.hash_name == manifest.hash_name:
        new = now.files.keys() - before - manifest.files.keys() - now.parity_files
        manifest.files |= {name: now.files[name] for name in new}


def _protect_file(
    place: Place, manifest: Manifest, update: bool, leftovers: Collection[str], name: str, step: Step
) -> _Result:
    path, sidecar_path = place.file(name), place.sidecar(name)
    try:
        status = os.stat(path)
        known = manifest.files.get(name)
        if not _is_as(status, known):  # a stopped run, or save_file, may have written the sidecar alone
            own = _entry_of(sidecar_path, manifest.hash_name, is_ours=known is not None)
            known = own if _is_as(status, own) else known or own
        if known is not None:
            if _is_as(status, known) and os.path.exists(sidecar_path):
                step(status.st_size)
                return _Result(name, FileReport(str(path), "file", "unchanged", "", status.st_size), known)
            if not update and (
                status.st_size != known.n_bytes or hash_of(path, manifest.hash_name, step) != known.hash
            ):
                message = (
                    "differs from what was protected: tsapps verify says where; if the change is meant, protect it "
                    "with --update"
                )
                return _Result(name, FileReport(str(path), "file", "changed", message, status.st_size), known)
        check_version(sidecar_path)
        seen = scan(path, manifest.hash_name, step)
        write_file_sidecar(
            sidecar_path,
            FileSidecar(manifest.hash_name, seen.entry, seen.sidecar),
            mode_of_result(sidecar_path, [path]),
            leftovers=leftovers,
        )
    except LaterVersionError as error:
        message = f"its sidecar {error.reason}"
        return _Result(name, FileReport(str(path), "file", "failed", message), manifest.files.get(name))
    except (OSError, ChangedFileError, SidecarError) as error:
        message = getattr(error, "strerror", None) or str(error)
        if isinstance(error, OSError) and error.filename == str(sidecar_path):
            message = f"{sidecar_path.name}: {message}"
        return _Result(name, FileReport(str(path), "file", "failed", message), manifest.files.get(name))
    return _Result(name, FileReport(str(path), "file", "protected", "", seen.entry.n_bytes), seen.entry)


def _is_as(status: os.stat_result, entry: FileEntry | None) -> bool:
    """Return whether a file has the size and the time of modification of an entry."""
    return entry is not None and (status.st_size, status.st_mtime_ns) == (entry.n_bytes, entry.modified)


def _entry_of(sidecar: Path, hash_name: str, *, is_ours: bool) -> FileEntry | None:
    """Return the entry in a sidecar; None if there is none with the same hash.

    Raises
    ------
    SidecarError
        If the file is no sidecar, unless it `is_ours`, because the manifest names its file: it may be of another
        program, or be all that is left of what protected a file that was corrupted since.
    LaterVersionError
        If the sidecar is of a later version.
    """
    if not is_regular(sidecar):
        return None
    try:
        found = read_file_sidecar(sidecar)
    except SidecarError as error:
        if is_ours:
            return None
        raise SidecarError(
            f"{sidecar.name} is no sidecar of tsapps protect, or was corrupted, and no manifest names this file: "
            "move it away, and run this again"
        ) from error
    return replace(found.entry, group=None) if found.hash_name == hash_name else None


def _missing(place: Place, manifest: Manifest, names: list[str], *, update: bool) -> Iterator[FileReport]:
    """Yield reports of protected files that do not exist; forget them if `update`."""
    for name in sorted(manifest.files.keys() - {*names} - manifest.parity_files):
        path = str(place.file(name))
        if update:
            try:
                remove_file_sidecar(place.sidecar(name))
            except (LaterVersionError, OSError) as error:
                why = error.reason if isinstance(error, LaterVersionError) else f"stays: {error.strerror or error}"
                yield FileReport(path, "file", "failed", f"is missing, and its sidecar {why}")
                continue
            del manifest.files[name]
            yield FileReport(path, "file", "forgotten", "does not exist any more: its sidecar was removed")
        else:
            message = "is missing: tsapps repair may restore it; if it was removed on purpose, protect with --update"
            yield FileReport(path, "file", "missing", message)


def _missing_directories(place: Place, manifest: Manifest, below: set[str], *, update: bool) -> Iterator[FileReport]:
    """Enter the subdirectories with files, and yield reports of those that are missing; forget them if `update`."""
    for name in {*manifest.directories} - below:
        one = place.below(name)
        if one.is_protected():
            continue
        if update:
            manifest.directories.remove(name)
            yield FileReport(str(one.directory), "directory", "forgotten", "does not exist any more")
        else:
            message = "is missing, with all that was protected in it: if this is on purpose, protect with --update"
            yield FileReport(str(one.directory), "directory", "missing", message)
    manifest.directories = sorted({*manifest.directories, *below})
