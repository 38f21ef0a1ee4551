"""Protected products on a GPU: what is launched, and what it reports.

    tall and narrow   row_checks → the product, with product/detect.cuh as its epilogue → judge
    any other         the product → row_checks → sums of A's rows → compare → judge

The second is also the check of a product that is there already. Everything is launched on the current stream of A's
library, and nothing waits for it but who asks what was found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import cupy
import numpy as np

from tsapps.apps.abft.product.cpu import MOST_LISTED, Wrong
from tsapps.apps.abft.product.plan import (
    COUNTS_BYTES,
    FLAGGED_BYTES,
    JUDGED,
    ROWS_TOGETHER,
    SUSPECTS,
    WRONG,
    checked_dtype,
    checked_epilogue,
    checked_plan,
    element_bounds,
    half_step,
    is_fused,
    matrix_dtype,
    padded_depth,
    row_bounds,
    row_size,
    row_sums_epilogue,
    second_look,
    summed,
)
from tsapps.apps.abft.product.thresholds import Bounds
from tsapps.kernels import matmul as product
from tsapps.kernels.arrays import DeviceMatrix, as_array, device_matrix, gapless, kind_of
from tsapps.kernels.gemm import Gemm, blocks_of, store_epilogue
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.jit.kernel import kernel_of
from tsapps.kernels.plan import accumulation_order
from tsapps.kernels.plan.mma import ELEMENT, SUM, MmaPlan
from tsapps.kernels.plan.user_table import user_table
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import BoundLaunch, DependentLaunch, structure
from tsapps.kernels.runtime.machine import Launch, cuda_machine

__all__ = ["Fused", "check", "matmul", "one_after_another", "predicted", "predicted_by", "sums", "sums_by"]

#: Rows that were suspected, elements that are wrong, and those that are listed; asked for, once it is wanted.
Report = Callable[[], tuple[int, int, list[Wrong]]]

_FOLDER = Path(__file__).resolve().parents[1]
_THREADS = 256
# Blocks a multiprocessor, of what compares, of what judges, and of what predicts all elements.
_COMPARING, _JUDGING, _PREDICTING = 8, 2, 4
# Rows that are suspected and listed, if that is more than a 64th of C's.
_LEAST_CAPACITY = 1 << 14
# Lanes that share a row where it is contiguous, and where columns are.
_OF_ROW, _OF_COLUMNS = 8, 1


class _Check:
    """What products that lie alike are checked with: kernels, sizes, and arguments but for addresses.

    Its work is in one piece of memory for every product: counts, elements that are wrong, rows that are suspected, and
    two numbers for each of B's rows. Launches are packed once, and told of each product's addresses by one thread at a
    time.

    Attributes
    ----------
    lock : threading.Lock
        Of the launches.
    """

    def __init__(
        self,
        a: DeviceMatrix,
        b: DeviceMatrix,
        c: DeviceMatrix,
        bounds: Bounds,
        padded: int,
        how: Any = accumulation_order.UNKNOWN,
    ) -> None:
        (m, k), w, element, total = a.shape, b.shape[1], ELEMENT[a.dtype], SUM[a.dtype]
        self.lock = Lock()
        self.device, self._bounds, self._look = a.device, row_bounds(bounds, w), second_look(bounds, w)
        self.capacity = min(m, max(_LEAST_CAPACITY, m // 64))
        itemsize, at = summed(a.dtype).itemsize, COUNTS_BYTES
        self._at = {"counts": 0}
        lists = ("wrong", MOST_LISTED * WRONG.itemsize), ("suspects", FLAGGED_BYTES * self.capacity)
        for name, size in (*lists, ("x", itemsize * padded), ("y", itemsize * k)):
            self._at[name] = at = -(-at // 16) * 16
            at += size
        self._bytes = at
        lanes, vector = _lanes(b), _together(b)
        step, sizes = np.float64(half_step(w)), (np.int64(m), np.int64(k), np.int64(w))
        self._of_rows = *sizes[1:], np.int64(padded), np.bool_(bounds.by_spread), step
        self._grid_of_rows = (-(-padded * lanes // (_THREADS * ROWS_TOGETHER)),)
        self._row_checks = _kernel(
            "product/row_checksums.cuh", f"row_checks<{element}, {total}, {lanes}, {vector}>", self.device
        )
        self._locate = _kernel("product/locate.cuh", f"locate<{element}, {total}>", self.device)
        self._sizes, self._step, self._limits = sizes, step, element_bounds(bounds)
        self._order = how if bounds.predicted else accumulation_order.UNKNOWN
        self._judged, self._b = _judged(a, b, c), _matrix(b)
        self._multiprocessors = live(self.device).multiprocessors

    @cached_property
    def _begins(self) -> BoundLaunch:
        arguments = self._b, *self._of_rows, *(np.uint64(0),) * 3
        return BoundLaunch(self._row_checks, self._grid_of_rows, (_THREADS,), arguments)

    @cached_property
    def _ends(self) -> DependentLaunch:
        listed = np.uint64(0), np.uint64(MOST_LISTED)
        suspects = np.array((0, 0, self.capacity), SUSPECTS)[()]
        judged = self._judged[()], self._look[()], suspects, self._limits, self._order, np.bool_(False), *listed
        return DependentLaunch(self._locate, (_JUDGING * self._multiprocessors,), (_THREADS,), judged)

    def begin(self, b: DeviceMatrix) -> Any:
        """Return memory for the check of one product, with what B's rows give."""
        memory = cupy.empty(self._bytes, np.uint8)
        with self.lock:
            self._begins.change(0, b.pointer)
            for place, name in enumerate(("x", "y", "counts"), 1 + len(self._of_rows)):
                self._begins.change(place, self.address(memory, name))
            self._begins()
        return memory

    def address(self, memory: Any, name: str) -> int:
        """Return the address of a part of the memory."""
        return int(memory.data.ptr) + self._at[name]

    def compare(self, memory: Any, c: DeviceMatrix, sums: Any) -> None:
        """List the rows of a C that is there already and do not agree with sums of A's rows."""
        listed = self.address(memory, "suspects"), self.address(memory, "counts"), self.capacity
        suspects = np.array(listed, SUSPECTS)[()]
        m, _, w = self._sizes
        kernel = _kernel(
            "product/row_checksums.cuh", f"compare<{ELEMENT[c.dtype]}, {SUM[c.dtype]}, {_lanes(c)}>", self.device
        )
        grid = (_COMPARING * self._multiprocessors,)
        kernel(grid, (_THREADS,), (_matrix(c), m, w, sums, self._step, self._bounds, suspects))

    def locate(self, memory: Any, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, *, correct: bool) -> Report:
        """Look at rows that are suspected again, judge those that still are, and return what tells what was wrong."""
        with self.lock:
            for word, of in zip(_words(JUDGED, "A_data", "B_data", "C_data"), (a, b, c), strict=True):
                self._ends.change(0, of.pointer, word)
            for argument, name, word in (
                (1, "x", 0),
                (1, "y", 1),
                (2, "suspects", 0),
                (2, "counts", 1),
                (6, "wrong", 0),
            ):
                self._ends.change(argument, self.address(memory, name), word)
            self._ends.change(5, correct)
            self._ends()
        done = cupy.cuda.Event(disable_timing=True)
        done.record()

        def report() -> tuple[int, int, list[Wrong]]:
            with cupy.cuda.Device(self.device):
                done.synchronize()
                _, confirmed, n_wrong = memory[:COUNTS_BYTES].get().view(np.uint64).tolist()
                begin = self._at["wrong"]
                end = begin + min(n_wrong, MOST_LISTED) * WRONG.itemsize
                found = memory[begin:end].get().view(WRONG).tolist() if n_wrong else []
                return confirmed, n_wrong, [tuple(one) for one in found]

        return report


class Fused:
    """The product of matrices that lie like these by a plan, which carries its checks.

    Attributes
    ----------
    check : _Check
        What the product's rows are checked with, before it and after it.
    """

    def __init__(self, plan: MmaPlan, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, bounds: Bounds) -> None:
        problem = product.problem_of(a, b, c)
        epilogue, w = np.zeros((), checked_dtype(a.dtype)), problem.w
        epilogue["rows"], epilogue["columns"] = (stride // c.itemsize for stride in c.strides)
        epilogue["alpha"], epilogue["row_size"] = 1, row_size(bounds, w)
        epilogue["row"], epilogue["row_absolute"] = bounds.row, bounds.row_absolute
        self._epilogue, self._words = epilogue, _words(epilogue.dtype, "C", "row_weights", "suspects", "counts")
        machine = cuda_machine(a.device)
        self._multiply = Gemm(plan, problem, machine, checked_epilogue(a.dtype, w, problem.c))
        blocks = blocks_of(plan, problem, machine.gpu.multiprocessors)
        how = accumulation_order.order_of(plan, problem, blocks)
        self.check = _Check(a, b, c, bounds, padded_depth(problem.k, plan), how)
        epilogue["capacity"] = self.check.capacity

    @cached_property
    def _launch(self) -> Launch:
        return self._multiply.unbound(self._epilogue[()])

    def multiply(self, memory: Any, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix) -> None:
        """Compute C, and list the rows that do not agree; `memory` is what the check has begun with."""
        addresses = c.pointer, *(self.check.address(memory, name) for name in ("x", "suspects", "counts"))
        with self.check.lock:
            self._multiply.run(self._launch, a.pointer, b.pointer, zip(self._words, addresses, strict=True))


def matmul(A: Any, B: Any, ours: Bounds, others: Bounds, index: int, *, correct: bool) -> tuple[Any, Report]:
    """Return A · B, and what tells what was found of it; arguments are as `product.matmul` has checked them.

    Bounds are those of a product by a kernel of our own, and by the library.
    """
    with product.on_stream(A, index):
        a, b = device_matrix("A", A), device_matrix("B", B)
        (m, k), w = a.shape, b.shape[1]
        if k == 0:  # sums of no products
            return _new(A, (m, w), "zeros"), lambda: (0, 0, [])
        if is_fused(m, k, w):
            C = _new(A, (m, w), "empty")
            c = device_matrix("C", C)
            fused = _fused(a.stand_in, b.stand_in, c.stand_in, ours)
            if fused is not None:
                memory = fused.check.begin(b)
                fused.multiply(memory, a, b, c)
                return C, fused.check.locate(memory, a, b, c, correct=correct)
    C = product.matmul(A, B)
    return C, check(A, B, C, others, index, correct=correct)


@lru_cache(maxsize=4096)
def _fused(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, bounds: Bounds) -> Fused | None:
    """Return the product of matrices that lie like these with its check; None where no plan serves it."""
    plan = _planned(product.problem_of(a, b, c), a.device)
    return None if plan is None else Fused(plan, a, b, c, bounds)


def check(A: Any, B: Any, C: Any, bounds: Bounds, index: int, *, correct: bool) -> Report:
    """Return what tells what was found of a product that is there; `check_product` has checked the arguments."""
    with product.on_stream(A, index):
        a, b, c = device_matrix("A", A), device_matrix("B", B), device_matrix("C", C)
        if 0 in c.shape:
            return lambda: (0, 0, [])
        if a.shape[1] == 0:  # a sum of no products is that of zeros
            a, b = (_zeros(shape, a) for shape in ((c.shape[0], 1), (1, c.shape[1])))
        work, problem, plan = _checking(a.stand_in, b.stand_in, c.stand_in, bounds)
        memory = work.begin(b)
        sums = cupy.empty(c.shape[0], summed(a.dtype))
        epilogue = row_sums_epilogue(a.dtype)
        store = np.array((work.address(memory, "x"), sums.data.ptr), epilogue.arguments)[()]
        Gemm(plan, problem, cuda_machine(a.device), epilogue)(a.pointer, b.pointer, store)
        work.compare(memory, c, sums)
        return work.locate(memory, a, b, c, correct=correct)


@lru_cache(maxsize=4096)
def _checking(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, bounds: Bounds) -> tuple[_Check, Problem, MmaPlan]:
    """Return what checks products that lie like these, and how A's rows are added up: beside B's first column."""
    column = b._replace(shape=(b.shape[0], 1))
    problem = product.problem_of(a, column, gapless((a.shape[0], 1), a.dtype, a.itemsize, by_rows=True))
    plan = _planned(problem, a.device)
    if plan is None:
        raise ValueError(
            f"there is no kernel that checks a product of A with shape {a.shape} and dtype {a.dtype} on this GPU, "
            f"of compute capability {live(a.device).compute_capability}: it takes 8.0, and rows that are no longer"
        )
    return _Check(a, b, c, bounds, padded_depth(problem.k, plan)), problem, plan


def sums(A: np.ndarray, B: np.ndarray, dtype: str, index: int) -> np.ndarray:
    """Return A · B as a GPU sums it, before it is rounded to 16 bits, of arrays in host memory of type `dtype`.

    B has a multiple of eight columns.
    """
    with cupy.cuda.Device(index):
        a, b = _sent(A, B, dtype)
        return sums_by(*_summed(a, b), a, b)


def predicted(A: np.ndarray, B: np.ndarray, dtype: str, index: int) -> np.ndarray:
    """Return what `sums` should, as emulated_gemm.cuh says; NaN where that is not known."""
    with cupy.cuda.Device(index):
        a, b = _sent(A, B, dtype)
        return predicted_by(*_summed(a, b), a, b)


def one_after_another(A: np.ndarray, B: np.ndarray, dtype: str, index: int) -> np.ndarray:
    """Return A · B as the tensor cores would sum it if nobody shared a sum; NaN as for `predicted`."""
    with cupy.cuda.Device(index):
        a, b = _sent(A, B, dtype)
        return _added(accumulation_order.one_after_another(len(B)), a, b)


def sums_by(plan: MmaPlan, problem: Problem, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return A · B as a plan's kernel sums it, of as many columns as `sums`."""
    total, found = SUM[a.dtype], cupy.empty((problem.m, problem.w), summed(a.dtype))
    epilogue = replace(store_epilogue(plan), name=f"tsm2::StorePairs<{total}, {total}>")
    store = structure(epilogue.arguments, C=found, rows=found.shape[1], columns=1, regular=0, alpha=1, beta=0)
    Gemm(plan, problem, cuda_machine(a.device), epilogue)(a.pointer, b.pointer, store)
    return found.get()


def predicted_by(plan: MmaPlan, problem: Problem, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return what `sums_by` should."""
    return _added(
        accumulation_order.order_of(plan, problem, blocks_of(plan, problem, live(a.device).multiprocessors)), a, b
    )


def _added(how: Any, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return A · B by emulated_gemm.cuh, in an order."""
    to = cupy.empty((a.shape[0], b.shape[1]))
    grid = (_PREDICTING * live(a.device).multiprocessors,)
    _kernel("product/locate.cuh", f"predict<{ELEMENT[a.dtype]}>", a.device)(
        grid, (_THREADS,), (_judged(a, b, b)[()], how, to)
    )
    return to.get()


def _sent(A: np.ndarray, B: np.ndarray, dtype: str) -> tuple[DeviceMatrix, DeviceMatrix]:
    """Return A and B on the current GPU."""
    # Of bfloat16, CuPy has but the bits.
    a, b = (device_matrix("", cupy.asarray(np.ascontiguousarray(X).view(f"u{X.itemsize}"))) for X in (A, B))
    return a._replace(dtype=dtype), b._replace(dtype=dtype)


def _summed(a: DeviceMatrix, b: DeviceMatrix) -> tuple[MmaPlan, Problem]:
    """Return how a product is computed whose sums are to be seen: without those of A's rows, which no check takes."""
    shape = a.shape[0], b.shape[1]
    problem = product.problem_of(a, b, gapless(shape, a.dtype, a.itemsize, by_rows=True))
    plan = _planned(problem, a.device)
    if plan is None:
        raise ValueError(f"there is no kernel for a product of {a.shape} and {b.shape} {a.dtype} on GPU {a.device}")
    return replace(plan, row_sums=False), problem


def _planned(problem: Problem, index: int) -> MmaPlan | None:
    device = live(index)
    return checked_plan(problem, device, user_table(device.name))


def _kernel(file: str, name: str, device: int) -> Any:
    name = f"abft::{name}"
    return kernel_of(_FOLDER / file, (name,), name, device)


def _words(of: np.dtype, *names: str) -> list[int]:
    """Return where addresses are in a structure, in words."""
    assert of.fields is not None  # it is a structure
    return [of.fields[name][1] // 8 for name in names]


def _lanes(x: DeviceMatrix) -> int:
    down, right = x.strides
    return _OF_ROW if right <= down else _OF_COLUMNS


def _together(x: DeviceMatrix) -> int:
    """Return how many elements of a row can be loaded at once."""
    (down, right), size = x.strides, x.itemsize
    whole = right == size and (x.pointer | down | x.shape[1] * size) % 16 == 0
    return 16 // size if whole else 1


def _new(A: Any, shape: tuple[int, int], how: str) -> Any:
    """Return an array of A's library and type, by the library's function "empty" or "zeros"."""
    if kind_of(A) == "torch":
        return getattr(A, f"new_{how}")(shape)
    return getattr(cupy, how)(shape, as_array(A).dtype)


def _zeros(shape: tuple[int, int], like: DeviceMatrix) -> DeviceMatrix:
    return device_matrix("zeros", cupy.zeros(shape, f"u{like.itemsize}"))._replace(dtype=like.dtype)


def _judged(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix) -> np.ndarray:
    """Return the C++ class `Judged`."""
    parts = (part for x in (a, b, c) for part in _matrix(x).item())
    return np.array((*parts, *a.shape, b.shape[1]), JUDGED)


def _matrix(x: DeviceMatrix) -> Any:
    down, right = (stride // x.itemsize for stride in x.strides)
    return np.array((x.pointer, down, right), matrix_dtype())[()]
