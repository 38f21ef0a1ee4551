"""What is wrong with a file: bytes that its sidecar restores, and intervals that only parity can restore."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path

import numpy as np

from tsapps.apps.abft.at_rest.exact_decode import exact_faults
from tsapps.apps.abft.at_rest.interleave import Layout
from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.at_rest.verdict import Verdict
from tsapps.apps.abft.files.manifest import FileEntry
from tsapps.apps.abft.files.scan import FileBytes, Step, file_layout

__all__ = ["Damage", "damage_of", "diagnosed", "lost_whole"]


@dataclass(frozen=True)
class Damage:
    """The damage of a file.

    Attributes
    ----------
    offsets : numpy.ndarray of shape (k,), int64
        Ascending offsets of the bytes that the sidecar restores.
    was : numpy.ndarray of shape (k,), uint8
        Their original values.
    words : int
        The number of words that these bytes are in.
    lost : tuple of (int, int)
        Ascending, disjoint intervals (begin, end) of offsets that the sidecar cannot restore: whole stripes, or their
        bytes that could not be read.
    touched : tuple of (int, int)
        The intervals of all stripes with a mismatch: what is lost if the sidecar's repair is not believed.
    """

    offsets: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    was: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    words: int = 0
    lost: tuple[tuple[int, int], ...] = ()
    touched: tuple[tuple[int, int], ...] = ()

    def without_sidecar(self) -> "Damage":
        """Return the damage if nothing is restored by the sidecar."""
        return Damage(lost=self.touched, touched=self.touched)

    def only_patches(self) -> "Damage":
        """Return the damage if refused blocks are those of a damaged sidecar, not of the file."""
        return Damage(self.offsets, self.was, self.words, (), self.touched)

    def patch(self, piece: np.ndarray, begin: int) -> None:
        """Restore the bytes of a piece of the file that begins at offset `begin`."""
        first, last = np.searchsorted(self.offsets, [begin, begin + len(piece)])
        piece[self.offsets[first:last] - begin] = self.was[first:last]

    def loses(self, begin: int, end: int) -> bool:
        """Return whether some of the bytes from `begin` to `end` are lost."""
        return bool(_overlapping(self.lost, begin, end))

    def tensors(self, entry: FileEntry) -> list[str]:
        """Return the names of the tensors that bytes to restore, or touched stripes if bytes are lost, lie in."""
        found = []
        for name, tensor in entry.tensors.items():
            first, last = np.searchsorted(self.offsets, [tensor.begin, tensor.end])
            if first < last or self.loses(tensor.begin, tensor.end):
                found.append(name)
        return found


def lost_whole(n_bytes: int) -> Damage:
    """Return the damage of a file without a sidecar, or of a missing file."""
    whole = ((0, n_bytes),) if n_bytes else ()
    return Damage(lost=whole, touched=whole)


def diagnosed(
    path: Path, entry: FileEntry, sums: Sidecar | None, unread: Sequence[tuple[int, int]] = (), step: Step | None = None
) -> Damage:
    """Return the damage of a file whose hash is wrong.

    Parameters
    ----------
    path : Path
        Bytes beyond the end of a truncated file count as zeros, and bytes after the expected end are ignored.
    entry : FileEntry
        What the file should be.
    sums : Sidecar or None
        None if there are no sums.
    unread : sequence of (int, int)
        Ascending intervals of bytes that could not be read. In a stripe with such bytes, the others count as right.
    step : callable, optional

    Raises
    ------
    OSError
        If the file cannot be read at all.
    """
    if sums is None or sums.exact is None or sums.shape != (1, entry.n_bytes):
        found = lost_whole(entry.n_bytes)
    else:
        found = damage_of(*exact_faults(FileBytes(path, entry.n_bytes, step), sums), file_layout(entry.n_bytes))
    lost: list[tuple[int, int]] = []
    for begin, end in found.lost:
        parts = _overlapping(unread, begin, end) or ((begin, end),)
        lost += [(max(begin, first), min(end, last)) for first, last in parts]
    return replace(found, lost=_merged(lost))


def damage_of(faults: np.ndarray, refused: np.ndarray, of: Layout) -> Damage:
    """Return the damage of a file from the results of `exact_faults`; `of` is the interleaving of its bytes."""
    offsets, was = Verdict(faults).patches()
    stripe_bytes = of.stripe_bytes(0)[1]
    lost = np.unique(refused // of.width).tolist()
    touched = np.union1d(lost, np.unique(offsets // stripe_bytes)).astype(int).tolist()
    return Damage(offsets, was, len(faults), *(_merged(map(of.stripe_bytes, some)) for some in (lost, touched)))


def _overlapping(intervals: Sequence[tuple[int, int]], begin: int, end: int) -> Sequence[tuple[int, int]]:
    """Return which of ascending, disjoint intervals have offsets from `begin` to `end`."""
    first = bisect_right(intervals, begin, key=itemgetter(1))
    return intervals[first : bisect_left(intervals, end, first, key=itemgetter(0))]


def _merged(intervals: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return ascending intervals with adjacent ones joined."""
    found: list[tuple[int, int]] = []
    for begin, end in intervals:
        if found and found[-1][1] >= begin:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return tuple(found)
