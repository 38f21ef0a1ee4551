"""The user's own tables of picks, made by ``tsapps tune``: one JSON file for each kind of GPU, one row a line.

A row says for which products it is (`choose.KEY`) and by what parameters a plan for them is picked, so that it stays
valid when kernels change. What a table leaves out, the one that comes with tsapps says (kernels/tuned/), or the model.
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

# What a row must say: one of a few words, or a value of a type.
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
    """Return where the user's picks for a device of this name are kept; it need not exist."""
    return cache_directory() / "tuned" / f"{file_name_of(device_name)}.json"


def user_table(device_name: str) -> Sequence[Mapping[str, Any]]:
    """Return the user's picks, with those that come with tsapps for what they leave out.

    A table that cannot be read, or that others may have written, is left out with a warning.

    Raises
    ------
    ValueError
        If the user's table holds other things.
    """
    try:
        own = own_table(device_name)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        warn_once(f"{where}{error.strerror}: your tuning table is not used")
        own = []
    return completed(own, tuned_table(device_name))


def of_version(rows: Iterable[Mapping[str, Any]], version: int | None) -> list[Mapping[str, Any]]:
    """Return a table without what its rows say of algorithms that another version of cublasLt has ranked."""
    found = []
    for row in rows:
        if ALGORITHM in row and row[ALGORITHM][VERSION] != version:
            row = {name: value for name, value in row.items() if name != ALGORITHM}
            if "kernel" not in row:
                continue
        found.append(row)
    return found


def own_table(device_name: str) -> list[dict[str, Any]]:
    """Return the user's own picks for a device of this name.

    Raises
    ------
    ValueError
        If their file holds other things.
    OSError
        If it cannot be read or others may have written it, or there is no cache directory.
    """
    path = user_path(device_name)
    advice = "mend it, or remove it with tsapps tune --reset"
    try:
        rows = parse_json(read_cached(path))
    except FileNotFoundError:
        return []
    except JsonError as error:
        raise OneLineError(f"{path}: is no table of picks ({error}): {advice}") from error
    if not isinstance(rows, list):
        raise OneLineError(f"{path}: is no table of picks (a {type(rows).__name__}, expected a list): {advice}")
    for number, row in enumerate(rows):
        wrong = _what_is_wrong(row)
        if wrong:
            raise OneLineError(f"{path}: row {number} {wrong}: {advice}")
    return rows


def _what_is_wrong(row: Any) -> str:
    """Return what a table's row says that it must not, or the empty string."""
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
    """Put a row into the user's table, in place of one with its key, and return how many it then has.

    From the next product on, plans are made by the new table. Errors as `own_table`.
    """
    rows = {key_of_row(one): one for one in own_table(device_name)} | {key_of_row(row): row}
    write_cached(user_path(device_name), text_of(rows.values()))
    _forget_plans()
    return len(rows)


def reset(device_name: str) -> bool:
    """Remove the user's table for a device of this name, and return whether there was one."""
    try:
        user_path(device_name).unlink()
    except FileNotFoundError:
        return False
    _forget_plans()
    return True


def on_change(forget: Callable[[], object]) -> None:
    """Have `forget` called whenever `keep` or `reset` has changed a table: it drops the plans made by the old one."""
    _forgetting.append(forget)


_forgetting: list[Callable[[], object]] = []


def _forget_plans() -> None:
    for forget in _forgetting:
        forget()


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table of picks, one row a line, whole or not at all."""
    write_bytes(path, text_of(rows))


def text_of(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the text of a table of picks, one row a line."""
    return ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode()
