"""Dispatch by the type of a plan: launches or compiles the plan's kernel."""

from collections.abc import Callable

from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.blas import cublas
from tsapps.kernels.gemm import compiled_plan, storing_gemm
from tsapps.kernels.jit.cache import Resources
from tsapps.kernels.jit.kernel import compile_header
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan
from tsapps.kernels.plan.simt import AnyPlan, ColumnsPlan, RowsPlan, SmallTsmttsmPlan, SplitPlan, WidePlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.launch import ProductLaunch
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.simt_gemm import tsm2l_columns, tsm2l_rows, tsm2r_columns, tsmttsm_small

__all__ = ["compile_any", "prepare"]

_LAUNCHERS: dict[str, Callable[..., ProductLaunch]] = {
    MmaPlan.kernel_name: storing_gemm,
    WgmmaPlan.kernel_name: storing_gemm,
    RowsPlan.kernel_name: tsm2l_rows,
    WidePlan.kernel_name: tsm2l_rows,
    ColumnsPlan.kernel_name: tsm2l_columns,
    SplitPlan.kernel_name: tsm2r_columns,
    SmallTsmttsmPlan.kernel_name: tsmttsm_small,
}


def prepare(plan: AnyPlan, problem: Problem, C: DeviceMatrix, machine: Machine) -> ProductLaunch:
    """Return the function that launches a plan's kernel; arguments as for `gemm.storing_gemm`."""
    if isinstance(plan, LibraryAlgorithm):
        return cublas.algorithm(plan, problem, C)
    return _LAUNCHERS[plan.kernel_name](plan, problem, C, machine)


def compile_any(plan: AnyPlan, arch: str) -> Resources:
    """Compile the kernel of a plan for an architecture, and return the resources of the kernel; needs no GPU."""
    if isinstance(plan, LibraryAlgorithm):
        return Resources(0, 0, 0, 0, 0)
    if isinstance(plan, MmaPlan):
        cubin, name = compiled_plan(plan, arch)
    else:
        name = plan.kernel()
        cubin = compile_header(plan.header, name, arch)
    return cubin.resources[name]
