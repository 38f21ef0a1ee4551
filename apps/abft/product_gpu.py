"""Protected products on a GPU: what is launched, and what it reports.

    tall and narrow   check_columns.cuh → the product, with checked.cuh as its epilogue → judge.cuh
    any other         the product → check_columns.cuh → A · checks → compare, of check_columns.cuh → judge.cuh

The second is also the check of a product that is there already. Everything is launched on the current stream of A's
library; the report waits for it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from tsapps.apps.abft.product_cpu import Wrong
from tsapps.apps.abft.product_plan import (
    CHECKS,
    JUDGED,
    PARTS,
    WRONG,
    checked_dtype,
    checked_epilogue,
    checked_plan,
    checked_problem,
    element_bounds,
    is_fused,
    matrix_dtype,
    summed,
)
from tsapps.apps.abft.thresholds import Bounds
from tsapps.kernels import product
from tsapps.kernels.arrays import DeviceMatrix, as_array, device_matrix, kind_of
from tsapps.kernels.build import function
from tsapps.kernels.device import live
from tsapps.kernels.launch import with_epilogue
from tsapps.kernels.plan import ELEMENT, SUM, Plan
from tsapps.kernels.problem import Problem
from tsapps.kernels.tables import user_table

__all__ = ["check", "matmul", "sums"]

_FOLDER = Path(__file__).resolve().parent
_THREADS = 256
# Blocks a multiprocessor, of what compares and of what judges.
_BLOCKS = 8
# Faults that are listed; and rows that are suspected, of which a 64th of C's or so many are.
_LISTED, _FEW = 1 << 16, 1 << 14
# Where counts lie: rows that are suspected, elements that are wrong, and the largest row of B.
_SUSPECTED, _WRONG, _LARGEST, _COUNTS = range(4)


class _Check:
    """What one check works with: bounds, counts, and the columns by which B is extended."""

    def __init__(self, a: DeviceMatrix, b: DeviceMatrix, bounds: Bounds, columns: int) -> None:
        self.a, self.b, self.bounds = a, b, bounds
        self.dtype, self.element, self.total = a.dtype, ELEMENT[a.dtype], SUM[a.dtype]
        (m, k), w = a.shape, b.shape[1]
        self.counts = cupy.zeros(_COUNTS, np.uint64)
        self.capacity = min(m, max(_FEW, m // 64))
        self.rows = cupy.empty(self.capacity, np.int64)
        self.scale = cupy.empty(1, summed(a.dtype))
        self.extended = cupy.empty((k, columns), np.dtype(f"u{a.itemsize}"))
        grid = (-(-k // (_THREADS // 32)),)
        sizes, most = (np.int64(k), np.int64(w)), np.uint64(0)
        if a.dtype == "float16":  # whose range is to be used
            most = self._count(_LARGEST)
            self._kernel("check_columns.cuh", f"largest_row<{self.element}>")(
                grid, (_THREADS,), (_matrix(b), *sizes, most)
            )
        name = f"check_columns<{self.element}, {self.total}, {PARTS[a.dtype]}>"
        to = self.extended, np.int64(columns), np.bool_(bounds.by_spread), most, self.scale
        self._kernel("check_columns.cuh", name)(grid, (_THREADS,), (_matrix(b), *sizes, *to))

    def _kernel(self, file: str, name: str) -> Any:
        name = f"abft::{name}"
        return function(_FOLDER / file, (name,), name, self.a.device)

    def _count(self, place: int) -> np.uint64:
        return np.uint64(self.counts.data.ptr + 8 * place)

    @property
    def _blocks(self) -> tuple[int]:
        return (_BLOCKS * live(self.a.device).multiprocessors,)

    @property
    def _suspects(self) -> Any:
        fields = [("rows", "u8"), ("count", "u8"), ("capacity", "i8")]
        return np.array((self.rows.data.ptr, int(self._count(_SUSPECTED)), self.capacity), fields)[()]

    def multiply(self, plan: Plan, problem: Problem, c: DeviceMatrix) -> None:
        """Compute C with its checks."""
        w, epilogue = c.shape[1], np.zeros((), checked_dtype(self.dtype))
        lies = product.problem_of(self.a, self.b, c).c
        epilogue["C"], epilogue["alpha"], epilogue["width"], epilogue["step"] = c.pointer, 1, w, 1 / w
        epilogue["rows"], epilogue["columns"] = (stride // c.itemsize for stride in c.strides)
        epilogue["suspects"], epilogue["count"] = self.rows.data.ptr, self._count(_SUSPECTED)
        epilogue["capacity"], epilogue["scale"] = self.capacity, self.scale.data.ptr
        epilogue["row"], epilogue["row_absolute"] = self.bounds.row, self.bounds.row_absolute
        name = checked_epilogue(self.dtype, w, lies)
        run = with_epilogue(plan, problem, self.a.device, name, "apps/abft/checked.cuh")
        run(self.a.pointer, self.extended.data.ptr, epilogue[()])

    def compare(self, c: DeviceMatrix) -> None:
        """List the rows of a C that is there already and do not agree with their checks."""
        (m, w), (down, right), bounds = c.shape, c.strides, self.bounds
        checks = _sums(self.a, self.extended.data.ptr, CHECKS)
        lanes = 8 if right <= down else 1
        name = f"compare<{self.element}, {self.total}, {PARTS[self.dtype]}, {lanes}>"
        limits = map(np.float64, (bounds.row, bounds.row_absolute, bounds.rounding, bounds.rounding_absolute))
        arguments = _matrix(c), np.int64(m), np.int64(w), checks, self.scale, *limits, self._suspects
        self._kernel("check_columns.cuh", name)(self._blocks, (_THREADS,), arguments)

    def judge(self, c: DeviceMatrix, *, correct: bool) -> tuple[int, int, list[Wrong]]:
        """Compute the rows that are suspected again, and return how many, and the elements that are wrong."""
        (m, k), w = self.a.shape, c.shape[1]
        listed = cupy.empty(_LISTED * WRONG.itemsize, np.uint8)
        parts = (part for x in (self.a, self.b, c) for part in _matrix(x).item())
        of = np.array((*parts, m, k, w), JUDGED)[()]
        limits = element_bounds(self.bounds), np.bool_(correct)
        arguments = of, self._suspects, *limits, listed, self._count(_WRONG), np.uint64(_LISTED)
        self._kernel("judge.cuh", f"judge<{self.element}>")(self._blocks, (_THREADS,), arguments)
        counts = self.counts.get()
        suspected, n_wrong = int(counts[_SUSPECTED]), int(counts[_WRONG])
        found = listed[: min(n_wrong, _LISTED) * WRONG.itemsize].get().view(WRONG) if n_wrong else np.empty(0, WRONG)
        return suspected, n_wrong, [tuple(one) for one in found.tolist()]


def matmul(A: Any, B: Any, bounds: Bounds, index: int, *, correct: bool) -> tuple[Any, tuple[int, int, list[Wrong]]]:
    """Return A · B, and what was found of it; arguments are as `product.matmul` has checked them."""
    with product.on_stream(A, index):
        a, b = device_matrix("A", A), device_matrix("B", B)
        (m, k), w = a.shape, b.shape[1]
        if k == 0:  # sums of no products
            return _new(A, (m, w), "zeros"), (0, 0, [])
        if is_fused(m, k, w):
            problem, plan = _planned(_like(a), w)
            if plan is not None:
                C = _new(A, (m, w), "empty")
                c = device_matrix("C", C)
                work = _Check(a, b, bounds, problem.w)
                work.multiply(plan, problem, c)
                return C, work.judge(c, correct=correct)
    C = product.matmul(A, B)
    return C, check(A, B, C, bounds, index, correct=correct)


def _new(A: Any, shape: tuple[int, int], how: str) -> Any:
    """Return an array of A's library and type, by the library's function "empty" or "zeros"."""
    if kind_of(A) == "torch":
        return getattr(A, f"new_{how}")(shape)
    return getattr(cupy, how)(shape, as_array(A).dtype)


def check(A: Any, B: Any, C: Any, bounds: Bounds, index: int, *, correct: bool) -> tuple[int, int, list[Wrong]]:
    """Return what was found of a product that is there already; arguments are as `check_product` has checked them."""
    with product.on_stream(A, index):
        a, b, c = device_matrix("A", A), device_matrix("B", B), device_matrix("C", C)
        if 0 in c.shape:
            return 0, 0, []
        if a.shape[1] == 0:  # a sum of no products is that of zeros
            a, b = (_zeros(shape, a) for shape in ((c.shape[0], 1), (1, c.shape[1])))
        work = _Check(a, b, bounds, CHECKS)
        work.compare(c)
        return work.judge(c, correct=correct)


def sums(A: np.ndarray, B: np.ndarray, dtype: str, index: int) -> np.ndarray:
    """Return A · B as a GPU sums it, before it is rounded to 16 bits, of arrays in host memory.

    B has a multiple of eight columns; A and B are of `dtype`.
    """
    with cupy.cuda.Device(index):
        # Of bfloat16, CuPy has but the bits.
        bits = [cupy.asarray(np.ascontiguousarray(X).view(f"u{X.itemsize}")) for X in (A, B)]
        a = device_matrix("A", bits[0])._replace(dtype=dtype)
        return _sums(a, bits[1].data.ptr, B.shape[1]).get()


def _sums(a: DeviceMatrix, b: int, columns: int) -> Any:
    """Return the product of a matrix and a row-major one without gaps, in what it is summed in, row-major."""
    problem, plan = _planned(_like(a), columns - CHECKS)
    if plan is None:
        raise ValueError(
            f"there is no kernel that checks a product of A with shape {a.shape} and dtype {a.dtype} on this GPU, "
            f"of compute capability {live(a.device).compute_capability}: it takes 8.0, and rows that are no longer"
        )
    total = SUM[a.dtype]
    found = cupy.empty((a.shape[0], columns), summed(a.dtype))
    kind = checked_dtype(a.dtype)
    fields = [(name, kind[name]) for name in ("C", "rows", "columns", "regular", "alpha", "beta")]
    store = np.array((found.data.ptr, columns, 1, 0, 1, 0), fields)[()]
    with_epilogue(plan, problem, a.device, f"tsm2::StorePairs<{total}, {total}>")(a.pointer, b, store)
    return found


def _zeros(shape: tuple[int, int], like: DeviceMatrix) -> DeviceMatrix:
    return device_matrix("zeros", cupy.zeros(shape, f"u{like.itemsize}"))._replace(dtype=like.dtype)


def _matrix(x: DeviceMatrix) -> Any:
    down, right = (stride // x.itemsize for stride in x.strides)
    return np.array((x.pointer, down, right), matrix_dtype())[()]


def _like(a: DeviceMatrix) -> DeviceMatrix:
    """Return a matrix that lies like another one: as it, but for its address beyond what alignment tells."""
    return DeviceMatrix(a.pointer % 16, *a[1:-1], None)


@lru_cache(maxsize=4096)
def _planned(a: DeviceMatrix, w: int) -> tuple[Problem, Plan | None]:
    """Return the product of a matrix and w columns with those of the checks, and how it is computed."""
    (m, k), device = a.shape, live(a.device)
    layout = product.problem_of(a, a.transposed, a).a
    problem = checked_problem(m, k, w, a.dtype, layout)
    return problem, checked_plan(problem, device, user_table(device.name))
