"""Computation of the parity files of a directory."""

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tsapps.apps.abft.files.file_sidecar import FileSidecar, check_version, remove_file_sidecar, write_file_sidecar
from tsapps.apps.abft.files.manifest import PARITY, LaterVersionError, Manifest, ParityGroup, hasher
from tsapps.apps.abft.files.parity import ParityRatio, groups_of, parity_of
from tsapps.apps.abft.files.places import Place
from tsapps.apps.abft.files.report import FileReport
from tsapps.apps.abft.files.run import Workers
from tsapps.apps.abft.files.scan import PIECE_BYTES, ChangedFileError, read_at, scan
from tsapps.kernels.system.atomic_write import replacing
from tsapps.kernels.system.permissions import mode_of_result

__all__ = ["parity_written"]


class _DamagedMemberError(Exception):
    """A file of a group is not as it was protected, so parity of it would be that of a damaged file."""


def parity_written(
    place: Place, manifest: Manifest, ratio: ParityRatio | None, workers: Workers
) -> Iterator[FileReport]:
    """Write the parity files of a directory if its files have changed or the ratio has, and enter them in the manifest.

    A group with a missing or damaged file keeps its old parity, from which that file may be restored.

    Parameters
    ----------
    place : Place
    manifest : Manifest
        With the entries of all files.
    ratio : (int, int) or None
        By default the ratio of the manifest's groups; no parity if it has none.
    workers : Workers
    """
    if ratio is None and manifest.parity:
        first = manifest.parity[0]
        ratio = len(first.parity), first.per or max(len(group.files) for group in manifest.parity)
    if ratio is None:
        return
    sizes = {name: one.n_bytes for name, one in manifest.files.items() if not name.startswith(PARITY)}
    groups = [replace(one, of=manifest.contents(one.files), per=ratio[1]) for one in groups_of(sizes, ratio)]
    old = {name for name in manifest.files if name.startswith(PARITY)}
    names = {name for group in groups for name in group.parity}
    if {*groups} == {*manifest.parity} and old == names and all(os.path.exists(place.file(name)) for name in names):
        return
    missing = next((name for name in sizes if not os.path.exists(place.file(name))), None)
    if missing is not None:  # parity of fewer files would not restore it
        message = f"was not written: {missing} is missing: tsapps repair may restore it, or protect with --update"
        yield FileReport(str(place.sidecars), "parity", "failed", message)
        return
    kept = {name: group for group in manifest.parity for name in group.parity}
    written = []
    for group in groups:
        try:
            for number, name in enumerate(group.parity):
                report = _written(place, manifest, group, number, workers)
                kept.pop(name, None)
                yield report
        except (OSError, ChangedFileError, LaterVersionError, _DamagedMemberError) as error:
            message = getattr(error, "strerror", None) or str(error)
            yield FileReport(str(place.file(name)), "parity", "failed", f"was not written: {message}")
        else:
            written.append(group)
    # Groups whose parity files are all as they were.
    manifest.parity = written + [
        group for group in manifest.parity if all(kept.get(name) is group for name in group.parity)
    ]
    for name in old - manifest.parity_files:
        manifest.files.pop(name, None)
        try:
            remove_file_sidecar(place.sidecar(name))
            place.file(name).unlink(missing_ok=True)
        except (LaterVersionError, OSError) as error:
            yield FileReport(str(place.file(name)), "parity", "failed", f"was not removed: {error}")


def _written(place: Place, manifest: Manifest, group: ParityGroup, number: int, workers: Workers) -> FileReport:
    """Write a parity file and its sidecar, and enter it in the manifest.

    Each is written atomically, so one at a time; there is one in a group as a rule.
    """
    entries = [manifest.files[name] for name in group.files]
    paths = [place.file(name) for name in group.files]
    size, m = max(entry.n_bytes for entry in entries), len(group.parity)
    name = group.parity[number]
    path, sidecar = place.file(name), place.sidecar(name)
    check_version(sidecar)
    digests = [hasher(manifest.hash_name) for _ in entries]
    with replacing(path, mode=mode_of_result(path, paths)) as file:
        for begin in range(0, size, PIECE_BYTES):
            length = min(PIECE_BYTES, size - begin)
            pieces = [read_at(one, begin, length) for one in paths]
            for piece, entry, digest in zip(pieces, entries, digests, strict=True):
                digest.update(piece[: max(0, entry.n_bytes - begin)].data)
            file.write(np.ascontiguousarray(parity_of(pieces, m)[number]).data)
            workers.step(length)
        for one, entry, digest in zip(paths, entries, digests, strict=True):
            if os.path.getsize(one) != entry.n_bytes or digest.hexdigest() != entry.hash:
                raise _DamagedMemberError(
                    f"{one.name} differs from what was protected: tsapps repair may restore it; if the change is "
                    "meant, protect it with --update"
                )
    seen = scan(path, manifest.hash_name, workers.step)
    manifest.files[name] = seen.entry
    content = FileSidecar(manifest.hash_name, replace(seen.entry, group=group), seen.sidecar)
    write_file_sidecar(sidecar, content, mode_of_result(sidecar, paths))
    return FileReport(str(path), "parity", "protected", f"of {len(paths)} files", size)
