"""Rows split into two float16 parts on a HostMachine: the copy against NumPy, and how few labels are ambiguous."""

import numpy as np
import pytest
from kmeans.host_steps import DTYPES, FAR_KINDS, KINDS, assert_right, away_of, blobs, centered, data_on_host
from kmeans.large_k_steps import SPLITS, assign, step_of


@pytest.mark.parametrize("n", [1, 31, 700])
@pytest.mark.parametrize("kind", [KINDS[0], *KINDS[3:], *FAR_KINDS], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "plan"), SPLITS)
def test_split_copy(d, plan, kind, n, rng):
    """The three parts of each row, and norms that bound what they lose of it."""
    X = (blobs(n, d, 9, rng)[0] + away_of(kind)) * np.exp(rng.uniform(-6, 5, (n, 1)))
    X[n // 2] *= 1e-6
    mean = X.mean(axis=0)
    if kind[0] != "float16":
        X[n // 3 : n // 3 + n // 100] *= 1e7  # infinite in float16
    data = data_on_host(X, kind, mean=mean, middle=3.0, multiprocessors=1)
    half_copy = data.half_copy(plan.row_panels, certifies=True, split=True)
    wanted = (centered(data) * data.dtype.type(half_copy.scale)).astype(np.float64)
    # From tiles of 64 rows in panels of 16 columns, which have groups of 8 rows and 8 columns.
    panels = half_copy.rows.reshape(-1, plan.row_panels, 8, 2, 8, 8)
    found = panels.transpose(0, 2, 4, 1, 3, 5).reshape(-1, 16 * plan.row_panels)[:n].astype(np.float64)
    first, second, again, rest = np.split(found, [d, 2 * d, 3 * d], axis=1)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(first, wanted.astype(np.float32).astype(np.float16))
    np.testing.assert_array_equal(again, first)
    assert not rest.any()
    fine = np.isfinite(first).all(axis=1)
    assert fine.mean() >= 0.98
    assert fine.all() == (n < 100 or kind[0] == "float16")
    assert (half_copy.norms[~fine] == np.inf).all()
    first, second, wanted, norms = first[fine], second[fine], wanted[fine], half_copy.norms[fine]
    np.testing.assert_array_equal(second, (wanted - first).astype(np.float32).astype(np.float16))
    lost = np.linalg.norm(wanted - first - second, axis=1)
    least = np.maximum(np.linalg.norm(first + second, axis=1), lost / (half_copy.rounding / 2))
    assert (norms >= least).all()
    assert (norms <= least * 1.0005).all()
    # With any centers: the score error that the copy causes, of a sum without roundings.
    centers = rng.standard_normal((50, d)) * np.exp(3 * rng.standard_normal((50, 1)))
    one = centers.astype(np.float16).astype(np.float64)
    two = (centers - one).astype(np.float16).astype(np.float64)
    error = abs(wanted @ centers.T - (first @ (one + two).T + second @ one.T))
    of_centers = half_copy.rounding * np.linalg.norm(centers, axis=1) + np.linalg.norm(centers - one - two, axis=1)
    assert (error <= norms[:, np.newaxis] * of_centers).all()


@pytest.mark.each_choice
@pytest.mark.parametrize("kind", [*KINDS, *FAR_KINDS], ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize(("d", "plan"), SPLITS, ids=["full", "padded", "in parts"])
def test_few_rows_are_ambiguous_if_rows_are_split(d, plan, kind, rng):
    n, k = 200, plan.columns + 12
    X, centers = blobs(n, d, k, rng, apart=0.7)
    weights = rng.random(n) * 3 if kind[2] else None
    X = (X + away_of(kind)).astype(DTYPES[kind[0]]).astype(np.float64)
    X[:20] = np.round(X[:20])
    centers[1:60] = np.round(centers[1:60])  # some at equal distances
    step = step_of(X, k, kind, plan, weights, X.mean(axis=0))
    for now in (centers, centers[::-1].copy()):
        before, moved = step.labels.copy(), now + away_of(kind) - step.data.shift
        ambiguous, n_reassigned = assign(step, moved)
        assert_right(step, moved)
        assert n_reassigned == np.count_nonzero(before != step.labels)
        assert len(ambiguous) <= 20
