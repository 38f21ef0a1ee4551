"""Fits of X in one process and of X as parts, which must have the same bits; and a deadline for what may wait."""

import faulthandler
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from tsapps import open_matrix
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.rows import ArrayRows, UnitRows
from tsapps.apps.kmeans.distributed.crew import LocalCrew, cut_rows, specs_of
from tsapps.apps.kmeans.distributed.partitioned_engine import PartitionedEngine, PartLabels, source_of
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.open_engine import compute_dtype

__all__ = ["SHARES", "fitted", "host_engine", "labels_of", "parted_engine", "same_bits", "samples", "stored", "within"]

T = TypeVar("T")

SHARES = [(1,), (1, 1), (9, 1), (1, 3, 1, 2), (1,) * 40]


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises; the test fails if that takes longer than `seconds`."""
    outcome: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            outcome.append((True, work()))
        except BaseException as error:  # noqa: BLE001 (raised again below)
            outcome.append((False, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        faulthandler.dump_traceback(sys.__stderr__, all_threads=True)
        pytest.fail(f"no end after {seconds} s")
    returned, found = outcome[0]
    if not returned:
        raise found
    return found


def samples(rng: np.random.Generator, n: int, d: int, k: int, dtype: Any = np.float32) -> np.ndarray:
    """Return n rows about k points."""
    return (3 * rng.standard_normal((k, d))[rng.integers(0, k, n)] + rng.standard_normal((n, d))).astype(dtype)


def host_engine(X: np.ndarray, weights: np.ndarray | None = None, *, spherical: bool = False) -> HostEngine:
    """Return the engine of one process for all rows."""
    dtype = compute_dtype(X.dtype, on_gpu=True)

    def over(rows: Any) -> HostEngine:
        made = HostEngine(rows, dtype, weights, as_kernels=True)
        made.over = over
        return made

    rows = ArrayRows(X)
    return over(UnitRows(rows, dtype) if spherical else rows)


def parted_engine(
    X: np.ndarray,
    weights: np.ndarray | None = None,
    shares: Any = (1, 1),
    *,
    spherical: bool = False,
    crew: type[LocalCrew] = LocalCrew,
    device: str = "cpu",
) -> PartitionedEngine:
    """Return an engine for X as parts of these shares."""
    dtype = compute_dtype(X.dtype, on_gpu=True)
    weights = None if weights is None else weights.astype(dtype)
    parts = cut_rows(*X.shape, dtype, shares)
    specs = specs_of(parts, dtype, spherical=spherical, devices=[device])
    made = crew([X[part.start : part.stop] for part in parts], weights, specs, device)
    return PartitionedEngine(source_of(X.shape, X.dtype, dtype, spherical=spherical), dtype, weights, made)


def stored(X: np.ndarray, where: str, folder: Path) -> Any:
    """Return X in a file ("npy"), in two files ("parts"), or as an array whose columns are contiguous ("fortran")."""
    if where == "fortran":
        return np.asfortranarray(X)
    cut = len(X) if where == "npy" else len(X) * 3 // 10 + 1
    for name, rows in zip("ab", np.split(X, [cut]), strict=True):
        if len(rows):
            np.save(folder / f"{name}.npy", rows)
    return open_matrix(folder / "a.npy" if where == "npy" else folder)


def fitted(engine: Any, k: int, **options: Any) -> lloyd.Clustering:
    given = {"n_init": 1, "max_iter": 6, "tol": 0.0, "random_state": np.random.RandomState(0), **options}
    return lloyd.fit(engine, k, **given)


def labels_of(found: lloyd.Clustering) -> np.ndarray:
    return found.labels.gathered() if isinstance(found.labels, PartLabels) else found.labels


def same_bits(found: lloyd.Clustering, expected: lloyd.Clustering) -> None:
    """Check that two clusterings have one digest."""
    np.testing.assert_array_equal(labels_of(found), labels_of(expected))
    assert labels_of(found).dtype == np.int32
    np.testing.assert_array_equal(found.centers, expected.centers)
    assert found.centers.dtype == expected.centers.dtype
    np.testing.assert_array_equal(found.cluster_sizes, expected.cluster_sizes)
    assert (found.inertia, found.n_iter, found.converged) == (expected.inertia, expected.n_iter, expected.converged)
