"""What the kernels for few features and few clusters do alike, their own source run on the CPU."""

from functools import partial

import numpy as np
import oracle
import pytest
from exhaustive import property_test
from host_cuda import few_features, few_products, harness
from host_cuda.few_features import FewIterations
from host_cuda.few_products import ProductsIterations
from host_cuda.fused_kmeans import blobs
from hypothesis import strategies as st

_FEATURES = partial(FewIterations, kind=("float32", 2, False))
_PRODUCTS = partial(ProductsIterations, kind=("float32", 2, False))
_WARPGROUPS = {
    dtype: partial(ProductsIterations, kind=(dtype, 2, False), warpgroups=True) for dtype in ("float16", "bfloat16")
}


def kernels(many):
    """Return every kernel, with 4 features or as many as are given."""
    kinds = {"features": _FEATURES, "products": _PRODUCTS} | {f"warpgroups, {k}": v for k, v in _WARPGROUPS.items()}
    return [pytest.param(made, 4 if made is _FEATURES else many, id=kind) for kind, made in kinds.items()]


KERNELS = kernels(16)
_OF_SINGLES = [1e-27, 1e-20, 1e-10, 1e10, 1e18, 1e27]
_OF_HALVES = [2.0**-20, 2.0**-10, 1.0, 2.0**10]
_OF_BFLOAT16 = [*_OF_HALVES, 1e-27, 1e-18, 1e10, 1e18]
MAGNITUDES = [
    pytest.param(*kernel.values, magnitude, id=f"{kernel.id}, {magnitude:g}")
    for kernel, of_kernel in zip(KERNELS, (_OF_SINGLES, _OF_SINGLES, _OF_HALVES, _OF_BFLOAT16), strict=True)
    for magnitude in of_kernel
]
SHAPES = [
    *((_FEATURES, d, k) for d, k in few_features.SHAPES),
    *((_PRODUCTS, d, k) for d, k in few_products.SHAPES),
    *((made, d, k) for made in _WARPGROUPS.values() for d, k in few_products.WARPGROUP_SHAPES),
]


@pytest.mark.each_choice
@pytest.mark.parametrize(("made", "d", "magnitude"), MAGNITUDES)
def test_any_magnitude(made, d, magnitude, rng):
    X, centers = blobs(900, d, 16, rng)
    of = made(X * magnitude, 16)
    for now in (centers * magnitude, centers[::-1] * magnitude):
        of.iterate(now)
        of.assert_right(now)


@pytest.mark.parametrize("which", [0, 3])
@pytest.mark.parametrize("away", [30.0, 1e4, 1e30])
@pytest.mark.parametrize(("made", "d"), KERNELS)
def test_a_center_far_away(made, d, away, which, rng):
    X, centers = blobs(900, d, 16, rng)
    X[5], centers[7] = 100.0, 100.0  # an outlier, and its cluster
    of = made(X, 16)
    for now in (away, 0.0, away):  # at first no row has a label
        centers[which] = now
        of.iterate(centers)
        of.assert_right(centers)
        assert of.labels[5] == 7


@pytest.mark.parametrize(("made", "d"), kernels(14))
def test_no_center_is_near(made, d, rng):
    X, centers = blobs(500, d, 2, rng)
    of = made(X, 2)
    for away in (1e3, 1e6, 1e12):
        now = centers + away * np.eye(d)[0]
        of.iterate(now)
        of.assert_right(now)


@pytest.mark.parametrize(
    ("made", "d", "k"),
    [
        *((_FEATURES, d, k) for d, k in ((3, 9), (16, 16), (8, 33))),
        *((_PRODUCTS, d, k) for d, k in ((3, 9), (16, 16), (20, 40), (64, 64))),
    ],
)
def test_far_off_center_and_equal_centers(made, d, k, rng):
    X, centers = blobs(900, d, k, rng)
    X, centers = X + 1e4, centers + 1e4
    centers[5] = centers[2]
    centers[k - 1] = centers[1]  # of another chunk, or block
    of = made(X, k, mean=X.mean(axis=0))
    centers = centers.astype(np.float32) - of.mean
    of.iterate(centers)
    of.assert_right(centers)
    assert not np.isin(of.labels, (5, k - 1)).any()  # the lower of equals


@pytest.mark.parametrize(("made", "d"), kernels(14))
def test_many_moves_with_few_rows_moving_at_a_time(made, d, rng):
    # A row in forty, so that queues are filled by several tiles.
    X = np.zeros((3000, d))
    X[:, d // 2] = np.where(np.arange(3000) % 40, 0.0, rng.random(3000))
    of = made(X, 2)
    centers = np.zeros((2, d))
    centers[1, d // 2] = 5
    assert of.iterate(centers) == 3000
    centers[1, d // 2] = 0.5
    expected = np.count_nonzero(of.centered[:, d // 2] > 0.25)
    assert 20 < expected < 75
    assert of.iterate(centers) == expected
    of.assert_right(centers)


@pytest.mark.parametrize(
    ("made", "d", "k"),
    [
        *((_FEATURES, d, k) for d, k in ((3, 2), (4, 16), (16, 9))),
        *((_PRODUCTS, d, k) for d, k in ((14, 2), (16, 16), (32, 64))),
    ],
)
def test_iterations_without_the_host(made, d, k, rng):
    n = 900
    X, centers = blobs(n, d, k, rng, apart=1.0)
    of = made(X, k, mean=X.mean(axis=0))
    centers = (centers - X.mean(axis=0)).astype(np.float32)
    n_reassigned = of.iterate(centers)
    for _ in range(3):
        outcome, following = of.update_centers(centers, n_reassigned)
        if outcome["empty"]:
            assert len(set(of.labels.tolist())) < k
            return
        _, expected = oracle.lloyd_step(of.centered, centers, np.ones(n))
        tolerance = 4 * np.finfo(np.float32).eps * abs(of.centered).max()
        np.testing.assert_allclose(following, expected, rtol=0, atol=tolerance)
        assert outcome["n_reassigned"] == n_reassigned
        centers = following
        n_reassigned = of.move_rows(centers)
        of.assert_right(centers)


@pytest.mark.parametrize(("made", "d"), KERNELS)
def test_stops(made, d, rng):
    X, centers = blobs(400, d, 16, rng)
    of = made(X, 16)
    of.iterate(centers)
    labels, sums = of.labels.copy(), of.sums.copy()
    assert of.move_rows(centers.astype(np.float32) + 5, stopped=1) == 0
    assert (of.labels == labels).all()
    assert (of.sums == sums).all()


@property_test(
    15,
    80,
    shape=st.sampled_from(SHAPES),
    shifts=st.booleans(),
    n=st.integers(1, 500),
    grain=st.sampled_from([None, 1.0, 0.25]),
    seed=st.integers(0, 2**16),
)
def test_any_data(shape, shifts, n, grain, seed):
    made, d, k = shape
    rng = np.random.default_rng(seed)
    X, centers = blobs(n, d, k, rng, apart=rng.choice([0.1, 1.0, 30.0]))
    if grain:  # many ties
        X, centers = np.round(X / grain) * grain, np.round(centers / grain) * grain
    of = made(X, k, shifts=shifts) if made is _FEATURES else made(X, k)
    with harness.schedule(seed=seed, copies="early" if seed % 2 else "late"):
        for now in (centers, centers[::-1].copy()):
            of.iterate(now)
            of.assert_right(now)
