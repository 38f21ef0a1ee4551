"""Arrays in memory: where they are wrong, and the same array repaired."""

from contextlib import nullcontext
from typing import Any

import numpy as np

from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.at_rest.source import ArraySource, as_source, name_of
from tsapps.apps.abft.at_rest.verdict import ChangedError, Verdict
from tsapps.apps.abft.at_rest.verify import verify
from tsapps.kernels.arrays import as_array, kind_of, to_host

__all__ = ["bytes_in", "correct", "locate", "overwrite"]


def locate(X: Any, sidecar: Sidecar) -> list[tuple[int, int]]:
    """Return the rows and columns of the elements of a matrix that are not what they were.

    Parameters
    ----------
    X : array of any library, or Matrix
        As for `encode`.
    sidecar : Sidecar

    Returns
    -------
    list of (row, column)
        In order.

    Raises
    ------
    ValueError
        If the matrix has another shape or dtype.
    AmbiguousError
        If not every one is known: `verify` says what is.
    """
    source = as_source(X)
    verdict = verify(source, sidecar)
    places = set(verdict.elements(sidecar))
    unknown = []
    for region in verdict.refused:
        if (region.row_end - region.row, region.column_end - region.column) == (1, 1):
            places.add((region.row, region.column))
        else:
            unknown.append(region)
    Verdict(refused=unknown).check_repairable(name_of(source))
    return sorted(places)


def correct(X: Any, sidecar: Sidecar, *, in_place: bool = False) -> Any:
    """Return an array as it was when its sidecar was made.

    Parameters
    ----------
    X : array of any library
        For files, see `repaired`.
    sidecar : Sidecar
    in_place : bool, optional
        Whether `X` itself is repaired; otherwise a copy.

    Returns
    -------
    array of the same library and device
        `X` itself if `in_place`; a NumPy or CuPy array where the library is none of NumPy, CuPy and torch.

    Raises
    ------
    ValueError
        If the array has another shape or dtype, or is to be repaired in place and cannot be written.
    AmbiguousError
        If more was changed than can be repaired; nothing has then been written.
    ChangedError
        If it changed meanwhile; nothing has then been written.
    TypeError
        If `X` is no array, or a data frame that is to be repaired in place.
    """
    kind = kind_of(X)
    if kind is None:
        raise TypeError(
            f"expected an array, got {type(X).__qualname__}: of a file, tsapps.abft.repaired gives the right bytes"
        )
    if in_place and kind == "frame":
        raise TypeError("a data frame cannot be repaired in place: take the array that comes without in_place")
    if in_place and not _writable(as_array(X)):
        raise ValueError("the array in memory may not be written to: take the copy that comes without in_place")
    verdict = verify(X, sidecar)
    verdict.check_repairable(ArraySource.name)
    result = X if in_place else _copy(X)
    _repair(as_array(result), sidecar, verdict)
    return result


def _copy(X: Any) -> Any:
    return X.detach().clone() if kind_of(X) == "torch" else as_array(X).copy()


def _writable(array: Any) -> bool:
    return array.flags.writeable if isinstance(array, np.ndarray) else True


def _repair(array: Any, sidecar: Sidecar, verdict: Verdict) -> None:
    """Write to an array what it was; if it is not so then, what it had."""
    array = array if array.ndim == 2 else array[None, :]
    offsets, was = verdict.patches()
    before = overwrite(array, offsets, was)
    if not verify(array, sidecar).clean:
        overwrite(array, offsets, before)
        raise ChangedError(ArraySource.name)


def bytes_in(array: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return single bytes of an array, by their offsets as for `overwrite`."""
    _, native, places = _elements_of(array, offsets)
    return native.view(np.uint8)[places]


def overwrite(array: Any, offsets: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Write single bytes of an array, as they are in C order and the machine's byte order.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray of shape (m, n)
        Of any strides and byte order.
    offsets : numpy.ndarray of shape (k,), int
        Ascending.
    values : numpy.ndarray of shape (k,), uint8

    Returns
    -------
    numpy.ndarray of shape (k,), uint8
        What they were.
    """
    with nullcontext() if isinstance(array, np.ndarray) else array.device:
        where, native, places = _elements_of(array, offsets)
        content = native.view(np.uint8)
        before = content[places]
        content[places] = values
        if isinstance(array, np.ndarray):
            array[where] = native
        else:
            import cupy

            array[where] = cupy.asarray(native)
    return before


def _elements_of(array: Any, offsets: np.ndarray) -> tuple[tuple[Any, Any], np.ndarray, np.ndarray]:
    """Return the rows and columns of the elements that bytes are of, a copy of those, and the bytes' places in it."""
    size = array.itemsize
    elements = np.unique(offsets // size)
    rows, columns = np.divmod(elements, array.shape[1])
    if not isinstance(array, np.ndarray):
        import cupy

        rows, columns = cupy.asarray(rows), cupy.asarray(columns)
    found = to_host(array[rows, columns])
    places = np.searchsorted(elements, offsets // size) * size + offsets % size
    return (rows, columns), found.astype(found.dtype.newbyteorder("=")), places
