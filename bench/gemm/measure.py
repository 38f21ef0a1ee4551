"""Measurement of one product: `tsapps.matmul` and TSM2 as published, beside the library and the floor."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tsapps.bench.common import record
from tsapps.bench.common.dtypes import ITEMSIZE
from tsapps.bench.common.outcome import LeftOutError, check_memory, missing
from tsapps.bench.common.timing import Clock, CpuClock, GpuClock, median
from tsapps.bench.gemm import libraries
from tsapps.bench.gemm.grid import CPU_CELLS, GPU_CELLS, Cell, Pools, Sizes, exact, largest_error, spoil
from tsapps.kernels import matmul
from tsapps.kernels.arrays import DeviceMatrix, device_matrix, gapless
from tsapps.kernels.devices import Choice
from tsapps.kernels.dispatch import compile_any
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.jit.compiler import architecture
from tsapps.kernels.ladder.launch import PAPER_KERNELS, paper_columns, tsm2_paper
from tsapps.kernels.plan.select import LIBRARY
from tsapps.kernels.plan.simt import AnyPlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = [
    *("FIELDS", "KEY", "CpuBench", "GpuBench", "common_fields", "compile_all", "matrices_of", "opened", "oriented"),
    *("problem_of", "recorded"),
]

#: Fields of a record in addition to `record.COMMON`, and the fields that identify those of a product on a device. On a
#: CPU, the roofline is not measured.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("shape", "kernel", "plan", "dtype", "layout", "library"), (str,)),
    **dict.fromkeys(("m", "k", "w", "seed"), (int,)),
    **dict.fromkeys(("ms", "gbs", "library_ms", "max_rel_err", "library_rel_err"), (float,)),
    "floor_ms": (float, type(None)),
    "bound": (str, type(None)),
}
KEY = ("what", "shape", "dtype", "layout", "m", "k", "w")
#: TSM2 as published, on squares: t1 = 128, t2 = w up to 8 and t3 = 4 lie between the paper's configurations.
PAPER_WIDTHS, T1, T3 = (1, 2, 4, 8, 16), 128, 4
# Kernels to time: name, plan as text, and a call that computes the product and returns it, or None if C has it.
Calls = Iterator[tuple[str, str, Callable[[], Any]]]


class _Bench:
    """Measures products on one device: draws the operands, and times what a derived class says.

    Parameters
    ----------
    seed : int
        Seed of the operands.
    clock : Clock
    xp : module
        CuPy or NumPy.
    """

    #: Name of the device, and fields of a record with its measured rates.
    device: str
    rates: dict[str, Any]

    def __init__(self, seed: int, clock: Clock, xp: Any) -> None:
        self.seed, self.clock, self.xp = seed, clock, xp
        self._pools: tuple[str, Sizes, Pools] | None = None

    def pools(self, dtype: str, sizes: Sizes) -> Pools:
        """Return the memory pools of the operands, reallocated if the dtype or the sizes change."""
        if self._pools is None or self._pools[:2] != (dtype, sizes):
            self.free_memory()
            self._pools = dtype, sizes, Pools(dtype, sizes, self.seed, self.xp)
        return self._pools[2]

    def free_memory(self) -> None:
        """Free the pools."""
        self._pools = None

    def check_fits(self, cell: Cell) -> None:
        """Free the pools; raise `LeftOutError` if a cell does not fit in memory."""
        self.free_memory()
        check_memory(cell.read + cell.written + cell.temporary_bytes, self.free_bytes())

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """Return the median time; repeats the call for some milliseconds."""
        first = self.clock.call_ms(call)
        return median([first, *(self.clock.call_ms(call) for _ in range(8 if first < 1 else 4 if first < 20 else 2))])

    def measure(self, cell: Cell, pools: Pools) -> Iterator[dict[str, Any]]:
        """Yield the records of a cell, that of `tsapps.matmul` first.

        Raises
        ------
        NotRightError, LibraryError
            If a result is wrong; if no algorithm of a library computes the product.
        """
        A, B, C = pools.operands(cell)
        reference = exact(cell, A, B)
        errors: dict[str, float] = {}

        def error() -> float:
            errors["last"] = largest_error(cell, C, reference)
            return errors["last"]

        library, library_ms = self.library(cell, A, B, C, error)
        common = {
            **{name: getattr(cell, name) for name in KEY if name != "what"},
            **self.floor(cell),
            "library": library,
            "library_ms": library_ms,
            "library_rel_err": errors["last"],
        }
        for kernel, plan, call in self.calls(cell, A, B, C):
            spoil(C)
            made = call()
            found = largest_error(cell, C if made is None else made, reference)
            ms = self.milliseconds(call)
            gbs = (cell.read + cell.written) / ms / 1e6
            yield {**common, "kernel": kernel, "plan": plan, "ms": ms, "gbs": gbs, "max_rel_err": found}

    def records(self, cell: Cell, sizes: Sizes) -> list[dict[str, Any]]:
        """Return the records of a cell with the rates of the roofline; raises as `measure`."""
        return [{**one, **self.rates} for one in self.measure(cell, self.pools(cell.dtype, sizes))]


class GpuBench(_Bench):
    """Measures products on the current GPU: `tsapps.matmul`, TSM2 as published, cuBLAS and cublasLt."""

    cells = GPU_CELLS

    def __init__(self, seed: int) -> None:
        import cupy

        from tsapps.bench.common import roofline

        super().__init__(seed, GpuClock(), cupy)
        self.device = record.gpu_name()
        self.streams = roofline.measure_streams(self.clock)
        self.tflops = roofline.measure_matmul_tflops(self.clock)
        self.rates = {"stream_ceilings_gbs": self.streams.points, "matmul_ceiling_tflops": self.tflops}

    def free_memory(self) -> None:
        """Free the pools, and return CuPy's unused memory to the GPU."""
        super().free_memory()
        self.xp.get_default_memory_pool().free_all_blocks()

    def free_bytes(self) -> int:
        """Return the free memory of the GPU."""
        return int(self.xp.cuda.runtime.memGetInfo()[0])

    def versions(self) -> dict[str, str]:
        """Return the versions that a record names."""
        modules = {"tsapps": "tsapps", "numpy": "numpy", "cupy": "cupy"}
        return record.module_versions(modules) | record.cuda_versions()

    def floor(self, cell: Cell) -> dict[str, Any]:
        """Return the fields of a record on the floor."""
        stream_ms, arithmetic_ms = cell.floors_ms(self.streams, self.tflops)
        bound = "memory" if stream_ms >= arithmetic_ms else "arithmetic"
        return {"floor_ms": max(stream_ms, arithmetic_ms), "bound": bound}

    def library(self, cell: Cell, A: Any, B: Any, C: Any, check: Callable[[], float]) -> tuple[str, float]:
        """Return the name and the time in ms of the fastest algorithm of cuBLAS and cublasLt."""
        return libraries.best(
            *(A, B, C),
            dtype=cell.dtype,
            trans_a=cell.shape == "tsmttsm",
            time_ms=self.milliseconds,
            quick_ms=self.clock.call_ms,
            check=check,
        )

    def calls(self, cell: Cell, A: Any, B: Any, C: Any) -> Calls:
        """Yield the kernels to compare with the libraries."""
        a, b, c = matrices_of(cell, A, B, C)
        plan = matmul.planned(matmul.problem_of(a, b, c), live(a.device))
        name = plan if isinstance(plan, str) else plan.kernel_name
        yield name, str(plan), partial(matmul.prepared(a, b, c), a.pointer, b.pointer, c.pointer, 1.0, 0.0)
        square = cell.shape == "tsm2r" and cell.layout == "col" and cell.k == cell.m and cell.w in PAPER_WIDTHS
        if square and cell.dtype in ("float32", "float64"):
            tiles = {"t1": T1, "t2": paper_columns(cell.w), "t3": T3}
            for name in PAPER_KERNELS:
                yield name, str(tiles), partial(tsm2_paper, name, A, B, **tiles)


class CpuBench(_Bench):
    """Measures products on the CPU: `tsapps.matmul` and NumPy."""

    cells = CPU_CELLS

    def __init__(self, seed: int) -> None:
        super().__init__(seed, CpuClock(), np)
        self.device = record.cpu_name()
        self.rates = {}

    def free_bytes(self) -> int:
        """Return the free memory of the machine."""
        return available_host_memory()

    def versions(self) -> dict[str, str]:
        """Return the versions that a record names."""
        return record.module_versions({"tsapps": "tsapps", "numpy": "numpy"})

    def check_fits(self, cell: Cell) -> None:
        """Raise `LeftOutError` also for 16-bit types, which NumPy multiplies without BLAS and sums in 16 bits."""
        if ITEMSIZE[cell.dtype] == 2:
            raise LeftOutError(f"{cell.dtype} is only measured on a GPU")
        super().check_fits(cell)

    def floor(self, _: Cell) -> dict[str, Any]:
        """Return the fields of a record on the floor: the roofline of the CPU is not measured."""
        return {"floor_ms": None, "bound": None}

    def library(self, cell: Cell, A: Any, B: Any, C: Any, check: Callable[[], float]) -> tuple[str, float]:
        """Return the name and the time in ms of NumPy."""
        call = partial(np.matmul, A.T if cell.shape == "tsmttsm" else A, B, out=C)
        call()
        check()
        return "numpy", self.milliseconds(call)

    def calls(self, cell: Cell, A: Any, B: Any, C: Any) -> Calls:
        """Yield `tsapps.matmul`."""
        first = A.T if cell.shape == "tsmttsm" else A
        yield "numpy", "host", partial(matmul.matmul, first, B, out=C)


def matrices_of(cell: Cell, *arrays: Any) -> tuple[DeviceMatrix, ...]:
    """Return the operands and the result of a cell, arrays on the GPU, as `oriented` matrices."""
    return oriented(cell, *(device_matrix("a matrix", x)._replace(dtype=cell.dtype) for x in arrays))


def problem_of(cell: Cell) -> Problem:
    """Return the problem of a cell, whose operands are aligned and have no gaps."""
    by_rows, size = cell.layout == "row", ITEMSIZE[cell.dtype]
    matrices = (gapless(shape, cell.dtype, size, by_rows=by_rows) for shape in cell.shapes)
    return matmul.problem_of(*oriented(cell, *matrices))


def compile_all(plans: Iterable[AnyPlan | str]) -> None:
    """Compile the kernels of plans, without those of `LIBRARY`, on all cores, so that no GPU waits for them."""
    compile_one = partial(compile_any, arch=architecture(0))
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_one, {*plans} - {LIBRARY}, chunksize=4))


def oriented(cell: Cell, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix) -> tuple[DeviceMatrix, ...]:
    """Return operands and result in the orientation in which `tsapps.matmul` computes them."""
    return matmul.oriented(a.transposed if cell.shape == "tsmttsm" else a, b, c)


def opened(choice: Choice, seed: int) -> CpuBench | GpuBench:
    """Return what measures products on a device."""
    if not choice.is_gpu:
        return CpuBench(seed)
    import cupy

    cupy.cuda.Device(choice.index).use()
    return GpuBench(seed)


def common_fields(bench: CpuBench | GpuBench, commit: str | None) -> dict[str, Any]:
    """Return the fields that the records of a run share."""
    return {**record.of_run("gemm", bench.device, bench.versions(), commit), "engine": "tsapps", "seed": bench.seed}


def recorded(
    bench: CpuBench | GpuBench, cell: Cell, path: Path, common: dict[str, Any]
) -> Iterator[dict[str, Any] | str]:
    """Add the records of a cell to a file, and yield them, or a line that says why there is none."""
    try:
        bench.check_fits(cell)
        found = bench.records(cell, cell.sizes)
    except (LeftOutError, ValueError, MemoryError, libraries.LibraryError) as error:
        yield missing(cell.name, error)
        return
    found = [{**common, **one} for one in found]
    record.replace(path, found, ("device", *KEY), FIELDS)
    yield from found
