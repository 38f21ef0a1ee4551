"""Benchmark of the ladder: every rung, from the triple loop to today's kernels, beside the library.

    python -m tsapps.bench.ladder                        # on a GPU, if there is one, else on the CPU
    python -m tsapps.bench.ladder --device cpu --shape 512-512-512-f32

Every result is first compared with float64; a wrong one is neither timed nor recorded.

ms              median time of a call (GPU: CUDA events, queued behind a read that flushes the level-2 cache); of the
                pitched rung, with the copy of C, without those of A and B
gflops          2·m·n·k / ms
speedup_serial  serial_ms / ms. serial_ms is the time of the triple loop in C on row-major matrices, on one core of the
                machine's `cpu`
efficiency      speed-up divided by the number of warps that the GPU holds at the same time; on a CPU, of threads
library_ms      time of the fastest algorithm of cuBLAS and cublasLt; on a CPU, of NumPy
floor_ms        larger of two times: a stream that reads A and B and writes C, and the arithmetic at the throughput of
                the library on large squares. GPU only

The triple loop computes so many rows of C as take some tenths of a second; its time is that of all rows in proportion.
A rung that would take longer than `--limit` seconds, by its rate on the shape before or on some rows, is left out.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from math import prod
from pathlib import Path
from secrets import randbelow
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.outcome import LEFT_OUT, WRONG, LeftOutError, NotRightError, check_memory, missing
from tsapps.bench.common.timing import CpuClock, GpuClock, median_ms
from tsapps.bench.ladder.cases import CPU_CASES, GPU_CASES, Case, case_named, error_bound
from tsapps.errors import NoDeviceError
from tsapps.kernels.blas.cublaslt import LibraryError
from tsapps.kernels.devices import Choice, available_cores, choose_device
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.ladder.launch import PAPER_KERNELS, bind_rung, kernel_of, tsm2_paper
from tsapps.kernels.ladder.on_cpu import CPU_RUNGS, CompilerError, CpuRung, compiler, multiply_on_cpu
from tsapps.kernels.ladder.rungs import RUNGS, Rung
from tsapps.kernels.matmul import matmul
from tsapps.kernels.runtime.machine import cuda_machine
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = [
    *("FIELDS", "KEY", "LIMIT", "OnCpu", "OnGpu"),
    *("common_fields", "main", "measured", "opened", "recorded"),
]

#: Fields of a record in addition to `record.COMMON`, and the fields that identify it.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("rung", "title", "dtype", "layout", "cpu"), (str,)),
    **dict.fromkeys(("m", "n", "k", "seed"), (int,)),
    **dict.fromkeys(("ms", "gflops", "library_ms"), (float,)),
    **dict.fromkeys(("serial_ms", "speedup_serial", "efficiency", "floor_ms"), (float, type(None))),
}
KEY = ("what", "device", "rung", "m", "n", "k", "dtype", "layout")
#: Longest time of a call in seconds, if none is given.
LIMIT = 5.0
# Size of the squares whose product gives the library's throughput; and number of products l · n of the triple loop.
_LARGE, _SERIAL_PRODUCTS = 4096, 1 << 27
# The rate of a rung is estimated from so many rows, if the product has more operations than `_MANY_FLOPS`. On a GPU,
# they have at least `_MANY_ELEMENTS` of C, so that no rung leaves many multiprocessors idle.
_SOME_ROWS, _MANY_FLOPS, _MANY_ELEMENTS = 256, 1e9, 1 << 20

# A rung: its name and title, and a function that binds it to matrices. That returns a call, which computes C and
# returns it, and the number of resident warps, or of threads.
Bound = tuple[Callable[[], Any], int | None]
Rungs = Iterator[tuple[str, str, Callable[[], Bound]]]


class OnCpu:
    """The rungs on a CPU, and NumPy."""

    cases, names = CPU_CASES, tuple(rung.name for rung in CPU_RUNGS)
    #: Names of the rungs to measure; all if None.
    only: Sequence[str] | None = None

    def __init__(self) -> None:
        self.xp, self.clock, self.device = np, CpuClock(), record.cpu_name()
        compiler()  # raises if there is none
        self.modules = {"tsapps": "tsapps", "numpy": "numpy"}
        self.versions: dict[str, str] = {}

    def rungs(self, A: Any, B: Any, C: Any) -> Rungs:
        """Yield the rungs, to be bound to matrices."""
        by_rows = all(X.flags.c_contiguous for X in (A, B, C))
        given = (A, B, C) if by_rows else (B.T, A.T, C.T)
        for rung in CPU_RUNGS:
            bound = partial(_after, partial(multiply_on_cpu, rung, *given), C), _threads_of(rung)
            yield rung.name, rung.title, lambda bound=bound: bound

    def free_bytes(self) -> int:
        """Return the free memory of the machine."""
        return available_host_memory()

    def some_rows(self, _: Case) -> int:
        """Return the number of rows from which the rate of a rung is estimated."""
        return _SOME_ROWS

    def library_ms(self, A: Any, B: Any, C: Any, check: Callable[[], float]) -> float:  # noqa: ARG002 (NumPy is right)
        """Return the time of the library in ms."""
        return median_ms(self.clock, partial(np.matmul, A, B, out=C))

    def floor(self, _: Case) -> float | None:
        """Return None: the roofline of the CPU is not measured."""
        return None


class OnGpu:
    """The rungs on the current GPU, TSM2 as published, today's kernels, and cuBLAS."""

    cases, names = GPU_CASES, (*(rung.name for rung in RUNGS), *PAPER_KERNELS, "tsapps")
    #: Names of the rungs to measure; all if None.
    only: Sequence[str] | None = None

    def __init__(self) -> None:
        import cupy

        from tsapps.bench.common import roofline

        self.xp, self.clock, self.index = cupy, GpuClock(), cupy.cuda.Device().id
        self.gpu = live(self.index)
        self.device = cupy.cuda.runtime.getDeviceProperties(self.index)["name"].decode()
        self.modules = {"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy"}
        self.versions = record.cuda_versions()
        self._streams = roofline.measure_streams(self.clock)

    def rungs(self, A: Any, B: Any, C: Any) -> Rungs:
        """Yield the rungs, to be bound to matrices."""
        for rung in RUNGS:
            yield rung.name, rung.title, partial(self._bound, rung, A, B, C)
        if A.strides[0] == B.strides[0] == C.strides[0] == A.itemsize:
            for name in PAPER_KERNELS:
                call = partial(tsm2_paper, name, A, B, out=C)
                yield name, f"TSM2 {name[-2:].upper()}", lambda call=call: (call, None)
        yield "tsapps", "tsapps.matmul", lambda: (partial(matmul, A, B, out=C), None)

    def _bound(self, rung: Rung, A: Any, B: Any, C: Any) -> Bound:
        launch, _ = bind_rung(rung, A, B, C)
        kernel, threads = kernel_of(rung, A.dtype.name, cuda_machine(self.index)), prod(rung.block)
        held = self.xp.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.ptr, threads, 0)
        return partial(_after, launch, C), rung.resident_warps(*C.shape, self.gpu, held)

    def free_bytes(self) -> int:
        """Return the free memory of the GPU."""
        self.xp.get_default_memory_pool().free_all_blocks()
        return int(self.xp.cuda.runtime.memGetInfo()[0])

    def some_rows(self, case: Case) -> int:
        """Return the number of rows from which the rate of a rung is estimated."""
        return max(_SOME_ROWS, _MANY_ELEMENTS // case.n)

    def library_ms(self, A: Any, B: Any, C: Any, check: Callable[[], float]) -> float:
        """Return the time of the fastest algorithm of cuBLAS and cublasLt in ms; `check` as for `libraries.best`."""
        from tsapps.bench.gemm import libraries

        times = {"time_ms": partial(median_ms, self.clock), "quick_ms": self.clock.call_ms, "check": check}
        return libraries.best(A, B, C, dtype=A.dtype.name, **times)[1]

    @cache  # noqa: B019 (one object per run)
    def _flops_per_ms(self, dtype: str) -> float:
        """Return the rate of the library on large squares."""
        rng = self.xp.random.default_rng(0)
        A, B, C = ((rng.random((_LARGE, _LARGE)) - 0.5).astype(dtype) for _ in range(3))
        return 2 * _LARGE**3 / self.library_ms(A, B, C, lambda: 0.0)

    def floor(self, case: Case) -> float | None:
        """Return the floor of a case in ms."""
        stream = self._streams.milliseconds(case.read_bytes, case.written_bytes)
        return max(stream, case.flops / self._flops_per_ms(case.dtype))


def _after(launch: Callable[[], Any], C: Any) -> Any:
    launch()
    return C


def _threads_of(rung: CpuRung) -> int:
    return available_cores() if rung.is_parallel else 1


def serial_ms(case: Case, seed: int) -> float | None:
    """Return the time of the triple loop in C, from some of the rows of C; None without a C compiler."""
    try:
        compiler()
    except CompilerError:
        return None
    rows = min(case.m, max(1, _SERIAL_PRODUCTS // (case.n * case.k)))
    rng = np.random.default_rng(seed)
    A, B = (rng.random(shape).astype(case.dtype) for shape in ((rows, case.k), (case.k, case.n)))
    call = partial(multiply_on_cpu, CPU_RUNGS[0], A, B, np.empty((rows, case.n), case.dtype))
    multiply_on_cpu(CPU_RUNGS[0], A[:1], B[:, :1])  # builds the rung
    return median_ms(CpuClock(), call) * case.m / rows


def measured(on: Any, case: Case, seed: int, limit: float, rates: dict[str, float]) -> Iterator[dict[str, Any] | str]:
    """Yield the fields of a record of each rung, or a line that says why there is none.

    Parameters
    ----------
    on : OnCpu or OnGpu
    case : Case
    seed : int
    limit : float
        Longest time of a call in seconds.
    rates : dict of str to float
        Floating-point operations per ms of each rung in earlier cases, by name and dtype; updated.
    """
    xp, rng = on.xp, on.xp.random.default_rng(seed)
    check_memory(case.needed_bytes, on.free_bytes())
    A, B, C = (
        xp.asarray(rng.random(shape) - 0.5, dtype=case.dtype, order="F" if case.layout == "col" else "C")
        for shape in ((case.m, case.k), (case.k, case.n), (case.m, case.n))
    )
    wide = A.astype(np.float64, copy=False), B.astype(np.float64, copy=False)
    exact, bound = wide[0] @ wide[1], error_bound(case.k, case.dtype) * (abs(wide[0]) @ abs(wide[1]))
    del wide

    def is_right(found: Any) -> bool:
        return bool((abs(found - exact) <= bound).all())

    def error() -> float:
        if not is_right(C):
            raise NotRightError("an element is wrong")
        return float(abs(C - exact).max())

    serial = serial_ms(case, seed)
    if serial is not None:
        rates.setdefault(f"cpu_serial {case.dtype}", case.flops / serial)
    common = {name: getattr(case, name) for name in ("m", "n", "k", "dtype", "layout")}
    common |= {"library_ms": on.library_ms(A, B, C, error), "floor_ms": on.floor(case), "seed": seed}
    common["serial_ms"] = serial
    some_rows = on.some_rows(case)
    some = {name: bind for name, _, bind in on.rungs(A[:some_rows], B, C[:some_rows])}
    for name in set(on.only or ()) - some.keys():
        yield f"{name}: {LEFT_OUT}only for column-major matrices"
    for name, title, bind in on.rungs(A, B, C):
        if on.only is not None and name not in on.only:
            continue
        rate = f"{name} {case.dtype}"
        try:
            if rate not in rates and case.flops > _MANY_FLOPS and case.m > some_rows:
                call, _ = some[name]()
                call()
                rates[rate] = case.flops * some_rows / case.m / on.clock.call_ms(call)
            if rate in rates and case.flops / rates[rate] > 1e3 * limit:
                seconds = float(f"{case.flops / rates[rate] / 1e3:.2g}")
                yield f"{name}: left out, would take {seconds:g} s"
                continue
            call, warps = bind()
            C[...] = np.nan
            if not is_right(call()):
                yield f"{name}: {WRONG}"
                continue
            ms = median_ms(on.clock, call)
        except (CompilerError, ValueError, MemoryError) as problem:
            yield f"{name}: not measured: {problem}"
            continue
        rates[rate] = case.flops / ms
        speedup = None if serial is None else serial / ms
        efficiency = None if speedup is None or warps is None else speedup / warps
        found = {"rung": name, "title": title, "ms": ms, "gflops": case.flops / ms / 1e6}
        yield {**common, **found, "speedup_serial": speedup, "efficiency": efficiency}


def _line(one: dict[str, Any]) -> str:
    """Return what is printed of a record."""
    shape = f"{one['m']}-{one['n']}-{one['k']} {one['dtype']} {one['layout']}"
    text = f"{shape} {one['title']:<34} {one['ms']:>11.4f} ms {one['gflops']:>9.1f} GFLOP/s"
    text += f" {one['library_ms'] / one['ms']:>7.3f} of the library"
    if one["floor_ms"] is not None:
        text += f" {one['floor_ms'] / one['ms']:>7.3f} of the roofline"
    if one["speedup_serial"] is not None:
        text += f" {one['speedup_serial']:>9.1f} x serial"
    return text


def opened(choice: Choice, only: Sequence[str] | None = None) -> Any:
    """Return the rungs on a device: those named in `only`, by default all.

    Raises
    ------
    CompilerError
        If the device is the CPU, and there is no C compiler.
    ValueError
        If a rung is unknown.
    """
    names = (OnGpu if choice.is_gpu else OnCpu).names
    for name in only or ():
        if name not in names:
            raise ValueError(f"rung {name!r}: expected {', '.join(names)}")
    if choice.is_gpu:
        import cupy

        cupy.cuda.Device(choice.index).use()
    on = OnGpu() if choice.is_gpu else OnCpu()
    on.only = only
    return on


def common_fields(on: Any, commit: str | None) -> dict[str, Any]:
    """Return the fields that the records of a run share."""
    versions = record.module_versions(on.modules) | on.versions
    shared = {"engine": "tsapps", "cpu": record.cpu_name()}
    return {**record.of_run("ladder", on.device, versions, commit), **shared}


def recorded(
    on: Any, case: Case, path: Path, common: dict[str, Any], seed: int, limit: float, rates: dict[str, float]
) -> Iterator[dict[str, Any] | str]:
    """Add the records of a case to a file, and yield them, and the lines of `measured` with the name of the case.

    `common` are the `common_fields`.
    """
    found = measured(on, case, seed, limit, rates)
    while True:
        try:
            one = next(found, None)
        except (LeftOutError, LibraryError, MemoryError, NotRightError) as error:
            yield missing(case.name, error)
            return
        if one is None:
            return
        if isinstance(one, str):
            yield f"{case.name} {one}"
        else:
            one = {**common, **one}
            record.store(path, one, KEY, FIELDS)
            yield one


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tsapps.bench.ladder", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:<number> (default: auto)")
    parser.add_argument("--shape", type=case_named, action="append", help="m-n-k-dtype; may be repeated")
    parser.add_argument("--rung", action="append", help="name of a rung; may be repeated (default: all)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="longest time of a call in seconds (default: 5)")
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of the data (default: random)")
    record.add_options(parser, "ladder")
    options = parser.parse_args(arguments)
    try:
        on = opened(choose_device(options.device), options.rung)
    except (CompilerError, NoDeviceError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    path = options.out or record.results_path(on.device, "ladder")
    common, rates, wrong = common_fields(on, options.commit), {}, 0
    for case in options.shape or on.cases:
        for one in recorded(on, case, path, common, options.seed, options.limit, rates):
            if isinstance(one, str):
                wrong += WRONG in one
                print(one, file=sys.stderr, flush=True)
            else:
                print(_line(one), flush=True)
    return 1 if wrong else 0
