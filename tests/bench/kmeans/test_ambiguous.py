"""Shares of ambiguous rows that bench/kmeans/ambiguous.py reads, on a HostMachine and on a GPU."""

import numpy as np
import pytest
from exhaustive import every
from host_cuda.machine import HostMachine
from kmeans.host_steps import RowsOnMachine

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.device_step import DeviceStep
from tsapps.apps.kmeans.engines.engine import HostEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.engines.step import Step
from tsapps.apps.kmeans.open_engine import open_engine
from tsapps.bench.kmeans.ambiguous import ambiguous_shares
from tsapps.bench.kmeans.data_kinds import draw
from tsapps.bench.kmeans.measure import FIT_ITERATIONS


def engine_of(X, rows=RowsOnMachine):
    return DeviceEngine(rows(X), np.dtype(np.float32), None, HostMachine(), Options(always=True, bounds=False))


def fitted(X, initial, iterations):
    options = {"n_init": 1, "max_iter": iterations, "tol": 0, "random_state": np.random.RandomState(0)}
    return lloyd.fit(engine_of(X), len(initial), init=initial, **options)


@pytest.mark.parametrize(
    ("iterations", "d", "k"),
    every(3, [(3, 100, 9), (100, 20, 70), (100, 100, 9), (3, 20, 70)], unpacked=True),
)
def test_one_pair_per_iteration(d, k, iterations):
    X, initial = draw("mixture", 400, d, k, 1, np)
    n_iter = fitted(X, initial, iterations).n_iter
    shares = np.array(ambiguous_shares(engine_of(X), initial, iterations))
    assert n_iter == 3 or 3 < n_iter < 100
    assert shares.shape == (n_iter, 2)
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) < 0.5).all()


@pytest.mark.parametrize(("d", "k"), [(100, 9), (20, 70)], ids=["small k", "large k"])
def test_rows_with_two_candidates(d, k):
    """Two centers differ by less than the half-precision copy of X can tell, and all rows are nearest to these."""
    X = np.random.default_rng(2).standard_normal((300, d)).astype(np.float32)
    initial = 50 + X[:k]
    initial[:2] = 1
    initial[1, 0] += 1e-5
    shares = ambiguous_shares(engine_of(X), initial, 1)
    assert len(shares) == 1
    assert shares[0][0] > 0.9
    assert sum(shares[0]) <= 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_rows_with_more_candidates_than_a_list_holds():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((300, 20)).astype(np.float32)
    initial = (1 + 1e-5 * rng.standard_normal((70, 20))).astype(np.float32)
    listed, every = ambiguous_shares(engine_of(X), initial, 1)[0]
    assert listed < 0.1
    assert every > 0.9


@pytest.mark.parametrize(("d", "k"), [(100, 9), (20, 70)], ids=["small k", "large k"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_iterations_that_did_nothing_are_left_out(d, k, monkeypatch):
    """An empty cluster ends a call of `iterate`, which has launched the next iteration already."""
    X, initial = draw("mixture", 400, d, k, 1, np)
    initial[3] = 1000  # no row is nearest to this center
    n_iter = fitted(X, initial, 6).n_iter
    shares = ambiguous_shares(engine_of(X), initial, 6)
    assert len(shares) == n_iter
    monkeypatch.setattr(DeviceStep, "iterate", Step.iterate)  # launches no iteration ahead
    expected = ambiguous_shares(engine_of(X), initial, 6)
    np.testing.assert_allclose(shares, expected, rtol=0, atol=0 if k < 64 else 0.02)


def test_steps_without_lists():
    X, initial = draw("mixture", 400, 4, 5, 1, np)
    assert ambiguous_shares(engine_of(X), initial, 3) is None  # small d
    host = HostEngine(RowsOnMachine(X), np.dtype(np.float32), None)
    assert ambiguous_shares(host, initial, 3) is None


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "d", "k"), [(100_000, 100, 40), (100_000, 96, 300), (100_000, 16, 256)])
@pytest.mark.parametrize("kind", ["mixture", "outliers", "zipf", "lognormal"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_shares_on_a_gpu(n, d, k, kind):
    import cupy

    X, initial = draw(kind, n, d, k, 1, cupy)
    engine = open_engine(X, device="cuda", engine="auto", precision="exact", bounds=False)
    if engine.selection(k)[0] not in ("small_k", "large_k"):
        pytest.skip("no step with lists was selected")
    shares = np.array(ambiguous_shares(engine, cupy.asnumpy(initial), FIT_ITERATIONS))
    assert 1 <= len(shares) <= FIT_ITERATIONS
    assert shares.shape[1] == 2
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) <= 1).all()
    assert shares.sum() > 0
    if kind == "mixture":
        assert shares.sum(axis=1).max() < 0.3
