"""Which elements of a matrix are not what they were, by the float code: where rows and columns of a tile cross.

A sum differs where it is farther from the stored one than two orders of additions can be (see `float_code.py`). Rows
and columns of one tile whose sums differ cross where elements were changed: one of each, at one element; k of each, at
k elements, if every row's sums tell of another one of the columns, by the ratio of two weights or by the one element
that is not finite.

Such an element is rebuilt: every sum with it, less the others, is an interval in which it was. If one number of its
type lies in all of them, it was that one; if more do, the place is known, and what it was is not. So elements whose
type has much fewer digits than their sums (float32, and integers of 32 bits or fewer) are rebuilt; those that have
nearly as many (float64, halves) rarely.
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

# Tiles are in memory by so many bytes.
_TILES_BYTES = 1 << 26


class WeightedCheck:
    """Whether elements that come in parts have a sidecar's weighted sums.

    Parameters
    ----------
    sidecar : Sidecar
    bounds : bool, optional
        Whether sums of magnitudes are added up in the same pass, which bounds are made of.
    """

    def __init__(self, sidecar: Sidecar, *, bounds: bool = True) -> None:
        self._sidecar, self._stored = sidecar, _stored(sidecar)
        self._found = WeightedSums(sidecar.shape, sidecar.dtype, sidecar.weights, sidecar.block)
        self._magnitudes = self._new_magnitudes() if bounds else None

    def _new_magnitudes(self) -> WeightedSums:
        sidecar = self._sidecar
        return WeightedSums(sidecar.shape, sidecar.dtype, sidecar.weights, sidecar.block, absolute=True)

    def add(self, row: int, column: int, elements: np.ndarray) -> None:
        """Add some of them, the next."""
        self._found.add(row, column, elements)
        if self._magnitudes is not None:
            self._magnitudes.add(row, column, elements)

    def same(self) -> bool:
        """Return whether all sums that say something are the same, when all have come."""
        return _same(self._found.stored(), self._stored)

    def wrong(self, source: Source | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return which sums are farther from the sidecar's than rounding is, when all have come.

        Parameters
        ----------
        source : Source, optional
            Read for the bounds, if they were left out.

        Returns
        -------
        rows : numpy.ndarray of shape (⌈n / block⌉, m), bool
        columns : numpy.ndarray of shape (⌈m / block⌉, n), bool
            Whether one weight's or more are.
        """
        if self._magnitudes is None:
            if source is None:
                raise ValueError("there are no bounds, and no source to make them of")
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
        """Return whether none is, when all have come."""
        return not any(wrong.any() for wrong in self.wrong())


def _stored(sidecar: Sidecar) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums along rows and along columns."""
    if sidecar.rows is None or sidecar.columns is None:
        raise ValueError("the sidecar has no sums of the float code")
    return sidecar.rows, sidecar.columns


def _same(found: tuple[np.ndarray, np.ndarray], stored: tuple[np.ndarray, np.ndarray]) -> bool:
    """Return whether all sums along rows and along columns that say something are the same."""
    return all(bool(((one == other) | ~np.isfinite(other)).all()) for one, other in zip(found, stored, strict=True))


class _Sums(NamedTuple):
    """Sums (blocks, weights, lines) along rows or along columns, and of huge elements apart, times `SCALE`."""

    others: np.ndarray
    huge: np.ndarray | None

    def of_block(self, block: int) -> tuple[np.ndarray, np.ndarray | float]:
        """Return both of one block."""
        return self.others[block], 0.0 if self.huge is None else self.huge[block]


def _of(sums: WeightedSums, lines: int) -> _Sums:
    """Return the sums along rows (0) or along columns (1)."""
    return _Sums((sums.rows, sums.columns)[lines], None if sums.huge is None else sums.huge[lines])


def _apart(stored: np.ndarray, found: _Sums, bound: float, magnitudes: _Sums) -> np.ndarray:
    """Return where sums (blocks, weights, lines) of any weight are too far apart, (blocks, lines).

    Sums with huge elements are compared times `SCALE`, where neither they nor their bounds overflow. Where there are
    none, sums and magnitudes are less than 2⁹¹⁰ (a block has at most 2¹⁰ tiles), and nothing overflows either.
    """
    wrong = np.empty((stored.shape[0], stored.shape[2]), bool)
    for block in range(len(stored)):
        expected = stored[block].astype(np.float64)
        (sums, huge), (sizes, huge_sizes) = found.of_block(block), magnitudes.of_block(block)
        with np.errstate(invalid="ignore", over="ignore"):  # of elements that are not finite
            scaled = (huge != 0) | (huge_sizes != 0)
            scale = np.where(scaled, SCALE, 1.0)
            total = sums * scale + huge
            near = np.isfinite(total) & (np.abs(total - expected * scale) <= bound * (sizes * scale + huge_sizes))
        wrong[block] = (np.isfinite(expected) & ~near).any(axis=0)
    return wrong


class _Tile(NamedTuple):
    """Rows and columns of one tile whose sums are wrong, counted from the matrix's first."""

    band: int
    side: int
    rows: list[int]
    columns: list[int]


def weighted_verdict(source: Source, sidecar: Sidecar, progress: Progress | None = None) -> Verdict:
    """Return what of a matrix is not as it was, by its weighted sums.

    One pass if they are bit for bit the same; another for the bounds if not; and one for every 64 MiB of tiles in
    which elements may be rebuilt. An array on a GPU is first read there, where a kernel serves it: sums that were made
    so are the same again. If they are not, it is all as for others.
    """
    of, weights, block = layout(sidecar.shape, sidecar.itemsize), sidecar.weights, sidecar.block
    by_gpu = sums_on_gpu(source, None, of, code="float", weights=weights, block=block, progress=progress)
    if by_gpu is not None:
        if _same((by_gpu["rows"], by_gpu["columns"]), _stored(sidecar)):
            return Verdict()
        progress = None  # which has been told of all bytes
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
            with np.errstate(all="ignore"):  # of elements that are not finite
                mended, not_mended = _solved(tile, elements, sidecar)
            faults += mended
            refused += not_mended
    return Verdict(sorted(faults), sorted(refused), sidecar.itemsize)


def _tiles(rows_wrong: np.ndarray, columns_wrong: np.ndarray, block: int) -> list[_Tile]:
    """Return the tiles that have rows or columns whose sums are wrong."""
    tiles: dict[tuple[int, int], _Tile] = {}
    for side, row in np.argwhere(rows_wrong).tolist():
        tiles.setdefault((row // block, side), _Tile(row // block, side, [], [])).rows.append(row)
    for band, column in np.argwhere(columns_wrong).tolist():
        tiles.setdefault((band, column // block), _Tile(band, column // block, [], [])).columns.append(column)
    return list(tiles.values())


def _whole(tile: _Tile, sidecar: Sidecar) -> Region:
    """Return where in a tile elements were changed: where its rows cross its columns, or all of those it has."""
    (m, n), block = sidecar.shape, sidecar.block
    rows = tile.rows or [tile.band * block, min(m, (tile.band + 1) * block) - 1]
    columns = tile.columns or [tile.side * block, min(n, (tile.side + 1) * block) - 1]
    return Region(rows[0], rows[-1] + 1, columns[0], columns[-1] + 1)


def _read(source: Source, tiles: list[_Tile], block: int) -> list[np.ndarray]:
    """Return the elements of tiles, by one pass."""
    m, n = source.shape
    found = [
        np.empty((min(block, m - tile.band * block), min(block, n - tile.side * block)), source.dtype) for tile in tiles
    ]
    for row, column, elements in parts(source):
        for tile, to in zip(tiles, found, strict=True):
            down, right = tile.band * block - row, tile.side * block - column
            # What the part has of the tile, in the part's own numbers.
            top, bottom = max(0, down), min(len(elements), down + to.shape[0])
            left, end = max(0, right), min(elements.shape[1], right + to.shape[1])
            if top < bottom and left < end:
                to[top - down : bottom - down, left - right : end - right] = elements[top:bottom, left:end]
    return found


def _solved(tile: _Tile, elements: np.ndarray, sidecar: Sidecar) -> tuple[list[tuple[int, int, int]], list[Region]]:
    """Return the faults of a tile, and its elements that cannot be rebuilt; or no faults, and all of it as a region."""
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
    """Return where each row of a tile crosses its one column, counted from the tile's first; nothing if unclear."""
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
    """Return the numbers that an element of a tile can have been: one, two where there are more, None where none can.

    It is to be the only one in intervals twice as wide as rounding makes them, for others that are wrong unseen.
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
    """Return the numbers of a type from `low` to `high`: one, two where there are more, None where there are none."""
    if dtype.kind in "iu":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        first, last = np.ceil(max(low, float(least))), np.floor(min(high, float(most)))
        if first > last:
            return None
        return np.array([int(first)] if first == last and least <= int(first) <= most else [0, 0], dtype)
    if low > high:
        return None
    both = np.array([low, high]).astype(dtype)
    # Rounding never changes the order: a number between the two would lie between what they are rounded to.
    if both[0] != both[1] or not np.isfinite(both[0].astype(np.float64)):
        return both
    return both[:1] if low <= float(both[0]) <= high else None
