"""NVRTC compilation of kernel source to machine code, through the disk cache.

Compilation needs CuPy and NVRTC, which the extras cuda12 and cuda13 install, but no GPU and no driver. So tests can
compile every kernel for every architecture on any machine.

The cache key covers the source, all headers that it includes directly or indirectly, the flags, the compiler version
and the architecture. A changed header therefore never yields a stale kernel.
"""

import re
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tsapps.kernels.jit.cache import Cubin, Resources, entry_of, load, store
from tsapps.kernels.system.logs import logger_of
from tsapps.kernels.system.printable import one_line

__all__ = ["architecture", "architecture_of", "build", "cached", "headers_of"]

_log = logger_of(__name__)
#: The root of `#include "…"` paths: the directory that holds kernels/ and apps/.
INCLUDE_ROOT = Path(__file__).resolve().parents[2]

# Flags of every compilation. With -v, ptxas reports registers and spills in the log, which `_usage` parses.
_FLAGS = ("--std=c++17", "-default-device", "--ptxas-options=-v")
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# Lines of the report of ptxas -v on one kernel, in this order: mangled name, spills, registers and shared memory.
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
# Warnings that ptxas serializes wgmma instructions ("are serialized due to") or inserts waits for them ("wait_group is
# injected"). In the log they precede the reports on all kernels.
_WAITS = re.compile(r"\(C75\d\d\)[^\n]*wgmma[^\n]* function '(\w+)'")
# Compilations that take longer than this are reported to the user, who then knows why the first call is slow.
PATIENCE_SECONDS = 1.0


def headers_of(source: str, root: Path = INCLUDE_ROOT) -> dict[str, str]:
    """Return all files that `source` includes by ``#include "…"``, directly or not, as {path under `root`: text}.

    Raises
    ------
    FileNotFoundError
        If an included file does not exist.
    """
    found: dict[str, str] = {}
    waiting = _INCLUDE.findall(source)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = (root / name).read_text(encoding="utf-8")
            waiting += _INCLUDE.findall(found[name])
    return found


def build(
    source: str, kernels: Sequence[str], arch: str, *, flags: Sequence[str] = (), announces: bool = True
) -> Cubin:
    """Compile a source for one architecture, or load the result from the cache.

    Parameters
    ----------
    source : str
        CUDA C++; ``#include "…"`` paths are relative to `INCLUDE_ROOT`.
    kernels : sequence of str
        C++ name expressions of the kernels, such as ``"nearest<float>"``.
    arch : str
        The architecture, such as ``"sm_90a"``.
    flags : sequence of str
        Further NVRTC flags.
    announces : bool
        Whether to print a line about a compilation that takes more than `PATIENCE_SECONDS`.

    Returns
    -------
    Cubin

    Raises
    ------
    RuntimeError
        If the source does not compile; the message contains the compiler's first error.
    """
    headers, all_flags, entry = _inputs(source, kernels, arch, flags)
    found, names = load(entry), kernels[0] if len(kernels) == 1 else f"{kernels[0]} and {len(kernels) - 1} more"
    if found is not None:
        _log.debug("loaded %s for %s from %s", names, arch, found.path)
    else:
        found = _compile(source, kernels, headers, all_flags, entry)
        _log.info("compiled %s for %s in %.2f s", names, arch, found.seconds)
        if announces and found.seconds > PATIENCE_SECONDS:
            place = one_line(found.path.parent)
            print(f"tsapps: compiled a kernel in {found.seconds:.1f} s and saved it in {place}", file=sys.stderr)
    return found


def cached(source: str, kernels: Sequence[str], arch: str) -> Cubin | None:
    """Return the result of `build` if it is in the cache, else None; compiles nothing."""
    return load(_inputs(source, kernels, arch, ())[2])


def _inputs(
    source: str, kernels: Sequence[str], arch: str, flags: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...], Path]:
    """Return what determines the machine code: the headers and the flags; and the path of the cache entry."""
    from cupy.cuda import nvrtc

    headers = headers_of(source)
    all_flags = (*_FLAGS, f"-arch={arch}", *flags)
    parts = [source, *(f"{name}\0{text}" for name, text in sorted(headers.items())), *kernels, *all_flags]
    return headers, all_flags, entry_of([*parts, str(nvrtc.getVersion())])


@cache
def _no_cache() -> tuple[str, ...]:
    """Return the flag that disables NVRTC's own cache, or nothing if this NVRTC does not have the flag.

    A result from that cache lacks the report on registers. NVRTC before about CUDA 12.9 has neither cache nor flag. The
    flag changes no machine code, and to find out takes 40 ms, so it is not part of the key of our cache.
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


def _compile(source: str, kernels: Sequence[str], headers: dict[str, str], flags: Sequence[str], entry: Path) -> Cubin:
    from cupy.cuda import nvrtc

    began = time.perf_counter()
    flags = (*flags, *_no_cache())
    encoded = [text.encode() for text in headers.values()], [name.encode() for name in headers]
    program = nvrtc.createProgram(source, f"{entry.stem}.cu", *encoded)
    try:
        for kernel in kernels:
            nvrtc.addNameExpression(program, kernel)
        try:
            nvrtc.compileProgram(program, flags)
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            first = next((line for line in log.splitlines() if "error" in line), str(error))
            raise RuntimeError(f"a kernel does not compile ({' '.join(flags)}): {first}") from error
        names = {kernel: nvrtc.getLoweredName(program, kernel) for kernel in kernels}
        usage = _usage(nvrtc.getProgramLog(program))
        cubin, ptx = nvrtc.getCUBIN(program), nvrtc.getPTX(program)
    finally:
        nvrtc.destroyProgram(program)
    if "trap;" in (ptx if isinstance(ptx, str) else ptx.decode()):
        # The compiler's answer to undefined behavior, such as an atomic operation on a local variable.
        raise RuntimeError(f"a kernel of {', '.join(kernels)} compiles to a trap: it has undefined behavior")
    seconds = time.perf_counter() - began
    resources = {kernel: usage[name] for kernel, name in names.items()}
    return store(entry, Cubin(entry.with_suffix(".cubin"), names, resources, seconds), cubin, flags)


def _usage(log: str) -> dict[str, Resources]:
    """Parse the report of ptxas into the resources of each kernel, by mangled name."""
    found, waiting = {}, _WAITS.findall(log)
    pieces = _ENTRY.split(log)[1:]
    for name, text in zip(pieces[::2], pieces[1::2], strict=True):
        spills, used = _SPILLS.search(text), _USED.search(text)
        if spills is None or used is None:
            raise RuntimeError(f"cannot parse the compiler's report on {name}: {text[:200]!r}")
        stack, stores, loads = map(int, spills.groups())
        found[name] = Resources(int(used[1]), int(used[2] or 0), stack, stores, loads, name in waiting)
    return found


@cache
def architecture(device: int) -> str:
    """Return the architecture of an installed GPU; see `architecture_of`."""
    import cupy

    return architecture_of(cupy.cuda.Device(device).compute_capability)


def architecture_of(capability: str) -> str:
    """Return NVRTC's architecture for a compute capability: ``"sm_90a"`` for ``"9.0"`` or ``"90"``.

    The "a" allows architecture-specific instructions.
    """
    digits = capability.replace(".", "")
    return f"sm_{digits}{'a' if digits in ('90', '100', '103', '120') else ''}"
