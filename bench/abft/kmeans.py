"""Fault injection into protected K-means: campaign cells of a fault, a time and an engine each (`kmeans_faults.py`)."""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from bench.abft.campaign import Cell, Counts
from bench.kmeans.faults import FAULTS, KINDS, WHEN, Seams, tried
from tsapps.apps.kmeans.engines.cpu import CpuEngine

__all__ = ["cells", "try_kmeans"]

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
        outcome = tried(_engine(device), FAULTS[fault], when, cell.distribution, cell.dtype, rng)
        counts.trials += 1
        counts.harmless += outcome in ("no effect", "healed")
        counts.miscorrected += outcome.startswith("other")
        counts.detected += outcome in ("repaired", "raised", "other noticed")
        counts.repaired += outcome == "repaired"
    counts.located = counts.detected
    counts.certain = counts.trials - counts.harmless
    counts.certain_detected, counts.certain_repaired = counts.detected, counts.repaired
    return counts


def _engine(device: str) -> Any:
    if device == "cpu":
        return type("FaultyCpuEngine", (Seams, CpuEngine), {})
    from tsapps.apps.kmeans.engines.cublas import CublasEngine

    return partial(type("FaultyCublasEngine", (Seams, CublasEngine), {}), index=0)
