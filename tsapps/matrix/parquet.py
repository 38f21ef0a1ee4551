"""Parquet: a table whose columns are the features. Row groups are streamed."""

from collections.abc import Iterator

import numpy as np

from tsapps.errors import MatrixError
from tsapps.matrix.base import Matrix
from tsapps.matrix.checks import changed, unreadable
from tsapps.matrix.optional import optional_module

__all__ = ["ParquetMatrix"]


class ParquetMatrix(Matrix):
    """The numeric columns of a Parquet file, in the narrowest dtype that holds every one of them.

    An index that pandas stored beside the columns is left out, as ``DataFrame.to_numpy`` does.
    """

    def __init__(self, path: str) -> None:
        parquet = optional_module("pyarrow.parquet", path)
        arrow = optional_module("pyarrow", path)
        try:
            with parquet.ParquetFile(path) as file:
                schema = file.schema_arrow
                rows = file.metadata.num_rows
        except (arrow.ArrowException, OSError) as error:
            raise unreadable(path, error) from error
        index = {name for name in (schema.pandas_metadata or {}).get("index_columns", ()) if isinstance(name, str)}
        self._columns = [number for number, field in enumerate(schema) if field.name not in index]
        for number in self._columns:
            kind = schema.field(number).type
            if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
                raise MatrixError(
                    f"{path}: column {number} ({schema.field(number).name!r}) is {kind}; expected numbers: "
                    f"keep numeric columns only, one for each feature"
                )
        self._column_names = [schema.field(number).name for number in self._columns]
        types = [np.dtype(schema.field(number).type.to_pandas_dtype()) for number in self._columns]
        super().__init__(path, (rows, len(types)), np.result_type(*types) if types else np.dtype(np.float64))

    def _blocks(self, rows: int) -> Iterator[tuple[int, np.ndarray]]:
        parquet = optional_module("pyarrow.parquet", self.name)
        arrow = optional_module("pyarrow", self.name)
        start = 0
        try:
            with parquet.ParquetFile(self.name) as file:
                if file.metadata.num_rows != self.shape[0]:
                    raise changed(self.name)
                for batch in file.iter_batches(batch_size=min(rows, self.shape[0])):
                    block = np.empty((len(batch), self.shape[1]), self.dtype)
                    for feature, number in enumerate(self._columns):
                        column = batch.column(number)
                        if column.null_count:
                            self._refuse_null(start, feature, column)
                        block[:, feature] = column.to_numpy(zero_copy_only=False)
                    yield start, block
                    start += len(batch)
        except (arrow.ArrowException, OSError) as error:
            raise unreadable(self.name, error) from error

    def _refuse_null(self, start: int, feature: int, column: object) -> None:
        row = start + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))  # type: ignore[attr-defined]
        raise MatrixError(
            f"{self.name}: row {row}, column {feature} ({self._column_names[feature]!r}) is null (counted from 0); "
            f"every element must be a finite number: drop such rows, or fill them in"
        )
