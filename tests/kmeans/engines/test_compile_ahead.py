"""Compilation ahead of a fit: the kernels that a fit on a HostMachine uses are among those that began to compile."""

from contextlib import contextmanager

import numpy as np
import pytest
from host_cuda.machine import HostMachine
from kmeans.host_steps import DTYPES, RowsOnMachine, blobs

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.engines import compile_ahead as module
from tsapps.apps.kmeans.engines.compile_ahead import Fit, run_without_computing
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.kernels.runtime.compiling_machine import CompilingMachine

#: n, d, k, dtype of X, whether bounds skip rows: a fit of each step, of kernels that test_device_engine.py builds too.
FITS = [
    (3000, 3, 5, "float32", False),
    (3000, 32, 8, "float32", True),
    (3000, 32, 10, "float16", False),
    (300, 100, 9, "float32", False),
    (2000, 80, 7, "float32", True),
    (300, 70, 6, "float64", False),
    (400, 5, 70, "float32", False),
    (400, 20, 70, "float32", False),
]


def work_of(dtype):
    return np.dtype(np.float64 if dtype == "float64" else np.float32)


def fit_of(shape, dtype, options, k, *, draws):
    return Fit(DeviceEngine, shape, np.dtype(DTYPES[dtype]), work_of(dtype), options, k, draws)


def ahead(shape, dtype, options, k, *, draws):
    """Return the (source, name) of the kernels that would be compiled ahead for an H200."""
    begun = set()

    def begin(source, *names):
        begun.update((str(source), name) for name in names)

    run_without_computing(fit_of(shape, dtype, options, k, draws=draws), CompilingMachine(HostMachine(), begin))
    return begun


@pytest.mark.each_choice
@pytest.mark.parametrize("init", ["k-means++", "rows"])
@pytest.mark.parametrize(("n", "d", "k", "dtype", "bounds"), FITS)
def test_kernels_of_a_fit(n, d, k, dtype, bounds, init, rng, monkeypatch):
    used, kernels, private = set(), HostMachine.kernels, HostMachine.private_kernels

    def recorded(machine, source, *names):
        used.update((str(source), name) for name in names)
        return kernels(machine, source, *names)

    def recorded_private(machine, source, names, variable):
        used.update((str(source), name) for name in names)
        return private(machine, source, names, variable)

    monkeypatch.setattr(HostMachine, "kernels", recorded)
    monkeypatch.setattr(HostMachine, "private_kernels", recorded_private)
    X = np.ascontiguousarray(blobs(n, d, k, rng, apart=1.0)[0].astype(DTYPES[dtype]))
    options = Options(always=True, bounds=bounds)
    engine = DeviceEngine(RowsOnMachine(X), work_of(dtype), None, HostMachine(), options)
    first = X[:k].astype(engine.data.dtype) if init == "rows" else init
    lloyd.fit(engine, k, init=first, n_init=1, max_iter=4, tol=0, random_state=np.random.RandomState(0))
    assert len(used) >= 5
    begun = ahead(X.shape, dtype, options, k, draws=init == "k-means++")
    # Whether a cluster becomes empty, for which the last of these is, depends on the values.
    assert all("own_distances" in name for _, name in used - begun)


def test_draws_that_are_pruned():
    given, drawn = (
        {name for _, name in ahead((10**6, 64), "float32", Options(), 200, draws=draws)} for draws in (0, 1)
    )
    assert given < drawn
    for kernel in ("evaluate_candidates_pruned", "quantize_rows"):
        assert any(kernel in name for name in drawn - given)


def test_a_fit_larger_than_memory_takes_none():
    shape = (10**9, 200)
    begun = ahead(shape, "float32", Options(), 1000, draws=True)
    assert any("gemm_wgmma_streamed" in name for _, name in begun)


def test_without_memory_kernels_compile_when_they_are_needed(monkeypatch):
    def refused(*_, **options):
        raise MemoryError

    monkeypatch.setattr(module, "run_without_computing", refused)
    assert module.begin_kernels_of(fit_of((100, 5), "float32", Options(), 3, draws=False), HostMachine()) is None


def test_free_memory_is_that_of_the_machines_own_gpu():
    class TwoGpus(HostMachine):
        current_index = 0

        @contextmanager
        def current(self):
            self.current_index = 1
            yield
            self.current_index = 0

        def free_bytes(self):
            return [10, 20][self.current_index]

    assert CompilingMachine(TwoGpus(), print).free_bytes() == 20
