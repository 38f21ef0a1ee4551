"""Repair of protected files: damaged files get their original bytes, from their sidecars or from parity.

A repaired file is written beside the damaged one, its hash is checked, and only then is it renamed. So a file is either
as it was or repaired, whenever the process is killed. A file that was written to after it was protected may have been
changed on purpose: its content is kept as ``NAME.damaged``, and so is that of all files if the manifest is lost.
"""

import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

from tsapps.apps.abft.files.damage import Damage
from tsapps.apps.abft.files.file_sidecar import FileSidecar, write_file_sidecar
from tsapps.apps.abft.files.inspect_files import Finding, Findings, inspected, write_manifest
from tsapps.apps.abft.files.manifest import hasher
from tsapps.apps.abft.files.places import PARITY, Place, kind_of, unreadable
from tsapps.apps.abft.files.rebuild import Member, rebuilding, right_damage
from tsapps.apps.abft.files.report import FileReport
from tsapps.apps.abft.files.run import Progress, Workers
from tsapps.apps.abft.files.scan import ChangedFileError, scan, stamp_of
from tsapps.apps.abft.files.verify import (
    BEYOND_REPAIR,
    STALE,
    UNREADABLE,
    described,
    protected_targets,
    reports_of_others,
)
from tsapps.kernels.system.atomic_write import replacing
from tsapps.kernels.system.file_attributes import copy_attributes
from tsapps.kernels.system.permissions import mode_of_result

__all__ = ["repair_files"]


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
        if target.unreadable:
            yield unreadable(target)
            continue
        place, findings = target.place, inspected(target.place, target.names, threads)
        wanted = sorted(findings.files) if target.names is None else target.names
        names = [name for name in wanted if name in findings.files]
        reports: dict[str, FileReport] = {}
        left = -1
        while left != len(reports):  # a repaired file may be what the parity of another one needs
            left = len(reports)
            for name in names:
                if name not in reports:
                    _repair(place, findings, name, threads, reports)
        leftovers = place.leftovers()
        for name in names:
            yield reports.get(name) or _not_repaired(place, findings, findings.files[name])
            yield from _sidecar_repaired(place, findings, findings.files[name], leftovers, threads)
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


def _not_repaired(place: Place, findings: Findings, found: Finding) -> FileReport:
    path, kind, size = str(place.file(found.name)), kind_of(found.name), found.entry.n_bytes
    if found.state == "failed":
        return FileReport(path, kind, "failed", found.why, size)
    if findings.is_stale(found.name):
        return FileReport(path, kind, "lost", STALE, size)
    if found.damage is None:
        return FileReport(path, kind, "ok", "", size)
    message = f"{found.why}{described(found.damage, found.entry)}: {BEYOND_REPAIR}"
    return FileReport(path, kind, "lost", message, size, 0, tuple(found.damage.tensors(found.entry)))


def _repair(place: Place, findings: Findings, name: str, workers: Workers, reports: dict[str, FileReport]) -> None:
    """Repair a file if it is damaged and that is possible, and add its report."""
    found = findings.files[name]
    if found.damage is None or found.state == "failed":
        return
    group, hash_name = findings.group(name), findings.manifest.hash_name
    path = place.file(name)
    try:
        damage = right_damage(place, name, findings.members(name), group, hash_name, workers.step)
        if damage is None:
            return
        kept = _write(place, findings, found, damage, workers)
    except (OSError, ChangedFileError) as error:
        message = f"could not be repaired: {getattr(error, 'strerror', None) or error}"
        reports[name] = FileReport(str(path), kind_of(name), "failed", message, found.entry.n_bytes)
        return
    source = "parity" if damage.lost else "its sidecar"
    tensors = tuple(found.damage.tensors(found.entry))
    message = f"{found.why}{described(found.damage, found.entry)}: restored from {source}"
    if kept is not None:
        message += f"; what was there is now {kept}"
    reports[name] = FileReport(
        str(path), kind_of(name), "repaired", message, found.entry.n_bytes, damage.words, tensors
    )
    findings.files[name] = Finding(name, found.entry, sidecar=found.sidecar)


def _write(place: Place, findings: Findings, found: Finding, damage: Damage, workers: Workers) -> Path | None:
    """Replace a file by its original bytes; return the path to which its content was moved, if it was kept."""
    path, group, hash_name = place.file(found.name), findings.group(found.name), findings.manifest.hash_name
    members = {**findings.members(found.name), found.name: Member(found.entry, damage)}
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
    real = path.resolve()
    number = 1
    while True:
        name = real.with_name(f"{real.name}.damaged" + (f"-{number}" if number > 1 else ""))
        try:
            os.link(real, name)
        except FileExistsError:
            number += 1
        else:
            return name


def _sidecar_repaired(
    place: Place, findings: Findings, found: Finding, leftovers: Collection[str], workers: Workers
) -> Iterator[FileReport]:
    """Write the sidecar of an intact file again, if it is missing or corrupted."""
    if found.sidecar == "ok" or found.damage is not None or found.state == "failed":
        return
    path, sidecar = place.file(found.name), place.sidecar(found.name)
    if found.sidecar == "failed":
        yield FileReport(str(sidecar), "sidecar", "failed", UNREADABLE)
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
