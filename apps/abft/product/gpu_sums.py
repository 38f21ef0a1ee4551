"""Elements of a GPU product before rounding to 16 bits, and their bit-exact emulation: the input of a calibration."""

from dataclasses import replace
from typing import Any

import numpy as np

from tsapps.apps.abft.product.gpu import kernel_of, matrix_on, operands_of, protecting_plan
from tsapps.apps.abft.product.plan import summed
from tsapps.kernels import matmul as product
from tsapps.kernels.arrays import DeviceMatrix, gapless, to_host
from tsapps.kernels.gemm import Gemm, blocks_of, store_epilogue
from tsapps.kernels.plan import accumulation_order
from tsapps.kernels.plan.mma import ELEMENT, SUM, MmaPlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import Machine

__all__ = ["emulate", "emulated", "emulated_by", "sequential_sums", "sums", "sums_by"]

# Number of blocks per multiprocessor, and of threads per block (kLocateThreads), of the kernel `emulate`.
_BLOCKS, _THREADS = 4, 256


def sums(machine: Machine, A: np.ndarray, B: np.ndarray, dtype: str) -> np.ndarray:
    """Return A · B as a GPU accumulates it, before rounding to 16 bits, for host arrays of type `dtype`.

    B must have a multiple of eight columns.
    """
    with machine.current():
        a, b = _operands_on(machine, A, B, dtype)
        return sums_by(machine, *_product_of_sums(machine, a, b), a, b)


def emulated(machine: Machine, A: np.ndarray, B: np.ndarray, dtype: str) -> np.ndarray:
    """Return `sums` as emulated_gemm.cuh emulates them; NaN for elements that the emulation does not support."""
    with machine.current():
        a, b = _operands_on(machine, A, B, dtype)
        return emulated_by(machine, *_product_of_sums(machine, a, b), a, b)


def sequential_sums(machine: Machine, A: np.ndarray, B: np.ndarray, dtype: str) -> np.ndarray:
    """Return an emulation of A · B in which one warp's tensor-core instructions sum all products of an element in turn.

    Elements that the emulation does not support are NaN.
    """
    with machine.current():
        return emulate(machine, accumulation_order.one_after_another(len(B)), *_operands_on(machine, A, B, dtype))


def sums_by(machine: Machine, plan: MmaPlan, problem: Problem, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return A · B as the kernel of `plan` accumulates it, before rounding to 16 bits, for matrices on the GPU."""
    total, found = SUM[a.dtype], machine.xp.empty((problem.m, problem.w), summed(a.dtype))
    epilogue = replace(store_epilogue(plan), name=f"tsm2::StorePairs<{total}, {total}>")
    strides = {"row_stride": found.shape[1], "column_stride": 1}
    store = structure(epilogue.arguments, C=found, **strides, regular=0, alpha=1, beta=0)
    Gemm(plan, problem, machine, epilogue)(a.pointer, b.pointer, store)
    return to_host(found)


def emulated_by(machine: Machine, plan: MmaPlan, problem: Problem, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return the bit-exact emulation of the result of `sums_by`; NaN for elements that it does not support."""
    blocks = blocks_of(plan, problem, machine.gpu.multiprocessors)
    return emulate(machine, accumulation_order.order_of(plan, problem, blocks), a, b)


def emulate(machine: Machine, order: Any, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return A · B as emulated_gemm.cuh emulates it in the accumulation order `order`."""
    to = machine.xp.empty((a.shape[0], b.shape[1]))
    grid = (_BLOCKS * machine.gpu.multiprocessors,)
    kernel_of(machine, "locate.cuh", f"emulate<{ELEMENT[a.dtype]}>")(
        grid, (_THREADS,), (operands_of(a, b, b), order, to)
    )
    return to_host(to)


def _operands_on(machine: Machine, A: np.ndarray, B: np.ndarray, dtype: str) -> tuple[DeviceMatrix, DeviceMatrix]:
    a, b = (matrix_on(machine, np.ascontiguousarray(X), dtype) for X in (A, B))
    return a, b


def _product_of_sums(machine: Machine, a: DeviceMatrix, b: DeviceMatrix) -> tuple[MmaPlan, Problem]:
    """Return the plan and problem of the GEMM of `sums`: those of a protected product, but without checksums of A."""
    shape = a.shape[0], b.shape[1]
    problem = product.problem_of(a, b, gapless(shape, a.dtype, a.itemsize, by_rows=True))
    plan = protecting_plan(machine, problem)
    if plan is None:
        raise ValueError(
            f"no kernel supports a product of {a.shape} and {b.shape} {a.dtype} on GPU {a.device}, which has compute "
            f"capability {machine.gpu.compute_capability}; expected 8.0 or higher, or shorter rows"
        )
    return replace(plan, row_sums=False), problem
