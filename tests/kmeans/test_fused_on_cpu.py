"""TSKMeans with engine="fused" on the CPU: the bits of the kernels, which run on a HostMachine, for small data too."""

import numpy as np
import pytest
from kmeans.engines.test_device_engine import Case
from kmeans.engines.test_exact_host_step import STEPS, device_engine, with_far_center
from scipy.sparse import csr_matrix

from tsapps import TSKMeans
from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.host_data import HostData
from tsapps.apps.kmeans.engines.small_d_step import SmallDFmaStep, SmallDMmaStep
from tsapps.apps.kmeans.open_engine import open_engine

CASES = [*STEPS, Case(SmallDMmaStep, 400, 32, 10, "float16"), Case(SmallDFmaStep, 400, 8, 12, "bfloat16")]


def fused(k, **options):
    return TSKMeans(k, engine="fused", device="cpu", random_state=4, **options)


def assert_same(found, expected):
    """An estimator has every bit of a clustering."""
    np.testing.assert_array_equal(found.labels_, expected.labels)
    np.testing.assert_array_equal(found.cluster_centers_, expected.centers)
    assert (found.labels_.dtype, found.cluster_centers_.dtype) == (np.int32, expected.centers.dtype)
    assert (found.inertia_, found.n_iter_) == (expected.inertia, expected.n_iter)


def test_by_hand():
    X = np.array([[0.0], [1], [10], [11]])
    found = fused(2, init=X[:2], n_init=1).fit(X)
    assert found.labels_.tolist() == [0, 0, 1, 1]
    assert found.cluster_centers_.tolist() == [[0.5], [10.5]]
    assert (found.inertia_, found.device_) == (1.0, "cpu")
    assert found.predict(np.array([[5.5], [5.6]])).tolist() == [0, 1]  # as far from one as from the other: the first


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fits_have_the_bits_of_the_kernels(case, rng):
    X, weights = case.data(rng)
    for init in (X[: case.k].astype(np.float64), with_far_center(X, case.k)):
        options = {"init": init, "n_init": 1, "max_iter": 6}
        found = fused(case.k, **options).fit(X, sample_weight=weights)
        expected = lloyd.fit(
            device_engine(X, weights), case.k, random_state=np.random.RandomState(4), **options | {"init": init.copy()}
        )
        assert_same(found, expected)
        assert found.cluster_centers_.dtype == case.work  # float32 for 16-bit types
    np.testing.assert_array_equal(found.predict(X), found.labels_)
    assert -found.score(X, sample_weight=weights) == pytest.approx(found.inertia_, rel=2.0**-19)


@pytest.mark.parametrize("options", [{}, {"init": "random", "n_init": 3}])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fits_from_a_seed_have_the_bits_of_the_kernels(dtype, options, rng):
    X, _ = Case(SmallDFmaStep, 400, 3, 5).data(rng)
    X = X.astype(dtype)
    expected = lloyd.fit(device_engine(X), 5, random_state=np.random.RandomState(4), **options)
    assert_same(fused(5, **options).fit(X), expected)


def test_protection_changes_no_bit(rng):
    X, _ = STEPS[0].data(rng)
    plain, protected = (fused(5, protect=p).fit(X) for p in (False, True))
    np.testing.assert_array_equal(protected.labels_, plain.labels_)
    np.testing.assert_array_equal(protected.cluster_centers_, plain.cluster_centers_)
    assert (protected.inertia_, protected.n_iter_, protected.faults_) == (plain.inertia_, plain.n_iter_, 0)


@pytest.mark.parametrize("exponent", [-70, 60, 100])
@pytest.mark.parametrize("case", [STEPS[0], STEPS[1]], ids=str)
def test_powers_of_two_scale_results_and_change_no_other_bit(case, exponent, rng, monkeypatch):
    """Also where squares of float32 numbers are zero or infinite. (The mean of small X has NumPy's rounding.)"""
    monkeypatch.setattr(HostData, "is_small", False)
    X, weights = case.data(rng)
    options = {"n_init": 1, "max_iter": 6, "tol": 0}
    expected = fused(case.k, init=X[: case.k], **options).fit(X, sample_weight=weights)
    scaled = np.ldexp(X, exponent)
    found = fused(case.k, init=scaled[: case.k], **options).fit(scaled, sample_weight=weights)
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.cluster_centers_, np.ldexp(expected.cluster_centers_, exponent))
    assert found.inertia_ == np.ldexp(expected.inertia_, 2 * exponent)
    assert found.n_iter_ == expected.n_iter_
    np.testing.assert_array_equal(found.predict(scaled), expected.labels_)


def test_labels_do_not_depend_on_other_rows(rng):
    X, _ = STEPS[0].data(rng)
    found = fused(5, max_iter=3).fit(X)
    far = np.insert(X, 200, 1e12, axis=0)
    np.testing.assert_array_equal(np.delete(found.predict(far), 200), found.labels_)
    assert [int(found.predict(row[np.newaxis])[0]) for row in X[:40]] == found.labels_[:40].tolist()


def test_half_precision_takes_float32_only_here(rng):
    X = rng.standard_normal((50, 3)).astype(np.float16)
    assert open_engine(X, device="cpu", engine="fused").data.dtype == np.float32
    assert open_engine(X, device="cpu").data.dtype == np.float64
    for given in (np.float64, np.int32):
        assert open_engine(X.astype(given), device="cpu", engine="fused").data.dtype == np.float64


def test_the_step_says_what_it_is(rng):
    X = rng.standard_normal((50, 3))
    for engine, step in (("fused", "exact_host"), ("auto", "host")):
        assert open_engine(X, device="cpu", engine=engine).selection(3)[0] == step


def test_sparse_rows(rng):
    X, _ = STEPS[0].data(rng)
    X[abs(X) < 1] = 0
    dense, sparse = (fused(5, init=X[:5], n_init=1).fit(one) for one in (X, csr_matrix(X)))
    np.testing.assert_array_equal(sparse.labels_, dense.labels_)
    np.testing.assert_allclose(sparse.cluster_centers_, dense.cluster_centers_, rtol=0, atol=2.0**-22 * abs(X).max())


def test_cublas_needs_a_gpu(rng):
    X = rng.standard_normal((50, 3))
    with pytest.raises(ValueError, match="engine='cublas' needs a GPU, but the device is the CPU"):
        TSKMeans(3, engine="cublas", device="cpu").fit(X)
    fitted = fused(3).fit(X).set_params(engine="cublas")
    with pytest.raises(ValueError, match="engine='cublas' needs a GPU, but the device is the CPU"):
        fitted.predict(X)
