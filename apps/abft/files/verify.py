"""Verification of protected files: whether every byte is as it was, and if not, what can be repaired."""

import os
from collections.abc import Iterable, Iterator
from functools import partial
from os import PathLike

from tsapps.apps.abft.files.damage import Damage
from tsapps.apps.abft.files.inspect_files import Finding, Findings, inspected, sidecar_of_file
from tsapps.apps.abft.files.manifest import MANIFEST, SIDECARS_MANIFEST, FileEntry, LaterVersionError
from tsapps.apps.abft.files.places import Place, PlaceError, Target, kind_of, reports_of, targets_of
from tsapps.apps.abft.files.report import FileReport
from tsapps.apps.abft.files.run import Progress, Workers

__all__ = [
    "STALE",
    "beyond_repair",
    "described",
    "protected_targets",
    "reports_of_others",
    "verify_files",
]

#: The message about a parity file whose group has changed.
STALE = "is parity of other contents of its files: tsapps protect computes it again"
# Maximum number of tensors that a message names.
_MOST_NAMED = 3


def verify_files(
    paths: Iterable[str | PathLike[str]],
    *,
    sidecars: str | PathLike[str] | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[FileReport]:
    """Compare protected files with the hashes in their manifests; writes nothing.

    Parameters
    ----------
    paths : iterable of path-like
        Files, globs and directories.
    sidecars : path-like, optional
        The directory that was given to `protect_files`.
    workers : int, optional
        Number of threads; by default, that of the cores.
    progress : callable, optional
        Called with the number of bytes read since the last call.

    Yields
    ------
    FileReport
        For every protected file, and for every file, sidecar and manifest that is not as it should be. Whether a
        damaged file can be repaired was tried: the hash of the repaired bytes is right.

    Raises
    ------
    PlaceError
        If a path does not exist, or nothing there is protected.
    """
    threads = Workers(workers, progress)
    for target in protected_targets(paths, sidecars):
        yield from reports_of(target, partial(_verify, threads))


def _verify(workers: Workers, target: Target) -> Iterator[FileReport]:
    findings = inspected(target.place, target.names, workers)
    for name in sorted(findings.files if target.names is None else target.names):
        if name in findings.files:
            yield from _reports(target.place, findings, findings.files[name])
    yield from reports_of_others(target, findings)


def protected_targets(paths: Iterable[str | PathLike[str]], sidecars: str | PathLike[str] | None) -> Iterator[Target]:
    """Yield the targets with something protected.

    Raises
    ------
    PlaceError
        If there is none.
    """
    any_protected = False
    first = None
    for target in targets_of(paths, sidecars, exist=False):
        first = first or target
        if target.left_alone is not None:
            yield target
        elif target.place.is_protected():
            any_protected = True
            yield target
    if not any_protected:
        where = "" if first is None else f"{first.place.directory}: "
        name = MANIFEST if sidecars is None else SIDECARS_MANIFEST
        raise PlaceError(f"{where}nothing here is protected: there is neither a {name} nor a sidecar")


def _reports(place: Place, findings: Findings, found: Finding) -> Iterator[FileReport]:
    path, kind = str(place.file(found.name)), kind_of(found.name)
    size = found.entry.n_bytes
    if found.state == "failed":
        yield FileReport(path, kind, "failed", found.why, size)
    elif findings.is_stale(found.name):
        yield FileReport(path, kind, "corrupt", STALE, size)
    elif found.damage is None:
        yield FileReport(path, kind, "ok", "", size)
    elif found.repair is None:
        yield beyond_repair(place, findings, found)
    else:
        source = " from parity" if found.repair.lost else ""
        message = f"{found.why}{described(found.damage, found.entry)}: tsapps repair restores it{source}"
        tensors = tuple(found.damage.tensors(found.entry))
        yield FileReport(path, kind, found.state, message, size, found.repair.words, tensors)
    if found.sidecar == "failed":
        yield FileReport(str(place.sidecar(found.name)), "sidecar", "failed", found.sidecar_why)
    elif found.sidecar != "ok" and found.state != "failed":
        message = f"{'is missing' if found.sidecar == 'missing' else 'was corrupted'}: tsapps repair writes it again"
        yield FileReport(str(place.sidecar(found.name)), "sidecar", found.sidecar, message)


def beyond_repair(place: Place, findings: Findings, found: Finding) -> FileReport:
    """Return the report of a damaged file that cannot be repaired now."""
    damage = found.damage or Damage()
    members = () if findings.group(found.name) is None else findings.members(found.name)
    unreadable = next((findings.files[name] for name in members if findings.files[name].state == "failed"), None)
    what_to_do = "beyond repair, restore it from a copy"
    if unreadable is not None:
        what_to_do = f"may be restored where {unreadable.name}, of its parity group, can be read ({unreadable.why})"
    message = f"{found.why}{described(damage, found.entry)}: {what_to_do}"
    path, size = str(place.file(found.name)), found.entry.n_bytes
    return FileReport(path, kind_of(found.name), "lost", message, size, 0, tuple(damage.tensors(found.entry)))


def described(damage: Damage, entry: FileEntry) -> str:
    """Return what is corrupted, for a message: the number of words if it is known, and the names of tensors."""
    words = f", in {damage.words:,} word{'s' if damage.words != 1 else ''}" if damage.words and not damage.lost else ""
    tensors = damage.tensors(entry)
    if not tensors or (len(tensors) == len(entry.tensors) and (damage.lost or len(tensors) > 1)):
        return words
    more = f" and {len(tensors) - _MOST_NAMED:,} more" if len(tensors) > _MOST_NAMED else ""
    return f"{words} (tensors {', '.join(tensors[:_MOST_NAMED])}{more})"


def reports_of_others(target: Target, findings: Findings, *, repaired: bool = False) -> Iterator[FileReport]:
    """Yield reports of a directory's manifest, of missing subdirectories and of files that are not protected."""
    place, manifest = target.place, findings.manifest
    if findings.manifest_state == "lost":
        message = "is missing or corrupted, and so are all sidecars: nothing is known of these files"
        yield FileReport(str(place.manifest), "manifest", "lost", message)
    elif findings.manifest_state != "ok":
        is_missing = findings.manifest_state == "missing"
        if repaired:
            yield FileReport(str(place.manifest), "manifest", "repaired", "was written again from the sidecars")
        else:
            message = f"is {findings.manifest_state}: tsapps repair writes it again from the sidecars"
            yield FileReport(str(place.manifest), "manifest", "missing" if is_missing else "corrupt", message)
    if target.names is not None:
        message = "no such file or directory, and none of this name is protected"
        for name in (one for one in target.names if one not in findings.files):
            yield _unknown(place, name) or FileReport(str(place.file(name)), "file", "failed", message)
        return
    for name in manifest.directories:
        below = place.below(name)
        is_listed = os.access(below.directory, os.R_OK | os.X_OK) or not os.path.isdir(below.directory)
        if is_listed and not below.is_protected():
            what = "has neither manifest nor sidecars any more" if os.path.isdir(below.directory) else "is missing"
            message = f"{what}, with all that was protected in it: restore it from a copy"
            yield FileReport(str(below.directory), "directory", "lost", message)
    for name in sorted({*place.file_names(), *place.sidecar_names()} - findings.files.keys()):
        report = _unknown(place, name)
        if report is not None:
            yield report


def _unknown(place: Place, name: str) -> FileReport | None:
    """Return the report of a file that no manifest names; None if it does not exist."""
    path = place.file(name)
    try:
        state = sidecar_of_file(place.sidecar(name))[1]
    except LaterVersionError as error:
        return FileReport(error.path, "sidecar", "failed", error.reason)
    if state == "corrupt":
        message = "no manifest names it, and its sidecar is corrupted: if it is right, remove that and protect it again"
        return FileReport(str(path), "file", "lost", message)
    if os.path.lexists(path):
        return FileReport(str(path), "file", "unprotected", "is not protected: tsapps protect does")
    return None
