"""Location and correction of corrupted elements of arrays in memory."""

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
    """Return the rows and columns of the corrupted elements of a matrix.

    Parameters
    ----------
    X : array of any library, or Matrix
        As for `encode`.
    sidecar : Sidecar

    Returns
    -------
    list of (row, column)
        In row-major order.

    Raises
    ------
    ValueError
        If the shape or dtype of the matrix differs from the sidecar's.
    AmbiguousError
        If some corruption can only be located to a region of several elements. `verify` returns such regions, and the
        elements that can be located.
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
    """Repair a corrupted array, and return it with its original elements.

    Parameters
    ----------
    X : array of any library
        For files, see `repaired`.
    sidecar : Sidecar
    in_place : bool, optional
        Whether to repair `X` itself instead of a copy.

    Returns
    -------
    array of the same library and device
        `X` itself if `in_place`; a NumPy or CuPy array if the library is not NumPy, CuPy or torch.

    Raises
    ------
    ValueError
        If the shape or dtype of the array differs from the sidecar's, or if `in_place` is true and the array is
        read-only.
    AmbiguousError
        If the corruption cannot be repaired; nothing is written.
    ChangedError
        If the array changes during the call; every byte that was repaired is set back.
    TypeError
        If `X` is not an array, or if `in_place` is true and `X` is a data frame.
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
    """Repair an array in place; restore its former bytes if the result does not match the sidecar."""
    array = array if array.ndim == 2 else array[None, :]
    offsets, was = verdict.patches()
    before = overwrite(array, offsets, was)
    if not verify(array, sidecar).clean:
        overwrite(array, offsets, before)
        raise ChangedError(ArraySource.name)


def bytes_in(array: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the bytes of an array at ascending offsets; `overwrite` defines the offsets."""
    _, native, places = _elements_of(array, offsets)
    return native.view(np.uint8)[places]


def overwrite(array: Any, offsets: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Overwrite single bytes of an array.

    Parameters
    ----------
    array : numpy.ndarray or cupy.ndarray of shape (m, n)
        Any strides and byte order.
    offsets : numpy.ndarray of shape (k,), int
        Ascending offsets in bytes, counted in a row-major copy of the array in the machine's byte order.
    values : numpy.ndarray of shape (k,), uint8
        The new bytes.

    Returns
    -------
    numpy.ndarray of shape (k,), uint8
        The previous bytes.
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
    """Return the elements that contain the bytes at some offsets of an array (see `overwrite`).

    Returns
    -------
    (rows, columns)
        The indices of the elements.
    elements : numpy.ndarray
        A copy of the elements in host memory, in the machine's byte order.
    places : numpy.ndarray of int
        The offset of each byte in `elements`.
    """
    size = array.itemsize
    elements = np.unique(offsets // size)
    rows, columns = np.divmod(elements, array.shape[1])
    if not isinstance(array, np.ndarray):
        import cupy

        rows, columns = cupy.asarray(rows), cupy.asarray(columns)
    found = to_host(array[rows, columns])
    places = np.searchsorted(elements, offsets // size) * size + offsets % size
    return (rows, columns), found.astype(found.dtype.newbyteorder("=")), places
