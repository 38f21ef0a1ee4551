"""Fits on all GPUs of a machine, or on one GPU in place of two: the bits of one GPU."""

import numpy as np
import pytest
from kmeans.distributed.cut_fits import stored
from kmeans.distributed.one_gpu_twice import PLACES, use_one_gpu_twice

import tsapps
from tsapps import TSKMeans
from tsapps.apps.kmeans.data import gpu_rows
from tsapps.apps.kmeans.data.gpu_rows import GpuRows
from tsapps.apps.kmeans.distributed import local_parts
from tsapps.apps.kmeans.engines import window_pass
from tsapps.kernels import devices
from tsapps.kernels.devices import NoDeviceError

cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
# CuPy warns when a GPU computes with another one's memory, which not all pairs of GPUs can reach.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("error:The device where the array resides")]


@pytest.fixture(autouse=True, params=PLACES)
def _several(request, monkeypatch):
    if request.param == "one GPU twice":
        use_one_gpu_twice(monkeypatch)


def samples(rng, n=400_000, d=40, k=9, dtype=np.float32):
    return (rng.standard_normal((k, d))[rng.integers(0, k, n)] + rng.standard_normal((n, d))).astype(dtype)


def fitted(X, device, k=9, weights=None, **options):
    given = {"random_state": 0, "n_init": 1, "max_iter": 12, "tol": 0, **options}
    return TSKMeans(k, device=device, **given).fit(X, sample_weight=weights)


def same_bits(found, expected):
    assert found.device_ in ("cuda:0,0", f"cuda:{','.join(str(gpu.index) for gpu in devices.gpus())}")
    np.testing.assert_array_equal(tsapps.kernels.arrays.to_host(found.labels_), expected.labels_)
    np.testing.assert_array_equal(tsapps.kernels.arrays.to_host(found.cluster_centers_), expected.cluster_centers_)
    assert (found.n_iter_, found.inertia_) == (expected.n_iter_, expected.inertia_)


@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random", "array"])
@pytest.mark.parametrize(
    ("d", "k", "dtype", "weighted"),
    [
        (4, 5, np.float32, False),
        (16, 16, np.float32, False),
        (40, 9, np.float32, True),
        (40, 9, np.float64, False),
        (130, 64, np.float16, False),
        (64, 200, np.float32, False),
        (24, 70, np.float64, True),
    ],
)
def test_the_bits_are_those_of_one_gpu(d, k, dtype, weighted, init, rng):
    X = samples(rng, 1_000_000 if d < 10 else 400_000, d, k, dtype)
    weights = rng.random(len(X)) + 0.5 if weighted else None
    given = X[:k].astype(np.float64) if init == "array" else init
    expected = fitted(X, "cuda:0", k, weights, init=given)
    same_bits(fitted(X, "cuda:all", k, weights, init=given), expected)


@pytest.mark.parametrize("where", ["gpu", "last gpu", "npy", "fortran", "parts"])
def test_where_x_is(where, rng, tmp_path):
    X = samples(rng)
    expected = fitted(X, "cuda:0")
    if where in ("gpu", "last gpu"):
        with cupy.cuda.Device(cupy.cuda.runtime.getDeviceCount() - 1 if where == "last gpu" else 0):
            given = cupy.asarray(X)
    else:
        given = stored(X, where, tmp_path)
    same_bits(fitted(given, "cuda:all"), expected)


def test_empty_clusters(rng):
    X = samples(rng)
    init = X[:30].astype(np.float64)
    init[10:] = init[0] + 1000 + rng.random((20, 1))
    same_bits(fitted(X, "cuda:all", 30, init=init), fitted(X, "cuda:0", 30, init=init))


def test_bounds_and_several_runs(rng):
    X = samples(rng)
    options = {"algorithm": "elkan", "init": "random", "n_init": 3, "max_iter": 40}
    same_bits(fitted(X, "cuda:all", **options), fitted(X, "cuda:0", **options))


def test_the_cosine_metric(rng):
    X = samples(rng)
    same_bits(fitted(X, "cuda:all", metric="cosine"), fitted(X, "cuda:0", metric="cosine"))


@pytest.mark.parametrize("options", [{}, {"metric": "cosine"}, {"init": "random", "n_init": 2}], ids=str)
@pytest.mark.parametrize("k", [9, 200])
def test_protected_fits(k, options, rng):
    X, weights = samples(rng), rng.random(400_000) + 0.5
    found = fitted(X, "cuda:all", k, weights, protect=True, **options)
    same_bits(found, fitted(X, "cuda:0", k, weights, **options))
    assert found.faults_ == 0


def test_predict_transform_and_score(rng):
    X, weights = samples(rng), rng.random(400_000) + 0.5
    one, several = fitted(X, "cuda:0"), fitted(X, "cuda:all")
    np.testing.assert_array_equal(several.predict(X), one.predict(X))
    np.testing.assert_array_equal(several.transform(X), one.transform(X))
    assert several.score(X) == one.score(X)
    assert several.score(X, sample_weight=weights) == one.score(X, sample_weight=weights)


def test_small_x_is_on_one_gpu(rng):
    assert fitted(samples(rng, 1000), "cuda:all").device_ == "cuda:0"


def test_a_row_that_is_not_finite(rng):
    X = samples(rng)
    X[399_999, 7] = np.inf
    with pytest.raises(ValueError, match="row 399999, column 7 is inf"):
        fitted(X, "cuda:all")


def test_what_runs_on_one_gpu_only(rng):
    X = samples(rng)
    with pytest.raises(NoDeviceError, match="engine='cublas' was asked for; use one GPU"):
        fitted(X, "cuda:all", engine="cublas")


@pytest.fixture(params=["copied", "windows", "streamed"])
def full(request, monkeypatch):
    """GPUs that do not hold X together, or not even its half-precision copy, or whose host does not pin X."""
    monkeypatch.setattr(local_parts, "memory_of_fit", lambda *_: 1 << 60)
    monkeypatch.setattr(GpuRows, "copies", lambda data: False)
    monkeypatch.setattr(window_pass, "_WINDOW_BYTES", 4 << 20)
    if request.param != "copied":
        monkeypatch.setattr(GpuRows, "available_bytes", lambda data: 0)
    if request.param == "streamed":
        monkeypatch.setattr(gpu_rows, "pinnable", lambda source, dtype: None)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("init", ["k-means++", "k-means||", "random"])
@pytest.mark.parametrize(("d", "k", "dtype"), [(80, 9, np.float32), (24, 70, np.float64), (130, 9, np.float16)])
def test_x_that_the_gpus_do_not_hold(d, k, dtype, init, rng):
    X, weights = samples(rng, 300_000, d, k, dtype), rng.random(300_000) + 0.5
    expected = fitted(X, "cpu", k, weights, engine="fused", init=init)
    same_bits(fitted(X, "cuda:all", k, weights, init=init), expected)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("where", ["npy", "parts", "fortran"])
@pytest.mark.parametrize("options", [{}, {"metric": "cosine"}, {"protect": True}], ids=str)
def test_where_x_is_that_the_gpus_do_not_hold(where, options, rng, tmp_path):
    X = samples(rng)
    expected = fitted(X, "cpu", engine="fused", **{**options, "protect": False})
    found = fitted(stored(X, where, tmp_path), "cuda:all", **options)
    same_bits(found, expected)
    assert found.faults_ == 0


@pytest.mark.usefixtures("full")
def test_passes_over_x_that_the_gpus_do_not_hold(rng):
    X = samples(rng)
    one, several = (TSKMeans(9, random_state=0, device=device).fit(X[:5000]) for device in ("cuda:0", "cuda:all"))
    np.testing.assert_array_equal(several.predict(X), one.predict(X))
    np.testing.assert_array_equal(several.transform(X), one.transform(X))
    assert several.score(X) == one.score(X)
