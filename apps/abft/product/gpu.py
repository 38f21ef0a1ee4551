"""Protected products C = A · B on a GPU: kernel launches, and the report of wrong elements.

    C tall and narrow   row_checksums → GEMM with the epilogue of product/detect.cuh → locate
    any other C         GEMM → row_checksums → GEMM for the checksums of A's rows → check_rows → locate

A finished product is checked by the second sequence without its first GEMM. All kernels are launched on the current
stream of A's library. Launching returns a report function; only a call of that function waits for the GPU.
"""

from collections.abc import Callable
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from tsapps.apps.abft.product.cpu import MOST_LISTED, WrongElement
from tsapps.apps.abft.product.plan import (
    COUNTS,
    FLAGGED_ROW,
    FLAGGED_ROWS,
    MATRIX,
    OPERANDS,
    RECHECK_ARGS,
    ROWS_PER_LANE,
    WRONG_ELEMENT,
    checked_plan,
    detect_epilogue,
    element_bounds,
    half_step,
    is_fused,
    padded_depth,
    recheck_args,
    row_bounds,
    row_size,
    row_sums_epilogue,
    summed,
)
from tsapps.apps.abft.product.thresholds import ErrorBounds
from tsapps.kernels import matmul as product
from tsapps.kernels.arrays import DeviceMatrix, address, as_array, device_matrix, gapless, kind_of, to_host
from tsapps.kernels.gemm import Gemm, blocks_of
from tsapps.kernels.plan import accumulation_order
from tsapps.kernels.plan.mma import ELEMENT, SUM, MmaPlan
from tsapps.kernels.plan.user_table import user_table
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Launch, Machine, cuda_machine

__all__ = [
    "ProtectedProduct",
    "RowCheck",
    "check",
    "check_matrices",
    "kernel_of",
    "matmul",
    "matrix_on",
    "operands_of",
    "protecting_plan",
]

#: A function that waits for the GPU. It returns the number of confirmed rows, the number of wrong elements, and a list
#: of the first `MOST_LISTED` wrong elements.
Report = Callable[[], tuple[int, int, list[WrongElement]]]

_FOLDER = Path(__file__).resolve().parent
_THREADS = 256
# Number of thread blocks per multiprocessor in the grids of check_rows and of locate.
_CHECK_BLOCKS, _LOCATE_BLOCKS = 8, 2
# Minimum capacity of the list of flagged rows. A larger C has a list for a 64th of C's rows. A smaller C has a list for
# all of its rows.
_LEAST_CAPACITY = 1 << 14
# Number of lanes among which each row of a matrix is split: if the matrix is row-major, and if columns are contiguous.
_ROW_MAJOR_LANES, _COLUMN_MAJOR_LANES = 8, 1


class RowCheck:
    """The row check of all products whose operands have one layout: kernels, sizes, and arguments except addresses.

    Each product has its own buffer with counts, wrong elements, flagged rows, and the checksum vectors x and y of B
    (row_checksums.cuh). Kernel arguments are packed once; the addresses of a product are set before each launch.

    Attributes
    ----------
    lock : threading.Lock
        Held while the addresses of a launch are set and its kernel is launched.
    """

    def __init__(
        self,
        machine: Machine,
        a: DeviceMatrix,
        b: DeviceMatrix,
        c: DeviceMatrix,
        bounds: ErrorBounds,
        padded: int,
        order: Any = accumulation_order.UNKNOWN,
    ) -> None:
        (m, k), w, element, total = a.shape, b.shape[1], ELEMENT[a.dtype], SUM[a.dtype]
        self.lock = Lock()
        self._machine, self._bounds, self._recheck = machine, row_bounds(bounds, w), recheck_args(bounds, w)
        self.capacity = min(m, max(_LEAST_CAPACITY, m // 64))
        itemsize, at = summed(a.dtype).itemsize, COUNTS.itemsize
        self._at = {"counts": 0}
        lists = ("wrong", MOST_LISTED * WRONG_ELEMENT.itemsize), ("rows", FLAGGED_ROW.itemsize * self.capacity)
        for name, size in (*lists, ("x", itemsize * padded), ("y", itemsize * k)):
            self._at[name] = at = -(-at // 16) * 16
            at += size
        self._bytes = at
        lanes, vector = _lanes(b), _vector(b)
        step, sizes = np.float64(half_step(w)), (np.int64(m), np.int64(k), np.int64(w))
        self._checksum_sizes = *sizes[1:], np.int64(padded), np.bool_(bounds.by_spread), step
        self._checksum_grid = (-(-padded * lanes // (_THREADS * ROWS_PER_LANE)),)
        self._row_checksums = kernel_of(
            machine, "row_checksums.cuh", f"row_checksums<{element}, {total}, {lanes}, {vector}>"
        )
        self._locate = kernel_of(machine, "locate.cuh", f"locate<{element}, {total}>")
        self._sizes, self._step, self._limits = sizes, step, element_bounds(bounds)
        self._order = order if bounds.bit_exact else accumulation_order.UNKNOWN
        self._operands, self._b = operands_of(a, b, c), _matrix(b)

    @cached_property
    def _checksum_launch(self) -> Launch:
        arguments = self._b, *self._checksum_sizes, *(np.uint64(0),) * 3
        return self._machine.bind(self._row_checksums, self._checksum_grid, (_THREADS,), arguments, dependent=False)

    @cached_property
    def _locate_launch(self) -> Launch:
        listed = np.uint64(0), np.uint64(MOST_LISTED)
        structures = self._operands, self._recheck[()], self._flagged_rows(0, 0), self._limits, self._order
        grid = (_LOCATE_BLOCKS * self._machine.gpu.multiprocessors,)
        return self._machine.bind(self._locate, grid, (_THREADS,), (*structures, np.bool_(False), *listed))

    def _flagged_rows(self, rows: int, counts: int) -> Any:
        """Return an instance of the C++ class `FlaggedRows` with these addresses in its members `rows` and `counts`."""
        return structure(FLAGGED_ROWS, rows=rows, counts=counts, capacity=self.capacity)

    def begin(self, b: DeviceMatrix) -> Any:
        """Return a new buffer for one product; launches the kernel that writes B's checksum vectors to the buffer."""
        memory = self._machine.xp.empty(self._bytes, np.uint8)
        with self.lock:
            self._checksum_launch.change(0, b.pointer)
            for place, name in enumerate(("x", "y", "counts"), 1 + len(self._checksum_sizes)):
                self._checksum_launch.change(place, self.address(memory, name))
            self._checksum_launch()
        return memory

    def address(self, memory: Any, name: str) -> int:
        """Return the address of the part `name` of `memory`, a buffer that `begin` returned."""
        return address(memory) + self._at[name]

    def check_rows(self, memory: Any, c: DeviceMatrix, sums: Any) -> None:
        """Launch check_rows, which flags the rows of a finished C that disagree with `sums`, the checksums p of A."""
        flagged = self._flagged_rows(self.address(memory, "rows"), self.address(memory, "counts"))
        m, _, w = self._sizes
        name = f"check_rows<{ELEMENT[c.dtype]}, {SUM[c.dtype]}, {_lanes(c)}>"
        kernel = kernel_of(self._machine, "row_checksums.cuh", name)
        grid = (_CHECK_BLOCKS * self._machine.gpu.multiprocessors,)
        kernel(grid, (_THREADS,), (_matrix(c), m, w, sums, self._step, self._bounds, flagged))

    def locate(self, memory: Any, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, *, correct: bool) -> Report:
        """Launch locate, which re-checks flagged rows and lists wrong elements; `correct` also repairs them."""
        parts = (1, RECHECK_ARGS, ("x", "y")), (2, FLAGGED_ROWS, ("rows", "counts"))
        with self.lock:
            for word, of in zip(_words(OPERANDS, "A.data", "B.data", "C.data"), (a, b, c), strict=True):
                self._locate_launch.change(0, of.pointer, word)
            for argument, dtype, names in parts:
                for word, name in zip(_words(dtype, *names), names, strict=True):
                    self._locate_launch.change(argument, self.address(memory, name), word)
            self._locate_launch.change(6, self.address(memory, "wrong"))
            self._locate_launch.change(5, correct)
            self._locate_launch()
        done = self._machine.event()
        done.record(self._machine.current_stream())

        def report() -> tuple[int, int, list[WrongElement]]:
            with self._machine.current():
                done.synchronize()
                counts = to_host(memory[: COUNTS.itemsize]).view(COUNTS)[0]
                confirmed, n_wrong = int(counts["confirmed"]), int(counts["wrong"])
                begin = self._at["wrong"]
                end = begin + min(n_wrong, MOST_LISTED) * WRONG_ELEMENT.itemsize
                found = to_host(memory[begin:end]).view(WRONG_ELEMENT).tolist() if n_wrong else []
                return confirmed, n_wrong, [tuple(one) for one in found]

        return report


class ProtectedProduct:
    """The GEMM of all products whose operands have one layout; its epilogue checks the rows of C.

    Attributes
    ----------
    check : RowCheck
        The row check, whose kernels run before and after the GEMM.
    epilogue : numpy.ndarray
        The arguments of the epilogue, except the addresses, which are set before each launch.
    """

    def __init__(
        self,
        machine: Machine,
        plan: MmaPlan,
        a: DeviceMatrix,
        b: DeviceMatrix,
        c: DeviceMatrix,
        bounds: ErrorBounds,
    ) -> None:
        problem = product.problem_of(a, b, c)
        w = problem.w
        detect = detect_epilogue(a.dtype, w, problem.c)
        epilogue = np.zeros((), detect.arguments)
        epilogue["row_stride"], epilogue["column_stride"] = (stride // c.itemsize for stride in c.strides)
        epilogue["alpha"], epilogue["row_size"] = 1, row_size(bounds, w)
        epilogue["row"], epilogue["row_absolute"] = bounds.row, bounds.row_absolute
        self._multiply = Gemm(plan, problem, machine, detect)
        self.epilogue = epilogue
        self._words = _words(epilogue.dtype, "C", "row_weights", "flagged_rows.rows", "flagged_rows.counts")
        order = accumulation_order.order_of(plan, problem, blocks_of(plan, problem, machine.gpu.multiprocessors))
        self.check = RowCheck(machine, a, b, c, bounds, padded_depth(problem.k, plan), order)
        epilogue["flagged_rows"]["capacity"] = self.check.capacity

    @cached_property
    def _launch(self) -> Launch:
        return self._multiply.unbound(self.epilogue[()])

    def multiply(self, memory: Any, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix) -> None:
        """Launch the GEMM, which stores C and flags the rows that fail the check.

        `memory` is the buffer that `RowCheck.begin` returned.
        """
        addresses = c.pointer, *(self.check.address(memory, name) for name in ("x", "rows", "counts"))
        with self.check.lock:
            self._multiply.run(self._launch, a.pointer, b.pointer, zip(self._words, addresses, strict=True))


def matmul(A: Any, B: Any, ours: ErrorBounds, others: ErrorBounds, index: int, *, correct: bool) -> tuple[Any, Report]:
    """Return A · B and the report of its check, for arguments that `abft.matmul` has validated.

    `ours` are the error bounds of a product whose GEMM checks the rows of C, `others` those of any other product.
    """
    machine = cuda_machine(index)
    with product.on_stream(A, index):
        a, b = device_matrix("A", A), device_matrix("B", B)
        (m, k), w = a.shape, b.shape[1]
        if k == 0:  # empty sums
            return _new(machine, A, (m, w), "zeros"), lambda: (0, 0, [])
        if is_fused(m, k, w):
            C = _new(machine, A, (m, w), "empty")
            c = device_matrix("C", C)
            protected = _protected(machine, a.stand_in, b.stand_in, c.stand_in, ours)
            if protected is not None:
                memory = protected.check.begin(b)
                protected.multiply(memory, a, b, c)
                return C, protected.check.locate(memory, a, b, c, correct=correct)
    C = product.matmul(A, B)
    return C, check(A, B, C, others, index, correct=correct)


@lru_cache(maxsize=4096)
def _protected(
    machine: Machine, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, bounds: ErrorBounds
) -> ProtectedProduct | None:
    """Return the protected product of matrices with these layouts; None if no plan supports these layouts."""
    plan = protecting_plan(machine, product.problem_of(a, b, c))
    return None if plan is None else ProtectedProduct(machine, plan, a, b, c, bounds)


def check(A: Any, B: Any, C: Any, bounds: ErrorBounds, index: int, *, correct: bool) -> Report:
    """Launch the check of a finished product, and return its report. `check_product` has validated the arguments."""
    with product.on_stream(A, index):
        a, b, c = device_matrix("A", A), device_matrix("B", B), device_matrix("C", C)
        return check_matrices(cuda_machine(index), a, b, c, bounds, correct=correct)


def check_matrices(
    machine: Machine, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, bounds: ErrorBounds, *, correct: bool
) -> Report:
    """Launch the check of a finished product on the current stream, and return its report."""
    if 0 in c.shape:
        return lambda: (0, 0, [])
    if a.shape[1] == 0:  # an empty sum equals the product of a zero column and a zero row
        zeros = (np.zeros(shape, f"u{a.itemsize}") for shape in ((c.shape[0], 1), (1, c.shape[1])))
        a, b = (matrix_on(machine, X, a.dtype) for X in zeros)
    row_check, problem, plan = _check_of(machine, a.stand_in, b.stand_in, c.stand_in, bounds)
    memory = row_check.begin(b)
    sums = machine.xp.empty(c.shape[0], summed(a.dtype))
    epilogue = row_sums_epilogue(a.dtype)
    store = structure(epilogue.arguments, row_weights=row_check.address(memory, "x"), to=sums)
    Gemm(plan, problem, machine, epilogue)(a.pointer, b.pointer, store)
    row_check.check_rows(memory, c, sums)
    return row_check.locate(memory, a, b, c, correct=correct)


@lru_cache(maxsize=4096)
def _check_of(
    machine: Machine, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix, bounds: ErrorBounds
) -> tuple[RowCheck, Problem, MmaPlan]:
    """Return the row check of finished products with these layouts, and the problem and plan of an auxiliary GEMM.

    That GEMM multiplies A by the first column of B. Its epilogue stores only the checksums of A's rows.
    """
    column = b._replace(shape=(b.shape[0], 1))
    problem = product.problem_of(a, column, gapless((a.shape[0], 1), a.dtype, a.itemsize, by_rows=True))
    plan = protecting_plan(machine, problem)
    if plan is None:
        raise ValueError(
            f"no kernel checks a product of A with shape {a.shape} and dtype {a.dtype} on this GPU, which has compute "
            f"capability {machine.gpu.compute_capability}; expected 8.0 or higher, or shorter rows"
        )
    return RowCheck(machine, a, b, c, bounds, padded_depth(problem.k, plan)), problem, plan


def protecting_plan(machine: Machine, problem: Problem) -> MmaPlan | None:
    """Return the plan of a GEMM that also computes the checksums of A's rows; None if no kernel supports it."""
    return checked_plan(problem, machine.gpu, user_table(machine.gpu.name))


def kernel_of(machine: Machine, file: str, name: str) -> Any:
    """Return a kernel of a file of this folder; `name` is its C++ name expression without the namespace abft."""
    (kernel,) = machine.kernels(_FOLDER / file, f"abft::{name}")
    return kernel


@lru_cache
def _words(of: np.dtype, *paths: str) -> list[int]:
    """Return the offsets of members of the structure `of` in 8-byte words. A path such as "A.data" names a member."""

    def offset(dtype: np.dtype, path: str) -> int:
        name, _, rest = path.partition(".")
        assert dtype.fields is not None  # a structure
        member, at = dtype.fields[name][:2]
        return at + (offset(member, rest) if rest else 0)

    return [offset(of, path) // 8 for path in paths]


def _lanes(x: DeviceMatrix) -> int:
    down, right = x.strides
    return _ROW_MAJOR_LANES if right <= down else _COLUMN_MAJOR_LANES


def _vector(x: DeviceMatrix) -> int:
    """Return the number of elements per load: 16 bytes if each row consists of aligned 16-byte vectors, else one."""
    (down, right), size = x.strides, x.itemsize
    whole = right == size and (x.pointer | down | x.shape[1] * size) % 16 == 0
    return 16 // size if whole else 1


def _new(machine: Machine, A: Any, shape: tuple[int, int], how: str) -> Any:
    """Return a new array of A's library and type; `how` is "empty" or "zeros"."""
    if kind_of(A) == "torch":
        return getattr(A, f"new_{how}")(shape)
    return getattr(machine.xp, how)(shape, as_array(A).dtype)


def matrix_on(machine: Machine, X: np.ndarray, dtype: str) -> DeviceMatrix:
    """Copy a host array with elements of type `dtype` to the GPU, and return the copy as a `DeviceMatrix`."""
    # The bits are copied as integers, because CuPy does not support bfloat16.
    array = machine.xp.asarray(X.view(f"u{X.itemsize}"))
    return DeviceMatrix(address(array), array.shape, array.strides, dtype, X.itemsize, machine.index, array)


def operands_of(a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix) -> Any:
    """Return an instance of the C++ class `Operands` for the matrices of a product."""
    (m, k), w = a.shape, b.shape[1]
    return structure(OPERANDS, A=_matrix(a), B=_matrix(b), C=_matrix(c), m=m, k=k, w=w)


def _matrix(x: DeviceMatrix) -> Any:
    """Return an instance of the C++ class `Matrix`; its strides count elements."""
    row_stride, column_stride = (stride // x.itemsize for stride in x.strides)
    return structure(MATRIX, data=x.pointer, row_stride=row_stride, column_stride=column_stride)
