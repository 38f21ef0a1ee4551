"""Fits of several numbers of clusters in common launches on a GPU: each has the bits of a fit alone."""

import numpy as np
import pytest
from kmeans.host_steps import DTYPES

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.apps.kmeans.sweep.fit import fit_together
from tsapps.kernels.arrays import to_host

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("n", "d", "dtype", "numbers", "options"),
    [
        (200_003, 64, "float32", tuple(range(20, 1, -1)), {}),
        (200_003, 3, "float32", (12, 5, 4, 3, 2), {}),
        (100_000, 17, "float64", (33, 32, 17, 8), {"max_iter": 20}),
        (100_001, 128, "float16", (20, 16, 9, 2), {"max_iter": 20}),
        (60_000, 256, "float32", (64, 8, 5), {"max_iter": 10}),
        (40_000, 100, "float32", tuple(range(64, 1, -1)), {"max_iter": 5}),
        (3_000_000, 8, "float32", (7, 3), {"max_iter": 3}),  # a block's sums overflow several times
    ],
)
def test_bits(n, d, dtype, numbers, options, rng):
    X = rng.standard_normal((n, d), dtype=np.float32) + 3 * rng.standard_normal((9, d))[np.arange(n) % 9]
    X = X.astype(DTYPES[dtype])

    def opened():
        return open_engine(X, device="cuda", engine="fused")

    found, again = (fit_together(opened(), numbers, seed=3, **options) for _ in range(2))
    assert set(found) == set(again) == set(numbers)
    for k, one in found.items():
        alone = lloyd.fit(opened(), k, random_state=np.random.RandomState(3), **options)
        np.testing.assert_array_equal(to_host(one.labels), to_host(alone.labels))
        np.testing.assert_array_equal(to_host(again[k].labels), to_host(alone.labels))
        np.testing.assert_array_equal(one.centers, alone.centers)
        np.testing.assert_array_equal(one.cluster_sizes, alone.cluster_sizes)
        assert (one.inertia, one.n_iter, one.converged) == (alone.inertia, alone.n_iter, alone.converged)


def test_distant_rows(rng):
    """Bounds of rows near the mean, and of rows beyond the limit of norms."""
    X = rng.standard_normal((100_000, 20))
    X[:7] += 1e5 * rng.standard_normal((7, 20))
    X[::1000] = X.mean(axis=0)
    X, numbers = X.astype(np.float32), (12, 9, 6, 3, 2)
    found = fit_together(open_engine(X, device="cuda"), numbers, seed=3)
    assert len(found) > 1
    for k, one in found.items():
        alone = lloyd.fit(open_engine(X, device="cuda"), k, random_state=np.random.RandomState(3))
        np.testing.assert_array_equal(to_host(one.labels), to_host(alone.labels))
        np.testing.assert_array_equal(one.centers, alone.centers)
