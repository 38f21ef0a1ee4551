"""Fault injection: reproducible corruption of an array's bytes, as memory, disks and cables cause it."""

from collections.abc import Callable

import numpy as np

from tsapps.apps.abft.at_rest.correct import bytes_in, overwrite
from tsapps.apps.abft.at_rest.interleave import WORD
from tsapps.kernels.arrays import refuse_masked

__all__ = ["FAULTS", "inject"]

# Ascending offsets of the bytes to overwrite, and their new values.
_Bytes = tuple[np.ndarray, np.ndarray]


def _bits(array: np.ndarray, size: int, rng: np.random.Generator) -> _Bytes:
    """Choose one element, and `size` different bits of this element to flip."""
    width = 8 * array.itemsize
    if size > width:
        raise ValueError(f"size is {size}; expected at most {width}, the bits of an element of {array.dtype}")
    flips = np.zeros(array.itemsize, np.uint8)
    for bit in rng.choice(width, size, replace=False).tolist():
        flips[bit // 8] |= 1 << bit % 8
    offsets = int(rng.integers(array.size)) * array.itemsize + np.arange(array.itemsize)
    return offsets, bytes_in(array, offsets) ^ flips


def _words(array: np.ndarray, size: int, rng: np.random.Generator) -> _Bytes:
    """Choose `size` words of 32 bits and random new values; every byte of these words gets another value."""
    n_words = -(-array.nbytes // WORD)
    if size > n_words:
        raise ValueError(f"size is {size}; expected at most {n_words}, the words of an array of {array.nbytes} bytes")
    words = np.sort(rng.choice(n_words, size, replace=False))
    offsets = (words[:, np.newaxis] * WORD + np.arange(WORD)).ravel()
    offsets = offsets[offsets < array.nbytes]
    return offsets, bytes_in(array, offsets) ^ rng.integers(1, 256, len(offsets), np.uint8)


def _burst(array: np.ndarray, size: int, rng: np.random.Generator) -> _Bytes:
    """Choose `size` consecutive bytes and random new values; every one of these bytes gets another value."""
    size = min(size, array.nbytes)
    offsets = int(rng.integers(array.nbytes - size + 1)) + np.arange(size)
    return offsets, bytes_in(array, offsets) ^ rng.integers(1, 256, size, np.uint8)


def _tile(array: np.ndarray, size: int, rng: np.random.Generator) -> _Bytes:
    """Choose a square of `size` × `size` elements to overwrite with zeros; smaller arrays limit the square."""
    rows, columns = (int(rng.integers(n - min(n, size) + 1)) + np.arange(min(n, size)) for n in array.shape)
    elements = (rows[:, np.newaxis] * array.shape[1] + columns).ravel()
    offsets = (elements[:, np.newaxis] * array.itemsize + np.arange(array.itemsize)).ravel()
    return offsets, np.zeros(len(offsets), np.uint8)


def _rectangle(array: np.ndarray, size: int, rng: np.random.Generator) -> _Bytes:
    """Add `size` to two opposite corners of a rectangle and subtract it from the other two.

    The sum of each row and of each column remains the same, so that unweighted checksums do not detect the fault.
    """
    if min(array.shape) < 2:
        raise ValueError(f"an array of {array.shape[0]} × {array.shape[1]} has no rectangle in it")
    rows, columns = (np.sort(rng.choice(n, 2, replace=False)) for n in array.shape)
    corners = array[np.ix_(rows, columns)]
    signs = np.array([[1, -1], [-1, 1]])
    with np.errstate(over="ignore", invalid="ignore"):
        changed = (corners + (size * signs).astype(array.dtype)).astype(array.dtype.newbyteorder("="))
    offsets = (rows[:, np.newaxis] * array.shape[1] + columns).reshape(-1, 1) * array.itemsize
    return (offsets + np.arange(array.itemsize)).ravel(), changed.reshape(-1).view(np.uint8)


#: For each fault name: the function that chooses the bytes to overwrite and their new values, and the default size.
FAULTS: dict[str, tuple[Callable[[np.ndarray, int, np.random.Generator], _Bytes], int]] = {
    "bit": (_bits, 1),
    "two-bits": (_bits, 2),
    "word": (_words, 1),
    "words": (_words, 3),
    "burst": (_burst, 4096),
    "tile": (_tile, 32),
    "rectangle": (_rectangle, 1),
}


def inject(
    array: np.ndarray, fault: str, rng: np.random.Generator, *, size: int | None = None
) -> list[tuple[int, int]]:
    """Corrupt an array in place.

    Parameters
    ----------
    array : numpy.ndarray of shape (m, n)
        Any strides and byte order; it may be a memory map.
    fault : str
        bit, two-bits
            Flips `size` different bits of one element. Default size: 1 for "bit", 2 for "two-bits".
        word, words
            Overwrites `size` words of 32 bits; each of their bytes changes. Default size: 1 for "word", 3 for "words".
        burst
            Overwrites `size` consecutive bytes; each of these bytes changes. Default size: 4096.
        tile
            Overwrites a square of `size` × `size` elements with zeros. Default size: 32.
        rectangle
            Adds `size` to two opposite corners of a rectangle and subtracts it from the other two. Default size: 1.
    rng : numpy.random.Generator
        Chooses the elements, bits and values at random.
    size : int, optional
        See `fault` for the unit and the default.

    Returns
    -------
    list of (row, column)
        The changed elements, in row-major order.

    Raises
    ------
    ValueError
        If the fault is unknown or does not fit into the array, or if the array is masked, read-only or not a matrix.
    """
    refuse_masked(array)
    if fault not in FAULTS:
        raise ValueError(f"fault must be one of {', '.join(FAULTS)}, got {fault!r}")
    make, usual = FAULTS[fault]
    size = usual if size is None else size
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    if array.ndim != 2 or array.size == 0:
        raise ValueError(f"expected a matrix with elements, got an array of shape {array.shape}")
    if not array.flags.writeable:
        raise ValueError("the array is read-only: inject faults into a copy")
    offsets, values = make(array, size, rng)
    before = overwrite(array, offsets, values)
    touched = np.unique(offsets[before != values] // array.itemsize)
    return [divmod(element, array.shape[1]) for element in touched.tolist()]
