"""Fits on a GPU that does not hold X: kernels read X where it is, and the result has the bits of a fit that holds X."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tsapps
from tsapps import TSKMeans
from tsapps.apps.kmeans.data import gpu_rows
from tsapps.apps.kmeans.data.gpu_rows import GpuRows

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
cupyx = pytest.importorskip("cupyx", reason="needs a GPU: CuPy is not installed")

N, D = 300_000, 72


@pytest.fixture
def full(monkeypatch):
    """A GPU without memory for a copy of X, whose pinned arrays are counted."""
    seen = []
    pin = gpu_rows.pin

    def counted(array, machine):
        seen.append(array)
        return pin(array, machine)

    def fill():
        monkeypatch.setattr(GpuRows, "copies", lambda data: False)
        monkeypatch.setattr(gpu_rows, "pin", counted)
        return seen

    return fill


def samples(rng, dtype):
    return (rng.standard_normal((9, D))[rng.integers(0, 9, N)] * 2 + rng.standard_normal((N, D))).astype(dtype)


def fitted(X, k=9, sample_weight=None, **options):
    model = TSKMeans(k, random_state=0, n_init=1, max_iter=8, tol=0, device="cuda", **options)
    return model.fit(X, sample_weight=sample_weight)


def same_bits(found, expected):
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.cluster_centers_, expected.cluster_centers_)
    assert (found.n_iter_, found.inertia_) == (expected.n_iter_, expected.inertia_)


def is_pinned(X):
    return any(cupy.cuda.runtime.pointerGetAttributes(X.ctypes.data + at).type == 1 for at in (0, X.nbytes - 1))


@pytest.mark.parametrize("init", ["k-means++", "random", "array"])
@pytest.mark.parametrize("k", [9, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_bits_are_those_of_a_fit_that_holds_x(dtype, k, init, rng, full):
    X = samples(rng, dtype)
    options = {"k": k, "init": X[:k].astype(np.float64) if init == "array" else init}
    expected = fitted(X, **options)
    seen = full()
    same_bits(fitted(X, **options), expected)
    assert seen
    assert not is_pinned(X)


@pytest.mark.parametrize("k", [9, 100])
def test_a_protected_fit(k, rng, full):
    X = samples(rng, np.float32)
    expected = fitted(X, k, init="random", protect=True)
    full()
    found = fitted(X, k, init="random", protect=True)
    same_bits(found, expected)
    assert found.faults_ == 0


@pytest.mark.parametrize("suffix", [".npy", ".fbin"])
def test_files(suffix, rng, full, tmp_path):
    X, path = samples(rng, np.float32), tmp_path / f"X{suffix}"
    if suffix == ".npy":
        np.save(path, X)
    else:
        path.write_bytes(np.array(X.shape, "<u4").tobytes() + X.tobytes())
    expected = fitted(X)
    seen = full()
    same_bits(fitted(tsapps.open_matrix(path)), expected)
    assert len(seen) == 1
    if suffix == ".npy":
        same_bits(fitted(np.load(path, mmap_mode="r")), expected)
        assert len(seen) == 2


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_files_that_are_mapped_for_writing_are_streamed(mode, rng, full, tmp_path):
    X, path = samples(rng, np.float32), tmp_path / "X.npy"
    np.save(path, X)
    expected = fitted(X)
    full()
    found = fitted(np.load(path, mmap_mode=mode))
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, rtol=1e-5, atol=1e-5)


def test_memory_that_the_caller_has_pinned(rng, full):
    X = samples(rng, np.float32)
    pinned = cupyx.empty_pinned(X.shape, X.dtype)
    pinned[...] = X
    expected = fitted(X)
    full()
    same_bits(fitted(pinned), expected)
    assert is_pinned(pinned)


def test_fits_of_the_same_array_at_a_time(rng, full):
    X = samples(rng, np.float32)
    expected = fitted(X)
    full()
    start = threading.Barrier(3)

    def fit(_):
        start.wait()
        return [fitted(X) for _ in range(4)]

    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(fit, range(3)):
            for one in found:
                same_bits(one, expected)
    assert not is_pinned(X)


def test_an_array_of_which_another_fit_has_pinned_a_part(rng, full):
    from tsapps.kernels.runtime.pin_in_place import PinnedArray

    X = samples(rng, np.float32)
    expected = fitted(X[100_000:])
    full()
    other = PinnedArray(X[:200_000], 0)
    with pytest.raises(OSError, match="another fit has pinned"):
        PinnedArray(X[100_000:], 0)
    found = fitted(X[100_000:])  # is streamed
    other.release()
    other.release()  # does nothing
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    assert not is_pinned(X)


def test_pages_are_released_after_an_error(rng, full):
    X = samples(rng, np.float32)
    X[200_000, 3] = np.nan
    full()
    with pytest.raises(ValueError, match="row 200000, column 3"):
        fitted(X)
    assert not is_pinned(X)
