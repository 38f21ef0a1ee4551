"""``tsapps info``: show installed versions, devices, memory, and the default device."""

import sys
from typing import Any

from tsapps import __version__
from tsapps.cli.options import Json
from tsapps.cli.output import gibibytes, print_json, print_table

__all__ = ["info", "versions"]

_OPTIONAL = (
    *("h5py", "ml_dtypes", "numba", "pyarrow", "safetensors"),
    *("pillow", "matplotlib", "pandas", "polars", "torch"),
)


def versions() -> dict[str, str]:
    """Return the versions of dependencies that affect results; CuPy's only if it is imported."""
    import platform
    from importlib.metadata import version

    found = {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}
    found = {"tsapps": __version__, "python": platform.python_version(), **found}
    if "cupy" in sys.modules:
        found["cupy"] = sys.modules["cupy"].__version__
    return found


def _optional_versions() -> dict[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in _OPTIONAL:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def _picks(device_name: str) -> dict[str, Any]:
    """Return the path and the size of the user's tuning table for a GPU, and the size of the shipped table.

    If the user's table is unreadable, the error is a part of the result: users look here for the cause of a problem.
    """
    from tsapps.kernels.plan.select import tuned_table
    from tsapps.kernels.plan.user_table import own_table, user_path

    found: dict[str, Any] = {"path": None, "own": 0, "error": None}
    try:
        path = user_path(device_name)
        found["path"] = str(path) if path.exists() else None
        found["own"] = len(own_table(device_name))
    except (ValueError, OSError) as error:
        found["error"] = str(error)
    return found | {"shipped": len(tuned_table(device_name))}


def _describe_picks(path: str | None, own: int, error: str | None, shipped: int) -> str:
    if error:
        return error
    if not path:
        return f"{shipped} shipped with tsapps" if shipped else "none: plans are chosen by the model (see tsapps tune)"
    return f"{own} of yours, {path}; for the rest {f'{shipped} shipped with tsapps' if shipped else 'the model'}"


def _kmeans_steps(index: int) -> list[dict[str, str]]:
    """Return the K-means steps selected on a GPU for float32 data of `COMMON_SHAPES`, with the reasons."""
    from tsapps.apps.kmeans.engines.compile_kernels import COMMON_SHAPES
    from tsapps.apps.kmeans.engines.select_step import Facts, Norms, Options, select_step
    from tsapps.kernels.gpu_specs import live

    found = []
    for n, d, k in COMMON_SHAPES:
        facts = Facts(n=n, d=d, dtype="float32", x_dtype="float32", norms=Norms(0.0, 1.0, 2))
        selected = select_step(facts, k, live(index), Options())
        found.append({"shape": f"{n // 10**6}M × {d}, k = {k}", "step": selected.step, "reason": selected.reason})
    return found


def _cpu_checksums(numba: str | None) -> str:
    """Return a phrase that says what computes the exact code's checksums on the CPU."""
    if numba is None:
        return "on the CPU by NumPy; of large data in a fraction of the time with numba: pip install numba"
    return f"on the CPU by NumPy, of large data by machine code of numba {numba}"


def info(as_json: Json = False) -> None:
    """Show versions, devices, memory, and the device that --device auto selects."""
    import platform

    from tsapps.kernels.devices import available_cores, choose_device, gpus, why_no_gpu
    from tsapps.kernels.system.cache import cache_directory
    from tsapps.kernels.system.host_memory import available_host_memory

    choice = choose_device("auto")
    cores = available_cores()
    picks = {f"cuda:{gpu.index}": _picks(gpu.name) for gpu in gpus()}
    try:
        cache = str(cache_directory())
    except OSError as error:
        cache = f"none: {error.strerror}"
    report: dict[str, Any] = {
        "versions": versions(),
        "platform": platform.platform(),
        "cpu": {"cores": cores, "memory_available": available_host_memory()},
        "gpus": [gpu.as_dict() for gpu in gpus()],
        "picks": picks,
        "why_no_gpu": why_no_gpu() or None,
        "auto": {"device": choice.device, "reason": choice.reason},
        "kmeans_steps": {f"cuda:{gpu.index}": _kmeans_steps(gpu.index) for gpu in gpus()},
        "cache": cache,
        "optional": _optional_versions(),
    }
    report["cpu_checksums"] = _cpu_checksums(report["optional"]["numba"])
    if as_json:
        print_json(report)
        return
    rows = dict(report["versions"])
    rows["platform"] = report["platform"]
    rows["cpu"] = f"{cores} cores, {gibibytes(available_host_memory())} of memory available"
    for gpu in gpus():
        rows[f"cuda:{gpu.index}"] = (
            f"{gpu.name}, {gibibytes(gpu.memory)}, compute capability {gpu.compute_capability}, "
            f"{gpu.multiprocessors} multiprocessors"
        )
        rows[f"cuda:{gpu.index} tuned configurations"] = _describe_picks(**picks[f"cuda:{gpu.index}"])
        for of in report["kmeans_steps"][f"cuda:{gpu.index}"]:
            rows[f"cuda:{gpu.index} K-means {of['shape']}"] = f"{of['step']}: {of['reason']}"
    if not gpus():
        rows["gpu"] = f"none: {why_no_gpu()}"
    rows["auto"] = f"{choice.device}: {choice.reason}"
    rows["checksums"] = report["cpu_checksums"]
    rows["cache"] = cache
    rows["optional"] = ", ".join(f"{name} {number or '–'}" for name, number in report["optional"].items())
    print_table(rows)
