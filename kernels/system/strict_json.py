"""Strict JSON: text that anybody may have written or damaged is parsed whole, or is refused by one error.

`json.loads` raises UnicodeDecodeError, JSONDecodeError, RecursionError and others, and accepts more than the standard:
NaN, infinities, numbers that overflow, and a name that stands twice in an object.
"""

import json
import math
from pathlib import Path
from typing import Any

from tsapps.kernels.system.printable import OneLineError

__all__ = ["JsonError", "parse_json", "read_json"]

# No file of ours is nested more than a few levels. Far below Python's recursion limit, so that callers may print,
# compare and copy what they were given.
_MOST_NESTED = 64
# Integers of 64 bits: callers may convert them to floats, and NumPy takes them.
_MOST = 1 << 64
_MOST_REASON = 200
# Parsed, text may take some twenty times as much memory.
_MOST_BYTES = 1 << 24


class JsonError(OneLineError):
    """Text is no JSON, or JSON that nobody has a use for. Its message is the reason alone, in one line."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; bytes are UTF-8.

    Raises
    ------
    JsonError
        If it is no JSON text; holds a number that is not finite or no 64-bit integer, or a name twice in one object;
        or is nested more than 64 levels deep.
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
    """Parse a file of at most `most` bytes; no more of it is read.

    Raises
    ------
    JsonError
        As `parse_json`, or if it is larger; the message names the file.
    OSError
        If it cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise JsonError(f"it has more than {most} bytes")
        return parse_json(content)
    except JsonError as error:
        raise JsonError(f"{path}: is no valid JSON ({error})") from error


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
        raise ValueError(f"the name {twice[:40]!r} stands there twice")
    return found


def _is_nested_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        containers = [one for one in level if isinstance(one, dict | list)]
        level = [child for one in containers for child in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)
