"""Decoding of the float code: locate corrupted elements at the crossings of a tile's mismatching rows and columns.

`float_code.py` defines tile, weights and block. A row or column of a tile *mismatches* if one of its sums differs from
the stored sum by more than another order of additions can explain. The corrupted elements of a tile are where its
mismatching rows and columns cross:

- One mismatching row and one mismatching column cross at the corrupted element.
- With k mismatching rows and k mismatching columns, each row must point to a different column. A row points to a column
  by the ratio of its two weighted differences (found minus stored sum), or by its only non-finite element. Then there
  are k corrupted elements, one per row.

A stored sum minus the weighted other elements gives the original element up to rounding: an interval. If exactly one
number of the element's type is in the intervals of all sums that contain the element, that number is the original. If
several such numbers exist, the element is located but not corrected. So float32 and integers of up to 32 bits, which
have far fewer digits than their float64 sums, are usually corrected. Elements of float64 and 16-bit types rarely are.
"""

from typing import NamedTuple

import numpy as np

from tsapps.apps.abft.at_rest.float_code import SCALE, WeightedSums, gamma
from tsapps.apps.abft.at_rest.gpu.encode import sums_on_gpu
from tsapps.apps.abft.at_rest.interleave import layout
from tsapps.apps.abft.at_rest.sidecar import Sidecar
from tsapps.apps.abft.at_rest.source import Progress, Source, parts
from tsapps.apps.abft.at_rest.verdict import Region, Verdict

__all__ = ["WeightedCheck", "weighted_verdict"]

# Maximum total size in bytes of the tiles that are in memory at once.
_TILES_BYTES = 1 << 26


class WeightedCheck:
    """Comparison of a matrix with the weighted sums of a sidecar; the elements of the matrix are added in parts.

    Parameters
    ----------
    sidecar : Sidecar
    bounds : bool, optional
        Whether the same pass also sums the magnitudes of the elements, from which the rounding error bounds follow.
    """

    def __init__(self, sidecar: Sidecar, *, bounds: bool = True) -> None:
        self._sidecar, self._stored = sidecar, _stored(sidecar)
        self._found = WeightedSums(sidecar.shape, sidecar.dtype, sidecar.weights, sidecar.block)
        self._magnitudes = self._new_magnitudes() if bounds else None

    def _new_magnitudes(self) -> WeightedSums:
        sidecar = self._sidecar
        return WeightedSums(sidecar.shape, sidecar.dtype, sidecar.weights, sidecar.block, absolute=True)

    def add(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add the next elements; `row` and `column` are the indices of the first of them."""
        self._found.add(row, column, elements)
        if self._magnitudes is not None:
            self._magnitudes.add(row, column, elements)

    def same(self) -> bool:
        """Return True if all sums equal the stored sums that are finite; call it after all elements were added."""
        return _same(self._found.stored(), self._stored)

    def wrong(self, source: Source | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows and columns mismatch the sidecar's sums; call it after all elements were added.

        Parameters
        ----------
        source : Source, optional
            The matrix. It is read again to compute the error bounds if `bounds` was false.

        Returns
        -------
        rows : numpy.ndarray of shape (⌈n / block⌉, m), bool
        columns : numpy.ndarray of shape (⌈m / block⌉, n), bool
            True for each row or column of a tile with at least one sum that differs by more than rounding.
        """
        if self._magnitudes is None:
            if source is None:
                raise ValueError("the error bounds were not computed; expected a source to compute them from")
            self._magnitudes = self._new_magnitudes()
            for part in parts(source):
                self._magnitudes.add(*part)
        bound = 2 * gamma(self._sidecar.block, self._stored[0].dtype)
        rows, columns = (
            _apart(stored, _of(self._found, lines), bound, _of(self._magnitudes, lines))
            for lines, stored in enumerate(self._stored)
        )
        return rows, columns

    def passed(self) -> bool:
        """Return True if no sum differs by more than rounding; call it after all elements were added."""
        return not any(wrong.any() for wrong in self.wrong())


def _stored(sidecar: Sidecar) -> tuple[np.ndarray, np.ndarray]:
    """Return the row sums and the column sums of a sidecar; raise `ValueError` if there are none."""
    if sidecar.rows is None or sidecar.columns is None:
        raise ValueError("the sidecar has no sums of the float code")
    return sidecar.rows, sidecar.columns


def _same(found: tuple[np.ndarray, np.ndarray], stored: tuple[np.ndarray, np.ndarray]) -> bool:
    """Return True if every finite stored sum equals the found sum of the same row or column."""
    return all(bool(((one == other) | ~np.isfinite(other)).all()) for one, other in zip(found, stored, strict=True))


class _Sums(NamedTuple):
    """Row sums or column sums, of shape (blocks, weights, lines), where a line is a row or a column.

    Attributes
    ----------
    others : numpy.ndarray
        Sums without huge elements (float_code.py).
    huge : numpy.ndarray or None
        Sums of huge elements, scaled by `SCALE`; None if there are no huge elements.
    """

    others: np.ndarray
    huge: np.ndarray | None

    def of_block(self, block: int) -> tuple[np.ndarray, np.ndarray | float]:
        """Return `others` and `huge` of one block; 0 for `huge` if it is None."""
        return self.others[block], 0.0 if self.huge is None else self.huge[block]


def _of(sums: WeightedSums, lines: int) -> _Sums:
    """Return the row sums if `lines` is 0, or the column sums if `lines` is 1."""
    return _Sums((sums.rows, sums.columns)[lines], None if sums.huge is None else sums.huge[lines])


def _apart(stored: np.ndarray, found: _Sums, bound: float, magnitudes: _Sums) -> np.ndarray:
    """Return True for each block and line with a stored sum that differs from the found sum by more than rounding.

    The arguments have shape (blocks, weights, lines), and the result has shape (blocks, lines). `bound` is relative to
    the sums of magnitudes. Sums with huge elements are scaled by `SCALE` before the comparison, so that neither these
    sums nor their bounds overflow. The other sums and magnitudes are below 2⁹¹⁰: each adds at most 2¹⁰ partial sums
    below 2⁹⁰⁰.
    """
    wrong = np.empty((stored.shape[0], stored.shape[2]), bool)
    for block in range(len(stored)):
        expected = stored[block].astype(np.float64)
        (sums, huge), (sizes, huge_sizes) = found.of_block(block), magnitudes.of_block(block)
        with np.errstate(invalid="ignore", over="ignore"):  # sums may be infinite or NaN
            scaled = (huge != 0) | (huge_sizes != 0)
            scale = np.where(scaled, SCALE, 1.0)
            total = sums * scale + huge
            near = np.isfinite(total) & (np.abs(total - expected * scale) <= bound * (sizes * scale + huge_sizes))
        wrong[block] = (np.isfinite(expected) & ~near).any(axis=0)
    return wrong


class _Tile(NamedTuple):
    """A tile with mismatching rows or columns.

    Attributes
    ----------
    band, side : int
        The number of the tile's block of rows, and the number of its block of columns.
    rows, columns : list of int
        The mismatching rows and columns, as ascending indices in the matrix.
    """

    band: int
    side: int
    rows: list[int]
    columns: list[int]


def weighted_verdict(source: Source, sidecar: Sidecar, progress: Progress | None = None) -> Verdict:
    """Return the verdict of the float code.

    One pass over the matrix suffices if all sums equal the stored sums. Otherwise a second pass computes the error
    bounds. Tiles that may be corrected are then read in batches of at most 64 MiB, with one more pass per batch. An
    array on a GPU is first summed there if a kernel supports it: a kernel computes the same bits on every run, so its
    sums equal stored sums that it computed. The CPU reads the array only if the sums differ.
    """
    of, weights, block = layout(sidecar.shape, sidecar.itemsize), sidecar.weights, sidecar.block
    by_gpu = sums_on_gpu(source, None, of, code="float", weights=weights, block=block, progress=progress)
    if by_gpu is not None:
        if _same((by_gpu["rows"], by_gpu["columns"]), _stored(sidecar)):
            return Verdict()
        progress = None  # the GPU's pass has already reported all bytes
    check = WeightedCheck(sidecar, bounds=False)
    for part in parts(source, progress):
        check.add(*part)
    if check.same():
        return Verdict()
    faults: list[tuple[int, int, int]] = []
    refused: list[Region] = []
    hopeful: list[_Tile] = []
    for tile in _tiles(*check.wrong(source), sidecar.block):
        crossing = len(tile.rows) == len(tile.columns) and (len(tile.rows) == 1 or sidecar.weights > 1)
        hopeful.append(tile) if crossing else refused.append(_whole(tile, sidecar))
    together = max(1, _TILES_BYTES // (sidecar.block**2 * sidecar.itemsize))
    for first in range(0, len(hopeful), together):
        batch = hopeful[first : first + together]
        for tile, elements in zip(batch, _read(source, batch, sidecar.block), strict=True):
            with np.errstate(all="ignore"):  # elements may be infinite or NaN
                mended, not_mended = _solved(tile, elements, sidecar)
            faults += mended
            refused += not_mended
    return Verdict(sorted(faults), sorted(refused), sidecar.itemsize)


def _tiles(rows_wrong: np.ndarray, columns_wrong: np.ndarray, block: int) -> list[_Tile]:
    """Return the tiles with mismatching rows or columns; `rows_wrong` and `columns_wrong` are those of `wrong`."""
    tiles: dict[tuple[int, int], _Tile] = {}
    for side, row in np.argwhere(rows_wrong).tolist():
        tiles.setdefault((row // block, side), _Tile(row // block, side, [], [])).rows.append(row)
    for band, column in np.argwhere(columns_wrong).tolist():
        tiles.setdefault((band, column // block), _Tile(band, column // block, [], [])).columns.append(column)
    return list(tiles.values())


def _whole(tile: _Tile, sidecar: Sidecar) -> Region:
    """Return the smallest region that contains all mismatching rows and columns of a tile.

    If no row mismatches, the region has all rows of the tile; if no column mismatches, it has all columns.
    """
    (m, n), block = sidecar.shape, sidecar.block
    rows = tile.rows or [tile.band * block, min(m, (tile.band + 1) * block) - 1]
    columns = tile.columns or [tile.side * block, min(n, (tile.side + 1) * block) - 1]
    return Region(rows[0], rows[-1] + 1, columns[0], columns[-1] + 1)


def _read(source: Source, tiles: list[_Tile], block: int) -> list[np.ndarray]:
    """Read the elements of several tiles in one pass over the matrix."""
    m, n = source.shape
    found = [
        np.empty((min(block, m - tile.band * block), min(block, n - tile.side * block)), source.dtype) for tile in tiles
    ]
    for row, column, elements in parts(source):
        for tile, to in zip(tiles, found, strict=True):
            down, right = tile.band * block - row, tile.side * block - column
            # The intersection of the tile with the elements just read, as indices in `elements`.
            top, bottom = max(0, down), min(len(elements), down + to.shape[0])
            left, end = max(0, right), min(elements.shape[1], right + to.shape[1])
            if top < bottom and left < end:
                to[top - down : bottom - down, left - right : end - right] = elements[top:bottom, left:end]
    return found


def _solved(tile: _Tile, elements: np.ndarray, sidecar: Sidecar) -> tuple[list[tuple[int, int, int]], list[Region]]:
    """Return the faults (offset, found, was) of a tile that can be corrected, and the regions that cannot be corrected.

    A region is one element, or spans all mismatching rows and columns if the corrupted elements cannot be located.
    """
    block, n = sidecar.block, sidecar.shape[1]
    top, left = tile.band * block, tile.side * block
    crossings = _crossings(tile, elements, sidecar)
    faults, refused = [], []
    for row, column in crossings:
        was = _rebuilt(row, column, elements, tile, sidecar)
        if was is None:
            return [], [_whole(tile, sidecar)]
        if was.size != 1:
            refused.append(Region(top + row, top + row + 1, left + column, left + column + 1))
            continue
        bits = np.dtype(f"u{elements.itemsize}")
        found = elements[row : row + 1, column].view(bits).item()
        offset = ((top + row) * n + left + column) * elements.itemsize
        faults.append((offset, found, was.view(bits).item()))
    return (faults, refused) if crossings else ([], [_whole(tile, sidecar)])


def _crossings(tile: _Tile, elements: np.ndarray, sidecar: Sidecar) -> list[tuple[int, int]]:
    """Return (row, column) of each corrupted element, as indices in the tile.

    The list is empty if the mismatching rows do not point to different mismatching columns.
    """
    top, left = tile.band * sidecar.block, tile.side * sidecar.block
    columns = [column - left for column in tile.columns]
    if len(columns) == 1:
        return [(tile.rows[0] - top, columns[0])]
    powers = np.arange(1, elements.shape[1] + 1, dtype=np.float64) ** np.arange(2)[:, np.newaxis]
    found = []
    for number in tile.rows:
        row = elements[number - top].astype(np.float64)
        places = np.flatnonzero(~np.isfinite(row))
        if len(places) == 0:
            plain, weighted = powers @ row - _stored(sidecar)[0][tile.side, :2, number]
            places = np.rint([weighted / plain - 1])
        if len(places) != 1 or places[0] not in columns:
            return []
        found.append((number - top, int(places[0])))
    return found if len({column for _, column in found}) == len(columns) else []


def _rebuilt(row: int, column: int, elements: np.ndarray, tile: _Tile, sidecar: Sidecar) -> np.ndarray | None:
    """Return the possible original values of a located element, as `_numbers` does; None if there is none.

    `row` and `column` are indices in the tile. The intervals are twice as wide as rounding requires, because other
    elements may have undetected errors. If these intervals contain a single number, but one of the intervals without
    the widening does not contain it, the result is None.
    """
    rows, columns = _stored(sidecar)
    lines = (
        (elements[row], column, rows[tile.side, :, tile.band * sidecar.block + row]),
        (elements[:, column], row, columns[tile.band, :, tile.side * sidecar.block + column]),
    )
    answers, tolerances = [], []
    for line, place, stored in lines:
        others = line.astype(np.float64)
        others[place] = 0
        if not np.isfinite(others).all():
            return None
        for power, total in enumerate(stored.astype(np.float64).tolist()):
            terms = np.arange(1.0, len(line) + 1) ** power * others
            answer = (total - terms.sum()) / (place + 1) ** power
            magnitude = np.abs(terms).sum() / (place + 1) ** power + abs(answer)
            tolerance = 2 * gamma(sidecar.block, stored.dtype) * magnitude
            if np.isfinite(tolerance):
                answers.append(answer)
                tolerances.append(tolerance)
    if not answers:
        return np.zeros(2, elements.dtype)
    nearby = np.array(answers), np.array(tolerances)
    found = _numbers(float((nearby[0] - 2 * nearby[1]).max()), float((nearby[0] + 2 * nearby[1]).min()), elements.dtype)
    if found is not None and found.size == 1 and (np.abs(nearby[0] - found.astype(np.float64)) > nearby[1]).any():
        return None
    return found


def _numbers(low: float, high: float, dtype: np.dtype) -> np.ndarray | None:
    """Return the only number of a type between `low` and `high`, as an array of one number.

    If there are several such numbers, the result is an array of any two numbers; if there is none, it is None.
    """
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        first, last = np.ceil(max(low, float(least))), np.floor(min(high, float(most)))
        if first > last:
            return None
        return np.array([int(first)] if first == last and least <= int(first) <= most else [0, 0], dtype)
    if low > high:
        return None
    both = np.array([low, high]).astype(dtype)
    # Rounding is monotonic: a number of the type between low and high is between their rounded values.
    if both[0] != both[1] or not np.isfinite(both[0].astype(np.float64)):
        return both
    return both[:1] if low <= float(both[0]) <= high else None
