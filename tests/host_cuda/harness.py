"""Builds a kernel's CUDA C++ source for the CPU, and calls it.

A test appends to the source its own entry points: functions of C linkage that take pointers, ``long long`` and
``double``, and launch the kernel through ``cuda_host::launch`` (see cuda_host.hpp)::

    kernels = harness.build(source)
    kernels.call("run", A, B, C, m, k)  # raises KernelError for a deadlock, a misaligned copy, …

    with harness.schedule(seed=3, copies="early"):  # what CUDA leaves open, drawn otherwise
        kernels.call("run", A, B, C, m, k)

A library is kept in pytest's cache directory, under a digest of the source, of every header that goes into it, of the
flags and of the compiler's version. Of several processes that want the same one, the first compiles it.
"""

import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tsapps.kernels.jit.compiler import headers_of

__all__ = [
    "SANITIZE",
    "KernelError",
    "Kernels",
    "build",
    "require_compiler",
    "run_sanitized",
    "schedule",
]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".pytest_cache" / "d" / "host_cuda"

# Passes of -O1 that are left out: 21 sources compile in 14 % less CPU time (3 runs by turns). Four test files then
# took 60 and 55 s of CPU time, and with the passes 61 and 53 s.
_FAST_TO_COMPILE = (
    *("-fno-tree-ccp", "-fno-tree-dominator-opts", "-fno-tree-pta", "-fno-ivopts", "-fno-tree-ter"),
    *("-fno-ipa-modref", "-fno-ipa-pure-const", "-fno-ipa-reference", "-fno-tree-sink", "-fno-tree-reassoc"),
)
# Every variable starts as a pattern that is no plausible number; static data is the library's own (no GNU unique
# symbols), so that two builds of one kernel do not share their shared memory.
_FLAGS = (
    *("-std=c++20", "-O1", "-fPIC", "-fno-gnu-unique", "-ftrivial-auto-var-init=pattern", *_FAST_TO_COMPILE),
    *("-U_FORTIFY_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-parameter", "-pthread"),
)
#: Flags that make an out-of-bounds or misaligned access end the process and name its line. For `run_sanitized`.
SANITIZE = ("-O0", "-g1", "-fsanitize=address,bounds,alignment", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


class KernelError(RuntimeError):
    """A kernel did what no GPU allows: it deadlocked, or broke an instruction's contract."""


class Kernels(ctypes.CDLL):
    """A library made by `build`."""

    def call(self, name: str, *arguments: np.ndarray | int | float) -> None:
        """Call an entry point: arrays go as pointers, ints as long long, floats as double.

        Raises
        ------
        KernelError
            If the kernel deadlocked or broke an instruction's contract; says how.
        """
        self[name](*map(_as_c, arguments))
        take_error = self["cuda_host_take_error"]
        take_error.restype = ctypes.c_char_p
        message = take_error()
        if message is not None:
            raise KernelError(message.decode())


def _as_c(argument: np.ndarray | int | float) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.ctypes.data_as(ctypes.c_void_p)
    return ctypes.c_double(argument) if isinstance(argument, float) else ctypes.c_longlong(argument)


@cache
def _compiler() -> tuple[str, str]:
    """Return the compiler and its version, or "" and why there is none."""
    if not sys.platform.startswith("linux"):
        return "", f"running kernels on the CPU needs Linux, and this is {sys.platform}"
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path is None:
        return "", "running kernels on the CPU needs g++ 12 or newer (or CXX), which is not installed"
    version = subprocess.run([path, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    if int(version.split(".")[0] or 0) < 12:
        return "", f"running kernels on the CPU needs g++ 12 or newer, and {path} is {version or 'not GCC'}"
    return path, version


def require_compiler() -> tuple[str, str]:
    """Return the path and version of g++, or skip the test and say why."""
    path, version = _compiler()
    if not path:
        pytest.skip(version)
    return path, version


def build(source: str, flags: Sequence[str] = ()) -> Kernels:
    """Compile a source for the CPU, or take the library from the cache; skip the test where there is no g++.

    Parameters
    ----------
    source : str
        CUDA C++ with entry points; its ``#include "…"`` are found under the repository's root.
    flags : sequence of str
        Further compiler flags, such as `SANITIZE`.

    Returns
    -------
    Kernels

    Raises
    ------
    RuntimeError
        If the source does not compile; says what the compiler says.
    ValueError
        If the library needs a process that `run_sanitized` started, and this is another.
    """
    if "address" in " ".join(flags) and "libasan" not in os.environ.get("LD_PRELOAD", ""):
        raise ValueError("a library with AddressSanitizer can only be loaded in a process that run_sanitized started")
    own = sorted(HERE.glob("*.h*"))
    runtime = _made(".o", ["-O2", *flags, "-c", str(HERE / "runtime.cpp")], [HERE / "runtime.cpp", *own])
    # Precompiled, as parsing it takes most libraries longer than their own source.
    header = ["-w", "-x", "c++-header", str(HERE / "cuda_host.hpp")]
    precompiled = _made("/cuda_host.hpp.gch", [*flags, *header], own).parent
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernels.cuh"
        text.write_text(source, encoding="utf-8")
        # Included rather than compiled, as a source may itself be a header.
        inputs = [f"-I{precompiled}", "-include", "cuda_host.hpp", "-include", str(text), "-x", "c++", os.devnull]
        read = [text, *own, *(ROOT / name for name in sorted(headers_of(source, ROOT)))]
        # gold takes a third of the time of GNU ld, most of which goes into the symbols of libstdc++.
        linker = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
        library = _made(".so", [*flags, *linker, "-shared", *inputs, "-x", "none", str(runtime)], read)
    return Kernels(str(library))


def _made(suffix: str, arguments: Sequence[str], read: Sequence[Path]) -> Path:
    """Return the compiler's output for some arguments, from the cache if nothing that it reads has changed."""
    compiler, version = require_compiler()
    # The arguments' own folders come first.
    command = [compiler, *_FLAGS, *arguments, f"-I{HERE}", f"-I{ROOT}"]
    names = [Path(argument).name for argument in arguments]
    parts = [version, compiler, *_FLAGS, *names, *(path.read_text(encoding="utf-8") for path in read)]
    output = CACHE / (hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32] + suffix)
    if output.exists():
        return output
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output.with_suffix(".lock"), "w") as lock, tempfile.TemporaryDirectory(dir=CACHE) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if output.exists():
            return output  # another process has compiled it meanwhile
        temporary = str(Path(folder) / output.name)
        # The compiler itself runs without a sanitizer's library.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        run = subprocess.run([*command, "-o", temporary], env=environment, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(f"a kernel does not compile for the CPU:\n{run.stderr}")
        os.replace(temporary, output)
    return output


@contextmanager
def schedule(*, seed: int = 0, copies: str = "late", threads: int | None = None) -> Iterator[None]:
    """Within the block, launches run as said.

    Parameters
    ----------
    seed : int
        What the order of threads and of blocks is drawn from; 0 is their own order. By an odd one, warps run one at a
        time, each as far as it can without the others (a missing barrier between warps shows).
    copies : {"late", "early"}
        Whether asynchronous copies land as late as the contract allows (a missing wait shows) or at once (a missing
        barrier after the last use shows).
    threads : int, optional
        OS threads that share the blocks; by default one a core.
    """
    if copies not in ("late", "early"):
        raise ValueError(f"copies is {copies!r}; it is 'late' or 'early'")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TSA_SEED", str(seed))
        environment.setenv("TSA_COPIES", copies)
        environment.delenv("TSA_THREADS", raising=False)
        if threads is not None:
            environment.setenv("TSA_THREADS", str(threads))
        yield


def run_sanitized(script: str) -> subprocess.CompletedProcess[str]:
    """Run a Python script, which may call what ``build(…, SANITIZE)`` made, in a process under AddressSanitizer."""
    compiler, _ = require_compiler()
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("AddressSanitizer's library is not installed beside g++")
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        "PYTHONMALLOC": "malloc",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
