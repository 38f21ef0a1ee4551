"""Result of a verification: faults that can be repaired, and regions that cannot be repaired."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from tsapps.apps.abft.at_rest.interleave import WORD

if TYPE_CHECKING:
    from tsapps.apps.abft.at_rest.sidecar import Sidecar

__all__ = ["AmbiguousError", "ChangedError", "Fault", "Records", "Region", "Verdict"]

_T = TypeVar("_T")


class AmbiguousError(ValueError):
    """A matrix has more corrupted elements than its checksums can locate or correct."""


class ChangedError(ValueError):
    """A matrix changed while it was read: a second pass contradicts the first.

    Parameters
    ----------
    name : str
        The matrix's name in messages.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: changed while it was read; expected the same bytes in every pass: stop other writers, and run "
            f"this again"
        )


class Fault(NamedTuple):
    """Corrupted bytes, and their original values.

    Attributes
    ----------
    offset : int
        Offset of the first byte from the first element, in row-major order.
    found, was : int
        The corrupted and the original bytes, as little-endian unsigned integers.
    size : int
        Number of bytes: 4 (a word) for the exact code, the size of an element for the float code. The last word may
        extend beyond the matrix; its bytes there are zero.
    """

    offset: int
    found: int
    was: int
    size: int = WORD


class Region(NamedTuple):
    """The elements of a matrix in rows `row` … `row_end` − 1 and columns `column` … `column_end` − 1."""

    row: int
    row_end: int
    column: int
    column_end: int


class Records(Sequence[_T]):
    """A sequence of records, stored as rows of one array to save memory: there may be millions of records.

    Parameters
    ----------
    array : numpy.ndarray of shape (k, fields)
    make : callable
        Called with the numbers of one row of `array`; returns the record.
    """

    def __init__(self, array: np.ndarray, make: Callable[..., _T]) -> None:
        self.array, self._make = array, make

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> "Records[_T]": ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Records(self.array[index], self._make)
        return self._make(*self.array[index].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # not hashable, like a list

    def __repr__(self) -> str:
        return f"<{len(self)} records: {', '.join(map(str, self[:3]))}{', …' if len(self) > 3 else ''}>"


class Verdict:
    """Result of a verification: the corruption found in a matrix.

    Parameters
    ----------
    faults : array-like of shape (k, 3), uint64, optional
        The fields `offset`, `found` and `was` of each `Fault`.
    refused : array-like of shape (k, 4), int64, optional
        The fields of each `Region`.
    size : int, optional
        The field `size` of every fault, in bytes.

    Attributes
    ----------
    faults : sequence of Fault
        Corruption that can be repaired, ordered by offset.
    refused : sequence of Region
        Corruption that cannot be repaired. If a region has one element, that element is wrong. In a larger region, at
        least one of the elements is wrong.
    """

    def __init__(self, faults: Any = (), refused: Any = (), size: int = WORD) -> None:
        self.faults = Records(
            np.asarray(faults, np.uint64).reshape(-1, 3), lambda offset, found, was: Fault(offset, found, was, size)
        )
        self.refused = Records(np.asarray(refused, np.int64).reshape(-1, 4), Region)
        self._size = size

    @property
    def clean(self) -> bool:
        """True if no corruption was found."""
        return not self.faults and not self.refused

    def __repr__(self) -> str:
        if self.clean:
            return "<Verdict: clean>"
        faults, refused = len(self.faults), len(self.refused)
        return (
            f"<Verdict: {faults} fault{'' if faults == 1 else 's'}, "
            f"{refused} refused region{'' if refused == 1 else 's'}>"
        )

    def patches(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ascending offsets of all repairable corrupted bytes, and their original values.

        Returns
        -------
        offsets : numpy.ndarray of shape (k,), int64
        was : numpy.ndarray of shape (k,), uint8
        """
        offsets, found, was = self.faults.array.T
        shifts = 8 * np.arange(self._size, dtype=np.uint64)
        old = (was[:, np.newaxis] >> shifts & np.uint64(0xFF)).astype(np.uint8)
        new = (found[:, np.newaxis] >> shifts & np.uint64(0xFF)).astype(np.uint8)
        places = offsets.astype(np.int64)[:, np.newaxis] + np.arange(self._size)
        return places[old != new], old[old != new]

    def elements(self, sidecar: "Sidecar") -> list[tuple[int, int]]:
        """Return (row, column) of each element that can be repaired, in row-major order, without duplicates."""
        touched = np.unique(self.patches()[0] // sidecar.itemsize)
        return list(zip(*(part.tolist() for part in np.divmod(touched, sidecar.shape[1])), strict=True))

    def check_repairable(self, name: str) -> None:
        """Raise `AmbiguousError` if any region cannot be repaired."""
        if self.refused:
            first = self.refused[0]
            others = f", and {len(self.refused) - 1} more such places" if len(self.refused) > 1 else ""
            raise AmbiguousError(
                f"{name}: more was changed than can be repaired for certain, in rows {first.row} to "
                f"{first.row_end - 1} and columns {first.column} to {first.column_end - 1} (counted from 0){others}: "
                f"restore these from a copy"
            )
