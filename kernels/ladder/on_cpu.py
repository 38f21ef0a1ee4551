"""The rungs of the ladder on a CPU: C files of cpu/, built by the machine's own C compiler when they are first used."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from tsapps.kernels.arrays import address
from tsapps.kernels.devices import available_cores
from tsapps.kernels.ladder.operands import destination, is_row_major, product_sizes
from tsapps.kernels.system.cache import process_directory

__all__ = ["CPU_RUNGS", "CompilerError", "CpuRung", "compiler", "multiply_on_cpu"]

_FOLDER = Path(__file__).with_name("cpu")
_REALS = {"float32": "float", "float64": "double"}
# Optimization without reordering sums, for the processor at hand.
_FLAGS = ("-std=gnu11", "-O2", "-march=native", "-fPIC", "-shared")


class CompilerError(OSError):
    """There is no C compiler, or it cannot build a rung."""


@dataclass(frozen=True)
class CpuRung:
    """A C file of the ladder.

    Attributes
    ----------
    name : str
    title : str
        What the rung is, in a few words.
    file : str
        The C file, in cpu/.
    flags : tuple of str
        What the compiler needs in addition.
    is_parallel : bool
        Whether the rung uses several threads.
    """

    name: str
    title: str
    file: str
    flags: tuple[str, ...] = ()
    is_parallel: bool = False


#: The rungs on a CPU, from the bottom. NumPy, which calls BLAS, is the library to compare them with.
CPU_RUNGS = (
    CpuRung("cpu_serial", "triple loop", "serial.c"),
    CpuRung("cpu_threads", "threads", "threads.c", ("-pthread",), is_parallel=True),
    CpuRung("cpu_openmp", "OpenMP", "openmp.c", ("-fopenmp",), is_parallel=True),
    CpuRung("cpu_vectors", "vectors of 32 bytes", "vectors.c"),
)


def compiler() -> list[str]:
    """Return the command of the C compiler: the environment variable CC, else the first of cc, gcc and clang.

    Raises
    ------
    CompilerError
        If there is none.
    """
    wanted = os.environ.get("CC", "")
    names = (wanted,) if wanted else ("cc", "gcc", "clang")
    for name in names:
        program, *options = shlex.split(name)
        if shutil.which(program):
            return [program, *options]
    raise CompilerError(f"no C compiler: {' or '.join(names)} is not installed; install gcc, or set CC")


def multiply_on_cpu(
    rung: CpuRung,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    threads: int | None = None,
) -> np.ndarray:
    """Compute alpha · A · B + beta · C by a rung of the ladder on the CPU.

    Parameters
    ----------
    rung : CpuRung
    A, B : numpy.ndarray of shape (m, k) and (k, n), float32 or float64, row-major
    C : numpy.ndarray of shape (m, n), of A's dtype, row-major, optional
        Overwritten with the result. Without it, `beta` must be 0, and a new array is returned.
    alpha, beta : float
        With ``beta=0``, the values of C are not read.
    threads : int, optional
        Number of threads of a parallel rung; by default one per CPU that this process may use.

    Returns
    -------
    numpy.ndarray of shape (m, n)

    Raises
    ------
    ValueError
        If shapes, dtypes or layouts are not these, C is read-only or overlaps A or B, or `beta` is not 0 and there is
        no C.
    CompilerError
        If there is no C compiler, or it cannot build the rung.
    """
    m, n, k = product_sizes(A, B, C)
    for name, X in (("A", A), ("B", B), ("C", C)):
        if X is not None and not is_row_major(X):
            raise ValueError(f"{name} has strides {X.strides}; expected row-major, (leading dimension, 1) · itemsize")
    C = destination(np, A, B, C, beta)
    if not C.flags.writeable:
        raise ValueError("C is read-only; give an array that can be written")
    real = ctypes.c_float if A.dtype == np.float32 else ctypes.c_double
    leading = (X.strides[0] // X.itemsize for X in (A, B, C))
    sizes, cores = (m, n, k, *leading), threads or available_cores()
    of = _product_of(real)(*map(address, (A, B, C)), *sizes, alpha, beta, cores)
    _built(rung, A.dtype.name).multiply(ctypes.byref(of))
    return C


@cache
def _product_of(real: type) -> type[ctypes.Structure]:
    """Return the structure `Product` of cpu/multiply.h for a type of element."""

    class Product(ctypes.Structure):
        _fields_ = (
            *((name, ctypes.c_void_p) for name in ("A", "B", "C")),
            *((name, ctypes.c_ssize_t) for name in ("m", "n", "k", "lda", "ldb", "ldc")),
            *(("alpha", real), ("beta", real), ("threads", ctypes.c_int)),
        )

    return Product


@cache
def _built(rung: CpuRung, dtype: str) -> ctypes.CDLL:
    """Return the library of a rung, built once in this process."""
    library = process_directory() / f"{rung.name}-{dtype}{'.dylib' if sys.platform == 'darwin' else '.so'}"
    program, source = compiler(), str(_FOLDER / rung.file)
    command = [*program, *_FLAGS, *rung.flags, f"-DREAL={_REALS[dtype]}", source, "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
        raise CompilerError(f"{shlex.join(program)} cannot build {rung.file}: {reason}")
    return ctypes.CDLL(str(library))
