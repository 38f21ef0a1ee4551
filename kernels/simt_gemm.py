"""Launches of products without tensor cores: the kernels of tsm2/simt on the current stream."""

from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.plan.simt import ColumnsPlan, RowsPlan, SimtPlan, SmallTsmttsmPlan, SplitPlan, WidePlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import ProductLaunch
from tsapps.kernels.runtime.machine import Machine

__all__ = ["tsm2l_columns", "tsm2l_rows", "tsm2r_columns", "tsmttsm_small"]

# --- tsm2l_rows.cuh, tsm2l_wide.cuh and tsm2l_columns.cuh ----------------------------------------------------------

# Maximum number of blocks in a grid, per multiprocessor. It exceeds the number of blocks that a multiprocessor holds at
# once: the hardware balances the load, because a new block starts wherever an earlier block ends.
_ROWS_BLOCKS, _COLUMNS_BLOCKS = 64, 16


def _kernel(plan: SimtPlan, machine: Machine) -> Any:
    (kernel,) = machine.kernels(f'#include "{plan.header}"\n', plan.kernel())
    return kernel


def _b_strides(problem: Problem) -> tuple[np.int64, np.int64]:
    along, leading = problem.b.along_depth, problem.b.leading
    return np.int64(1 if along else leading), np.int64(leading if along else 1)


def tsm2l_rows(
    plan: RowsPlan | WidePlan,
    problem: Problem,
    C: DeviceMatrix,  # noqa: ARG001 (C has no gaps, so its strides are not needed)
    machine: Machine,
) -> ProductLaunch:
    """Return the launch function of simt/tsm2l_rows.cuh or tsm2l_wide.cuh; arguments as for `gemm.storing_gemm`."""
    total = np.dtype(plan.sum_dtype).type
    blocks = -(-problem.m // (plan.rows * plan.threads if isinstance(plan, RowsPlan) else plan.rows))
    grid, block = (max(1, min(blocks, machine.gpu.multiprocessors * _ROWS_BLOCKS)),), (plan.threads,)
    strides, m, kernel = (
        _b_strides(problem),
        np.int64(problem.m),
        _kernel(plan, machine),
    )

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        kernel(grid, block, (np.uint64(A), np.uint64(B), *strides, np.uint64(C), m, total(alpha), total(beta)))

    return launch


def tsm2l_columns(plan: ColumnsPlan, problem: Problem, C: DeviceMatrix, machine: Machine) -> ProductLaunch:
    """Return the launch function of simt/tsm2l_columns.cuh; arguments as for `gemm.storing_gemm`."""
    total = np.dtype(plan.sum_dtype).type
    blocks = -(-problem.m // (16 // C.itemsize * plan.threads))
    grid, block = (min(blocks, machine.gpu.multiprocessors * _COLUMNS_BLOCKS),), (plan.threads,)
    lda, ldc = np.int64(problem.a.leading), np.int64(C.strides[1] // C.itemsize)
    strides, m, kernel = (
        _b_strides(problem),
        np.int64(problem.m),
        _kernel(plan, machine),
    )

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        pointers = np.uint64(A), lda, np.uint64(B), *strides, np.uint64(C), ldc
        kernel(grid, block, (*pointers, m, total(alpha), total(beta)))

    return launch


# --- tsm2r_columns.cuh ---------------------------------------------------------------------------------------------


def tsm2r_columns(plan: SplitPlan, problem: Problem, C: DeviceMatrix, machine: Machine) -> ProductLaunch:
    """Return the launch function of simt/tsm2r_columns.cuh; arguments as for `gemm.storing_gemm`."""
    size, total = C.itemsize, np.dtype(plan.sum_dtype)
    tiles = -(-problem.m // (plan.threads * 16 // size)), -(-problem.w // plan.width)
    grid, block = (tiles[0], plan.splits, tiles[1]), (plan.threads,)
    counts = tiles[0] * tiles[1] if plan.splits > 1 else 0
    sums = counts * plan.splits * plan.threads * 16 // size * plan.width * total.itemsize
    rows, columns = (stride // size for stride in C.strides)
    fields = ("C", "u8"), ("row_stride", "i8"), ("column_stride", "i8"), ("alpha", total), ("beta", total)
    store = np.array((0, rows, columns, 0, 0), [*fields])
    lda, strides = np.int64(problem.a.leading), _b_strides(problem)
    sizes = np.int64(problem.m), np.int64(problem.k), np.int32(problem.w), np.int64(plan.per_split)
    kernel = _kernel(plan, machine)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        store_here = store.copy()
        store_here["C"], store_here["alpha"], store_here["beta"] = C, alpha, beta
        held = machine.workspace(sums, counts)
        kernel(grid, block, (np.uint64(A), lda, np.uint64(B), *strides, *sizes, *held, store_here[()]))

    return launch


# --- tsmttsm_small.cuh -----------------------------------------------------------------------------------------------

_SMALL_BLOCKS = 4  # maximum number of blocks in a grid, per multiprocessor


def tsmttsm_small(plan: SmallTsmttsmPlan, problem: Problem, C: DeviceMatrix, machine: Machine) -> ProductLaunch:
    """Return the launch function of simt/tsmttsm_small.cuh; arguments as for `gemm.storing_gemm`."""
    total = np.dtype(plan.sum_dtype)
    blocks = -(-problem.k // (plan.depth * plan.threads))
    grid, block = (min(blocks, machine.gpu.multiprocessors * _SMALL_BLOCKS),), (plan.threads,)
    sums, kernel = grid[0] * plan.m * plan.w * total.itemsize, _kernel(plan, machine)
    lda, ldb, k = np.int64(problem.a.leading), np.int64(problem.b.leading), np.int64(problem.k)
    strides = tuple(np.int64(stride // C.itemsize) for stride in C.strides)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        pointers = np.uint64(A), lda, np.uint64(B), ldb, np.uint64(C)
        held = machine.workspace(sums, 1)
        kernel(grid, block, (*pointers, *strides, k, *held, total.type(alpha), total.type(beta)))

    return launch
