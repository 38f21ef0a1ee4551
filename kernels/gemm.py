"""Launches of tensor-core products: the kernel of a plan with any epilogue, for one problem and one GPU."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix, address
from tsapps.kernels.epilogue import Epilogue
from tsapps.kernels.jit.cache import Cubin
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.plan.mma import STORE_HEADER, MmaPlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import ProductLaunch, structure
from tsapps.kernels.runtime.machine import Launch, Machine

__all__ = ["Gemm", "blocks_of", "compiled_plan", "sizes_of", "source_of", "store_epilogue", "storing_gemm"]

_SOURCE = np.dtype([("data", "u8"), ("leading", "i8"), ("outer", "i8"), ("depth", "i8"), ("size", "i8")])
_WORK = np.dtype([("m", "i8"), ("n", "i8"), ("k", "i8")])
# Indices of a kernel's arguments: A, B, (2: sizes), partial sums, arrival counts, epilogue.
_A, _B, _SUMS, _COUNTS, _EPILOGUE = 0, 1, 3, 4, 5


def store_epilogue(plan: MmaPlan) -> Epilogue:
    """Return the epilogue with which a plan's kernel stores C (`plan.store`)."""
    fields = [(name, "i8") for name in ("row_stride", "column_stride", "regular")]
    scalars = [(name, np.dtype(plan.sum_dtype)) for name in ("alpha", "beta")]
    return Epilogue(STORE_HEADER, plan.epilogue(), np.dtype([("C", "u8"), *fields, *scalars]))


@lru_cache
def source_of(plan: MmaPlan, epilogue: Epilogue) -> tuple[str, str]:
    """Return the CUDA C++ source of a plan's kernel with an epilogue, and the kernel's name expression."""
    source = f'#include "{plan.header}"\n#include "{epilogue.header}"\n{plan.struct()}\n'
    return source, f"{plan.function}<Plan, {epilogue.name}>"


def compiled_plan(plan: MmaPlan, arch: str, epilogue: Epilogue | None = None) -> tuple[Cubin, str]:
    """Compile the kernel of a plan for an architecture; return its machine code and name expression. Needs no GPU.

    The default epilogue stores C.
    """
    source, name = source_of(plan, epilogue or store_epilogue(plan))
    return build(source, [name], arch), name


def blocks_of(plan: MmaPlan, problem: Problem, multiprocessors: int) -> int:
    """Return the number of blocks in the grid of a plan's kernel on a GPU with this number of multiprocessors."""
    m, k, w = problem.m * plan.fold, -(-problem.k // plan.fold), problem.w * plan.fold
    return min(-(-plan.units(m, k, w) // plan.teams), multiprocessors * plan.blocks)


def sizes_of(plan: MmaPlan, problem: Problem) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return the arguments of a plan's kernel that describe A, B and their sizes.

    Those of A and B are 0-dimensional arrays, whose field `data` is to be set to an address.
    """
    m, k, w = problem.m * plan.fold, -(-problem.k // plan.fold), problem.w * plan.fold
    a_size, b_size = problem.a.size(problem.m, problem.k), problem.b.size(problem.w, problem.k)
    a = np.array((0, problem.a.leading * plan.fold, m, k, a_size), _SOURCE)
    return a, np.array((0, problem.b.leading * plan.fold, w, k, b_size), _SOURCE), np.array((m, w, k), _WORK)[()]


class Gemm:
    """The kernel of a plan with an epilogue, for all products with the sizes and layouts of one problem.

    Parameters
    ----------
    plan : MmaPlan
        A plan that `plan.mma.instantiate` returned for `problem`.
    problem : Problem
    machine : Machine
    epilogue : Epilogue
    """

    def __init__(self, plan: MmaPlan, problem: Problem, machine: Machine, epilogue: Epilogue) -> None:
        total = np.dtype(plan.sum_dtype)
        blocks = blocks_of(plan, problem, machine.gpu.multiprocessors)
        self._machine, self._grid, self._block = machine, (blocks,), (plan.threads,)
        self._sums_bytes, self._counts = 2 * blocks * plan.tile_sums * total.itemsize, 3 * blocks
        self._shared_bytes = plan.shared_bytes
        self._a, self._b, self._work = sizes_of(plan, problem)
        source, name = source_of(plan, epilogue)
        (self._kernel,) = machine.kernels(source, name)
        self._kernel.max_dynamic_shared_size_bytes = plan.shared_bytes

    def __call__(self, A: int, B: int, epilogue: Any) -> None:
        """Compute one product on the current stream; `A` and `B` are addresses, `epilogue` is a filled-in structure."""
        arguments = self._arguments(A, B, self._workspace(), epilogue)
        self._kernel(self._grid, self._block, arguments, shared_mem=self._shared_bytes)

    def bind(self, A: int, B: int, epilogue: Any) -> Launch:
        """Return a launch that computes the product at these addresses.

        Call the launch only on the stream that is current now, because it uses the workspace of that stream.
        """
        return self._bound(A, B, self._workspace(), epilogue)

    def unbound(self, epilogue: Any) -> Launch:
        """Return a launch whose addresses, also those in the structure `epilogue`, are null until `run` sets them."""
        return self._bound(0, 0, (np.uint64(0), np.uint64(0)), epilogue)

    def run(self, launch: Launch, A: int, B: int, epilogue: Iterable[tuple[int, int]]) -> None:
        """Compute one product by a launch from `unbound`; only one thread at a time may use that launch.

        `epilogue` gives the addresses in the epilogue's structure, as pairs (index of an 8-byte word, address).
        """
        held = self._workspace()  # a reference that keeps the memory alive until the kernel is launched
        for place, value in ((_A, A), (_B, B), (_SUMS, address(held[0])), (_COUNTS, address(held[1]))):
            launch.change(place, value)
        for word, value in epilogue:
            launch.change(_EPILOGUE, value, word)
        launch()

    def _workspace(self) -> tuple[Any, Any]:
        return self._machine.workspace(self._sums_bytes, self._counts)

    def _bound(self, A: int, B: int, workspace: tuple[Any, Any], epilogue: Any) -> Launch:
        arguments = self._arguments(A, B, workspace, epilogue)
        return self._machine.bind(self._kernel, self._grid, self._block, arguments, self._shared_bytes)

    def _arguments(self, A: int, B: int, workspace: tuple[Any, Any], epilogue: Any) -> tuple[Any, ...]:
        a, b = self._a.copy(), self._b.copy()  # other threads may launch this product at the same time
        a["data"], b["data"] = A, B
        return a[()], b[()], self._work, *workspace, epilogue


def storing_gemm(plan: MmaPlan, problem: Problem, C: DeviceMatrix, machine: Machine) -> ProductLaunch:
    """Return the launch function of a product by gemm_mma.cuh or gemm_wgmma.cuh; its epilogue stores C.

    Parameters
    ----------
    plan : MmaPlan
        A plan that `plan.mma.instantiate` returned for `problem`.
    problem : Problem
    C : DeviceMatrix of shape (m, w)
        The result, or a matrix with the strides and the alignment of the result.
    machine : Machine
    """
    row_stride, column_stride = (stride // C.itemsize for stride in C.strides)
    epilogue = store_epilogue(plan)
    strides = {"row_stride": row_stride, "column_stride": column_stride}
    regular = _regular(plan, problem)
    store = structure(epilogue.arguments, C=0, **strides, regular=regular, alpha=0, beta=0)
    multiply = Gemm(plan, problem, machine, epilogue)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        store_here = store.copy()  # other threads may launch this product at the same time
        store_here["C"], store_here["alpha"], store_here["beta"] = C, alpha, beta
        multiply(A, B, store_here)

    return launch


def _regular(plan: MmaPlan, problem: Problem) -> bool:
    """Return True if C has the layout that the fast path of the plan's epilogue requires (`regular` in store.cuh)."""
    if plan.store == "StoreLines":
        return problem.c == "aligned columns"
    return problem.c == "packed" and plan.tile_n == problem.w and plan.warps_n == 1
