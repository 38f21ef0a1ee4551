"""From a kernel's source to machine code: NVRTC, and a disk cache that knows every header.

Compiling needs CuPy and NVRTC (they come with the extras cuda12 and cuda13) but no GPU and no driver, so that every
kernel is compiled for every architecture wherever the tests run.

A cache entry's key is a digest of the source, of every header that it includes (and those include), of the flags, the
compiler's version and the architecture: editing a header never gives a stale kernel. An entry is written
whole or not at all, so that processes that compile the same kernel at the same time do not disturb each other.
It holds a digest of its content, and one that is damaged or that others may have written is compiled again. Where the
cache cannot be written, compiled kernels last as long as the process.
"""

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tsapps.kernels.system.cache import cache_directory, process_directory, read_cached, warn_once, write_cached
from tsapps.kernels.system.printable import one_line
from tsapps.kernels.system.strict_json import JsonError, parse_json

__all__ = ["Cubin", "Kernel", "Resources", "build", "function", "headers_of"]

#: Root of what `#include "…"` names: the directory that holds kernels/ and apps/ where they are installed.
INCLUDE_ROOT = Path(__file__).resolve().parents[2]

# Flags of every kernel. -v puts registers and spills into the log, which `Resources` reads.
_FLAGS = ("--std=c++17", "-default-device", "--ptxas-options=-v")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# What ptxas -v says of one kernel: its mangled name, then spills, then registers and shared memory.
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
# And before all that, of wgmma: "are serialized due to", "wait_group is injected".
_WAITS = re.compile(r"\(C75\d\d\)[^\n]*wgmma[^\n]* function '(\w+)'")
# A compile that takes longer than this is announced: the user waits for it once.
PATIENCE_SECONDS = 1.0


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


def headers_of(source: str, root: Path = INCLUDE_ROOT) -> dict[str, str]:
    """Return the text of every file that `source` includes by ``#include "…"``, by its path under `root`.

    Raises
    ------
    FileNotFoundError
        If an included file is not there.
    """
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(source)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = (root / name).read_text(encoding="utf-8")
            waiting += _INCLUDE.findall(found[name])
    return found


def build(source: str, kernels: Sequence[str], arch: str, *, flags: Sequence[str] = ()) -> Cubin:
    """Compile a source for one architecture, or take the result from the cache.

    Parameters
    ----------
    source : str
        CUDA C++; its ``#include "…"`` are found under `INCLUDE_ROOT`.
    kernels : sequence of str
        Name expressions of the kernels, such as ``"nearest<float>"``.
    arch : str
        Such as ``"sm_90a"``.
    flags : sequence of str
        Further NVRTC flags.

    Returns
    -------
    Cubin

    Raises
    ------
    RuntimeError
        If the source does not compile; says the compiler's first error.
    """
    from cupy.cuda import nvrtc

    headers = headers_of(source)
    all_flags = (*_FLAGS, *_no_cache(), f"-arch={arch}", *flags)
    parts = [source, *(f"{name}\0{text}" for name, text in sorted(headers.items())), *kernels, *all_flags]
    digest = hashlib.sha256("\0".join([*parts, str(nvrtc.getVersion())]).encode()).hexdigest()[:32]
    entry = _folder() / f"{digest}.json"
    return _read(entry) or _not_kept.get(entry) or _compile(source, kernels, headers, all_flags, entry)


@cache
def _no_cache() -> tuple[str, ...]:
    """Return the flag that keeps NVRTC from answering out of a cache of its own, without the report on registers.

    Compilers before CUDA 12.9 or so have neither the cache nor the flag.
    """
    from cupy.cuda import nvrtc

    flag = "--no-cache"
    program = nvrtc.createProgram("", "empty.cu", [], [])
    try:
        nvrtc.compileProgram(program, (flag,))
    except nvrtc.NVRTCError as error:
        if "INVALID_OPTION" not in str(error):
            raise
        return ()
    finally:
        nvrtc.destroyProgram(program)
    return (flag,)


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


def _compile(source: str, kernels: Sequence[str], headers: dict[str, str], flags: Sequence[str], entry: Path) -> Cubin:
    from cupy.cuda import nvrtc

    began = time.perf_counter()
    encoded = [text.encode() for text in headers.values()], [name.encode() for name in headers]
    program = nvrtc.createProgram(source, f"{entry.stem}.cu", *encoded)
    try:
        for kernel in kernels:
            nvrtc.addNameExpression(program, kernel)
        try:
            nvrtc.compileProgram(program, tuple(flags))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            first = next((line for line in log.splitlines() if "error" in line), str(error))
            raise RuntimeError(f"a kernel does not compile ({' '.join(flags)}): {first}") from error
        names = {kernel: nvrtc.getLoweredName(program, kernel) for kernel in kernels}
        usage = _usage(nvrtc.getProgramLog(program))
        cubin = nvrtc.getCUBIN(program)
    finally:
        nvrtc.destroyProgram(program)
    seconds = time.perf_counter() - began
    resources = {kernel: usage[name] for kernel, name in names.items()}
    found = _keep(entry, Cubin(entry.with_suffix(".cubin"), names, resources, seconds), cubin, flags)
    if seconds > PATIENCE_SECONDS:
        print(
            f"tsapps: compiled a kernel in {seconds:.1f} s; it is kept in {one_line(found.path.parent)}",
            file=sys.stderr,
        )
    return found


def _keep(entry: Path, cubin: Cubin, code: bytes, flags: Sequence[str]) -> Cubin:
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


#: What could not be written to the cache, by its entry.
_not_kept: dict[Path, Cubin] = {}


def _write(entry: Path, cubin: Cubin, code: bytes, flags: Sequence[str]) -> None:
    """Write an entry, the description last: where it is, the code is."""
    write_cached(cubin.path, code)
    resources = {kernel: asdict(used) for kernel, used in cubin.resources.items()}
    description = {"names": cubin.names, "resources": resources, "seconds": cubin.seconds, "flags": list(flags)}
    write_cached(entry, json.dumps(description | {"digest": _digest(description, code)}, indent=1).encode())


def _usage(log: str) -> dict[str, Resources]:
    """Read what ptxas says of every kernel, by its mangled name."""
    found, waiting = {}, _WAITS.findall(log)
    pieces = _ENTRY.split(log)[1:]
    for name, text in zip(pieces[::2], pieces[1::2], strict=True):
        spills, used = _SPILLS.search(text), _USED.search(text)
        if spills is None or used is None:
            raise RuntimeError(f"the compiler's report on {name} has another form than expected: {text[:200]!r}")
        stack, stores, loads = map(int, spills.groups())
        found[name] = Resources(int(used[1]), int(used[2] or 0), stack, stores, loads, name in waiting)
    return found


class Kernel:
    """A kernel on a GPU: compiled from when it is made, beside others, and loaded when it is first wanted.

    Parameters
    ----------
    source, kernels
        As for `build`.
    kernel : str
        Which of them.
    device : int
    """

    def __init__(self, source: str, kernels: Sequence[str], kernel: str, device: int) -> None:
        self._given, self._kernel, self._device = (source, tuple(kernels), architecture(device)), kernel, device
        self._most_shared = 0
        self._built = _begun(*self._given)

    @cached_property
    def loaded(self) -> Any:
        """The `cupy.RawKernel`.

        Raises
        ------
        RuntimeError
            If the source does not compile.
        """
        import cupy

        # What went wrong is tried again, and said here, whenever it is wanted.
        cubin = build(*self._given) if self._built.exception() else self._built.result()
        with cupy.cuda.Device(self._device):
            kernel = cupy.RawModule(path=str(cubin.path)).get_function(cubin.names[self._kernel])
            if self._most_shared:
                kernel.max_dynamic_shared_size_bytes = self._most_shared
        return kernel

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """The most dynamic shared memory that it may be launched with; 0 if that was never said."""
        return self._most_shared

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size: int) -> None:
        self._most_shared = size
        if "loaded" in vars(self):
            self.loaded.max_dynamic_shared_size_bytes = size

    @property
    def ptr(self) -> int:
        """What the driver knows it by."""
        return int(self.loaded.kernel.ptr)

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared_mem: int = 0
    ) -> None:
        """Launch it on the current stream, as a `cupy.RawKernel`."""
        self.loaded(grid, block, arguments, shared_mem=shared_mem)


@cache
def _begun(source: str, kernels: tuple[str, ...], arch: str) -> Future[Cubin]:
    """Begin to compile, once for all kernels of a source."""
    return _compilers().submit(build, source, kernels, arch)


@cache
def _compilers() -> ThreadPoolExecutor:
    """Return the threads that compile: NVRTC lets others run meanwhile."""
    return ThreadPoolExecutor(os.cpu_count(), "tsapps-compiler")


@cache
def function(path: Path, kernels: tuple[str, ...], kernel: str, device: int) -> Kernel:
    """Return a kernel of the source file at `path`, for GPU `device`."""
    return Kernel(path.read_text(encoding="utf-8"), kernels, kernel, device)


@cache
def architecture(device: int) -> str:
    """Return the architecture to compile for on a GPU, with its own instructions where it has such: ``"sm_90a"``."""
    import cupy

    capability = cupy.cuda.Device(device).compute_capability
    return f"sm_{capability}{'a' if capability in ('90', '100', '103', '120') else ''}"
