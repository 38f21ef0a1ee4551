"""Tensor-core products with any epilogue: a plan bound to a problem.

Everything here is launched on CuPy's current stream.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np

from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.gpu_specs import live
from tsapps.kernels.jit.cache import Cubin
from tsapps.kernels.jit.compiler import build
from tsapps.kernels.jit.kernel import Kernel
from tsapps.kernels.plan.mma import STORE_HEADER, MmaPlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import DependentLaunch, ProductLaunch
from tsapps.kernels.runtime.workspace import workspace

__all__ = ["Gemm", "blocks_of", "compiled_plan", "storing_gemm"]

_SOURCE = np.dtype([("data", "u8"), ("leading", "i8"), ("outer", "i8"), ("depth", "i8"), ("size", "i8")])
_WORK = np.dtype([("m", "i8"), ("n", "i8"), ("k", "i8")])


def _source_of(plan: MmaPlan, epilogue: str = "", header: str = "") -> tuple[str, str]:
    """Return the source of a plan's kernel, and its name expression.

    `epilogue` is the class of an app's own, and `header` where it is; else it is the plan's, which stores C.
    """
    source = f'#include "{plan.header}"\n#include "{header or STORE_HEADER}"\n{plan.struct()}\n'
    return source, f"{plan.function}<Plan, {epilogue or plan.epilogue()}>"


def compiled_plan(plan: MmaPlan, arch: str, epilogue: str = "", header: str = "") -> tuple[Cubin, str]:
    """Compile the kernel of a plan for an architecture, and return it with its name expression; needs no GPU.

    `epilogue` and `header` as for `_source_of`.
    """
    source, name = _source_of(plan, epilogue, header)
    return build(source, [name], arch), name


@cache
def _planned_kernel(plan: MmaPlan, device: int, epilogue: str = "", header: str = "") -> Kernel:
    """Return the kernel of a plan, for a GPU."""
    source, name = _source_of(plan, epilogue, header)
    kernel = Kernel(source, [name], name, device)
    kernel.max_dynamic_shared_size_bytes = plan.shared_bytes
    return kernel


def blocks_of(plan: MmaPlan, problem: Problem, device: int) -> int:
    """Return how many blocks a plan is launched with."""
    m, k, w = problem.m * plan.fold, -(-problem.k // plan.fold), problem.w * plan.fold
    return min(-(-plan.units(m, k, w) // plan.teams), live(device).multiprocessors * plan.blocks)


class Gemm:
    """A plan's kernel with an epilogue, for products that lie alike.

    Products are given by the addresses of A and B, and by the epilogue as a NumPy structure.

    Parameters
    ----------
    plan : MmaPlan
        Made for `problem`.
    problem : Problem
    device : int
    epilogue, header : str
        As for `compiled_plan`.
    """

    def __init__(self, plan: MmaPlan, problem: Problem, device: int, epilogue: str = "", header: str = "") -> None:
        total = np.dtype(plan.sum_dtype)
        m, k, w = problem.m * plan.fold, -(-problem.k // plan.fold), problem.w * plan.fold
        self._device, self._grid, self._block = device, (blocks_of(plan, problem, device),), (plan.threads,)
        self._sums, self._counts = 2 * self._grid[0] * plan.tile_sums * total.itemsize, 3 * self._grid[0]
        self._shared_bytes = plan.shared_bytes
        self._a = np.array((0, problem.a.leading * plan.fold, m, k, problem.a.size(problem.m, problem.k)), _SOURCE)
        self._b = np.array((0, problem.b.leading * plan.fold, w, k, problem.b.size(problem.w, problem.k)), _SOURCE)
        self._work = np.array((m, w, k), _WORK)[()]
        self._kernel = _planned_kernel(plan, device, epilogue, header)

    def __call__(self, A: int, B: int, epilogue: Any) -> None:
        """Compute one product on the current stream."""
        arguments = self._arguments(A, B, self._workspace(), epilogue)
        self._kernel(self._grid, self._block, arguments, shared_mem=self._shared_bytes)

    def packed(self, A: int, B: int, epilogue: Any) -> DependentLaunch:
        """Return the launch of the same product again and again, on the stream that is current now."""
        return self._overlapping(A, B, self._workspace(), epilogue)

    def unbound(self, epilogue: Any) -> DependentLaunch:
        """Return the launch of products that `run` tells it of; what is an address in the epilogue may be any."""
        return self._overlapping(0, 0, (np.uint64(0), np.uint64(0)), epilogue)

    def run(self, launch: DependentLaunch, A: int, B: int, epilogue: Iterable[tuple[int, int]]) -> None:
        """Compute one product by a launch from `unbound`; not by several threads at a time.

        `epilogue` tells which words of eight bytes of the epilogue are which addresses.
        """
        held = self._workspace()  # until it is launched
        # The places of `_arguments`.
        for place, address in ((0, A), (1, B), (3, held[0].data.ptr), (4, held[1].data.ptr)):
            launch.change(place, address)
        for word, address in epilogue:
            launch.change(5, address, word)
        launch()

    def _workspace(self) -> tuple[Any, Any]:
        return workspace(self._device, self._sums, self._counts)

    def _overlapping(self, A: int, B: int, workspace: tuple[Any, Any], epilogue: Any) -> DependentLaunch:
        arguments = self._arguments(A, B, workspace, epilogue)
        return DependentLaunch(self._kernel, self._grid, self._block, arguments, self._shared_bytes)

    def _arguments(self, A: int, B: int, workspace: tuple[Any, Any], epilogue: Any) -> tuple[Any, ...]:
        a, b = self._a.copy(), self._b.copy()  # as other threads may be launching the same
        a["data"], b["data"] = A, B
        return a[()], b[()], self._work, *workspace, epilogue


def storing_gemm(plan: MmaPlan, problem: Problem, C: DeviceMatrix) -> ProductLaunch:
    """Return what computes a product by gemm_mma.cuh, or by gemm_wgmma.cuh.

    Parameters
    ----------
    plan : MmaPlan
        Made for `problem`.
    problem : Problem
    C : DeviceMatrix of shape (m, w)
        The result, or one that lies like it: of the same strides, and aligned alike.
    """
    total = np.dtype(plan.sum_dtype)
    rows, columns = (stride // C.itemsize for stride in C.strides)
    fields = ("C", "u8"), ("rows", "i8"), ("columns", "i8"), ("regular", "i8"), ("alpha", total), ("beta", total)
    store = np.array((0, rows, columns, _regular(plan, problem), 0, 0), [*fields])
    multiply = Gemm(plan, problem, C.device)

    def launch(A: int, B: int, C: int, alpha: float, beta: float) -> None:
        store_here = store.copy()  # as other threads may be launching the same
        store_here["C"], store_here["alpha"], store_here["beta"] = C, alpha, beta
        multiply(A, B, store_here[()])

    return launch


def _regular(plan: MmaPlan, problem: Problem) -> bool:
    """Return whether C lies as is best for the plan's epilogue (store.cuh)."""
    if plan.store == "StoreLines":
        return problem.c == "aligned columns"
    return problem.c == "packed" and plan.tile_n == problem.w and plan.warps_n == 1
