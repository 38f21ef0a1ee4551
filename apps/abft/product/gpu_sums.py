"""Sums of a product on a GPU before rounding to 16 bits, and their bit-exact emulation: the data of a calibration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cupy
import numpy as np

from tsapps.apps.abft.product.gpu import compiled_kernel, operands_of, protecting_plan
from tsapps.apps.abft.product.plan import summed
from tsapps.kernels import matmul as product
from tsapps.kernels.arrays import DeviceMatrix, device_matrix, gapless
from tsapps.kernels.gemm import Gemm, blocks_of, store_epilogue
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.plan import accumulation_order
from tsapps.kernels.plan.mma import ELEMENT, SUM, MmaPlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import structure
from tsapps.kernels.runtime.machine import cuda_machine

__all__ = ["emulated", "emulated_by", "sequential_sums", "sums", "sums_by"]

# Blocks per multiprocessor, and threads per block, of emulate (kLocateThreads).
_BLOCKS, _THREADS = 4, 256


def sums(A: np.ndarray, B: np.ndarray, dtype: str, index: int) -> np.ndarray:
    """Return A · B as a GPU accumulates it, before rounding to 16 bits, for host arrays of type `dtype`.

    B has a multiple of eight columns.
    """
    with cupy.cuda.Device(index):
        a, b = _on_device(A, B, dtype)
        return sums_by(*_product_of_sums(a, b), a, b)


def emulated(A: np.ndarray, B: np.ndarray, dtype: str, index: int) -> np.ndarray:
    """Return the emulation of `sums` by emulated_gemm.cuh; NaN where the emulation does not apply."""
    with cupy.cuda.Device(index):
        a, b = _on_device(A, B, dtype)
        return emulated_by(*_product_of_sums(a, b), a, b)


def sequential_sums(A: np.ndarray, B: np.ndarray, dtype: str, index: int) -> np.ndarray:
    """Return A · B as tensor cores accumulate it without split sums; NaN as in `emulated`."""
    with cupy.cuda.Device(index):
        a, b = _on_device(A, B, dtype)
        return _emulate(accumulation_order.one_after_another(len(B)), a, b)


def sums_by(plan: MmaPlan, problem: Problem, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return `sums` by a plan's kernel."""
    total, found = SUM[a.dtype], cupy.empty((problem.m, problem.w), summed(a.dtype))
    epilogue = replace(store_epilogue(plan), name=f"tsm2::StorePairs<{total}, {total}>")
    store = structure(epilogue.arguments, C=found, rows=found.shape[1], columns=1, regular=0, alpha=1, beta=0)
    Gemm(plan, problem, cuda_machine(a.device), epilogue)(a.pointer, b.pointer, store)
    return found.get()


def emulated_by(plan: MmaPlan, problem: Problem, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return the emulation of `sums_by`."""
    blocks = blocks_of(plan, problem, live(a.device).multiprocessors)
    return _emulate(accumulation_order.order_of(plan, problem, blocks), a, b)


def _emulate(order: Any, a: DeviceMatrix, b: DeviceMatrix) -> np.ndarray:
    """Return A · B by emulated_gemm.cuh in an accumulation order."""
    to = cupy.empty((a.shape[0], b.shape[1]))
    grid = (_BLOCKS * live(a.device).multiprocessors,)
    compiled_kernel("locate.cuh", f"emulate<{ELEMENT[a.dtype]}>", a.device)(
        grid, (_THREADS,), (operands_of(a, b, b)[()], order, to)
    )
    return to.get()


def _on_device(A: np.ndarray, B: np.ndarray, dtype: str) -> tuple[DeviceMatrix, DeviceMatrix]:
    """Return A and B on the current GPU."""
    # As integers, because CuPy does not support bfloat16.
    a, b = (device_matrix("", cupy.asarray(np.ascontiguousarray(X).view(f"u{X.itemsize}"))) for X in (A, B))
    return a._replace(dtype=dtype), b._replace(dtype=dtype)


def _product_of_sums(a: DeviceMatrix, b: DeviceMatrix) -> tuple[MmaPlan, Problem]:
    """Return the plan and problem of `sums`, without checksums of A's rows."""
    shape = a.shape[0], b.shape[1]
    problem = product.problem_of(a, b, gapless(shape, a.dtype, a.itemsize, by_rows=True))
    plan = protecting_plan(problem, a.device)
    if plan is None:
        raise ValueError(f"no kernel supports a product of {a.shape} and {b.shape} {a.dtype} on GPU {a.device}")
    return replace(plan, row_sums=False), problem
