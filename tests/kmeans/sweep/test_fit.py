"""Fits of several numbers of clusters in common launches, on a HostMachine: each has the bits of a fit alone."""

import numpy as np
import pytest
from host_cuda.machine import HostMachine
from kmeans.host_steps import DTYPES, RowsOnMachine, work_of

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.sweep.fit import fit_together


def opened(X, weights=None, multiprocessors=3, **options):
    work = work_of(X.dtype.name)
    return DeviceEngine(RowsOnMachine(X), work, weights, HostMachine(multiprocessors), Options(always=True, **options))


def overlapping(n, d, k, rng):
    """Return samples of clusters that overlap, far from zero compared with their spread."""
    return 20 + 3 * rng.standard_normal((k, d))[np.arange(n) % k] / d**0.5 + rng.standard_normal((n, d))


def assert_as_alone(X, numbers, weights=None, *, expected=None, **options):
    """Fit together, and each alone: those of `expected`, or all, are fitted together, with the same bits."""
    options = {"max_iter": 30} | options
    found = fit_together(opened(X, weights), numbers, seed=3, **options)
    assert sorted(found) == sorted(numbers if expected is None else expected)
    for k, one in found.items():
        alone = lloyd.fit(opened(X, weights), k, random_state=np.random.RandomState(3), **options)
        np.testing.assert_array_equal(one.labels, alone.labels)
        np.testing.assert_array_equal(one.centers, alone.centers)
        np.testing.assert_array_equal(one.cluster_sizes, alone.cluster_sizes)
        assert one.centers.dtype == alone.centers.dtype
        assert (one.inertia, one.n_iter, one.converged) == (alone.inertia, alone.n_iter, alone.converged)
        assert (one.step, one.step_reason) == (alone.step, alone.step_reason)
    return found


@pytest.mark.parametrize(
    ("n", "d", "dtype", "numbers"),
    [
        (300, 20, "float32", (20, 9, 8, 2)),
        (1000, 3, "float32", (5, 4, 3, 2, 1)),
        (257, 64, "float64", (17, 16, 3)),
        (300, 70, "float16", (33, 6, 4)),
        (100, 130, "bfloat16", (12, 2)),
        (33, 256, "float32", (33, 3)),
    ],
)
def test_bits(n, d, dtype, numbers, rng):
    assert_as_alone(overlapping(n, d, 7, rng).astype(DTYPES[dtype]), numbers)
