"""Memory of the NumPy engine: what it holds, what it refuses, and its peak. docs/install.md states the formula."""

import sys

import numpy as np
import pytest
from exhaustive import property_test
from hypothesis import strategies as st
from peak_memory import peak_of

from tsapps.apps.kmeans import initial_centers, lloyd
from tsapps.apps.kmeans.data import host_data
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.init import plusplus
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.matrix import open_matrix

MIB = 1 << 20


def fitted(engine, k=5, **options):
    return lloyd.fit(engine, k, random_state=np.random.RandomState(3), **options)


def assert_same(one, other):
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.centers, other.centers)
    assert one.inertia == other.inertia
    assert one.cluster_sizes.tolist() == other.cluster_sizes.tolist() == np.bincount(one.labels).tolist()


@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "f4"])
def test_a_narrow_type_is_held_in_its_own(rng, monkeypatch, tmp_path, dtype):
    """With the bits of a fit that holds X converted; without reading the file again."""
    X = (100 * rng.random((3000, 4))).astype(dtype)
    np.savez(tmp_path / "x.npz", X)
    converted = open_engine(open_matrix(tmp_path / "x.npz"), device="cpu", dtype=np.float64)
    assert converted.data.held.dtype == np.float64
    expected = fitted(converted)
    monkeypatch.setattr(host_data, "_MOST_CONVERTED", 0)
    narrow = open_engine(open_matrix(tmp_path / "x.npz"), device="cpu", dtype=np.float64)
    assert narrow.data.held is None
    (tmp_path / "x.npz").unlink()
    assert_same(fitted(narrow), expected)


def test_a_type_that_is_no_narrower_is_held_as_it_is_computed_with(rng, monkeypatch, tmp_path):
    monkeypatch.setattr(host_data, "_MOST_CONVERTED", 0)
    np.save(tmp_path / "x.npy", rng.integers(0, 9, (300, 4)))
    assert open_engine(open_matrix(tmp_path / "x.npy"), device="cpu").data.held.dtype == np.float64


def test_an_array_in_memory_of_a_narrow_type_is_not_copied(rng, monkeypatch):
    monkeypatch.setattr(host_data, "_MOST_CONVERTED", 0)
    X = rng.integers(0, 99, (300, 4), dtype=np.uint8)
    engine = open_engine(ArrayRows(X), device="cpu")
    assert engine.data.held is None
    assert engine.data.reader.array is X


@property_test(
    15, 300, st.integers(2, 400), st.integers(1, 17), st.integers(1, 12), st.booleans(), st.integers(0, 2**32 - 1)
)
def test_draws_with_one_distance_a_sample_are_those_with_all(n, d, k, weighted, seed):
    """Also of whole numbers, whose distances are often equal, in blocks of any size."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 50, (n, d)).astype(np.float64)
    weights = rng.integers(1, 5, n).astype(np.float64) if weighted else None
    k, found = min(k, n), []
    draws = np.random.RandomState(seed).uniform(size=(k - 1, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tsapps.apps.kmeans.init.oversampling_chunks._CHUNK_ELEMENTS", 1)
        patch.setattr(host_data, "_TASK_ELEMENTS", 1)
        assert open_engine(X, device="cpu").draw_plus_plus(0, draws) is None  # X is small
        patch.setattr("tsapps.apps.kmeans.data.blocks.SMALL", 0)
        for most in (1 << 30, 0):
            patch.setattr("tsapps.apps.kmeans.init.plusplus_host._MOST_KEPT", most)
            engine = open_engine(X, device="cpu", sample_weight=weights)
            # X is whole numbers, so that sums have no rounding.
            found.append(engine.draw_plus_plus(0, draws))
    np.testing.assert_array_equal(*found)
    # Without it, all distances are in memory.
    engine = open_engine(X, device="cpu", sample_weight=weights)
    centers = plusplus.kmeans_plusplus(engine.data, k, FirstSample(draws))
    np.testing.assert_array_equal(engine.data.rows(found[0]), centers)


class FirstSample:
    """A random state that gives the first sample, and then these draws."""

    def __init__(self, draws):
        self._draws = draws

    def choice(self, n, p):
        return 0

    def uniform(self, size):
        return self._draws


def test_draws_of_many_samples(rng, monkeypatch):
    X = rng.standard_normal((70_000, 3)).astype(np.float32)
    found = []
    monkeypatch.setattr("tsapps.apps.kmeans.data.blocks.SMALL", 0)
    for most in (1 << 30, 0):
        monkeypatch.setattr("tsapps.apps.kmeans.init.plusplus_host._MOST_KEPT", most)
        engine = open_engine(X, device="cpu")
        found.append(initial_centers.draw_centers(engine, "k-means++", 30, np.random.RandomState(1)))
    np.testing.assert_array_equal(*found)


class TestLittleMemory:
    @pytest.fixture
    def available(self, monkeypatch):
        return lambda size: monkeypatch.setattr(host_data, "available_host_memory", lambda: size)

    def test_fewer_threads(self, available, monkeypatch, rng):
        monkeypatch.setattr(host_data, "available_cores", lambda: 64)
        X = rng.standard_normal((1 << 20, 2))
        available(64 << 30)
        assert open_engine(X, device="cpu").data.threads == 64
        available(1 << 30)
        assert open_engine(X, device="cpu").data.threads == 2  # of 112 MiB each, in a fourth of it
        available(200 * MIB)
        assert open_engine(X, device="cpu").data.threads == 1

    def test_labels_count_beside_the_data(self, available, monkeypatch, rng):
        """X of 16 MiB is half of what is available; its labels and distances are as much again."""
        monkeypatch.setattr(host_data, "available_cores", lambda: 1)
        X = ArrayRows(rng.standard_normal((1 << 20, 2)).astype(np.float32))
        for size, holds in ((2 * (16 + 40 + 112) * MIB, True), (2 * (16 + 40 + 112) * MIB - 2, False)):
            available(size)
            assert (open_engine(X, device="cpu", dtype=np.float64).data.held is not None) == holds

    def test_too_little(self, available, rng):
        available(50 * MIB)
        with pytest.raises(MemoryError, match=r"^X: 0\.\d\d GiB are needed besides the data, and 0\.05 GiB are avail"):
            open_engine(rng.standard_normal((1 << 20, 2)), device="cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux does")
class TestPeak:
    SETUP = """
import numpy as np
from tsapps.apps.kmeans import initial_centers, lloyd
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.matrix import open_matrix
def fit(name, k, **options):
    return lloyd.fit(open_engine(open_matrix(name), device="cpu"), k, random_state=np.random.RandomState(0), **options)
fit("small.npy", 2)
"""

    @pytest.mark.parametrize(
        ("n", "d", "init", "of_sample"),
        [
            (2_500_000, 1, "k-means++", 12),
            pytest.param(4_000_000, 1, "random", 40, marks=pytest.mark.exhaustive),
            pytest.param(4_000_000, 1, "k-means||", 40, marks=pytest.mark.exhaustive),
            pytest.param(40_000_000, 1, "k-means++", 12, marks=pytest.mark.exhaustive),
            pytest.param(8_000_000, 8, "k-means++", 12, marks=pytest.mark.exhaustive),
        ],
    )
    def test_a_fit(self, tmp_path, rng, n, d, init, of_sample):
        np.save(tmp_path / "x.npy", rng.integers(0, 256, (n, d), dtype=np.uint8))
        np.save(tmp_path / "small.npy", rng.integers(0, 256, (100, d), dtype=np.uint8))
        work = f"fit('x.npy', 8, init={init!r}, n_init=1, max_iter=2)"
        peak, error, _ = peak_of(self.SETUP, work, tmp_path)
        assert error is None
        held = n * d * (8 if n * d * 8 <= 256 * MIB else 1)
        mapped = n * d  # pages of the file itself
        assert peak <= held + mapped + of_sample * n + 112 * MIB

    def test_a_limit_of_the_process(self, tmp_path, rng):
        """X is read again and again where it does not fit, with the same result."""
        X = rng.standard_normal((500_000, 8)).astype(np.float32)
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "small.npy", X[:100])
        limit = """
used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + (240 << 20), -1))
"""
        work = """
engine = open_engine(open_matrix('x.npy'), device='cpu', dtype=np.dtype('f8'))
found = lloyd.fit(engine, 3, random_state=np.random.RandomState(0), max_iter=2)
result = [engine.data.held is not None, found.inertia]
"""
        _, error, (held, inertia) = peak_of(self.SETUP + limit, work, tmp_path)
        assert error is None
        assert not held
        engine = open_engine(open_matrix(tmp_path / "x.npy"), device="cpu", dtype=np.dtype(np.float64))
        assert engine.data.held is not None
        assert inertia == lloyd.fit(engine, 3, random_state=np.random.RandomState(0), max_iter=2).inertia
