"""Check of the sums that encode a matrix, against their definitions, and of a verification, by a fault."""

from math import comb
from typing import Any

import numpy as np

from tsapps.apps import abft
from tsapps.apps.abft.at_rest.exact_code import SUMS, last_weight
from tsapps.apps.abft.at_rest.interleave import ROWS, Layout
from tsapps.bench.common.dtypes import ITEMSIZE
from tsapps.bench.common.outcome import NotRightError
from tsapps.bench.gemm.grid import wide

__all__ = ["check_sums", "check_verification"]

# Sign of an element, in its last byte.
_SIGN = 0x80


def check_sums(A: Any, dtype: str, of: Layout, sums: dict[str, Any]) -> None:
    """Compare sums of the first, a middle and the last stripe with their definitions, in integers and float64.

    Parameters
    ----------
    A : array of shape (m, n)
        NumPy or CuPy, C-contiguous; bfloat16 as the uint16 of its bits. m and n are multiples of 512.
    dtype : str
    of : Layout
    sums : dict of str to array
        Result of `add_checksums` for two weights and blocks of 512.

    Raises
    ------
    NotRightError
        If an integer sum differs, or a weighted one differs by more than two summation orders can.
    """
    if "exact" in sums:
        words = A.reshape(-1).view(np.uint32).reshape(-1, of.width)
        for stripe in sorted({0, of.stripes // 2, of.stripes - 1}):
            _check_words(words[stripe * ROWS : (stripe + 1) * ROWS].astype(np.uint64), sums["exact"][stripe], stripe)
    if "rows" in sums:
        unit = 2.0**-53 if ITEMSIZE[dtype] > 2 else 2.0**-24
        bound = 2 * ROWS * unit / (1 - ROWS * unit)
        for band in sorted({0, len(A) // ROWS - 1}):
            here = slice(band * ROWS, (band + 1) * ROWS)
            tiles = wide(A[here], dtype).reshape(ROWS, -1, ROWS)
            for power in range(2):
                w = _like(tiles, np.arange(1, ROWS + 1.0) ** power)
                rows, columns = sums["rows"][:, power, here], sums["columns"][band, power]
                _check_near("rows", rows, (tiles @ w).T, (abs(tiles) @ w).T, bound)
                along = tiles.reshape(ROWS, -1)
                _check_near("columns", columns, w @ along, w @ abs(along), bound)


def _check_words(words: Any, found: Any, stripe: int) -> None:
    left = len(words) - np.arange(len(words))
    for k in range(SUMS):
        weights = [comb(int(r) + k - 1, k) if k < SUMS - 1 else last_weight(int(r)) for r in left]
        expected = (words * _like(words, np.array(weights, np.uint64))[:, None]).sum(axis=0)
        if not bool((expected == found[k]).all()):
            raise NotRightError(f"integer checksum {k} of stripe {stripe} is wrong")


def _like(array: Any, values: np.ndarray) -> Any:
    """Return values as an array of the same library."""
    if isinstance(array, np.ndarray):
        return values
    import cupy

    return cupy.asarray(values)


def _check_near(name: str, found: Any, expected: Any, magnitude: Any, bound: float) -> None:
    if not bool((abs(found - expected) <= bound * magnitude).all()):
        raise NotRightError(f"a sum of {name} is off by more than rounding explains")


def check_verification(A: Any, sidecar: abft.Sidecar) -> None:
    """Verify a matrix as it is, and with one wrong element, which is restored.

    Parameters
    ----------
    A : array of shape (m, n)
        NumPy or CuPy, C-contiguous.
    sidecar : Sidecar

    Raises
    ------
    NotRightError
        If the verification finds corruption in the unchanged matrix, or does not find the wrong element.
    """
    if not abft.verify(A, sidecar).clean:
        raise NotRightError("verification reports corruption in an unchanged matrix")
    row = len(A) // 2
    # A change of a large element exceeds the bound of the float code.
    column = int(abs(A[row].astype(np.float32)).argmax())
    last_byte = A.reshape(-1).view(np.uint8)[(row * A.shape[1] + column + 1) * A.itemsize - 1 :][:1]
    last_byte ^= _SIGN
    try:
        found = abft.locate(A, sidecar)
    except abft.AmbiguousError as error:
        raise NotRightError(f"one wrong element is not located: {error}") from error
    finally:
        last_byte ^= _SIGN
    if found != [(row, column)]:
        raise NotRightError(f"verification finds {found[:3]} wrong; expected {(row, column)} alone")
