"""What has become of the protected files of a directory."""

import errno
import os
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tsapps.apps.abft.at_rest.sidecar import SidecarError
from tsapps.apps.abft.files.damage import Damage, diagnosed, lost_whole
from tsapps.apps.abft.files.file_sidecar import FileSidecar, read_damaged_sums, read_file_sidecar
from tsapps.apps.abft.files.manifest import (
    PARITY,
    FileEntry,
    LaterVersionError,
    Manifest,
    ManifestError,
    ParityGroup,
)
from tsapps.apps.abft.files.places import Place, is_regular
from tsapps.apps.abft.files.rebuild import Member, right_damage
from tsapps.apps.abft.files.run import Workers
from tsapps.apps.abft.files.scan import Step, Unread, hash_of, stamp_of
from tsapps.kernels.system.permissions import mode_of_result

__all__ = ["Finding", "Findings", "inspected", "known_files", "sidecar_of_file", "write_manifest"]

# Why a sidecar of the state "failed" cannot be read, as a rule.
_UNREADABLE = "cannot be read: see its permissions, and whether it is a regular file"


@dataclass(frozen=True)
class Finding:
    """The state of a protected file.

    Attributes
    ----------
    name : str
    entry : FileEntry
        What the file should be.
    damage : Damage or None
        None if the file is intact.
    repair : Damage or None
        The damage as which the file is repaired, so that it has its hash again; None if it cannot be repaired.
    state : {"ok", "corrupt", "missing", "failed"}
        "failed" if it cannot be read.
    why : str
        What is wrong.
    sidecar : {"ok", "corrupt", "missing", "failed"}
        "failed" if it cannot be read.
    sidecar_why : str
        Why it cannot be read.
    stamp : tuple of int
        Size, inode and time of modification of the file, so that a later change is noticed; empty if it is missing.
    """

    name: str
    entry: FileEntry
    damage: Damage | None = None
    repair: Damage | None = None
    state: str = "ok"
    why: str = ""
    sidecar: str = "ok"
    sidecar_why: str = ""
    stamp: tuple[int, ...] = ()


@dataclass
class Findings:
    """The state of a directory's files.

    Attributes
    ----------
    manifest : Manifest
        As read, or as restored from the sidecars.
    manifest_state : {"ok", "corrupt", "missing", "outdated", "lost"}
        "outdated" if `tsapps protect` was stopped before it wrote the manifest; "lost" if there is no sidecar from
        which it could be written again.
    files : dict of str to Finding
    """

    manifest: Manifest
    manifest_state: str
    files: dict[str, Finding] = field(default_factory=dict)

    def members(self, name: str) -> dict[str, Member]:
        """Return a file and all files of its group, and their damage."""
        group = self.group(name)
        names = {name} if group is None else {*group.files, *group.parity}
        return {one: _member(self.files[one]) for one in names}

    def group(self, name: str) -> ParityGroup | None:
        """Return the parity group of a file, if all its files are known, and are those from which it was computed."""
        for group in self.manifest.parity:
            if (name in group.files or name in group.parity) and not self.manifest.is_stale(group):
                names = {*group.files, *group.parity}
                longest = max((self.manifest.files[one].n_bytes for one in group.files if one in self.files), default=0)
                if names <= self.files.keys() and all(self.files[one].entry.n_bytes == longest for one in group.parity):
                    return group
        return None

    def is_stale(self, name: str) -> bool:
        """Return whether a parity file is that of other contents of its files."""
        return (
            name.startswith(PARITY)
            and self.group(name) is None
            and any(name in group.parity and self.manifest.is_stale(group) for group in self.manifest.parity)
        )


def _member(found: Finding) -> Member:
    """Return what the parity of a group can use of a file: nothing if it cannot be read."""
    damage = lost_whole(found.entry.n_bytes) if found.state == "failed" else found.repair or found.damage
    return Member(found.entry, damage)


def known_files(place: Place) -> tuple[Manifest, str]:
    """Return the manifest of a directory, and its state; a missing or corrupted manifest is restored from sidecars.

    Raises
    ------
    LaterVersionError
        If the manifest is of a later version, or must be restored and a sidecar is.
    """
    state = "missing"
    if is_regular(place.manifest):
        try:
            return Manifest.read(place.manifest), "ok"
        except ManifestError:
            state = "corrupt"
    manifest = Manifest()
    for name in place.sidecar_names():
        sidecar, _ = sidecar_of_file(place.sidecar(name))
        if sidecar is None:
            continue
        manifest.hash_name = sidecar.hash_name
        manifest.files[name] = sidecar.entry
        if sidecar.entry.group is not None and sidecar.entry.group not in manifest.parity:
            manifest.parity.append(sidecar.entry.group)
    manifest.directories = [name for name in place.subdirectories() if _has_sidecars(place.below(name))]
    return manifest, state


def write_manifest(place: Place, manifest: Manifest) -> None:
    """Write the manifest of a directory, readable by no more users than its files."""
    paths = [path for path in map(place.file, manifest.files) if os.path.exists(path)]
    manifest.write(place.manifest, mode_of_result(place.manifest, paths))


def _has_sidecars(place: Place) -> bool:
    try:
        return place.is_protected()
    except PermissionError:
        return False


def inspected(place: Place, names: tuple[str, ...] | None, workers: Workers) -> Findings:
    """Read the protected files of a directory, and return their state.

    Parameters
    ----------
    place : Place
    names : tuple of str or None
        The files to read; by default all. The files of their parity groups are read too if one of them is damaged.
    workers : Workers

    Raises
    ------
    LaterVersionError
        As for `known_files`.
    """
    manifest, state = known_files(place)
    findings = Findings(manifest, state if state == "ok" or manifest.files or manifest.directories else "lost")
    wanted = [name for name in (manifest.files if names is None else names) if name in manifest.files]
    _inspect(place, findings, wanted, workers)
    damaged = {name for name, found in findings.files.items() if found.damage is not None}
    groups = [group for group in manifest.parity if damaged & {*group.files, *group.parity}]
    others = {name for group in groups for name in (*group.files, *group.parity)} - findings.files.keys()
    _inspect(place, findings, sorted(others & manifest.files.keys()), workers)
    _find_repairs(place, findings, workers)
    return findings


def _find_repairs(place: Place, findings: Findings, workers: Workers) -> None:
    """Find how damaged files are repaired: once that is known of one, the parity of its group may restore another."""
    left = [name for name, found in findings.files.items() if found.damage is not None and found.state != "failed"]
    before = -1
    while len(left) != before:
        before = len(left)
        for name in left:
            group, hash_name = findings.group(name), findings.manifest.hash_name
            repair = right_damage(place, name, findings.members(name), group, hash_name, workers.step)
            findings.files[name] = replace(findings.files[name], repair=repair)
        left = [name for name in left if findings.files[name].repair is None]


def _inspect(place: Place, findings: Findings, names: list[str], workers: Workers) -> None:
    manifest = findings.manifest
    for found in workers.map(partial(_inspected, place, manifest), names):
        findings.files[found.name] = found
        if found.entry.hash != manifest.files[found.name].hash:
            manifest.files[found.name] = found.entry
            if findings.manifest_state == "ok":
                findings.manifest_state = "outdated"


def _inspected(place: Place, manifest: Manifest, name: str, step: Step) -> Finding:
    entry, path = manifest.files[name], place.file(name)
    later = ""
    try:
        sidecar, sidecar_state = sidecar_of_file(place.sidecar(name))
    except LaterVersionError as error:
        sidecar, sidecar_state, later = None, "failed", error.reason
    found = Finding(name, entry, sidecar=sidecar_state, sidecar_why=later or _UNREADABLE)
    try:
        if not is_regular(path):
            why = "is no regular file" if os.path.lexists(path) else "is missing"
            return replace(found, damage=lost_whole(entry.n_bytes), state="missing", why=why)
        status = os.stat(path)
        found = replace(found, stamp=stamp_of(status))
        digest, unread = None, Unread()
        if status.st_size in (entry.n_bytes, entry.n_bytes if sidecar is None else sidecar.entry.n_bytes):
            digest = hash_of(path, manifest.hash_name, step, unread)
        if sidecar is not None and sidecar.entry.hash != entry.hash:
            # protect --update was stopped between the two, or this is the sidecar of another file.
            if digest == sidecar.entry.hash and not unread and sidecar.hash_name == manifest.hash_name:
                return Finding(name, sidecar.entry, stamp=found.stamp)
            sidecar, found = None, replace(found, sidecar="corrupt")
        if digest == entry.hash and not unread:
            return found
        if later:  # it may be the sidecar of these bytes
            return replace(found, state="failed", why=f"differs from its manifest, and its sidecar {later}")
        sums = sidecar.sums if sidecar is not None else None
        if sums is None and entry.n_bytes and found.sidecar == "corrupt":
            sums = read_damaged_sums(place.sidecar(name), entry.n_bytes)
        damage = diagnosed(path, entry, sums, unread, step)
    except OSError as error:
        if error.errno == errno.EIO:  # the disk has lost all of it
            return replace(found, damage=lost_whole(entry.n_bytes), state="corrupt", why="cannot be read")
        return replace(found, state="failed", why=error.strerror or str(error))
    return replace(found, damage=damage, state="corrupt", why=_difference(status, entry, unread))


def _difference(status: os.stat_result, entry: FileEntry, unread: Unread) -> str:
    """Return how a file differs from its entry, for a message."""
    why = "has other bytes than it had when it was protected"
    if unread:
        n_bytes = sum(end - begin for begin, end in unread)
        why = f"has {n_bytes:,} bytes that cannot be read, the first at offset {unread[0][0]:,}"
    elif status.st_size != entry.n_bytes:
        why = f"has {status.st_size:,} bytes, and had {entry.n_bytes:,} when it was protected"
    return why + (", and was written to since" if status.st_mtime_ns != entry.modified else "")


def sidecar_of_file(path: Path) -> tuple[FileSidecar | None, str]:
    """Return a sidecar, and its state as in `Finding`; raises `LaterVersionError` if it is of a later version."""
    try:
        if not is_regular(path):
            return None, "failed" if os.path.lexists(path) else "missing"
        return read_file_sidecar(path), "ok"
    except FileNotFoundError:
        return None, "missing"
    except SidecarError:
        return None, "corrupt"
    except OSError as error:
        return None, "corrupt" if error.errno == errno.EIO else "failed"
