"""Fault injection into protected K-means: campaign cells of a fault (kmeans/faults.py), a time and an engine."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from tsapps.bench.abft.campaign import Cell, Counts
from tsapps.bench.kmeans.faults import FAULTS, KINDS, WHEN, host_engine, tried, with_seams

__all__ = ["cells", "engine_of", "try_kmeans"]

# Trials per cell, each a fit with a fault and one without; maximum samples and features.
_TRIALS, _MOST = 10, (898, 8)


def cells() -> Iterator[Cell]:
    """Yield a cell for each engine with floating-point sums, dtype, kind of data, fault and time."""
    for dtype, kind, code, fault, when in product(("float64", "float32"), KINDS, ("numpy", "cublas"), FAULTS, WHEN):
        yield Cell("kmeans", code, dtype, kind, f"{fault}; {when}", *_MOST)


def try_kmeans(cell: Cell, seed: int, device: str) -> Counts:
    """Run a cell; an undetected trial is harmless if the result has the same bits, and wrong otherwise."""
    rng, counts = cell.generator(seed), Counts()
    fault, _, when = cell.fault.partition("; ")
    for _ in range(_TRIALS):
        outcome = tried(engine_of(device), FAULTS[fault], when, cell.distribution, cell.dtype, rng)
        counts.trials += 1
        counts.harmless += outcome in ("no effect", "healed")
        counts.miscorrected += outcome.startswith("other")
        counts.detected += outcome in ("repaired", "raised", "other noticed")
        counts.repaired += outcome == "repaired"
    counts.located = counts.detected
    counts.certain = counts.trials - counts.harmless
    counts.certain_detected, counts.certain_repaired = counts.detected, counts.repaired
    return counts


def engine_of(device: str) -> Any:
    """Return a factory of engines on a device whose step has seams; see `faults.injected`."""
    if device == "cpu":
        return host_engine
    from tsapps.apps.kmeans.data.device_data import DeviceData
    from tsapps.apps.kmeans.engines.cublas_step import CublasStep
    from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
    from tsapps.apps.kmeans.engines.select_step import Options
    from tsapps.kernels.runtime.machine import cuda_machine

    machine = cuda_machine(0)

    def cublas_engine(*given: Any) -> Any:
        engine = DeviceEngine(*given, machine, Options(kernels=False))
        return with_seams(engine, DeviceData, CublasStep, *given, machine)

    return cublas_engine
