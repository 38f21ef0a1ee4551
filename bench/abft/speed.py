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
from dataclasses import dataclass
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.apps.abft.at_rest.exact_code import SUMS, last_weight
from tsapps.apps.abft.at_rest.interleave import ROWS, Layout, layout
from tsapps.bench.common import record, roofline
from tsapps.bench.common.timing import GpuClock, median
from tsapps.bench.gemm import libraries
from tsapps.bench.gemm.grid import DTYPES, Cell, Pools, exact, largest_error, wide
from tsapps.bench.kmeans.measure import NotRightError, Problem, check_step, time_peer
from tsapps.bench.kmeans.peers import PEERS
from tsapps.bench.kmeans.problems import Shape, floor_ms
from tsapps.bench.kmeans.run import free_memory

__all__ = ["FIELDS", "KEY", "Speed", "Task", "check_sums", "run_speed", "tasks"]

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
#: Sides of squares, of more than 1 GB each; products, m × k · w, in addition to squares; K-means.
SIDES = {"float64": 20_480, "float32": 20_480, "float16": 30_720, "bfloat16": 30_720}
PRODUCTS, WIDTHS = ((10_000_000, 64, 16), (10_000_000, 64, 64)), (2, 16, 32, 64)
FITS = (
    *("100M-4-16-f32", "50M-16-16-f32", "20M-32-64-f32", "10M-128-16-f32", "10M-128-64-f32", "262144-4096-16-f32"),
    *("262144-4096-16-f64", "262144-4096-16-f16", "1M-64-64-bf16"),
)
# Time budget in seconds for the iterations and fits of one engine.
_SECONDS = 4.0
# Largest accepted error of a vendor library's sums, relative to Σ|a||w|; partial sums may have a 16-bit type.
_LIBRARY_ERROR = {"float64": 1e-12, "float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}


@dataclass(frozen=True)
class Task:
    """One benchmark.

    Attributes
    ----------
    job, dtype : str
    m, n, k : int
        encode: rows and columns of a matrix. matmul: the product (m × k) · (k × n). kmeans: samples, features and
        clusters.
    codes : tuple of str
        Codes of its records.
    """

    job: str
    dtype: str
    m: int
    n: int
    k: int | None
    codes: tuple[str, ...]


def tasks(jobs: Any = None, dtypes: Any = None) -> Iterator[Task]:
    """Yield the requested benchmarks; those of one dtype are consecutive."""
    for dtype in DTYPES:
        n = SIDES[dtype]
        every = [Task("encode", dtype, n, n, None, ("both", "exact", "float"))]
        every += [Task("verify", dtype, n, n, None, ("exact",))]
        products = *PRODUCTS, *((n, n, w) for w in WIDTHS)
        if dtype != "bfloat16":
            every += [Task("matmul", dtype, m, w, k, ("proven",)) for m, k, w in products]
        shapes = (Shape.parse(name) for name in FITS)
        every += [Task("kmeans", dtype, one.n, one.d, one.k, ("protect",)) for one in shapes if one.dtype == dtype]
        for task in every:
            if task.job in (jobs or [task.job]) and dtype in (dtypes or [dtype]):
                yield task


class Speed:
    """Runs benchmarks on the current GPU.

    Parameters
    ----------
    seed : int
        Seed of the data.
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.clock = seed, GpuClock()
        self.streams = roofline.measure_streams(self.clock)
        self._tflops: dict[str, float] | None = None
        self._matrix: tuple[Task, Any] | None = None

    def measure(self, task: Task) -> Iterator[dict[str, Any]]:
        """Yield the fields of a benchmark's records.

        Raises
        ------
        ValueError, NotRightError
            If a result is wrong.
        """
        if task.job in ("matmul", "kmeans"):
            self._matrix = None
        yield from getattr(self, f"_{task.job}")(task)

    def _median_ms(self, call: Callable[[], Any]) -> float:
        call()
        return float(median(self.clock.call_ms(call) for _ in range(_REPEATS)))

    def _square(self, task: Task) -> Any:
        """Return the matrix to encode, of normal numbers; bfloat16 as the uint16 of its bits."""
        if self._matrix is None or self._matrix[0] != task:
            import cupy

            self._matrix = None  # free the old one first
            free_memory(cupy)
            cell = Cell("tsm2r", task.dtype, "row", task.m, task.n, 1)
            self._matrix = task, Pools(task.dtype, (task.m * task.n, task.n, task.m), self.seed).operands(cell)[0]
        return self._matrix[1]

    def _encode(self, task: Task) -> Iterator[dict[str, Any]]:
        from tsapps.apps.abft.at_rest.gpu.encode import add_checksums
        from tsapps.kernels.runtime.machine import cuda_machine

        A, machine = self._square(task), cuda_machine(0)
        library = self._library(A, task.dtype)
        for code, passes in plans_of(task).items():

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
        if not abft.verify(A, sidecar).clean:
            raise ValueError("verification reports corruption in an unchanged matrix")
        ms = median(self.clock.wall_ms(lambda: abft.verify(A, sidecar))[0] for _ in range(_REPEATS))
        floor = self.streams.milliseconds(A.nbytes, 0)
        yield {"code": "exact", "weights": 0, "ms": ms, "floor_ms": floor, "library_ms": None, "unprotected_ms": None}

    def _matmul(self, task: Task) -> Iterator[dict[str, Any]]:
        import cupy

        import tsapps

        m, k, w = task.m, task.k or 0, task.n
        cell = Cell("tsm2r" if m == k else "tsm2l", task.dtype, "row", m, k, w)
        free_memory(cupy)
        A, B, _ = Pools(task.dtype, (m * k, k * w, m * w), self.seed).operands(cell)
        reference = exact(cell, A, B)
        found = tsapps.abft.matmul(A, B)
        if not found.clean:
            raise ValueError(f"protected product reports {found.n_faults} faults without one")
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

        free_memory(cupy)
        if self._tflops is None:
            self._tflops = roofline.measure_matmul_tflops(self.clock)
        shape = Shape(task.m, task.n, task.k or 0, task.dtype)
        problem, timings = Problem.draw(shape, self.seed, cupy), []
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
            "floor_ms": floor_ms(shape, roofline.Ceilings(self.streams.points[0][1], self._tflops))[0],
            "library_ms": None,
            "unprotected_ms": plain.iter_ms,
            "fit_ms": protected.fit_ms,
            "unprotected_fit_ms": plain.fit_ms,
        }


# --- Checks -----------------------------------------------------------------------------------------------------------


def plans_of(task: Task) -> dict[str, tuple[Any, ...]]:
    """Return the passes that encode a matrix, by code."""
    from tsapps.apps.abft.at_rest.gpu.encode import plans

    of, found = layout((task.m, task.n), DTYPES[task.dtype]), {}
    for code in task.codes:
        passes = plans(task.m, task.n, task.dtype, of, code=code, weights=2, block=ROWS)
        if passes is None:
            raise ValueError(f"no kernel makes the {code} checksums of {task.m} × {task.n} {task.dtype}")
        found[code] = passes
    return found


def check_sums(A: Any, dtype: str, of: Layout, sums: dict[str, Any]) -> None:
    """Compare sums of the first, a middle and the last stripe with their definitions, in integers and float64.

    Parameters
    ----------
    A : array of shape (m, n)
        NumPy or CuPy, C-contiguous; bfloat16 as the uint16 of its bits. m and n are multiples of 512.
    dtype : str
    of : Layout
    sums : dict of str to array
        Result of `add_checksums` for two weights and blocks of 512.

    Raises
    ------
    ValueError
        If an integer sum differs, or a weighted one differs by more than two summation orders can.
    """
    if "exact" in sums:
        words = A.reshape(-1).view(np.uint32).reshape(-1, of.width)
        for stripe in sorted({0, of.stripes // 2, of.stripes - 1}):
            _check_words(words[stripe * ROWS : (stripe + 1) * ROWS].astype(np.uint64), sums["exact"][stripe], stripe)
    if "rows" in sums:
        unit = 2.0**-53 if DTYPES[dtype] > 2 else 2.0**-24
        bound = 2 * ROWS * unit / (1 - ROWS * unit)
        for band in sorted({0, len(A) // ROWS - 1}):
            here = slice(band * ROWS, (band + 1) * ROWS)
            tiles = wide(A[here], dtype).reshape(ROWS, -1, ROWS)
            for power in range(2):
                w = _like(tiles, np.arange(1, ROWS + 1.0) ** power)
                rows, columns = sums["rows"][:, power, here], sums["columns"][band, power]
                _check_near("rows", rows, (tiles @ w).T, (abs(tiles) @ w).T, bound)
                along = tiles.reshape(ROWS, -1)
                _check_near("columns", columns, w @ along, w @ abs(along), bound)


def _check_words(words: Any, found: Any, stripe: int) -> None:
    left = len(words) - np.arange(len(words))
    for k in range(SUMS):
        weights = [comb(int(r) + k - 1, k) if k < SUMS - 1 else last_weight(int(r)) for r in left]
        expected = (words * _like(words, np.array(weights, np.uint64))[:, None]).sum(axis=0)
        if not bool((expected == found[k]).all()):
            raise ValueError(f"integer checksum {k} of stripe {stripe} is wrong")


def _like(array: Any, values: np.ndarray) -> Any:
    """Return values as an array of the same library."""
    if isinstance(array, np.ndarray):
        return values
    import cupy

    return cupy.asarray(values)


def _check_near(name: str, found: Any, expected: Any, magnitude: Any, bound: float) -> None:
    if not bool((abs(found - expected) <= bound * magnitude).all()):
        raise ValueError(f"a sum of {name} is off by more than rounding explains")


def _library_error(A: Any, W: Any, out: Any, dtype: str, trans_a: bool) -> float:
    """Return the error of some sums of a vendor library, relative to Σ|a||w|; raise ValueError if it is too large."""
    if A.ndim == 3:
        A, out = A[-1], out[-1]
    some, w = wide(A[:, :64].T if trans_a else A[:64], dtype), wide(W, dtype)
    error = float((abs(wide(out[:64], dtype) - some @ w) / (abs(some) @ abs(w))).max())
    if not error <= _LIBRARY_ERROR[dtype]:
        raise ValueError(f"a vendor library's sum is off by {error:.1e} of Σ|a||w|")
    return error


# --- A run ------------------------------------------------------------------------------------------------------------


def compile_plans(some: list[Task]) -> None:
    """Compile the encoding kernels on several cores, so that the GPU does not wait for them."""
    from tsapps.apps.abft.at_rest.gpu.encode import compiled
    from tsapps.kernels.jit.compiler import architecture

    plans = {plan for task in some if task.job == "encode" for passes in plans_of(task).values() for plan in passes}
    if len(plans) > 1:
        with ProcessPoolExecutor(min(len(plans), 12), multiprocessing.get_context("spawn")) as pool:
            list(pool.map(partial(compiled, arch=architecture(0)), plans))


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
        name = {"job": task.job, "dtype": task.dtype, "m": task.m, "n": task.n, "k": task.k}
        try:
            for found in bench.measure(task):
                one = {**common, **name, **found, "seed": options.seed, "date": record.today()}
                record.store(path, one, KEY, FIELDS)
                print(_line(one), flush=True)
        except (ValueError, NotRightError, libraries.LibraryError) as error:
            failures += 1
            print(f"{task}: NOT RECORDED: {error}", flush=True)
    return 1 if failures else 0


def _line(one: dict[str, Any]) -> str:
    shape = f"{one['m']} × {one['n']}" + (f" k {one['k']}" if one["k"] else "")
    parts = [f"{one['job']:<7} {one['code']:<7} {one['dtype']:<9} {shape:<24} {one['ms']:.3f} ms"]
    for name in ("floor_ms", "library_ms", "unprotected_ms"):
        if one[name]:
            parts.append(f"{one['ms'] / one[name]:.3f} of {name.removesuffix('_ms')} ({one[name]:.3f})")
    return "; ".join(parts)
