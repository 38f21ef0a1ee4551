"""Benchmark of checksums on a GPU: encoding, verification, protected products and protected K-means.

encode   kernel time of all checksums of a matrix by `add_checksums`. Compared with the faster of cuBLAS and cublasLt,
         which compute row and column sums for two weights by two products, over the whole matrix or over blocks of 512
         rows and columns (`library_ms` is the sum), and with one read of the matrix
verify   wall time of `tsapps.abft.verify` for a matrix on the GPU, without the first call, which uploads the sidecar
matmul   `tsapps.abft.matmul` and `tsapps.matmul` (`unprotected_ms`), with cold L2, not waiting for the report
kmeans   mean of the first 20 iterations of Lloyd's algorithm, protected and unprotected; and whole fits

Times are medians of nine. Results are checked first, in the same run: sums of some stripes in integers and float64,
products by rows in float64, labels and centers as in tsapps.bench.kmeans. Wrong results are not recorded.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tsapps.apps.abft.at_rest.interleave import ROWS, layout
from tsapps.bench.abft.check_sums import check_sums, check_verification
from tsapps.bench.abft.tasks import QUICK_GPU_TASKS, Task, tasks
from tsapps.bench.common import record, roofline
from tsapps.bench.common.dtypes import ITEMSIZE
from tsapps.bench.common.outcome import LEFT_OUT, LeftOutError, NotRightError, check_memory, missing
from tsapps.bench.common.timing import GpuClock, median
from tsapps.bench.gemm import libraries
from tsapps.bench.gemm.grid import Pools, exact, largest_error, wide
from tsapps.bench.kmeans.measure import Problem, check_step, time_peer
from tsapps.bench.kmeans.peers import PEERS
from tsapps.bench.kmeans.problems import floor_ms
from tsapps.bench.kmeans.run import free_memory, needed_and_free
from tsapps.kernels.gpu_specs import GpuSpec, live

__all__ = ["FIELDS", "KEY", "Speed", "Task", "check_sums", "recorded", "run_speed", "square", "tasks"]

_TIME = (float, type(None))
#: Fields of a record in addition to `record.COMMON`, and the fields that identify it.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("job", "code", "dtype"), (str,)),
    **dict.fromkeys(("m", "n", "weights", "seed"), (int,)),
    "k": (int, type(None)),
    "ms": (float,),
    **dict.fromkeys(("floor_ms", "library_ms", "unprotected_ms"), _TIME),
}
KEY = ("what", "engine", "job", "code", "dtype", "m", "n", "k")
_REPEATS = 9
# Number of calls before those: the clocks of a GPU that waited for a compilation may be low for some ms.
_WARM_UP = 10
# Time budget in seconds for the iterations and fits of one engine.
_SECONDS = 4.0
# Largest accepted error of a vendor library's sums, relative to Σ|a||w|; partial sums may have a 16-bit type.
_LIBRARY_ERROR = {"float64": 1e-12, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}


class Speed:
    """Runs benchmarks on the current GPU.

    Parameters
    ----------
    seed : int
        Seed of the data.
    """

    tasks = QUICK_GPU_TASKS

    def __init__(self, seed: int) -> None:
        self.seed, self.clock = seed, GpuClock()
        self.streams = roofline.measure_streams(self.clock)
        self._tflops: dict[str, float] | None = None
        self._matrix: tuple[tuple[str, int, int], Any] | None = None

    def measure(self, task: Task) -> Iterator[dict[str, Any]]:
        """Yield the fields of a benchmark's records.

        Raises
        ------
        NotRightError
            If a result is wrong.
        ValueError
            If there is no kernel for the task.
        LeftOutError
            If it does not fit in memory.
        """
        if task.job in ("matmul", "kmeans") or (self._matrix is not None and self._matrix[0] != _matrix_of(task)):
            self.free_matrix()
        if self._matrix is None:
            self._check_memory(task)
        yield from getattr(self, f"_{task.job}")(task)

    def free_matrix(self) -> None:
        """Free the matrix of the last task, and return unused memory to the GPU."""
        import cupy

        self._matrix = None
        free_memory(cupy)

    def _check_memory(self, task: Task) -> None:
        import cupy

        free_memory(cupy)
        if task.job == "kmeans":
            check_memory(*needed_and_free(task.fit, cupy))
        else:
            check_memory(task.needed_bytes, cupy.cuda.runtime.memGetInfo()[0])

    def _median_ms(self, call: Callable[[], Any]) -> float:
        for _ in range(_WARM_UP):
            self.clock.call_ms(call)
        return float(median(self.clock.call_ms(call) for _ in range(_REPEATS)))

    def _square(self, task: Task) -> Any:
        """Return the matrix to encode, of normal numbers; bfloat16 as the uint16 of its bits."""
        if self._matrix is None:
            self._matrix = _matrix_of(task), square(task, self.seed)
        return self._matrix[1]

    def _encode(self, task: Task) -> Iterator[dict[str, Any]]:
        import cupy

        from tsapps.apps.abft.at_rest.gpu.encode import add_checksums
        from tsapps.kernels.runtime.machine import cuda_machine

        if task.m % ROWS or task.n % ROWS:
            raise LeftOutError(f"expected multiples of {ROWS} as rows and columns of a matrix to encode on a GPU")
        A, machine = self._square(task), cuda_machine(cupy.cuda.Device().id)
        library = self._library(A, task.dtype)
        for code, passes in plans_of(task, machine.gpu).items():

            def run(passes: Any = passes) -> dict[str, Any]:
                return {name: sums for plan in passes for name, sums in add_checksums(machine, A, plan).items()}

            check_sums(A, task.dtype, layout(A.shape, A.itemsize), run())
            yield {
                "code": code,
                "weights": 0 if code == "exact" else 2,
                "ms": self._median_ms(run),
                "floor_ms": self.streams.milliseconds(A.nbytes, 0),
                "library_ms": None if code == "exact" else library,
                "unprotected_ms": None,
            }

    def _library(self, A: Any, dtype: str) -> float:
        """Return the best time in ms of cuBLAS and cublasLt for row sums and column sums with two weights each.

        The sums cover whole rows and columns or blocks of 512, like ours; the latter is mostly faster by cuBLAS.
        """
        of_rows = A, A.reshape(-1, ROWS)
        of_columns = A, A.reshape(-1, ROWS, A.shape[1])
        return sum(
            min(self._library_sums(one, dtype, trans_a, order) for one in ways for order in "CF")
            for trans_a, ways in ((False, of_rows), (True, of_columns))
        )

    def _library_sums(self, A: Any, dtype: str, trans_a: bool, order: str) -> float:
        """Return the best time in ms of the vendor libraries for A · W or Aᵀ · W; W holds two weights."""
        import cupy

        m, n = A.shape[:-3:-1] if trans_a else A.shape
        weights = cupy.stack([cupy.ones(n), cupy.arange(1, n + 1) / n], axis=1)
        if dtype == "bfloat16":
            W = cupy.asarray((weights.astype("f4").view("u4") >> 16).astype("u2"), order=order)
        else:
            W = cupy.asarray(weights.astype(dtype), order=order)
        lines = (m, 2) if order == "C" else (2, m)
        out = cupy.empty((*A.shape[:-2], *lines), A.dtype)
        out = out if order == "C" else out.swapaxes(-1, -2)
        check = partial(_library_error, A, W, out, dtype, trans_a)
        times = {"time_ms": self._median_ms, "quick_ms": self.clock.call_ms}
        return libraries.best(A, W, out, dtype=dtype, trans_a=trans_a, check=check, **times)[1]

    def _verify(self, task: Task) -> Iterator[dict[str, Any]]:
        from tsapps import abft

        A = self._square(task)
        sidecar = abft.encode(A, code="exact")
        check_verification(A, sidecar)
        ms = median(self.clock.wall_ms(lambda: abft.verify(A, sidecar))[0] for _ in range(_REPEATS))
        floor = self.streams.milliseconds(A.nbytes, 0)
        yield {"code": "exact", "weights": 0, "ms": ms, "floor_ms": floor, "library_ms": None, "unprotected_ms": None}

    def _matmul(self, task: Task) -> Iterator[dict[str, Any]]:
        import tsapps

        if task.dtype == "bfloat16":
            raise LeftOutError("protected products of bfloat16 are not measured")
        cell = task.product
        A, B, _ = Pools(task.dtype, cell.sizes, self.seed).operands(cell)
        reference = exact(cell, A, B)
        found = tsapps.abft.matmul(A, B)
        if not found.clean:
            raise NotRightError(f"protected product reports {found.n_faults} faults without one")
        largest_error(cell, found.C, reference)
        largest_error(cell, tsapps.matmul(A, B), reference)
        del found
        yield {
            "code": "proven",
            "weights": 2,
            "ms": self._median_ms(lambda: tsapps.abft.matmul(A, B)),
            "floor_ms": self.streams.milliseconds(cell.read, cell.written),
            "library_ms": None,
            "unprotected_ms": self._median_ms(lambda: tsapps.matmul(A, B)),
        }

    def _kmeans(self, task: Task) -> Iterator[dict[str, Any]]:
        import cupy

        if self._tflops is None:
            self._tflops = roofline.measure_matmul_tflops(self.clock)
        problem, timings = Problem.draw(task.fit, self.seed, cupy), []
        for name in ("tsapps-protected", "tsapps"):
            peer = PEERS[name](problem.X, problem.centers)
            check_step(peer, problem, cupy)
            timings.append(time_peer(peer, self.clock, _REPEATS, _SECONDS))
            del peer
            free_memory(cupy)
        protected, plain = timings
        yield {
            "code": "protect",
            "weights": 0,
            "ms": protected.iter_ms,
            "floor_ms": floor_ms(task.fit, roofline.Ceilings(self.streams.points[0][1], self._tflops))[0],
            "library_ms": None,
            "unprotected_ms": plain.iter_ms,
            "fit_ms": protected.fit_ms,
            "unprotected_fit_ms": plain.fit_ms,
        }


def _matrix_of(task: Task) -> tuple[str, int, int]:
    return task.dtype, task.m, task.n


def square(task: Task, seed: int, xp: Any = None) -> Any:
    """Return the matrix to encode, of normal numbers; bfloat16 as the uint16 of its bits; by default on the GPU."""
    return Pools(task.dtype, task.matrix.sizes, seed, xp).operands(task.matrix)[0]


# --- Checks -----------------------------------------------------------------------------------------------------------


def plans_of(task: Task, gpu: GpuSpec) -> dict[str, tuple[Any, ...]]:
    """Return the passes that encode a matrix on a GPU, by code."""
    from tsapps.apps.abft.at_rest.gpu.encode import plans

    of, found = layout((task.m, task.n), ITEMSIZE[task.dtype]), {}
    for code in task.codes:
        passes = plans(task.m, task.n, task.dtype, of, code=code, weights=2, block=ROWS, gpu=gpu)
        if passes is None:
            raise ValueError(f"no kernel makes the {code} checksums of {task.m} × {task.n} {task.dtype}")
        found[code] = passes
    return found


def _library_error(A: Any, W: Any, out: Any, dtype: str, trans_a: bool) -> float:
    """Return the error of some sums of a vendor library, relative to Σ|a||w|; raise ValueError if it is too large."""
    if A.ndim == 3:
        A, out = A[-1], out[-1]
    some, w = wide(A[:, :64].T if trans_a else A[:64], dtype), wide(W, dtype)
    error = float((abs(wide(out[:64], dtype) - some @ w) / (abs(some) @ abs(w))).max())
    if not error <= _LIBRARY_ERROR[dtype]:
        raise NotRightError(f"a vendor library's sum is off by {error:.1e} of Σ|a||w|")
    return error


# --- A run ------------------------------------------------------------------------------------------------------------


def compile_plans(some: list[Task]) -> None:
    """Compile the encoding kernels on several cores, so that the GPU does not wait for them."""
    from tsapps.apps.abft.at_rest.gpu.encode import compiled
    from tsapps.kernels.jit.compiler import architecture

    encoded = [plans_of(task, live()) for task in some if task.job == "encode"]
    plans = {plan for by_code in encoded for passes in by_code.values() for plan in passes}
    if len(plans) > 1:
        with ProcessPoolExecutor(min(len(plans), 12), multiprocessing.get_context("spawn")) as pool:
            list(pool.map(partial(compiled, arch=architecture(0)), plans))


def recorded(bench: Any, task: Task, path: Path, common: dict[str, Any]) -> Iterator[dict[str, Any] | str]:
    """Add the records of a task to a file, and yield them, or a line that says why there is none.

    Parameters
    ----------
    bench : Speed or CpuSpeed
    task : Task
    path : pathlib.Path
    common : dict
        Fields that all records share.
    """
    sizes = {"job": task.job, "dtype": task.dtype, "m": task.m, "n": task.n, "k": task.k}
    for found in _measured(bench, task):
        if isinstance(found, str):
            yield found
        else:
            one = {**common, **sizes, **found, "seed": bench.seed, "date": record.today()}
            record.store(path, one, ("device", *KEY), FIELDS)
            yield one


def _measured(bench: Any, task: Task) -> Iterator[dict[str, Any] | str]:
    try:
        yield from bench.measure(task)
    except (LeftOutError, ValueError, MemoryError, ImportError, libraries.LibraryError) as error:
        yield missing(task.name, error)


def run_speed(options: argparse.Namespace, common: dict[str, Any], path: Path, done: set[tuple[Any, ...]]) -> int:
    """Run the requested benchmarks; return the exit code.

    Parameters
    ----------
    options : argparse.Namespace
        job, dtype, minutes and seed.
    common : dict
        Fields shared by all records.
    path : pathlib.Path
        File of records.
    done : set of tuple
        Keys of records to skip.
    """
    end = time.perf_counter() + 60 * options.minutes
    asked = [
        task
        for task in tasks(options.job, options.dtype)
        if any(("abft", "cuda", task.job, code, task.dtype, task.m, task.n, task.k) not in done for code in task.codes)
    ]
    compile_plans(asked)
    bench, failures = Speed(options.seed), 0
    for task in asked:
        if time.perf_counter() > end:
            print(f"{options.minutes:g} minutes are over; continue with --missing", flush=True)
            break
        for found in recorded(bench, task, path, common):
            failures += isinstance(found, str) and LEFT_OUT not in found
            print(found if isinstance(found, str) else _line(found), flush=True)
    return 1 if failures else 0


def _line(one: dict[str, Any]) -> str:
    shape = f"{one['m']} × {one['n']}" + (f" k {one['k']}" if one["k"] else "")
    parts = [f"{one['job']:<7} {one['code']:<7} {one['dtype']:<9} {shape:<24} {one['ms']:.3f} ms"]
    for name in ("floor_ms", "library_ms", "unprotected_ms"):
        if one[name]:
            parts.append(f"{one['ms'] / one[name]:.3f} of {name.removesuffix('_ms')} ({one[name]:.3f})")
    return "; ".join(parts)
