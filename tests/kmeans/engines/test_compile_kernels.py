"""Fits, predict, transform and score on a HostMachine request only kernels that `compile_kernels` compiles.

A usual fit requests only kernels that it has begun to compile before it needs them.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from exhaustive import every
from host_cuda.machine import HostMachine
from kmeans.host_steps import DTYPES, RowsOnMachine, blobs, work_of

from tsapps.apps.kmeans import lloyd
from tsapps.apps.kmeans.data.device_data import DeviceData
from tsapps.apps.kmeans.data.rows import UnitRows
from tsapps.apps.kmeans.engines import compile_kernels as module
from tsapps.apps.kmeans.engines.compile_ahead import Fit, every_kernel_of, run_without_computing
from tsapps.apps.kmeans.engines.device_engine import DeviceEngine
from tsapps.apps.kmeans.engines.select_step import Options
from tsapps.apps.kmeans.update import relocation
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.jit.compiler import architecture_of, build
from tsapps.kernels.runtime.compiling_machine import CompilingMachine


@dataclass(frozen=True)
class Case:
    """A problem, and the step whose kernels it needs."""

    step: str
    n: int
    d: int
    k: int
    dtype: str = "float32"
    init: str = "k-means++"
    values: str = "near"
    bounds: bool = False
    weighted: bool = False
    protect: bool = False
    cosine: bool = False
    always: bool = True
    memory: int = 1 << 34

    def __str__(self):
        return "-".join(str(one) for one in vars(self).values() if one is not False and one != 1 << 34)

    @property
    def work(self):
        return work_of(self.dtype)

    @property
    def begins_early(self):
        """Whether a fit begins to compile all its kernels before it needs them."""
        usual = self.step != "cublas" and self.values == "near" and self.init != "k-means||" and self.memory > 1 << 30
        return usual and not (self.weighted or self.protect or self.cosine)

    @property
    def options(self):
        return Options(always=self.always, bounds=self.bounds)

    def fit(self):
        sizes, dtypes = (self.n, self.d), (np.dtype(DTYPES[self.dtype]), self.work)
        draws = self.init == "k-means++"
        return Fit(DeviceEngine, sizes, *dtypes, self.options, self.k, draws, self.weighted, self.protect)

    def data(self, rng):
        X = blobs(self.n, self.d, self.k, rng, apart=1.0)[0]
        X += 1000 if self.values == "far" else 0
        return np.ascontiguousarray(X.astype(DTYPES[self.dtype]))


CASES = [
    Case("small_d", 300, 3, 5),
    Case("small_d", 300, 3, 5, values="far"),
    Case("small_k", 300, 3, 5, values="tail"),
    Case("small_d", 3000, 32, 8, bounds=True),
    Case("small_d", 300, 32, 8, values="far"),
    Case("small_d", 300, 32, 10, "float16"),
    Case("small_d", 300, 32, 10, "bfloat16", "random"),
    Case("small_d", 300, 32, 8, protect=True),
    Case("small_k", 300, 80, 7, bounds=True),
    Case("small_k", 300, 100, 9, protect=True),
    Case("small_k", 300, 70, 6, "float64", "k-means||"),
    Case("small_k", 300, 20, 33, weighted=True),
    Case("small_k", 300, 100, 9, cosine=True),
    Case("large_k", 400, 5, 70, init="given"),
    Case("small_d", 300, 32, 8, "float16", init="given"),
    Case("large_k", 400, 20, 70, values="tail"),
    Case("large_k", 400, 90, 80, "float64", weighted=True),
    Case("small_k", 300, 40, 6, memory=1 << 20),
    Case("large_k", 300, 20, 70, init="k-means||", memory=1 << 20),
    Case("cublas", 300, 20, 6, "float64", always=False),
    Case("small_k", 300, 80, 6, "float16", memory=1 << 20),
]


@pytest.fixture
def used(monkeypatch):
    """Record the sources and names of the kernels that programs request from a HostMachine."""
    used, kernels, private = set(), HostMachine.kernels, HostMachine.private_kernels

    def recorded(machine, source, *names):
        used.add((source, names))
        return kernels(machine, source, *names)

    def recorded_private(machine, source, names, variable):
        used.add((source, tuple(names)))
        return private(machine, source, names, variable)

    monkeypatch.setattr(HostMachine, "kernels", recorded)
    monkeypatch.setattr(HostMachine, "private_kernels", recorded_private)
    return used


def begun_early(fit):
    """Return the sources and names of the kernels that a fit begins to compile before it needs them."""
    begun = set()

    def begin(source, *names):
        begun.add((source, names))

    run_without_computing(fit, CompilingMachine(HostMachine(), begin))
    return begun


def heavy_tailed(spread):
    """Return `DeviceData.spread` for data that has a heavy tail."""

    def wide(data, subtracted=None):
        largest, middle = spread(data, subtracted)
        return np.maximum(largest, 300 * middle), middle

    return wide


@pytest.mark.parametrize("case", every(2, CASES), ids=str)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_kernel_is_compiled(case, rng, used, monkeypatch):
    if case.values == "tail":
        monkeypatch.setattr(DeviceData, "spread", heavy_tailed(DeviceData.spread))
    X, machine = case.data(rng), HostMachine(memory=case.memory)
    weights = rng.random(case.n) + 0.5 if case.weighted else None

    def engine_of(weights=None):
        rows = RowsOnMachine(X)
        return DeviceEngine(
            UnitRows(rows, case.work) if case.cosine else rows, case.work, weights, machine, case.options
        )

    engine = engine_of(weights)
    engine.over = lambda rows: DeviceEngine(rows, case.work, weights, machine, case.options)
    init = case.init
    if init == "given":  # of which the last cluster becomes empty
        init = X[: case.k].astype(case.work)
        init[-1] += 1e6
        monkeypatch.setattr(relocation, "MOST_ORDERED", 0)
    random_state = np.random.RandomState(0)
    fit = {"init": init, "n_init": 1, "max_iter": 3, "tol": 0, "protect": case.protect, "random_state": random_state}
    found = lloyd.fit(engine, case.k, **fit)
    assert found.step == case.step, found.step_reason
    if case.begins_early:
        # Whether a cluster becomes empty, for which these kernels are, depends on the values.
        relocate = ("own_distances", "select_digit", "relocate")
        assert all(any(one in names[0] for one in relocate) for _, names in used - begun_early(case.fit()))
    if case.init == "given":
        assert any("relocate<" in names[0] for _, names in used)
    frame = found.fitted.frame
    for passed in (engine_of(), engine_of(weights)):
        centers = passed.place(found.fitted.centered, frame.mean)
        step = passed.step_for(case.k)
        step.assign(centers, update=False)
        passed.data.inertia(centers, step.labels)
        passed.data.distances(centers)
    assert len(used) >= 5
    monkeypatch.undo()
    if case.init == "given":
        monkeypatch.setattr(relocation, "MOST_ORDERED", 0)
    assert used <= set(every_kernel_of(case.fit(), machine.gpu))


def test_kernels_for_some_values_only():
    fit = Case("small_d", 10**6, 16, 16, always=False).fit()
    names = [name for _, some in every_kernel_of(fit, KNOWN["H100"]) for name in some]
    assert sum("assign_rows<" in name for name in names) == 2  # whether rows are centered
    assert any("scatter_add<float, float, 3" in name for name in names)
    for kernel in ("own_distances", "select_digit", "relocate<"):  # for clusters that become empty
        assert any(kernel in name for name in names)


def test_a_shape_larger_than_memory_takes_none():
    fit = Case("large_k", 10**9, 200, 1000, always=False).fit()
    assert any("gemm_wgmma_streamed" in some[0] for _, some in every_kernel_of(fit, KNOWN["H200"]))


@pytest.mark.compile
@pytest.mark.parametrize("gpu", ["L4", "RTX 5090"])
@pytest.mark.parametrize(("d", "k"), [(16, 16), (128, 64), (128, 1000)])
def test_kernels_for_gpus_with_little_shared_memory(gpu, d, k):
    """No other test compiles most of them for these architectures."""
    spec = KNOWN[gpu]
    fit = Case("large_k" if k > 64 else "small_k", 10**6, d, k, always=False).fit()
    for source, names in every_kernel_of(fit, spec):
        text = source if isinstance(source, str) else source.read_text(encoding="utf-8")
        for kernel, used in build(text, names, architecture_of(spec.compute_capability)).resources.items():
            assert used.shared <= spec.shared_memory_per_block
            # As for the other architectures (tests/kmeans/assign/test_plan.py): exact rescoring may spill a few words.
            most = 48 if "rescore" in kernel or "pruned" in kernel else 0
            assert max(used.stack, used.spill_stores, used.spill_loads) <= most, (kernel, used)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"n_samples": 3}, "got 3 samples, 4 features and 5 clusters"),
        ({"n_features": 0}, "expected at least 1 of each"),
        ({"dtype": "int8"}, "dtype must be one of float32, float64, float16, bfloat16, got 'int8'"),
        ({"init": "last"}, "init must be one of"),
        ({"algorithm": "hamerly"}, "algorithm must be one of lloyd, elkan"),
        ({"precision": "half"}, "precision must be one of exact, tf32"),
        ({"gpu": "K40c"}, f"gpu must be one of {', '.join(module.GPUS)}, got 'K40c'"),
        ({"gpu": None, "device": "cpu"}, "the CPU needs no kernels"),
    ],
)
def test_bad_arguments(change, what):
    arguments = {"n_samples": 100, "n_features": 4, "n_clusters": 5, "gpu": "H100"} | change
    with pytest.raises(ValueError, match=what):
        module.compile_kernels(**arguments)
