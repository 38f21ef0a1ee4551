"""Greedy k-means++ on the CPU against the kernels: the same distances, sums and samples, bit by bit."""

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from kmeans.init.host_draw import SHAPES, Seeding, blobs, trials_of

from tsapps.apps.kmeans.data.kernel_order import running_sums
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.init.plusplus_host import ChunkedDraw
from tsapps.apps.kmeans.init.plusplus_order import PlusPlusOrder


def draw_of(X, k, dtype, weights=None):
    given = None if weights is None else weights.astype(dtype)
    data = HostEngine(ArrayRows(X.astype(dtype)), np.dtype(dtype), given, as_kernels=True).data
    data.center(data.moments()[0])
    return ChunkedDraw(data, trials_of(k))


@pytest.mark.parametrize(("d", "k", "dtype", "weighted"), SHAPES)
def test_the_bits_of_every_step_are_those_of_the_kernels(d, k, dtype, weighted, rng):
    n, steps = 700, min(k, 12)
    X, weights = blobs(n, d, k), rng.random(n) + 0.5 if weighted else None
    kernels = Seeding(X, k, dtype, None if weights is None else weights.astype(dtype), first=5)
    host, draws = draw_of(X, k, dtype, weights), rng.random((k - 1, trials_of(k)))
    assert host.order.chunk == kernels.plan.chunk
    points, best = host.rows_as_read(np.array([5])), 0
    host.add(points[0])
    sums = host.sums()[np.newaxis].repeat(trials_of(k), axis=0)
    for step in range(steps):
        kernels.evaluate(step)
        np.testing.assert_array_equal(kernels.all_sums, sums)
        kernels.follow(step, draws[step] if step < k - 1 else None)
        best = int(host.order.totals(sums).argmin())
        assert kernels.chosen[step] == kernels.candidates[step][best]
        if step == k - 1:
            break
        if step:
            host.add(points[best])
        candidates, points = host.find(*host.order.find_chunks(sums[best], draws[step]))
        assert kernels.candidates[step + 1].tolist() == candidates.tolist()
        sums = host.potentials(points)
        np.testing.assert_array_equal(points, kernels.X[candidates])


@pytest.mark.parametrize("n", [3, 700, 70_000])
def test_draws_at_the_ends(n):
    """The first and the last row, and rows at which running sums are reached exactly."""
    X = np.arange(4.0 * n).reshape(n, 4) % 7
    kernels, host = Seeding(X, 2, "float64"), draw_of(X, 2, "float64")
    host.add(X[0])
    sums = host.sums()
    for draws in ([0.0, 1 - 2.0**-53], [0.5, 0.25], [2.0**-53, 0.75]):
        kernels.step(0, np.array(draws))
        found, _ = host.find(*host.order.find_chunks(sums, np.array(draws)))
        assert kernels.candidates[1].tolist() == found.tolist()


@property_test(
    60,
    3000,
    d=st.integers(1, 40) | st.integers(41, 2600),
    dtype=st.sampled_from([np.float32, np.float64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_distances_are_near_those_in_float64(d, dtype, seed):
    rng = np.random.default_rng(seed)
    rows, points = (rng.standard_normal((5, d)).astype(dtype) for _ in range(2))
    order = PlusPlusOrder.of(1000, d, 3, rows.itemsize)
    exact = ((rows.astype(np.longdouble) - points.astype(np.longdouble)) ** 2).sum(axis=1)
    found = order.square_distances(rows, points)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float64), exact.astype(np.float64), rtol=(d + 3) * np.finfo(dtype).eps)


def test_running_sums_by_hand():
    up_to, before, every = running_sums(np.arange(64.0))
    np.testing.assert_array_equal(up_to, np.cumsum(np.arange(64.0)))
    np.testing.assert_array_equal(before, np.cumsum(np.arange(64.0)) - np.arange(64.0))
    assert every == 2016
