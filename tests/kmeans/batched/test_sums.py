"""Sums of `kmeans_batched`, by the kernels' own source on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
from kmeans.batches import assert_nearest, assert_sums, batch_of, blobs, integers_of

from tsapps.apps.kmeans.batched.plan import STATUS


@pytest.mark.parametrize(("d", "k"), [(1, 3), (7, 7), (24, 7), (140, 20), (40, 330)])
def test_kinds_of_sums(d, k, rng):
    # Groups of 1 to 32 lanes; several rounds of columns; several rounds of rows per block.
    X, centers = blobs(3, 500, d, k, rng)
    batch = batch_of(X, k, max_iter=3, tol=0)
    assert batch.arrays["narrow"].tolist() == [1, 1, 1]
    batch.arrays["narrow"][2] = 0
    centers[:, :k] = X[:, :k]  # no cluster is empty
    batch.start_at(centers)
    batch.iterate()
    assert_nearest(batch)
    batch.status.fill(STATUS["running"])
    batch._bind_update()[0]()  # adds the changes of the final assignment
    assert_sums(batch)


@pytest.mark.parametrize("share", [32, 8192])
def test_sums_of_many_rows_in_one_block(share, rng):
    X, centers = blobs(1, 700, 6, 5, rng)
    batch = batch_of(X, 5, max_iter=1, tol=0)
    batch.plan = replace(batch.plan, share=share, update_bytes=16 * share + 20)
    batch.start_at(centers)
    batch.iterate()
    batch.status.fill(STATUS["running"])
    batch._bind_update()[0]()
    assert_sums(batch)


def test_sums_of_more_clusters_than_are_sorted(rng):
    batch = batch_of(rng.standard_normal((1, 300, 2)), 8200)
    assert batch.plan.update_bytes == 16 * 300
    before = rng.integers(-1, 8200, 300)
    batch.labels[0] = rng.integers(0, 8200, 300)
    batch.arrays["changes"][0] = np.column_stack([np.arange(300), before])
    batch.arrays["counts"][:], batch.status[:] = 300, STATUS["running"]
    batch._bind_update()[0]()
    np.add.at(batch.arrays["sums"][0], before[before >= 0], integers_of(batch, 0, before >= 0))
    assert_sums(batch)
