"""Table of what each GPU computes, and how that is known: from published specifications and the plans selected by them.

A GPU is *measured* if there are records of it, and *compiled* if the test suite compiles its kernels for its compute
capability. Plans of its products are measured on it or on a GPU of the same multiprocessors, or else *predicted*.
"""

from tsapps.apps.kmeans.batched.plan import batch_plan
from tsapps.apps.kmeans.engines.compile_kernels import GPUS
from tsapps.apps.kmeans.engines.select_step import Facts, Norms, Options, StepPlan, select_step
from tsapps.bench.common import record
from tsapps.kernels.gpu_specs import KNOWN, GpuSpec
from tsapps.kernels.plan.select import tuned_table

__all__ = ["gpu_table"]

_RESULTS = record.ROOT / "bench" / "results"
# The table begins with Volta.
_LEAST_CAPABILITY = 7.0
_HEAD = (
    *("GPU", "Compute capability", "Memory, GB/s", "K-means, k ≤ 64", "K-means, k > 64", "`kmeans_batched`"),
    *("`matmul`, `gram`", "K-means is", "plans of products are"),
)


def gpu_table() -> str:
    """Return the table, in Markdown."""
    rows = [_row(gpu) for gpu in KNOWN.values() if float(gpu.compute_capability) >= _LEAST_CAPABILITY]
    lines = [_HEAD, ("---",) * len(_HEAD), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(gpu: GpuSpec) -> tuple[str, ...]:
    of_small_k, of_large_k = (_step(k, gpu) for k in (64, 1000))
    is_batched = batch_plan(1000, 64, 16, gpu) is not None
    compiles = gpu.name in GPUS
    return (
        gpu.name,
        gpu.compute_capability,
        f"{gpu.bandwidth / 1e9:.0f}",
        "cuBLAS" if of_small_k.plan is None else "yes",
        "cuBLAS" if of_large_k.plan is None else "`wgmma`" if "wgmma" in of_large_k.plan.NAME else "`mma`",
        "yes" if is_batched else "one after the other",
        "yes" if compiles else "small ones; else cuBLAS",
        "measured" if _is_measured(gpu) else "compiled" if compiles else "–",
        _products(gpu) if compiles else "–",
    )


def _step(k: int, gpu: GpuSpec) -> StepPlan:
    """Return the step for k clusters of a million float32 rows of 128 features."""
    norms = Norms(shift=0.0, rows=10.0, digits=2)
    return select_step(Facts(n=1_000_000, d=128, dtype="float32", x_dtype="float32", norms=norms), k, gpu, Options())


def _is_measured(gpu: GpuSpec) -> bool:
    """Return whether there are records of K-means on this GPU; their folders have its name and perhaps its memory's."""
    names = {name for folder in _RESULTS.iterdir() for name in (folder.name, folder.name.split("-")[0])}
    return gpu.name.lower().replace(" ", "-") in names


def _products(gpu: GpuSpec) -> str:
    if _is_measured(gpu):
        return "measured"
    return "as on an H200" if tuned_table(f"NVIDIA {gpu.name}") else "predicted"
