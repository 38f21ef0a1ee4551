"""Fits of X that passes through the GPU in windows: the same bits as of X on the GPU."""

import gc
import weakref

import numpy as np
import pytest
from kmeans.engines.test_device_engine import MOST_EXHAUSTIVE, Case, engine_of
from kmeans.engines.test_pinned_rows import Pinning, engine_over, fitted, same_bits

from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import ArrayRows
from tsapps.apps.kmeans.engines import window_pass
from tsapps.apps.kmeans.engines.large_k_step import LargeKStep
from tsapps.apps.kmeans.engines.small_k_step import SmallKStep
from tsapps.apps.kmeans.engines.streamed_step import StreamedStep
from tsapps.kernels.runtime.pin_in_place import PinningError


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """Take host memory for other than that of the HostMachine, which has no memory for a copy of X."""
    borrow = DeviceData._borrow
    monkeypatch.setattr(DeviceData, "_borrow", lambda data: None if data.source.device is None else borrow(data))
    monkeypatch.setattr(DeviceData, "copies", lambda data: False)


@pytest.fixture
def windows(monkeypatch):
    """Set the number of rows of a window."""

    def set_rows(rows):
        monkeypatch.setattr(window_pass, "window_rows", lambda n, d, itemsize: min(n, rows))

    return set_rows


@pytest.mark.each_choice
@pytest.mark.parametrize("rows", [128, 64, 1 << 20])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("case", MOST_EXHAUSTIVE)
def test_the_bits_are_those_of_rows_on_the_gpu(case, pinned, rows, rng, windows):
    X, weights = case.data(rng)
    windows(rows)
    init = X[: case.k].astype(np.float64)
    error = None if pinned else PinningError("its pages cannot be pinned")
    machine = Pinning(error, memory=(1 << 30) + 12 * case.n)
    engine = engine_over(ArrayRows(X), case, weights, machine)
    found, expected = (fitted(one, case, init=init) for one in (engine, engine_of(case, X, weights)))
    assert isinstance(engine.step_for(case.k), StreamedStep)
    if case.step in (SmallKStep, LargeKStep):
        same_bits(found, expected)
    else:
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_array_equal(found.centers, expected.centers)


@pytest.mark.each_choice
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("case", [Case(SmallKStep, 300, 100, 9), Case(LargeKStep, 400, 20, 70)], ids=str)
def test_a_protected_fit(case, pinned, rng, windows):
    X, weights = case.data(rng)
    windows(128)
    error = None if pinned else PinningError("its pages cannot be pinned")
    engine = engine_over(ArrayRows(X), case, weights, Pinning(error, memory=(1 << 30) + 12 * case.n))
    options = {"init": X[: case.k].astype(np.float64), "protect": True}
    found, expected = (fitted(one, case, **options) for one in (engine, engine_of(case, X, weights)))
    same_bits(found, expected)
    assert found.faults == 0


@pytest.mark.each_choice
@pytest.mark.parametrize("place", ["gpu", "pinned", "streamed"])
@pytest.mark.parametrize("case", [Case(SmallKStep, 300, 100, 9), Case(LargeKStep, 400, 20, 70)], ids=str)
def test_memory_is_free_when_the_engine_is(case, place, rng):
    """No cycle of references keeps the memory of a fit until Python's garbage collection."""
    X, _ = case.data(rng)
    error, memory = (None, 1 << 34) if place == "pinned" else (PinningError("its pages cannot be pinned"), 1 << 30)
    machine = Pinning(error, memory)
    engine = engine_of(case, X, None) if place == "gpu" else engine_over(ArrayRows(X), case, None, machine)
    gc.collect()
    gc.disable()
    try:
        fitted(engine, case, init=X[: case.k].astype(np.float64), n_init=1)
        data = weakref.ref(engine.data)
        assert isinstance(engine.step_for(case.k), StreamedStep) == (place == "streamed")
        del engine
        assert data() is None
    finally:
        gc.enable()
