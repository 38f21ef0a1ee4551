"""The original bytes of damaged files: from their sidecars, and from parity files where these are not enough."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tsapps.apps.abft.files.damage import Damage
from tsapps.apps.abft.files.manifest import FileEntry, ParityGroup, hasher
from tsapps.apps.abft.files.parity import restored
from tsapps.apps.abft.files.places import Place
from tsapps.apps.abft.files.scan import PIECE_BYTES, Step, read_at

__all__ = ["BeyondRepairError", "Member", "rebuilding", "right_damage"]


class BeyondRepairError(Exception):
    """More was lost than sidecar and parity restore."""


@dataclass(frozen=True)
class Member:
    """A file of a directory: what it should be, and its damage; None if it is intact."""

    entry: FileEntry
    damage: Damage | None = None


def rebuilding(
    place: Place, name: str, members: Mapping[str, Member], group: ParityGroup | None, step: Step | None = None
) -> Iterator[np.ndarray]:
    """Yield the original bytes of a file, in pieces.

    Parameters
    ----------
    place : Place
    name : str
    members : mapping of str to Member
        The file, and all files and parity files of its group.
    group : ParityGroup or None
        The group of the file, if it has parity.
    step : callable, optional

    Raises
    ------
    BeyondRepairError
        If a piece cannot be restored.
    """
    size, damage = members[name].entry.n_bytes, members[name].damage or Damage()
    for begin, end in pairwise(_edges(size, members.values())):
        if damage.loses(begin, end):
            if group is None:
                raise BeyondRepairError
            yield _from_parity(place, name, members, group, begin, end)
        else:
            yield _read(place, name, members[name], begin, end)
        if step is not None:
            step(end - begin)


def _edges(size: int, members: Iterable[Member]) -> list[int]:
    """Return the offsets between pieces, each of which every member has either whole or not at all."""
    found = {*range(0, size, PIECE_BYTES), size}
    for member in members:
        if member.damage is not None:
            found |= {edge for interval in member.damage.lost for edge in interval if edge < size}
    return sorted(found)


def _read(place: Place, name: str, member: Member, begin: int, end: int) -> np.ndarray:
    """Return bytes of a file, with its repairable bytes restored; zeros after its end, and for what the disk lost."""
    piece = np.zeros(end - begin, np.uint8)
    if begin < member.entry.n_bytes:
        there = min(end, member.entry.n_bytes) - begin
        piece[:there] = read_at(place.file(name), begin, there, [])
    if member.damage is not None:
        member.damage.patch(piece, begin)
    return piece


def _from_parity(
    place: Place, name: str, members: Mapping[str, Member], group: ParityGroup, begin: int, end: int
) -> np.ndarray:
    names = [*group.files, *group.parity]
    known: dict[int, np.ndarray] = {}
    for number, other in enumerate(names):
        member = members[other]
        if other != name and not (member.damage and member.damage.loses(begin, end)):
            known[number] = _read(place, other, member, begin, end)
    piece = restored(known, len(group.files), len(group.parity), names.index(name))
    if piece is None:
        raise BeyondRepairError
    return piece


def right_damage(
    place: Place,
    name: str,
    members: Mapping[str, Member],
    group: ParityGroup | None,
    hash_name: str,
    step: Step | None = None,
) -> Damage | None:
    """Return a damage of a file whose repair has the file's hash; None if there is none.

    First, what the sidecar says is believed. Then, that its refused blocks are damage of the sidecar itself. Last, that
    parity restores all stripes with a mismatch.
    """
    found = members[name].damage or Damage()
    attempts = [found]
    if found.lost and len(found.offsets):
        attempts.append(found.only_patches())
    if len(found.offsets) or found.lost != found.touched:
        attempts.append(found.without_sidecar())
    for damage in attempts:
        if damage.lost and group is None:
            continue
        attempt = {**members, name: Member(members[name].entry, damage)}
        digest = hasher(hash_name)
        try:
            for piece in rebuilding(place, name, attempt, group, step):
                digest.update(piece.data)
        except BeyondRepairError:
            continue
        if digest.hexdigest() == members[name].entry.hash:
            return damage
    return None
