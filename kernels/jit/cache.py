"""Disk cache of compiled kernels: machine code, and the compiler's report on registers and memory.

The key of an entry is a digest of everything that determines the machine code (`entry_of`). Entries are written
atomically, so that processes can compile the same kernel at the same time. An entry contains a digest of its content;
an entry that is damaged, or that another user may have written, is compiled again. If the cache cannot be written,
compiled kernels are stored in a temporary directory until the process ends.
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
    """Resources of one kernel, from the compiler's report.

    Attributes
    ----------
    registers : int
        Registers per thread.
    shared : int
        Static shared memory per block, in bytes.
    stack, spill_stores, spill_loads : int
        Bytes per thread of the stack, of registers spilled to local memory, and of spilled registers loaded back.
    waits : bool
        True if the compiler inserted waits for wgmma instructions where the source does not wait.
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
        The file of the machine code, in the cache or in a temporary directory.
    names : dict of str to str
        Mangled names of the kernels, by C++ name expression.
    resources : dict of str to Resources
        Resources of the kernels, by C++ name expression.
    seconds : float
        The duration of the compilation in seconds.
    """

    path: Path
    names: dict[str, str]
    resources: dict[str, Resources]
    seconds: float


#: Compiled kernels that could not be written to the cache, by the path of their cache entry.
_not_kept: dict[Path, Cubin] = {}


def entry_of(parts: Iterable[str]) -> Path:
    """Return the path of the cache entry of a compilation with the inputs `parts`; the entry need not exist."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return _folder() / f"{digest}.json"


def load(entry: Path) -> Cubin | None:
    """Return the machine code of an entry; None if it is missing, damaged, or may be from another user."""
    return _read(entry) or _not_kept.get(entry)


def store(entry: Path, cubin: Cubin, code: bytes, flags: Sequence[str]) -> Cubin:
    """Write an entry to the cache or, if that fails, to a temporary directory; return `cubin` with the path written."""
    try:
        _write(entry, cubin, code, flags)
        return cubin
    except OSError as error:
        warn_once(f"{entry.parent}: cannot be written ({error.strerror}): compiled kernels are not cached")
    cubin = replace(cubin, path=process_directory() / cubin.path.name)
    write_cached(cubin.path, code)
    _not_kept[entry] = cubin
    return cubin


def _folder() -> Path:
    """Return the directory of compiled kernels."""
    try:
        return cache_directory() / "cubin"
    except OSError as error:
        warn_once(f"compiled kernels are not cached: {error.strerror}")
        return process_directory()


def _read(entry: Path) -> Cubin | None:
    """Return the machine code of an entry on disk; None if it is missing, damaged, or may be from another user."""
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
        return None  # another version of tsapps wrote the entry


def _digest(description: dict[str, Any], code: bytes) -> str:
    """Return the digest of an entry: its description and its machine code."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    digest.update(code)
    return digest.hexdigest()


def _write(entry: Path, cubin: Cubin, code: bytes, flags: Sequence[str]) -> None:
    """Write an entry: first the machine code, then its description, so that no description lacks its code."""
    write_cached(cubin.path, code)
    resources = {kernel: asdict(used) for kernel, used in cubin.resources.items()}
    description = {"names": cubin.names, "resources": resources, "seconds": cubin.seconds, "flags": list(flags)}
    write_cached(entry, json.dumps(description | {"digest": _digest(description, code)}, indent=1).encode())
