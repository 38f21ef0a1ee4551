"""Protection of files: a sidecar for each, a manifest for each directory, and parity if wanted.

Running it again continues where it was stopped: a file with a sidecar, and with the size and time of modification of
its entry, is not read. A file that differs from its entry is not protected again unless `update` says that the change
is meant: corruption must not become the protected state.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path

from tsapps.apps.abft.at_rest.sidecar import SidecarError
from tsapps.apps.abft.files.file_sidecar import FileSidecar, read_file_sidecar, write_file_sidecar
from tsapps.apps.abft.files.inspect_files import known_files
from tsapps.apps.abft.files.manifest import HASHES, FileEntry, Manifest
from tsapps.apps.abft.files.parity import ParityRatio, parse_ratio
from tsapps.apps.abft.files.places import Place, PlaceError, Target, targets_of
from tsapps.apps.abft.files.report import FileReport
from tsapps.apps.abft.files.run import Progress, Workers
from tsapps.apps.abft.files.scan import ChangedFileError, Step, hash_of, scan
from tsapps.apps.abft.files.write_parity import parity_written
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
    for target in targets:
        yield from _protect_directory(target, targets, hash_name, ratio, threads, update=update)


def _protect_directory(
    target: Target,
    targets: list[Target],
    hash_name: str | None,
    ratio: ParityRatio | None,
    workers: Workers,
    *,
    update: bool,
) -> Iterator[FileReport]:
    place = target.place
    manifest, _ = known_files(place)
    if not manifest.files:
        manifest.hash_name = hash_name or HASHES[0]
    elif hash_name not in (None, manifest.hash_name):
        raise PlaceError(
            f"{place.manifest}: has {manifest.hash_name} hashes: leave --hash out, or remove the manifest and sidecars"
        )
    names = place.file_names() if target.names is None else list(target.names)
    place.sidecars.mkdir(parents=True, exist_ok=True)
    changed = False
    for result in workers.map(partial(_protect_file, place, manifest, update), names):
        if result.entry is not None:
            changed = changed or result.report.state == "protected"
            manifest.files[result.name] = result.entry
        yield result.report
    if target.names is None:
        yield from _missing(place, manifest, names, update=update)
        manifest.directories = sorted({*manifest.directories, *_protected_below(target, targets)})
    yield from parity_written(place, manifest, ratio, workers, changed=changed)
    if manifest.files or manifest.directories:
        paths = [path for path in map(place.file, manifest.files) if path.exists()]
        manifest.write(place.manifest, mode_of_result(place.manifest, paths))


def _protected_below(target: Target, targets: list[Target]) -> set[str]:
    """Return the subdirectories of a target that have files, at any depth."""
    top = target.place.directory
    found = set()
    for other in targets:
        if top in other.place.directory.parents and other.place.file_names():
            found.add(other.place.directory.relative_to(top).parts[0])
    return found


def _protect_file(place: Place, manifest: Manifest, update: bool, name: str, step: Step) -> _Result:
    path, sidecar_path = place.file(name), place.sidecar(name)
    try:
        status = os.stat(path)
        known = manifest.files.get(name) or _entry_of(sidecar_path, manifest.hash_name)
        if known is not None:
            same = (status.st_size, status.st_mtime_ns) == (known.n_bytes, known.modified)
            if same and sidecar_path.exists():
                step(status.st_size)
                return _Result(name, FileReport(str(path), "file", "unchanged", "", status.st_size), known)
            if not update and (status.st_size != known.n_bytes or hash_of(path, manifest.hash_name) != known.hash):
                message = (
                    "differs from what was protected: tsapps verify says where; if the change is meant, protect it "
                    "with --update"
                )
                return _Result(name, FileReport(str(path), "file", "changed", message, status.st_size), known)
        seen = scan(path, manifest.hash_name, step)
        write_file_sidecar(
            sidecar_path,
            FileSidecar(manifest.hash_name, seen.entry, seen.sidecar),
            mode_of_result(sidecar_path, [path]),
        )
    except (OSError, ChangedFileError) as error:
        message = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        return _Result(name, FileReport(str(path), "file", "failed", message), manifest.files.get(name))
    return _Result(name, FileReport(str(path), "file", "protected", "", seen.entry.n_bytes), seen.entry)


def _entry_of(sidecar: Path, hash_name: str) -> FileEntry | None:
    """Return the entry in a sidecar that a stopped run wrote; None if there is none with the same hash."""
    try:
        found = read_file_sidecar(sidecar)
    except (SidecarError, FileNotFoundError):
        return None
    return replace(found.entry, group=None) if found.hash_name == hash_name else None


def _missing(place: Place, manifest: Manifest, names: list[str], *, update: bool) -> Iterator[FileReport]:
    """Yield reports of protected files that do not exist; forget them if `update`."""
    for name in sorted(manifest.files.keys() - {*names} - manifest.parity_files):
        path = str(place.file(name))
        if update:
            del manifest.files[name]
            place.sidecar(name).unlink(missing_ok=True)
            yield FileReport(path, "file", "forgotten", "does not exist any more: its sidecar was removed")
        else:
            message = "is missing: tsapps repair may restore it; if it was removed on purpose, protect with --update"
            yield FileReport(path, "file", "missing", message)
