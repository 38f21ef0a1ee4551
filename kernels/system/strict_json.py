"""Strict JSON parsing of untrusted or damaged files: every invalid text raises one type of error.

`json.loads` raises UnicodeDecodeError, JSONDecodeError, RecursionError and others. It also accepts text that the
standard forbids or leaves undefined: NaN, infinities, numbers that overflow, and duplicate names in an object.
"""

import json
import math
from pathlib import Path
from typing import Any

from tsapps.kernels.system.printable import OneLineError

__all__ = ["JsonError", "parse_json", "read_json"]

# Maximum number of nested levels; files of tsapps have only a few. The limit is far below Python's recursion limit, so
# that callers can print, compare and copy the result.
_MOST_NESTED = 64
# Integers must be below this in magnitude, so that callers can convert them to floats and NumPy accepts them.
_MOST = 1 << 64
# Maximum number of characters of the reason in a message.
_MOST_REASON = 200
# Maximum bytes of a file; the parsed result may take about twenty times as much memory.
_MOST_BYTES = 1 << 24


class JsonError(OneLineError):
    """Text is not valid JSON, or exceeds the limits of this module. The message is the reason, in one line."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text; bytes must be UTF-8.

    Raises
    ------
    JsonError
        If the text is not JSON, has a number that is not finite or an integer of more than 64 bits, has a duplicate
        name in an object, or is nested more than 64 levels deep.
    """
    try:
        found = json.loads(
            text if isinstance(text, str) else text.decode("utf-8"),
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_finite,
            object_pairs_hook=_object,
        )
    except RecursionError as error:
        raise JsonError("it is nested too deeply") from error
    except ValueError as error:
        raise JsonError(" ".join(str(error).split())[:_MOST_REASON]) from error
    if _is_nested_deeper(found, _MOST_NESTED):
        raise JsonError("it is nested too deeply")
    return found


def read_json(path: Path, most: int = _MOST_BYTES) -> Any:
    """Parse a JSON file of at most `most` bytes.

    Raises
    ------
    JsonError
        As for `parse_json`, or if the file has more than `most` bytes. The message names the file.
    OSError
        If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise JsonError(f"it has more than {most} bytes")
        return parse_json(content)
    except JsonError as error:
        raise JsonError(f"{path}: is not valid JSON ({error})") from error


def _integer(digits: str) -> int:
    value = int(digits) if len(digits) <= len(str(_MOST)) + 1 else _MOST
    if abs(value) >= _MOST:
        raise ValueError(f"the number {digits[:24]} has more than 64 bits")
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:24]} is not finite")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:40]!r} occurs twice")
    return found


def _is_nested_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        containers = [one for one in level if isinstance(one, dict | list)]
        level = [child for one in containers for child in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)
