"""Balanced runs over X in the memory of a HostMachine: what a GPU computes, with NumPy in place of CuPy."""

import numpy as np
import pytest
from host_cuda.machine import HostMachine
from kmeans.balanced.problems import assert_within
from kmeans.host_steps import RowsOnMachine

from tsapps.apps.kmeans.balanced.costs import Costs
from tsapps.apps.kmeans.balanced.limits import limits_of
from tsapps.apps.kmeans.balanced.lloyd import run_from
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.open_engine import open_engine


@pytest.mark.parametrize("memory", [1 << 34, 1 << 30], ids=["kept", "computed again"])
def test_as_on_the_cpu(memory, rng):
    X = rng.standard_normal((3000, 4)).astype(np.float32)
    limits, centers = limits_of(3000, 7, 1, None), X[:7]
    expected = run_from(open_engine(X, device="cpu").data, centers, limits, 5, 0.0)
    engine = DeviceEngine(RowsOnMachine(X), X.dtype, None, HostMachine(memory=memory), Options(always=True))
    mean = engine.data.moments()[0]
    engine.center(mean, 7)
    costs = Costs(engine.data, centers, engine.data.square_norm())
    assert (costs._kept is None) == (memory < 1 << 32)
    found = run_from(engine.data, centers - engine.data.host_mean(), limits, 5, 0.0)
    assert_within(limits, found.labels, 7)
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert (found.gap, expected.gap) == (0, 0)
    assert found.inertia == pytest.approx(expected.inertia, rel=1e-5)
    np.testing.assert_allclose(found.centers + engine.data.host_mean(), expected.centers, atol=1e-5)
