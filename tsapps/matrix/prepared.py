"""Rows of a matrix as features: picked columns, missing values, and columns scaled alike.

Missing values are NaN. `learn` finds out what depends on the data (means, scales, which rows are kept), in passes over
it; `prepared` applies that, to the same data or to other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsapps.errors import EmptyMatrixError, MatrixError
from tsapps.kernels.system.printable import shown
from tsapps.matrix.base import DerivedMatrix, Matrix
from tsapps.matrix.checks import check_finite, is_floating

__all__ = ["Learned", "PickedColumns", "Preparation", "learn", "prepared", "rows_kept"]

# Elements that are read at a time.
_ELEMENTS = 1 << 21


@dataclass(frozen=True)
class Preparation:
    """What is done with the columns of a matrix.

    Attributes
    ----------
    missing : {"error", "drop", "mean"}
        Rows with missing values are errors, are left out, or get the mean of the column.
    scale : {"none", "standard", "minmax", "robust"}
        Columns are subtracted and divided by nothing; mean and standard deviation; minimum and range; median and
        interquartile range. The divisor of a constant column is 1.
    """

    missing: str = "error"
    scale: str = "none"


@dataclass(frozen=True)
class Learned:
    """What a preparation has learned from data; lists have one number for each column.

    Attributes
    ----------
    fill : list of float or None
        What replaces missing values.
    shift, divisor : list of float or None
        A scaled element is (element - shift) / divisor.
    """

    fill: list[float] | None = None
    shift: list[float] | None = None
    divisor: list[float] | None = None


class PickedColumns(DerivedMatrix):
    """Some columns of a matrix without names, in a given order."""

    def __init__(self, source: Matrix, columns: Sequence[int]) -> None:
        super().__init__(source, source.dtype, len(columns))
        self._columns, self.numbers = list(columns), tuple(columns)

    def _convert(self, block: Any, numbers: Sequence[int] | np.ndarray) -> Any:  # noqa: ARG002
        return block[:, self._columns]


class _Filled(DerivedMatrix):
    """A matrix whose missing values are replaced, column by column."""

    def __init__(self, source: Matrix, fill: Sequence[float]) -> None:
        super().__init__(source, source.dtype)
        self._fill = np.array(fill, source.dtype)

    def _convert(self, block: Any, numbers: Sequence[int] | np.ndarray) -> Any:  # noqa: ARG002
        return np.where(np.isnan(block), self._fill, block)


class _Scaled(DerivedMatrix):
    """A matrix whose columns are shifted and divided; computed in float64."""

    def __init__(self, source: Matrix, shift: Sequence[float], divisor: Sequence[float]) -> None:
        super().__init__(source, source.dtype if is_floating(source.dtype) else np.dtype(np.float64))
        self._shift, self._divisor = np.array(shift), np.array(divisor)

    def _convert(self, block: Any, numbers: Sequence[int] | np.ndarray) -> Any:  # noqa: ARG002
        return ((block.astype(np.float64) - self._shift) / self._divisor).astype(self.dtype)


class _Kept(Matrix):
    """The rows of a matrix that a mask keeps."""

    def __init__(self, source: Matrix, kept: np.ndarray) -> None:
        self._source, self._numbers, self._mask = source, np.flatnonzero(kept), kept
        super().__init__(source.name, (len(self._numbers), source.shape[1]), source.dtype)
        self.file_state, self.column_names, self.numbers = source.file_state, source.column_names, source.numbers

    @property
    def files(self) -> list[tuple[str, int]]:
        """Return the path and the number of all rows of each file of the source."""
        return self._source.files

    def row_name(self, row: int) -> str:
        """Return what messages call a row; see `Matrix.row_name`."""
        return self._source.row_name(int(self._numbers[row]))

    def check_unchanged(self) -> None:
        """Raise `MatrixError` if a file of the source has changed since it was opened."""
        self._source.check_unchanged()

    def _blocks(self, rows: int) -> Iterator[tuple[int, Any]]:
        done = 0
        for start, block in self._source.blocks(rows):
            found = block[self._mask[start : start + len(block)]]
            if len(found):
                yield done, found
                done += len(found)

    def _rows(self, numbers: np.ndarray) -> Any:
        return self._source._rows(self._numbers[numbers])


def prepared(source: Matrix, learned: Learned, kept: np.ndarray | None = None) -> Matrix:
    """Return a matrix prepared by what was learned; `kept` is a mask of its rows, or None to keep all."""
    found = source if kept is None else _Kept(source, kept)
    if learned.fill is not None:
        found = _Filled(found, learned.fill)
    if learned.shift is not None and learned.divisor is not None:
        found = _Scaled(found, learned.shift, learned.divisor)
    return found


def rows_kept(source: Matrix) -> np.ndarray | None:
    """Return a mask of the rows without missing values; None if none are missing.

    Raises
    ------
    EmptyMatrixError
        If every row has a missing value.
    """
    if not is_floating(source.dtype):
        return None
    kept = np.ones(source.shape[0], bool)
    for start, block in _blocks(source):
        kept[start : start + len(block)] = ~np.isnan(block).any(axis=1)
    if not kept.any():
        raise EmptyMatrixError(
            f"{source.name}: every row has a missing value: leave out columns, or give --missing mean"
        )
    return None if kept.all() else kept


def learn(source: Matrix, how: Preparation) -> tuple[Learned, np.ndarray | None]:
    """Return what a preparation learns from a matrix, and a mask of the rows that it keeps, or None if all are kept.

    Raises
    ------
    MatrixError
        If a column has no values, or an element is infinite.
    MemoryError
        If columns are scaled by "robust", and do not fit in memory.
    """
    kept = rows_kept(source) if how.missing == "drop" else None
    fills = how.missing == "mean" and is_floating(source.dtype)
    if how.scale == "none" and not fills:
        return Learned(), kept
    # Rounding gives the mean of a constant column another value, and it a deviation, which must not count.
    low, high = _ranges(prepared(source, Learned(), kept))
    constant = low == high
    fill = np.where(constant, low, _means(source)).tolist() if fills else None
    if how.scale == "none":
        return Learned(fill), kept
    shift, divisor = _SCALERS[how.scale](prepared(source, Learned(fill), kept))
    shift = np.where(constant, low, shift)
    divisor = np.where(constant | (divisor == 0), 1, divisor)
    return Learned(fill, shift.tolist(), divisor.tolist()), kept


def _ranges(source: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest value of each column, without NaN."""
    low, high = np.full(source.shape[1], np.inf), np.full(source.shape[1], -np.inf)
    for _, block in _blocks(source):
        low, high = np.fmin(low, np.fmin.reduce(block, axis=0)), np.fmax(high, np.fmax.reduce(block, axis=0))
    return low, high


def _blocks(source: Matrix) -> Iterator[tuple[int, np.ndarray]]:
    return source.blocks(max(1, _ELEMENTS // source.shape[1]))


def _finite(source: Matrix) -> Iterator[np.ndarray]:
    """Yield blocks in float64, without NaN and infinities."""
    for start, block in _blocks(source):
        check_finite(block, start, source.name, source.row_name)
        yield block.astype(np.float64)


def _means(source: Matrix) -> np.ndarray:
    """Return the mean of each column's values."""
    sums, counts = np.zeros(source.shape[1]), np.zeros(source.shape[1])
    for _, block in _blocks(source):
        has_value = ~np.isnan(block)
        sums += np.where(has_value, block, 0).sum(axis=0, dtype=np.float64)
        counts += has_value.sum(axis=0)
    if not counts.all():
        column = int(counts.argmin())
        name = str(column) if source.column_names is None else source.column_names[column]
        raise MatrixError(f"{source.name}: column {shown(name)} has no values: leave it out by --exclude")
    return sums / counts


def _standard(source: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations, from those of blocks (Chan et al. 1983)."""
    count, mean, squares = 0, np.zeros(source.shape[1]), np.zeros(source.shape[1])
    for block in _finite(source):
        of_block = block.mean(axis=0)
        apart, total = of_block - mean, count + len(block)
        squares += ((block - of_block) ** 2).sum(axis=0) + apart**2 * (count * len(block) / total)
        mean += apart * (len(block) / total)
        count = total
    return mean, np.sqrt(squares / count)


def _minmax(source: Matrix) -> tuple[np.ndarray, np.ndarray]:
    for _ in _finite(source):  # refuses NaN and infinities
        pass
    low, high = _ranges(source)
    return low, high - low


def _robust(source: Matrix) -> tuple[np.ndarray, np.ndarray]:
    low, middle, high = np.percentile(source.read(np.float64), (25, 50, 75), axis=0)
    return middle, high - low


_SCALERS = {"standard": _standard, "minmax": _minmax, "robust": _robust}
