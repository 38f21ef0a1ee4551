"""The user's tuning tables, written by ``tsapps tune``: one JSON file per GPU model, one row per line.

A row names the products to which it applies (`select.KEY`) and the main parameters of a plan (`select.PICKED`). These
products use the candidate plan nearest to the parameters, so a row remains valid when kernels change. Products without
a row use the shipped table (kernels/plan/tuned/), or else the performance model.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tsapps.kernels.gpu_specs import file_name_of
from tsapps.kernels.plan.select import ALGORITHM, KEY, PICKED, RANKED, VERSION, completed, key_of_row, tuned_table
from tsapps.kernels.system.atomic_write import write_bytes
from tsapps.kernels.system.cache import cache_directory, read_cached, warn_once, write_cached
from tsapps.kernels.system.printable import OneLineError
from tsapps.kernels.system.strict_json import JsonError, parse_json

__all__ = ["keep", "of_version", "on_change", "own_table", "reset", "user_path", "user_table", "write_table"]

# Valid values of the fields of a row: _WORDS lists the allowed strings, _TYPES the type. All other fields are positive
# integers.
_WORDS = {
    "shape": ("tsm2r", "tsm2l", "tsmttsm"),
    "dtype": ("float64", "float32", "float16"),
    "kernel": tuple(PICKED),
}
_TYPES: dict[str, type[int]] = {
    "along": bool,
    "c_by_rows": bool,
    "own_orders": bool,
    "prepare_b": bool,
    "streams": bool,
}


def user_path(device_name: str) -> Path:
    """Return the path of the user's tuning table for a device; the file need not exist."""
    return cache_directory() / "tuned" / f"{file_name_of(device_name)}.json"


def user_table(device_name: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of the user's tuning table, and those of the shipped table for all other products.

    A table that cannot be read, or that another user may have written, is ignored with a warning.

    Raises
    ------
    ValueError
        If the user's file is not a valid tuning table.
    """
    try:
        own = own_table(device_name)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        warn_once(f"{where}{error.strerror}: your tuning table is not used")
        own = []
    return completed(own, tuned_table(device_name))


def of_version(rows: Iterable[Mapping[str, Any]], version: int | None) -> list[Mapping[str, Any]]:
    """Return `rows` without the cublasLt algorithms that a version other than `version` ranked.

    A row with such an algorithm and without a plan is omitted.
    """
    found = []
    for row in rows:
        if ALGORITHM in row and row[ALGORITHM][VERSION] != version:
            row = {name: value for name, value in row.items() if name != ALGORITHM}
            if "kernel" not in row:
                continue
        found.append(row)
    return found


def own_table(device_name: str) -> list[dict[str, Any]]:
    """Return the rows of the user's tuning table for a device, without those of the shipped table.

    Raises
    ------
    ValueError
        If the file is not a valid tuning table.
    OSError
        If the file cannot be read, if another user may have written it, or if there is no cache directory.
    """
    path = user_path(device_name)
    advice = "correct it, or remove it with tsapps tune --reset"
    try:
        rows = parse_json(read_cached(path))
    except FileNotFoundError:
        return []
    except JsonError as error:
        raise OneLineError(f"{path}: is not a tuning table ({error}): {advice}") from error
    if not isinstance(rows, list):
        raise OneLineError(f"{path}: is not a tuning table (a {type(rows).__name__}, expected a list): {advice}")
    for number, row in enumerate(rows):
        wrong = _what_is_wrong(row)
        if wrong:
            raise OneLineError(f"{path}: row {number} {wrong}: {advice}")
    return rows


def _what_is_wrong(row: Any) -> str:
    """Return the first error in a table row, or the empty string."""
    if not isinstance(row, dict):
        return f"is {str(row)[:80]}, expected an object"
    for name, words in _WORDS.items():
        if name not in row:
            return f"has no {name!r} (made by another version of tsapps?)"
        if row[name] not in words:
            return f"has {name} {repr(row[name])[:80]}, expected one of {', '.join(words)}"
    parts = [(row, (*KEY, *PICKED[row["kernel"]]))]
    if ALGORITHM in row:
        if not isinstance(row[ALGORITHM], dict):
            return f"has {ALGORITHM} {repr(row[ALGORITHM])[:80]}, expected an object"
        parts.append((row[ALGORITHM], (*RANKED, VERSION)))
    for part, names in parts:
        for name in names:
            if name not in part:
                return f"has no {name!r} (made by another version of tsapps?)"
            kind, value = _TYPES.get(name, int), part[name]
            if name not in _WORDS and (type(value) is not kind or (kind is int and value < 1)):
                expected = "true or false" if kind is bool else "a whole number, at least 1"
                return f"has {name} {repr(value)[:80]}, expected {expected}"
    return ""


def keep(device_name: str, row: dict[str, Any]) -> int:
    """Write a row to the user's table, replacing a row with the same key; return the number of rows in the table.

    The next product uses the new table. Errors as for `own_table`.
    """
    rows = {key_of_row(one): one for one in own_table(device_name)} | {key_of_row(row): row}
    write_cached(user_path(device_name), text_of(rows.values()))
    _forget_plans()
    return len(rows)


def reset(device_name: str) -> bool:
    """Remove the user's table for a device; return True if the table existed."""
    try:
        user_path(device_name).unlink()
    except FileNotFoundError:
        return False
    _forget_plans()
    return True


def on_change(forget: Callable[[], object]) -> None:
    """Register a function that `keep` and `reset` call after they change a table, to drop cached plans."""
    _forgetting.append(forget)


_forgetting: list[Callable[[], object]] = []


def _forget_plans() -> None:
    for forget in _forgetting:
        forget()


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a tuning table atomically, one row per line."""
    write_bytes(path, text_of(rows))


def text_of(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the text of a tuning table, one row per line."""
    return ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode()
