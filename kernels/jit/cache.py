"""The disk cache of compiled kernels: machine code, and what the compiler said of it.

An entry's key is a digest of all that the kernel is compiled from (`entry_of`). An entry is written whole or not at
all, so that processes that compile the same kernel at the same time do not disturb each other. It holds a digest of its
content; an entry that is damaged or that others may have written is compiled again. Where the cache cannot be written,
compiled kernels last as long as the process.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tsapps.kernels.system.cache import cache_directory, process_directory, read_cached, warn_once, write_cached
from tsapps.kernels.system.strict_json import JsonError, parse_json

__all__ = ["Cubin", "Resources", "entry_of", "load", "store"]


@dataclass(frozen=True)
class Resources:
    """What one kernel takes.

    Attributes
    ----------
    registers : int
        A thread.
    shared : int
        Static bytes a block.
    stack, spill_stores, spill_loads : int
        Bytes a thread in local memory.
    waits : bool
        Whether the compiler had to wait for products of a warpgroup that the source leaves under way.
    """

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int
    waits: bool = False


@dataclass(frozen=True)
class Cubin:
    """Machine code of one source for one architecture.

    Attributes
    ----------
    path : pathlib.Path
        In the cache.
    names : dict of str to str
        The mangled name of each kernel that was asked for.
    resources : dict of str to Resources
        Of each kernel that was asked for.
    seconds : float
        What compiling took when it was done.
    """

    path: Path
    names: dict[str, str]
    resources: dict[str, Resources]
    seconds: float


#: What could not be written to the cache, by its entry.
_not_kept: dict[Path, Cubin] = {}


def entry_of(parts: Iterable[str]) -> Path:
    """Return the path of the entry for all that a kernel is compiled from, whether it is there or not."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return _folder() / f"{digest}.json"


def load(entry: Path) -> Cubin | None:
    """Return what was compiled for an entry; None if that was nothing, or is not as this user wrote it."""
    return _read(entry) or _not_kept.get(entry)


def store(entry: Path, cubin: Cubin, code: bytes, flags: Sequence[str]) -> Cubin:
    """Write an entry of the cache, or else a file that lasts as long as the process; return it with its place."""
    try:
        _write(entry, cubin, code, flags)
        return cubin
    except OSError as error:
        warn_once(f"{entry.parent}: cannot be written ({error.strerror}): compiled kernels are not kept")
    cubin = replace(cubin, path=process_directory() / cubin.path.name)
    write_cached(cubin.path, code)
    _not_kept[entry] = cubin
    return cubin


def _folder() -> Path:
    """Return where compiled kernels are kept."""
    try:
        return cache_directory() / "cubin"
    except OSError as error:
        warn_once(f"compiled kernels are not kept: {error.strerror}")
        return process_directory()


def _read(entry: Path) -> Cubin | None:
    """Return what the cache holds; None if it holds nothing, or anything but what this user wrote, to compile it."""
    path = entry.with_suffix(".cubin")
    try:
        found, code = parse_json(read_cached(entry)), read_cached(path)
    except (OSError, JsonError):
        return None
    if not isinstance(found, dict) or found.pop("digest", None) != _digest(found, code):
        return None
    try:
        resources = {kernel: Resources(**one) for kernel, one in found["resources"].items()}
        return Cubin(path, found["names"], resources, found["seconds"])
    except (AttributeError, LookupError, TypeError):
        return None  # another version wrote it


def _digest(description: dict[str, Any], code: bytes) -> str:
    """Return the digest of an entry of the cache: machine code, and what is said of it."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    digest.update(code)
    return digest.hexdigest()


def _write(entry: Path, cubin: Cubin, code: bytes, flags: Sequence[str]) -> None:
    """Write an entry, the description last: where it is, the code is."""
    write_cached(cubin.path, code)
    resources = {kernel: asdict(used) for kernel, used in cubin.resources.items()}
    description = {"names": cubin.names, "resources": resources, "seconds": cubin.seconds, "flags": list(flags)}
    write_cached(entry, json.dumps(description | {"digest": _digest(description, code)}, indent=1).encode())
