"""Kernel selection for a product: a pure function of the problem, the device and a tuning table.

candidates.py lists the plans that a device can run for a problem; `plan` selects one plan. If a row of a tuning
table applies, that row decides, and may select cuBLAS. Shipped tables are in kernels/plan/tuned/; ``tsapps tune``
writes the user's table. Without a row, the fastest by predict.py is selected, which may be cuBLAS, too.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from math import log2
from pathlib import Path
from typing import Any

from tsapps.kernels.gpu_specs import GpuSpec, file_name_of, measured_alike
from tsapps.kernels.plan.candidates import candidates, stage_bytes
from tsapps.kernels.plan.library_algorithm import LibraryAlgorithm
from tsapps.kernels.plan.mma import MmaPlan, WgmmaPlan
from tsapps.kernels.plan.predict import library_seconds, predict
from tsapps.kernels.plan.simt import AnyPlan, ColumnsPlan, RowsPlan, SmallTsmttsmPlan, SplitPlan, WidePlan
from tsapps.kernels.problem import NARROW, Problem
from tsapps.kernels.system.strict_json import read_json

__all__ = [
    "ALGORITHM",
    "KEY",
    "LIBRARY",
    "PICKED",
    "RANKED",
    "VERSION",
    "completed",
    "configuration_of",
    "key_of",
    "key_of_row",
    "library_algorithms",
    "plan",
    "promising",
    "tuned_table",
]

#: The result of `plan` if cuBLAS computes the product.
LIBRARY = "library"

_TUNED = Path(__file__).resolve().parent / "tuned"
# `tune` measures at most this many plans with the same tile and warps.
_ALIKE = 2
# `tune` measures this many cublasLt algorithms for each of the two forms of a product (`own_orders`).
_RANKS = 8


def plan(problem: Problem, device: GpuSpec, table: Sequence[Mapping[str, Any]] | None = None) -> AnyPlan | str:
    """Select the plan of a product.

    Parameters
    ----------
    problem : Problem
    device : GpuSpec
    table : sequence of mappings, optional
        A tuning table. The default is the shipped table of the device.

    Returns
    -------
    MmaPlan, WgmmaPlan, RowsPlan, WidePlan, ColumnsPlan, SplitPlan, SmallTsmttsmPlan, LibraryAlgorithm or LIBRARY
    """
    found = candidates(problem, device)
    if not found:
        return LIBRARY
    rows = tuned_table(device.name) if table is None else table
    if (algorithm := _algorithm(rows, problem)) is not None:
        return algorithm
    configuration = _look_up(rows, problem, by_warpgroups=any(isinstance(one, WgmmaPlan) for one in found))
    if configuration is None:
        return _fastest(found, problem, device)
    if configuration["kernel"] == LIBRARY and problem.c != "any":
        return LIBRARY
    alike = [one for one in found if one.kernel_name == configuration["kernel"]]
    if not alike:  # cuBLAS or the row's kernel does not support the layout of this problem
        return _fastest(found, problem, device)
    return min(alike, key=lambda one: (_unlike(one, configuration), predict(one, problem, device)))


def _fastest(found: Sequence[AnyPlan], problem: Problem, device: GpuSpec) -> AnyPlan | str:
    """Return the plan that is predicted to be the fastest, or `LIBRARY` if that is predicted to be faster."""
    best = min(found, key=lambda one: predict(one, problem, device))
    return best if predict(best, problem, device) <= library_seconds(problem, device) else LIBRARY


def promising(problem: Problem, device: GpuSpec, most: int) -> list[AnyPlan]:
    """Return the plans worth measuring: the `most` fastest by `predict`, at most `_ALIKE` with the same tile and warps.

    Plans of other kernels than gemm_mma.cuh are always included, in addition: they are few.
    """
    every = candidates(problem, device)
    found: list[AnyPlan] = []
    alike: Counter[tuple[int, ...]] = Counter()
    plans = (one for one in every if type(one) is MmaPlan)
    for one in sorted(plans, key=lambda one: predict(one, problem, device)):
        kind = one.tile_m, one.depth, one.warps_m, one.warps_n, one.warps_k, one.teams * one.blocks
        if len(found) < most and alike[kind] < _ALIKE:
            alike[kind] += 1
            found.append(one)
    return found + [one for one in every if type(one) is not MmaPlan]


def library_algorithms(problem: Problem) -> list[LibraryAlgorithm]:
    """Return the cublasLt algorithms worth measuring."""
    if problem.c == "any":
        return []
    return [LibraryAlgorithm(rank, own) for own in (False, True) for rank in range(1, _RANKS + 1)]


#: The key of a table row. `m`, `depth` and `w` are the m, k and w of the measured product. `k` is its second small
#: dimension (`key_of`). A row applies to products for which `key_of` gives a `k` and `w` of at most those of the row.
KEY = ("shape", "dtype", "along", "k", "w", "m", "depth", "c_by_rows")
#: The plan parameters in a row, by kernel name; `stage` is the number of bytes of A in a stage.
PICKED: Mapping[str, tuple[str, ...]] = {
    MmaPlan.kernel_name: ("tile_m", "warps_m", "warps_n", "warps_k", "teams", "stages", "blocks", "prepare_b", "stage"),
    WgmmaPlan.kernel_name: ("tile_m", "warps_m", "warps_k", "loaders", "job_pairs", "stages", "blocks", "stage"),
    RowsPlan.kernel_name: ("rows", "ahead"),
    WidePlan.kernel_name: ("ahead",),
    ColumnsPlan.kernel_name: ("ahead", "threads", "streams"),
    SplitPlan.kernel_name: (),
    SmallTsmttsmPlan.kernel_name: (),
    LIBRARY: (),
}
#: ALGORITHM: the field of a row for a cublasLt algorithm that was faster than the plan of the row. RANKED: the fields
#: of that algorithm. It applies only to the measured dtype and sizes, because cublasLt ranks algorithms per size. A row
#: may have an algorithm and no plan.
ALGORITHM = "algorithm"
RANKED = ("rank", "own_orders")
#: The field of an algorithm for the version of cublasLt that ranked the algorithm (`cublaslt.version`).
VERSION = "version"


def key_of(problem: Problem) -> dict[str, Any]:
    """Return the key of a table row that is measured for this problem.

    `k` is the second small dimension: m of a TSMTTSM, k of a TSM2L. A TSM2R has none, and `k` is `NARROW`.
    """
    shape = problem.shape
    short = {"tsmttsm": problem.m, "tsm2l": problem.k}.get(shape, NARROW)
    sizes = {"k": short, "w": problem.w, "m": problem.m, "depth": problem.k}
    about = {"shape": shape, "dtype": problem.dtype, "along": problem.a.along_depth}
    return about | sizes | {"c_by_rows": problem.c_by_rows}


def configuration_of(plan: AnyPlan | str) -> dict[str, Any]:
    """Return the fields of a row that describe a plan, an algorithm or `LIBRARY`."""
    if isinstance(plan, LibraryAlgorithm):
        return {ALGORITHM: {name: getattr(plan, name) for name in RANKED}}
    if isinstance(plan, str):
        return {"kernel": plan}
    return {"kernel": plan.kernel_name} | {name: _parameter(plan, name) for name in PICKED[plan.kernel_name]}


def _parameter(plan: AnyPlan, name: str) -> int | bool:
    return stage_bytes(plan) if name == "stage" and isinstance(plan, MmaPlan) else getattr(plan, name)


def _unlike(plan: AnyPlan, configuration: Mapping[str, Any]) -> tuple[int, float]:
    """Return how far a plan is from the configuration of a row, for comparison with other plans.

    The result is the number of different parameters, then the absolute log2 of the ratio of stage sizes. Possibly no
    plan matches the row exactly, because the row may come from a product with larger k and w.
    """
    names = PICKED[plan.kernel_name]
    different = sum(_parameter(plan, name) != configuration[name] for name in names if name != "stage")
    return different, abs(log2(_parameter(plan, "stage") / configuration["stage"])) if "stage" in names else 0.0


def _algorithm(table: Sequence[Mapping[str, Any]], problem: Problem) -> LibraryAlgorithm | None:
    """Return the cublasLt algorithm in the table for exactly this problem, or None."""
    if problem.gram or not _lies_as_measured(problem):
        return None
    own = key_of(problem)
    found = next((row[ALGORITHM] for row in table if ALGORITHM in row and own.items() <= row.items()), None)
    return found and LibraryAlgorithm(*(found[name] for name in RANKED))


def _lies_as_measured(problem: Problem) -> bool:
    """Return True if A, B and C are aligned, have no gaps, and are row- or column-major as in tune.py."""
    a, b = problem.a, problem.b
    across = problem.w == 1 or (a.along_depth == b.along_depth) == (problem.shape == "tsmttsm")
    lengths = ((a, problem.m), (b, problem.w))
    gapless = all(one.leading == (problem.k if one.along_depth else outer) for one, outer in lengths)
    aligned = a.base_alignment == b.base_alignment == 16 and problem.c in ("packed", "aligned columns")
    return across and gapless and aligned


def _look_up(
    table: Sequence[Mapping[str, Any]], problem: Problem, *, by_warpgroups: bool = True
) -> Mapping[str, Any] | None:
    """Return the row that applies with the smallest k + w; among equals, the row with the nearest m and depth.

    The k and w of the row must be at least those of the problem. A row for cuBLAS needs the same k, w and order of C,
    because cuBLAS may take five times as long for others. `by_warpgroups` is True if gemm_wgmma.cuh supports the
    problem; otherwise rows for that kernel do not apply.
    """
    own = key_of(problem)
    if problem.dtype == "bfloat16":
        own["dtype"] = "float16"  # the same bytes and the same instructions
    same = ("shape", "dtype", "along")
    rows = [
        row
        for row in table
        if "kernel" in row and row["k"] >= own["k"] and row["w"] >= own["w"]
        if all(row[name] == own[name] for name in same)
        if row["kernel"] != LIBRARY or all(row[name] == own[name] for name in ("k", "w", "c_by_rows"))
        if by_warpgroups or row["kernel"] != WgmmaPlan.kernel_name
    ]

    def distance(row: Mapping[str, Any]) -> tuple[float, ...]:
        taller, deeper = row["m"] / own["m"], row["depth"] / own["depth"]
        larger = {"tsm2l": taller, "tsmttsm": deeper}.get(problem.shape, taller * deeper)
        far = abs(log2(larger)), abs(log2(deeper))
        return row["k"] + row["w"], row["w"], *far, row["c_by_rows"] != own["c_by_rows"]

    return min(rows, key=distance, default=None)


@cache
def tuned_table(device_name: str, folder: Path = _TUNED) -> tuple[Mapping[str, Any], ...]:
    """Return the shipped tuning table of a device, completed by rows of the device from `measured_alike`.

    Rows of the second device contribute their plans, but not their cublasLt algorithms, which are ranked per device.
    """
    path = folder / f"{file_name_of(device_name)}.json"
    own = tuple(read_json(path)) if path.exists() else ()
    alike = measured_alike(device_name)
    if alike is None:
        return own
    theirs = tuned_table(alike, folder)
    rows = ({"kernel": LIBRARY} | {name: row[name] for name in row if name != ALGORITHM} for row in theirs)
    return tuple(completed(own, rows))


def completed(rows: Sequence[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of a table, followed by the rows of `others` whose keys the table does not have."""
    keys = {key_of_row(row) for row in rows}
    return [*rows, *(row for row in others if key_of_row(row) not in keys)]


def key_of_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of a table row."""
    return tuple(row[name] for name in KEY)
