"""Compilation of a known set of kernels into the disk cache, before a program needs them."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tsapps.kernels.jit.cache import entry_of
from tsapps.kernels.jit.compiler import INCLUDE_ROOT, build, cached
from tsapps.kernels.system.cache import cache_directory, check_cache_writable
from tsapps.kernels.system.task_pool import TaskPool

__all__ = ["Compiled", "compile_into_cache"]

_ADVICE = "free some space, or set XDG_CACHE_HOME to a directory that you may write to"


@dataclass(frozen=True)
class Compiled:
    """The kernels of one source that are compiled together: one entry of the cache.

    Attributes
    ----------
    source : str
        File of the kernels, relative to the package; for source text, the last file that the text includes.
    kernels : tuple of str
        C++ name expressions of the kernels.
    seconds : float
        The duration of the compilation in seconds, which other compilations at the same time extend.
    was_cached : bool
        True if the cache had the kernels already.
    """

    source: str
    kernels: tuple[str, ...]
    seconds: float
    was_cached: bool


def compile_into_cache(sources: Iterable[tuple[Path | str, tuple[str, ...]]], arch: str) -> Iterator[Compiled]:
    """Compile kernels in parallel and write them to the disk cache; yield them in the given order.

    Parameters
    ----------
    sources : iterable of (path or str, tuple of str)
        A source file or source text, and the name expressions of the kernels that are compiled together.
    arch : str
        The architecture, such as ``"sm_90a"``; needs no GPU.

    Yields
    ------
    Compiled

    Raises
    ------
    OSError
        If the cache cannot be written, or an entry of it could not be written.
    RuntimeError
        If a source does not compile.
    """
    cache_directory()  # raises the error that says how to set one, if there is none
    folder = entry_of(()).parent
    try:
        check_cache_writable(folder / "entry")
    except OSError as error:
        raise OSError(error.errno, f"the cache cannot be written ({error.strerror}): {_ADVICE}", str(folder)) from error

    def compiled(given: tuple[Path | str, tuple[str, ...]]) -> Compiled:
        source, names = given
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        before = cached(text, names, arch)
        found = before or build(text, names, arch, announces=False)
        if found.path.parent != folder:
            raise OSError(f"{folder}: a compiled kernel could not be written: {_ADVICE}")
        return Compiled(_name_of(source), names, found.seconds, before is not None and before.path.parent == folder)

    with TaskPool(os.cpu_count() or 1, "tsapps-compiler") as pool:  # NVRTC releases Python's interpreter lock
        for one in [pool.submit(compiled, given) for given in sources]:
            yield one.result()


def _name_of(source: Path | str) -> str:
    if isinstance(source, Path):
        return source.resolve().relative_to(INCLUDE_ROOT).as_posix()
    return source.rstrip().rpartition('#include "')[2].rstrip('"')
