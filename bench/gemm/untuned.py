"""Benchmark of the plans that `kernels/plan/predict.py` selects without a table, beside tuned plans and cuBLAS.

    python -m tsapps.bench.gemm.untuned --every 10

Every record has the times of a product by four plans:

tuned_ms         the plan of the GPU's table, or the algorithm of cublasLt that the table selects
untuned_ms       the plan selected for this GPU without a table; it may be cuBLAS
untuned_sm80_ms  the same, from the plans that a GPU of compute capability 8.0 has: without wgmma
library_ms       cuBLAS

Every result is first compared with float64, as by tsapps.bench.gemm; a wrong one is neither timed nor recorded.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from secrets import randbelow
from typing import Any

from tsapps.bench.common import record
from tsapps.bench.gemm.grid import Cell, exact, grid, largest_error, spoil
from tsapps.bench.gemm.measure import KEY, GpuBench, compile_all, matrices_of, problem_of
from tsapps.bench.gemm.summary import untuned_table
from tsapps.kernels import matmul
from tsapps.kernels.arrays import DeviceMatrix
from tsapps.kernels.blas import cublas
from tsapps.kernels.blas.cublaslt import LibraryError
from tsapps.kernels.devices import gpus, why_no_gpu
from tsapps.kernels.dispatch import prepare
from tsapps.kernels.gpu_specs import GpuSpec, limited, live
from tsapps.kernels.plan.select import LIBRARY, plan
from tsapps.kernels.plan.simt import AnyPlan
from tsapps.kernels.problem import Problem
from tsapps.kernels.runtime.machine import cuda_machine

__all__ = ["FIELDS", "PLANS", "plans_of"]

#: Names of the plans of a product.
PLANS = ("tuned", "untuned", "untuned_sm80", "library")
#: Fields of a record in addition to `record.COMMON`.
FIELDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("shape", "dtype", "layout", *PLANS[:3]), (str,)),
    **dict.fromkeys(("m", "k", "w", "seed"), (int,)),
    **{f"{name}_ms": (float,) for name in PLANS},
}


def plans_of(problem: Problem, device: GpuSpec) -> dict[str, AnyPlan | str]:
    """Return the plans of a product on a GPU, by their names in a record."""
    return {
        "tuned": matmul.planned(problem, device),
        "untuned": plan(problem, device, []),
        "untuned_sm80": plan(problem, limited(device, "80"), []),
        "library": LIBRARY,
    }


class UntunedBench(GpuBench):
    """Measures the plans of products on the current GPU."""

    def record_of(self, cell: Cell, sizes: tuple[int, int, int]) -> dict[str, Any]:
        """Return the record of a product; raises `NotRightError` if a result is wrong."""
        A, B, C = self.pools(cell.dtype, sizes).operands(cell)
        reference = exact(cell, A, B)
        a, b, c = matrices_of(cell, A, B, C)
        problem = matmul.problem_of(a, b, c)
        times: dict[Any, float] = {}
        plans = plans_of(problem, live(a.device))
        for one in dict.fromkeys(plans.values()):
            call = partial(_launch(one, problem, a, b, c), a.pointer, b.pointer, c.pointer, 1.0, 0.0)
            spoil(C)
            call()
            largest_error(cell, C, reference)
            times[one] = self.milliseconds(call)
        return {
            **{name: getattr(cell, name) for name in KEY if name != "what"},
            **{name: str(plans[name]) for name in PLANS[:3]},
            **{f"{name}_ms": times[one] for name, one in plans.items()},
        }


def _launch(
    one: AnyPlan | str, problem: Problem, a: DeviceMatrix, b: DeviceMatrix, c: DeviceMatrix
) -> Callable[..., Any]:
    """Return the function that launches a plan."""
    if isinstance(one, str):
        return cublas.gemm(a, b, c)
    return prepare(one, problem, c, cuda_machine(c.device))


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--every", type=int, default=10, help="measure only every n-th cell of the grid (default 10)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first cell (default 0)")
    record.add_options(parser, "gemm-untuned")
    parser.add_argument("--seed", type=int, default=randbelow(2**31), help="seed of the data (default: random)")
    options = parser.parse_args()
    if not gpus():
        print(f"no GPU to time: {why_no_gpu()}", file=sys.stderr)
        return 1
    cells = [*grid()][options.first :: options.every]
    compile_all(one for cell in cells for one in plans_of(problem_of(cell), live()).values())
    bench = UntunedBench(options.seed)
    common = {**record.of_run("gemm-untuned", bench.device, bench.versions(), options.commit), "engine": "tsapps"}
    path = options.out or record.results_path(bench.device, "gemm-untuned")
    found, failed = [], 0
    a, b, c = (max(cell.sizes[i] for cell in cells) for i in range(3))
    for cell in cells:
        try:
            found.append({**common, "seed": options.seed, **bench.record_of(cell, (a, b, c))})
        except (ValueError, LibraryError) as error:
            failed += 1
            print(f"{cell.name}: {error}", file=sys.stderr, flush=True)
    record.store_sorted(path, found, ("device", *KEY), FIELDS)
    print(untuned_table(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
