"""Compilation ahead of a fit; that the fit needs no other kernels is tested in test_compile_kernels.py."""

from contextlib import contextmanager

import numpy as np
from host_cuda.machine import HostMachine
from kmeans.host_steps import DTYPES, work_of

from tsapps.apps.kmeans.engines import compile_ahead as module
from tsapps.apps.kmeans.engines.compile_ahead import Fit, run_without_computing
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.kernels.runtime.compiling_machine import CompilingMachine


def fit_of(shape, dtype, options, k, *, draws):
    return Fit(DeviceEngine, shape, np.dtype(DTYPES[dtype]), work_of(dtype), options, k, draws)


def ahead(shape, dtype, options, k, *, draws):
    """Return the (source, name) of the kernels that would be compiled ahead for an H200."""
    begun = set()

    def begin(source, *names):
        begun.update((str(source), name) for name in names)

    run_without_computing(fit_of(shape, dtype, options, k, draws=draws), CompilingMachine(HostMachine(), begin))
    return begun


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
