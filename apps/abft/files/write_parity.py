"""Computation of the parity files of a directory."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tsapps.apps.abft.files.file_sidecar import FileSidecar, write_file_sidecar
from tsapps.apps.abft.files.manifest import Manifest, ParityGroup
from tsapps.apps.abft.files.parity import ParityRatio, groups_of, parity_of
from tsapps.apps.abft.files.places import Place
from tsapps.apps.abft.files.report import FileReport
from tsapps.apps.abft.files.run import Workers
from tsapps.apps.abft.files.scan import read_at, scan
from tsapps.kernels.system.atomic_write import replacing
from tsapps.kernels.system.permissions import mode_of_result

__all__ = ["parity_written"]

_PIECE_BYTES = 1 << 22


def parity_written(
    place: Place, manifest: Manifest, ratio: ParityRatio | None, workers: Workers, *, changed: bool
) -> Iterator[FileReport]:
    """Write the parity files of a directory if its files have changed or the ratio has, and enter them in the manifest.

    Parameters
    ----------
    place : Place
    manifest : Manifest
        With the entries of all files.
    ratio : (int, int) or None
        By default the ratio of the manifest's groups; no parity if it has none.
    workers : Workers
    changed : bool
        Whether files were protected since the parity files were written.
    """
    if ratio is None and manifest.parity:
        ratio = len(manifest.parity[0].parity), max(len(group.files) for group in manifest.parity)
    if ratio is None:
        return
    sizes = {name: one.n_bytes for name, one in manifest.files.items() if name not in manifest.parity_files}
    groups, old = groups_of(sizes, ratio), manifest.parity_files
    if groups == manifest.parity and not changed and all(place.file(name).exists() for name in old):
        return
    if not all(place.file(name).exists() for name in sizes):
        return  # parity of fewer files would not restore the missing ones
    for group in groups:
        yield from _written(place, manifest, group, workers)
    manifest.parity = groups
    for name in old - manifest.parity_files:
        manifest.files.pop(name, None)
        place.sidecar(name).unlink(missing_ok=True)
        place.file(name).unlink(missing_ok=True)


def _written(place: Place, manifest: Manifest, group: ParityGroup, workers: Workers) -> Iterator[FileReport]:
    size = max(manifest.files[name].n_bytes for name in group.files)
    paths = [place.file(name) for name in group.files]
    m = len(group.parity)
    # One parity file after the other, so that each is written atomically; m is 1 as a rule.
    for number, name in enumerate(group.parity):
        path, sidecar = place.file(name), place.sidecar(name)
        with replacing(path, mode=mode_of_result(path, paths)) as file:
            for begin in range(0, size, _PIECE_BYTES):
                length = min(_PIECE_BYTES, size - begin)
                pieces = [read_at(one, begin, length) for one in paths]
                file.write(np.ascontiguousarray(parity_of(pieces, m)[number]).data)
                workers.step(length)
        seen = scan(path, manifest.hash_name, workers.step)
        manifest.files[name] = seen.entry
        content = FileSidecar(manifest.hash_name, replace(seen.entry, group=group), seen.sidecar)
        write_file_sidecar(sidecar, content, mode_of_result(sidecar, paths))
        yield FileReport(str(path), "parity", "protected", f"of {len(paths)} files", size)
