"""Arrays in memory: where they are wrong, and the same array repaired."""

from typing import Any

import numpy as np

from tsapps.apps.abft.rest import verify
from tsapps.apps.abft.sidecar import Sidecar
from tsapps.apps.abft.source import ArraySource, as_source
from tsapps.apps.abft.verdict import ChangedError, Verdict
from tsapps.kernels.arrays import as_array, kind_of, to_host

__all__ = ["correct", "locate"]


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
    Verdict(refused=unknown).check_repairable(getattr(source, "name", "the matrix"))
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
            f"expected an array, got {type(X).__name__}: the bytes of a file come from tsapps.abft.repaired"
        )
    if in_place and kind == "frame":
        raise TypeError("a data frame cannot be repaired in place: take the array that comes without in_place")
    source = as_source(X)
    verdict = verify(source, sidecar)
    verdict.check_repairable(ArraySource.name)
    if in_place and not getattr(as_array(X), "flags", None) is None and not _writable(as_array(X)):
        raise ValueError("the array in memory cannot be written: repair a copy, without in_place")
    result = X if in_place else _copy(X, kind)
    _patch(as_source(result), sidecar, verdict)
    return result


def _writable(array: Any) -> bool:
    return not isinstance(array, np.ndarray) or array.flags.writeable


def _copy(X: Any, kind: str) -> Any:
    return X.detach().clone() if kind == "torch" else as_array(X).copy()


def _patch(source: Any, sidecar: Sidecar, verdict: Verdict) -> None:
    raise NotImplementedError(to_host, ChangedError)
