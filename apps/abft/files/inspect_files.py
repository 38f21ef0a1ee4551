"""What has become of the protected files of a directory."""

import errno
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tsapps.apps.abft.at_rest.sidecar import SidecarError
from tsapps.apps.abft.files.damage import Damage, diagnosed, lost_whole
from tsapps.apps.abft.files.file_sidecar import FileSidecar, read_damaged_sums, read_file_sidecar
from tsapps.apps.abft.files.manifest import FileEntry, Manifest, ManifestError, ParityGroup
from tsapps.apps.abft.files.places import Place, is_regular
from tsapps.apps.abft.files.rebuild import Member
from tsapps.apps.abft.files.run import Workers
from tsapps.apps.abft.files.scan import Step, hash_of

__all__ = ["Finding", "Findings", "inspected", "known_files"]


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
    state : {"ok", "corrupt", "missing", "failed"}
        "failed" if it cannot be read.
    why : str
        What is wrong.
    sidecar : {"ok", "corrupt", "missing"}
    stamp : tuple of int
        Size, inode and time of modification of the file, so that a later change is noticed; empty if it is missing.
    """

    name: str
    entry: FileEntry
    damage: Damage | None = None
    state: str = "ok"
    why: str = ""
    sidecar: str = "ok"
    stamp: tuple[int, ...] = ()


@dataclass
class Findings:
    """The state of a directory's files.

    Attributes
    ----------
    manifest : Manifest
        As read, or as restored from the sidecars.
    manifest_state : {"ok", "corrupt", "missing", "outdated"}
        "outdated" if `tsapps protect` was stopped before it wrote the manifest.
    files : dict of str to Finding
    """

    manifest: Manifest
    manifest_state: str
    files: dict[str, Finding] = field(default_factory=dict)

    def members(self) -> dict[str, Member]:
        """Return all files and their damage."""
        return {name: Member(found.entry, found.damage) for name, found in self.files.items()}

    def group(self, name: str) -> ParityGroup | None:
        """Return the parity group of a file, if all its files are known."""
        for group in self.manifest.parity:
            names = {*group.files, *group.parity}
            if name in names and names <= self.files.keys():
                return group
        return None


def known_files(place: Place) -> tuple[Manifest, str]:
    """Return the manifest of a directory, and its state; a missing or corrupted manifest is restored from sidecars."""
    try:
        return Manifest.read(place.manifest), "ok"
    except FileNotFoundError:
        state = "missing"
    except ManifestError:
        state = "corrupt"
    manifest = Manifest()
    for name in place.sidecar_names():
        try:
            sidecar = read_file_sidecar(place.sidecar(name))
        except SidecarError:
            continue
        manifest.hash_name = sidecar.hash_name
        manifest.files[name] = sidecar.entry
        if sidecar.entry.group is not None and sidecar.entry.group not in manifest.parity:
            manifest.parity.append(sidecar.entry.group)
    below = (Place(place.directory / name, place.sidecars / name) for name in place.subdirectories())
    manifest.directories = [one.directory.name for one in below if one.manifest.exists() or one.sidecar_names()]
    return manifest, state


def inspected(place: Place, names: tuple[str, ...] | None, workers: Workers) -> Findings:
    """Read the protected files of a directory, and return their state.

    Parameters
    ----------
    place : Place
    names : tuple of str or None
        The files to read; by default all. The files of their parity groups are read too if one of them is damaged.
    workers : Workers
    """
    manifest, state = known_files(place)
    findings = Findings(manifest, state)
    wanted = [name for name in (manifest.files if names is None else names) if name in manifest.files]
    _inspect(place, findings, wanted, workers)
    damaged = {name for name, found in findings.files.items() if found.damage is not None}
    groups = [group for group in manifest.parity if damaged & {*group.files, *group.parity}]
    others = {name for group in groups for name in (*group.files, *group.parity)} - findings.files.keys()
    _inspect(place, findings, sorted(others & manifest.files.keys()), workers)
    return findings


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
    sidecar, sidecar_state = _sidecar(place.sidecar(name))
    if not is_regular(path):
        why = "is no regular file" if os.path.lexists(path) else "is missing"
        return Finding(name, entry, lost_whole(entry.n_bytes), "missing", why, sidecar_state)
    try:
        status = os.stat(path)
        stamp = status.st_size, status.st_ino, status.st_mtime_ns
        digest = None
        if status.st_size in (entry.n_bytes, entry.n_bytes if sidecar is None else sidecar.entry.n_bytes):
            digest = hash_of(path, manifest.hash_name, step)
        if sidecar is not None and sidecar.entry.hash != entry.hash:
            # protect --update was stopped between the two, or this is the sidecar of another file.
            if digest == sidecar.entry.hash and sidecar.hash_name == manifest.hash_name:
                return Finding(name, sidecar.entry, stamp=stamp)
            sidecar, sidecar_state = None, "corrupt"
        if digest == entry.hash:
            return Finding(name, entry, sidecar=sidecar_state, stamp=stamp)
        sums = sidecar.sums if sidecar is not None else None
        if sums is None and entry.n_bytes:
            sums = read_damaged_sums(place.sidecar(name), entry.n_bytes)
        damage = diagnosed(path, entry, sums, step)
    except OSError as error:
        if error.errno == errno.EIO:  # the disk has lost a part of it
            return Finding(name, entry, lost_whole(entry.n_bytes), "corrupt", "cannot be read", sidecar_state)
        return Finding(name, entry, state="failed", why=error.strerror or str(error), sidecar=sidecar_state)
    why = "has other bytes than it had when it was protected"
    if status.st_size != entry.n_bytes:
        why = f"has {status.st_size:,} bytes, and had {entry.n_bytes:,} when it was protected"
    if status.st_mtime_ns != entry.modified:
        why += ", and was written to since"
    return Finding(name, entry, damage, "corrupt", why, sidecar_state, stamp)


def _sidecar(path: Path) -> tuple[FileSidecar | None, str]:
    try:
        return read_file_sidecar(path), "ok"
    except FileNotFoundError:
        return None, "missing"
    except SidecarError:
        return None, "corrupt"
