"""Reports of corrupted elements and regions, as tables and as lines of JSON."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from tsapps.cli.output import gigabytes

if TYPE_CHECKING:
    import numpy as np

    from tsapps.apps.abft import Region, Sidecar, Verdict
    from tsapps.matrix import Matrix

__all__ = [
    "Change",
    "changes",
    "describe",
    "differences",
    "print_changes",
    "print_line",
    "print_regions",
    "region_as_json",
    "regions",
]

# Maximum number of elements or regions in a printed table; --json prints all of them.
_MOST_SHOWN = 20
# Maximum bytes of rows that are read at a time, if they are more than one row.
_ROWS_BYTES = 1 << 24


def describe(data: str, matrix: "Matrix") -> str:
    """Return the description of a matrix in tables."""
    return f"{data}: {matrix.shape[0]:,} × {matrix.shape[1]:,} {matrix.dtype}, {gigabytes(matrix.nbytes)}"


@dataclass(frozen=True)
class Change:
    """An element whose present value differs from its original value.

    Attributes
    ----------
    row, column : int
    offset : int
        Byte offset of the element in the row-major matrix.
    found, was : numpy.generic
        The present value and the original value, in the matrix's dtype.
    """

    row: int
    column: int
    offset: int
    found: "np.generic"
    was: "np.generic"

    def as_json(self) -> dict[str, Any]:
        """Return the change as a JSON object."""
        return {
            "what": "element",
            "row": self.row,
            "column": self.column,
            "offset": self.offset,
            "found": _bits(self.found),
            "was": _bits(self.was),
            "found_value": _json_number(self.found),
            "was_value": _json_number(self.was),
        }


def changes(matrix: "Matrix", verdict: "Verdict", sidecar: "Sidecar") -> Iterator[Change]:
    """Yield a `Change` for each repairable element, in row-major order; reads their rows again, some MiB at a time."""
    import numpy as np

    offsets, was = verdict.patches()
    size, d = matrix.dtype.itemsize, matrix.shape[1]
    by_row = _by_row(verdict.elements(sidecar))
    for some in _some_rows(by_row, d * size):
        for row, values in zip(some, matrix.rows(some), strict=True):
            for column in by_row[row]:
                offset = (row * d + column) * size
                first, last = np.searchsorted(offsets, [offset, offset + size])
                right = np.frombuffer(values[column].tobytes(), np.uint8).copy()
                right[offsets[first:last] - offset] = was[first:last]
                yield Change(row, column, offset, values[column], right.view(matrix.dtype)[0])


def differences(places: Iterable[tuple[int, int]], now: "Matrix", then: "Matrix") -> Iterator[Change]:
    """Yield a `Change` for each element at `places` that differs between two matrices of the same shape and dtype.

    `places` are ascending pairs (row, column); `now` holds the present values, `then` the original values.
    """
    size, d = now.dtype.itemsize, now.shape[1]
    by_row = _by_row(places)
    for some in _some_rows(by_row, d * size):
        for row, found, was in zip(some, now.rows(some), then.rows(some), strict=True):
            for column in by_row[row]:
                if found[column].tobytes() != was[column].tobytes():
                    yield Change(row, column, (row * d + column) * size, found[column], was[column])


def _by_row(places: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Return the columns of `places`, which are pairs (row, column), by row."""
    found: dict[int, list[int]] = {}
    for row, column in places:
        found.setdefault(row, []).append(column)
    return found


def _some_rows(rows: Iterable[int], row_bytes: int) -> Iterator[list[int]]:
    """Yield row indices in groups: as many rows as fit in `_ROWS_BYTES`, and at least one."""
    waiting = iter(rows)
    while some := list(islice(waiting, max(1, _ROWS_BYTES // row_bytes))):
        yield some


def regions(verdict: "Verdict") -> list["Region"]:
    """Return the regions with corruption that cannot be repaired; adjacent regions of the same rows are merged."""
    found: list[Region] = []
    for region in sorted(verdict.refused):
        last = found[-1] if found else None
        if last and last[:2] == region[:2] and region.column <= last.column_end:
            found[-1] = last._replace(column_end=max(last.column_end, region.column_end))
        else:
            found.append(region)
    return found


def region_as_json(region: "Region") -> dict[str, Any]:
    """Return a region as a JSON object; its last row and column are inclusive."""
    return {
        "what": "region",
        "first_row": region.row,
        "last_row": region.row_end - 1,
        "first_column": region.column,
        "last_column": region.column_end - 1,
    }


def print_line(line: dict[str, Any]) -> None:
    """Print a JSON object as one line."""
    print(json.dumps(line, allow_nan=False))


def print_changes(found: Iterable[Change], count: int, heads: tuple[str, str] = ("found", "was")) -> None:
    """Print the first of `count` changed elements as a table; `heads` are the titles of the two columns of values."""
    table = [["row", "column", "byte", *heads]]
    for change in islice(found, _MOST_SHOWN):
        values = [f"{_bits(value)}  {value!s}" for value in (change.found, change.was)]
        table.append([f"{change.row:,}", f"{change.column:,}", f"{change.offset:,}", *values])
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    print()
    for cells in table:
        numbers = (cell.rjust(width) for cell, width in zip(cells[:3], widths[:3], strict=True))
        print("  ".join([*numbers, cells[3].ljust(widths[3]), cells[4]]))
    if count > _MOST_SHOWN:
        print(f"and {count - _MOST_SHOWN:,} more (--json prints all)")


def print_regions(found: "list[Region]") -> None:
    """Print, as a table, the first regions whose corruption cannot be repaired."""
    table = [["rows", "columns"]]
    for region in found[:_MOST_SHOWN]:
        columns = f"{region.column:,} to {region.column_end - 1:,}"
        table.append([f"{region.row:,} to {region.row_end - 1:,}", columns])
    width = max(len(rows) for rows, _ in table)
    print("\neach of these regions has more corruption than can be repaired:")
    for rows, columns in table:
        print(f"{rows.rjust(width)}  {columns}")
    if len(found) > _MOST_SHOWN:
        print(f"and {len(found) - _MOST_SHOWN:,} more (--json prints all)")


def _bits(value: "np.generic") -> str:
    size = value.dtype.itemsize
    return f"0x{int.from_bytes(value.tobytes(), 'little'):0{2 * size}x}"


def _json_number(value: "np.generic") -> float | int | str:
    """Return a number for JSON; NaN and infinities, which JSON does not support, become text."""
    import numpy as np

    if value.dtype.kind in "iu":
        return int(value)
    return float(value) if np.isfinite(value) else str(value)
