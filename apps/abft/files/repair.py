"""Repair of protected files: damaged files get their original bytes, from their sidecars or from parity.

A repaired file is written beside the damaged one, its hash is checked, and only then is it renamed. So a file is either
as it was or repaired, whenever the process is killed. A file that was written to after it was protected may have been
changed on purpose: its content is kept as ``NAME.damaged``, and so is that of all files if the manifest is lost.
"""

import errno
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path

from tsapps.apps.abft.files.file_sidecar import FileSidecar, write_file_sidecar
from tsapps.apps.abft.files.inspect_files import Finding, Findings, inspected, write_manifest
from tsapps.apps.abft.files.manifest import hasher
from tsapps.apps.abft.files.places import PARITY, Place, Target, kind_of, reports_of
from tsapps.apps.abft.files.rebuild import rebuilding
from tsapps.apps.abft.files.report import FileReport
from tsapps.apps.abft.files.run import Progress, Workers
from tsapps.apps.abft.files.scan import PIECE_BYTES, ChangedFileError, pieces_of, scan, stamp_of
from tsapps.apps.abft.files.verify import STALE, beyond_repair, described, protected_targets, reports_of_others
from tsapps.kernels.system.atomic_write import replacing, taking_turns
from tsapps.kernels.system.file_attributes import copy_attributes
from tsapps.kernels.system.permissions import PRIVATE, mode_of_result

__all__ = ["repair_files"]

# Errors of os.link on file systems without hard links, and for files that have as many as they can.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def repair_files(
    paths: Iterable[str | PathLike[str]],
    *,
    sidecars: str | PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[FileReport]:
    """Restore damaged and missing files, sidecars and manifests, as far as certain; parameters as for `verify_files`.

    Yields
    ------
    FileReport
        For every protected file, and for every sidecar and manifest that was written again.

    Raises
    ------
    PlaceError
        If a path does not exist, or nothing there is protected.
    """
    threads = Workers(workers, progress)
    for target in protected_targets(paths, sidecars):
        yield from reports_of(target, partial(_repair_target, threads))


def _repair_target(workers: Workers, target: Target) -> Iterator[FileReport]:
    place, findings = target.place, inspected(target.place, target.names, workers)
    leftovers = place.leftovers()
    for name in sorted(findings.files) if target.names is None else target.names:
        if name in findings.files:
            yield _repair(place, findings, findings.files[name], workers)
            yield from _sidecar_repaired(place, findings, findings.files[name], leftovers, workers)
    failure = _manifest_failure(place, findings)
    if failure is not None:
        yield failure
    yield from reports_of_others(target, findings, repaired=failure is None)


def _manifest_failure(place: Place, findings: Findings) -> FileReport | None:
    """Write the manifest again if that is needed and possible; return the report of a failure."""
    if findings.manifest_state in ("ok", "lost"):
        return None
    try:
        write_manifest(place, findings.manifest)
    except OSError as error:
        message = f"could not be written again: {error.strerror or error}"
        return FileReport(str(place.manifest), "manifest", "failed", message)
    return None


def _repair(place: Place, findings: Findings, found: Finding, workers: Workers) -> FileReport:
    """Repair a file if it is damaged and that is possible."""
    path, kind, size = str(place.file(found.name)), kind_of(found.name), found.entry.n_bytes
    if found.state == "failed":
        return FileReport(path, kind, "failed", found.why, size)
    if found.damage is None or found.repair is None:
        if findings.is_stale(found.name):
            return FileReport(path, kind, "lost", STALE, size)
        return FileReport(path, kind, "ok", "", size) if found.damage is None else beyond_repair(place, findings, found)
    try:
        kept = _write(place, findings, found, workers)
    except (OSError, ChangedFileError) as error:
        message = f"could not be repaired: {getattr(error, 'strerror', None) or error}"
        return FileReport(path, kind, "failed", message, size)
    source = "parity" if found.repair.lost else "its sidecar"
    message = f"{found.why}{described(found.damage, found.entry)}: restored from {source}"
    if kept is not None:
        message += f"; what was there is now {kept}"
    findings.files[found.name] = replace(found, damage=None, repair=None, state="ok", why="")
    tensors = tuple(found.damage.tensors(found.entry))
    return FileReport(path, kind, "repaired", message, size, found.repair.words, tensors)


def _write(place: Place, findings: Findings, found: Finding, workers: Workers) -> Path | None:
    """Replace a file by its original bytes; return the path to which its content was moved, if it was kept."""
    path, group, hash_name = place.file(found.name), findings.group(found.name), findings.manifest.hash_name
    members = findings.members(found.name)
    kept: list[Path] = []

    @contextmanager
    def placing() -> Iterator[None]:
        if _stamp(path) != found.stamp:
            raise ChangedFileError(path)
        # Without a manifest, it is not certain that the sidecar is that of this file.
        if found.stamp and (found.stamp[-1] != found.entry.modified or findings.manifest_state != "ok"):
            kept.append(_kept(path))
        yield

    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hasher(hash_name)
    others = [place.file(name) for name in members if os.path.exists(place.file(name))]
    with replacing(path, commit=placing, mode=mode_of_result(path, others)) as file:
        for piece in rebuilding(place, found.name, members, group, workers.step):
            digest.update(piece.data)
            file.write(piece.data)
        if digest.hexdigest() != found.entry.hash:
            raise ChangedFileError(path)
        file.flush()
        if found.stamp:
            with open(path, "rb") as damaged:
                copy_attributes(str(path), damaged.fileno(), file.fileno())
        os.utime(file.fileno(), ns=(time.time_ns(), found.entry.modified))
    return kept[0] if kept else None


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        return stamp_of(os.stat(path))
    except FileNotFoundError:
        return ()


def _kept(path: Path) -> Path:
    """Give the content of a file a second name, so that it remains when the file is replaced; return that name."""
    real, number = path.resolve(), 1
    name = real.with_name(f"{real.name}.damaged")
    with taking_turns(real.parent):
        while os.path.lexists(name):
            number += 1
            name = real.with_name(f"{real.name}.damaged-{number}")
        try:
            os.link(real, name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _copy(real, name)
    return name


def _copy(path: Path, to: Path) -> None:
    """Copy a file with its attributes; what the disk has lost of it is zeros in the copy."""
    with open(path, "rb") as original, replacing(to, mode=PRIVATE) as copy:
        status = os.fstat(original.fileno())
        for piece in pieces_of(path, status.st_size, PIECE_BYTES, unread=[]):
            copy.write(piece.data)
        copy.flush()
        copy_attributes(str(path), original.fileno(), copy.fileno())
        os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _sidecar_repaired(
    place: Place, findings: Findings, found: Finding, leftovers: Collection[str], workers: Workers
) -> Iterator[FileReport]:
    """Write the sidecar of an intact file again, if it is missing or corrupted."""
    if found.sidecar == "ok" or found.damage is not None or found.state == "failed":
        return
    path, sidecar = place.file(found.name), place.sidecar(found.name)
    if found.sidecar == "failed":
        yield FileReport(str(sidecar), "sidecar", "failed", found.sidecar_why)
        return
    try:
        seen = scan(path, findings.manifest.hash_name, workers.step)
        if seen.entry.hash != found.entry.hash:
            raise ChangedFileError(path)
        group = findings.group(found.name) if found.name.startswith(PARITY) else None
        content = FileSidecar(findings.manifest.hash_name, replace(found.entry, group=group), seen.sidecar)
        write_file_sidecar(sidecar, content, mode_of_result(sidecar, [path]), leftovers=leftovers)
    except (OSError, ChangedFileError) as error:
        message = f"could not be written again: {getattr(error, 'strerror', None) or error}"
        yield FileReport(str(sidecar), "sidecar", "failed", message)
        return
    what = "was missing" if found.sidecar == "missing" else "was corrupted"
    yield FileReport(str(sidecar), "sidecar", "repaired", f"{what}: written again")
