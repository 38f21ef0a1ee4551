"""Benchmark of checksums on a CPU: `tsapps.abft.encode` and `verify` of a matrix in memory, beside a read and a hash.

floor_ms    a plain read: the sum of the matrix's bytes as 64-bit integers, by NumPy on one core
library_ms  SHA-256 of the matrix by `hashlib`, which detects any change, but neither locates nor repairs it

Every verification is first checked on the matrix as it is, and with one wrong element. Every encoding is checked by a
verification, and against the sums' definitions if rows and columns are multiples of 512.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from tsapps.apps import abft
from tsapps.apps.abft.at_rest.interleave import ROWS, layout
from tsapps.bench.abft.check_sums import check_sums, check_verification
from tsapps.bench.abft.speed import square
from tsapps.bench.abft.tasks import CPU_TASKS, JOBS, Task
from tsapps.bench.common import record
from tsapps.bench.common.outcome import LeftOutError, check_memory
from tsapps.bench.common.timing import Clock, CpuClock, median_ms
from tsapps.bench.kmeans.problems import numpy_dtype
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["CpuSpeed"]

# Codes of the records of each job.
_CODES = {"encode": JOBS["encode"], "verify": ("exact", "float")}


class CpuSpeed:
    """Runs benchmarks on the CPU.

    Parameters
    ----------
    seed : int
        Seed of the data.
    """

    tasks = CPU_TASKS

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.clock: Clock = CpuClock()
        self.device = record.cpu_name()

    def measure(self, task: Task) -> Iterator[dict[str, Any]]:
        """Yield the fields of a benchmark's records.

        Raises
        ------
        NotRightError
            If a result is wrong.
        LeftOutError
            If the job is not "encode" or "verify", or the matrix does not fit in memory.
        ImportError
            If the matrix has bfloat16 elements, and ml_dtypes is not installed.
        """
        if task.job not in _CODES:
            raise LeftOutError(f"{task.job} is only measured on a GPU")
        check_memory(task.needed_bytes, available_host_memory())
        dtype = numpy_dtype(task.dtype)
        A = square(task, self.seed, np)
        read_ms = self._median_ms(partial(_read, A))
        hash_ms = self._median_ms(lambda: hashlib.sha256(A).digest())
        for code in _CODES[task.job]:
            sidecar = abft.encode(A.view(dtype), code=code)
            _check(A, task, sidecar, dtype)
            call: Callable[[], Any] = partial(abft.encode, A.view(dtype), code=code)
            if task.job == "verify":
                call = partial(abft.verify, A.view(dtype), sidecar)
            yield {
                "code": code,
                "weights": sidecar.weights,
                "ms": self._median_ms(call),
                "floor_ms": read_ms,
                "library": "sha256",
                "library_ms": hash_ms,
                "unprotected_ms": None,
            }

    def _median_ms(self, call: Callable[[], Any]) -> float:
        return median_ms(self.clock, call)


def _read(A: np.ndarray) -> int:
    """Return the sum of the bytes of a matrix as 64-bit integers, except for the last ones that fill none."""
    words = A.reshape(-1).view(np.uint8)
    return int(words[: len(words) // 8 * 8].view(np.uint64).sum())


def _check(A: np.ndarray, task: Task, sidecar: abft.Sidecar, dtype: np.dtype) -> None:
    """Raise `NotRightError` if a sidecar is wrong."""
    if task.m % ROWS == task.n % ROWS == 0:
        of = {"exact": sidecar.exact, "rows": sidecar.rows, "columns": sidecar.columns}
        sums = {name: found for name, found in of.items() if found is not None}
        check_sums(A, task.dtype, layout(A.shape, A.itemsize), sums)
    check_verification(A.view(dtype), sidecar)
