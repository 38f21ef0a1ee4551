"""Parquet files: a table whose columns are the features, streamed in batches of rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from tsapps.errors import MatrixError
from tsapps.kernels.system.printable import shown
from tsapps.kernels.system.strict_json import JsonError, parse_json
from tsapps.matrix.base import Matrix, trimmed
from tsapps.matrix.checks import changed, damaged, readable
from tsapps.matrix.columns import Column, ColumnChoice, choose_columns
from tsapps.matrix.optional import optional_module

__all__ = ["ParquetMatrix"]

# Bytes read ahead: minimum per column, maximum per column, and maximum for all columns. The minimum takes precedence.
_LEAST_BUFFER, _MOST_BUFFER, _MOST_BUFFERS = 1 << 16, 1 << 20, 1 << 26


class ParquetMatrix(Matrix):
    """The columns of a Parquet file, which must be numeric, in the dtype to which NumPy promotes their dtypes.

    Skips an index that pandas stored with the columns, as ``DataFrame.to_numpy`` does.

    Parameters
    ----------
    path : str
    choice : ColumnChoice, optional
        The columns that are features; by default, all.
    missing : bool
        Whether null is read as NaN; otherwise it is an error. Integers then become float64.

    Attributes
    ----------
    left_out : list of Column
        Columns that are no features because of what they hold.
    """

    column_names: tuple[str, ...]
    begins_anywhere = True

    def __init__(self, path: str, *, choice: ColumnChoice | None = None, missing: bool = False) -> None:
        parquet = optional_module("pyarrow.parquet", path)
        arrow = optional_module("pyarrow", path)
        errors = (arrow.ArrowException, OSError, JsonError, UnicodeDecodeError)
        with readable(path, errors), parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            metadata = file.metadata
            names = [field.name for field in schema]
            index = _index_columns((schema.metadata or {}).get(b"pandas", b"{}"), path)
        self._columns = [number for number, name in enumerate(names) if name not in index]
        identifier: int | None = None
        self.left_out: list[Column] = []
        if choice is not None:
            kinds = ["an index" if field.name in index else _kind(field.type, arrow.types) for field in schema]
            columns = [Column(name, kind) for name, kind in zip(names, kinds, strict=True)]
            self._columns, identifier, left_out = choose_columns(columns, choice, path)
            self.left_out = [column for column in left_out if column.kind != "an index"]
        self._types = [schema.field(number).type for number in self._columns]
        for number, kind in zip(self._columns, self._types, strict=True):
            if choice is None and not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
                raise MatrixError(
                    f"{path}: column {number} ('{shown(names[number])}') is {str(kind)[:80]}; expected numbers: "
                    f"keep numeric columns only, one for each feature"
                )
        self.column_names = tuple(names[number] for number in self._columns)
        self._errors, self._path, self._missing, self._float64 = errors, path, missing, arrow.float64()
        numeric = (arrow.types.is_integer, arrow.types.is_floating)
        self._cast = {i for i, kind in enumerate(self._types) if not any(test(kind) for test in numeric)}
        self._by_name = choice is not None and len(set(names)) == len(names)
        self._identifier = None if identifier is None else names[identifier]
        types = [_dtype(kind, arrow.types, missing=missing) for kind in self._types]
        super().__init__(
            path, (metadata.num_rows, len(types)), np.result_type(*types) if types else np.dtype(np.float64)
        )
        # Column metadata is not read: pyarrow aborts the process if it is damaged.
        found = sum(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        if found != self.shape[0]:
            raise damaged(path, self.shape, f"row groups of {found} rows")

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        with self._opened() as file:
            yield from self._read_batches(file, 0, min(rows, self.shape[0]), None)

    def _between(self, first: int, end: int, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        with self._opened() as file:
            starts = self._starts(file)
            groups = np.flatnonzero((starts[1:] > first) & (starts[:-1] < end)).tolist()
            yield from trimmed(self._read_batches(file, int(starts[groups[0]]), rows, groups), first, end)

    def identifiers(self) -> Iterator[Any]:
        """Yield the values of the column that identifies rows, in blocks of rows: Arrow arrays."""
        with self._opened() as file:
            for batch in file.iter_batches(columns=[self._identifier]):
                yield batch.column(batch.schema.get_field_index(self._identifier))

    def _starts(self, file: Any) -> np.ndarray:
        """Return the first row of each row group, and the number of all rows."""
        sizes = (file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups))
        return np.cumsum([0, *sizes])

    def _rows(self, numbers: np.ndarray) -> np.ndarray:
        # Only the row groups of these rows are read, unless those are most of the file.
        with self._opened() as file:
            starts = self._starts(file)
            groups = np.unique(np.searchsorted(starts, numbers, side="right") - 1).tolist()
            if 2 * len(groups) > len(starts) - 1:
                return super()._rows(numbers)
            batches = (self._read_batches(file, int(starts[one]), self._default_rows(), [one]) for one in groups)
            return self._gather(chain.from_iterable(batches), numbers)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open the file; raise `MatrixError` for errors of the reader, and if the file has other rows now."""
        parquet = optional_module("pyarrow.parquet", self._path)
        with (
            readable(self.name, self._errors),
            parquet.ParquetFile(
                self._path,
                page_checksum_verification=True,
                pre_buffer=False,  # True would read whole row groups into memory
                buffer_size=max(_LEAST_BUFFER, min(_MOST_BUFFER, _MOST_BUFFERS // len(self._columns))),
            ) as file,
        ):
            if file.metadata.num_rows != self.shape[0]:
                raise changed(self.name)
            yield file

    def _read_batches(
        self, file: Any, start: int, rows: int, groups: list[int] | None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks of at most `rows` rows of some row groups, by default of all; `start` is their first row."""
        # Other columns are not read; a name may also stand for the members of a nested column.
        names = list(self.column_names) if self._by_name else None
        for batch in file.iter_batches(batch_size=rows, row_groups=groups, columns=names):
            places = [batch.schema.get_field_index(name) for name in names] if names is not None else self._columns
            if not 0 <= min(places) <= max(places) < batch.num_columns:
                raise damaged(self.name, self.shape, f"{batch.num_columns} columns")
            block = np.empty((len(batch), self.shape[1]), self.dtype)
            for feature, number in enumerate(places):
                column = batch.column(number)
                if column.type != self._types[feature]:
                    raise damaged(self.name, self.shape, f"{column.type} in column {feature}")
                if column.null_count and not self._missing:
                    self._refuse_null(start, feature, column)
                if feature in self._cast:
                    column = column.cast(self._float64)
                block[:, feature] = column.to_numpy(zero_copy_only=False)
            yield start, block
            start += len(batch)

    def _refuse_null(self, start: int, feature: int, column: object) -> None:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))  # type: ignore[attr-defined]
        name = shown(self.column_names[feature])
        raise MatrixError(
            f"{self.name}: row {row}, column {feature} ('{name}') is null (counted from 0); "
            f"every element must be a finite number: drop such rows, or fill them in"
        )


def _kind(kind: Any, types: Any) -> str:
    """Return what a column of an Arrow type holds, in the words of `Column`."""
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return "numbers"
    if types.is_boolean(kind):
        return "booleans"
    value = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_string(value) or types.is_large_string(value):
        return "text"
    if types.is_temporal(kind):
        return "dates or times"
    return "no values" if types.is_null(kind) else str(kind)[:80]


def _dtype(kind: Any, types: Any, *, missing: bool) -> np.dtype:
    """Return the dtype in which a column of numbers or booleans is read."""
    if types.is_floating(kind):
        return np.dtype(kind.to_pandas_dtype())
    if missing or types.is_decimal(kind):
        return np.dtype(np.float64)
    return np.dtype(np.uint8 if types.is_boolean(kind) else kind.to_pandas_dtype())


def _index_columns(description: bytes, path: str) -> set[str]:
    """Return the names of the index columns of a data frame, from the metadata that pandas stored."""
    found = parse_json(description)
    columns = found.get("index_columns", []) if isinstance(found, dict) else None
    if not isinstance(columns, list):
        raise MatrixError(f"{path}: is damaged: its description by pandas names no index columns: write it again")
    return {name for name in columns if isinstance(name, str)}
