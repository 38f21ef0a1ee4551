import gc
import os
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from exhaustive import covering
from hypothesis import settings

from tsapps.kernels.devices import gpus, why_no_gpu

# Before scikit-learn loads OpenMP, here and in processes that tests start: of more threads than free cores, those that
# spin while they wait would take the cores of those that they wait for.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# To compile all test modules takes a worker 10 s of CPU time. Where Python may not write bytecode beside the sources,
# it is kept in pytest's cache directory.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "d" / "bytecode")
# A slow test on a busy machine is not a failure.
settings.register_profile("tsapps", deadline=None)
settings.load_profile("tsapps")


@pytest.hookimpl(tryfirst=True)  # before pytest applies -m
def pytest_collection_modifyitems(config, items):
    parametrised = defaultdict(list)
    for item in items:
        if "each_choice" in item.keywords:
            parametrised[item.parent.nodeid, item.originalname].append(item)
    superfluous = set()
    for cases in parametrised.values():
        short = [case for case in cases if "exhaustive" not in case.keywords]
        values = covering([case.callspec.params for case in short], 1)
        pairs = covering([case.callspec.params for case in cases], 2)
        kept = {short[number] for number in values}
        for number, case in enumerate(cases):
            if case not in kept:
                case.add_marker(pytest.mark.exhaustive)
                if number not in pairs:
                    superfluous.add(case)
    items[:] = [item for item in items if item not in superfluous]
    config.hook.pytest_deselected(items=list(superfluous))
    missing = {}
    if not gpus():
        missing["gpu"] = f"needs a GPU: {why_no_gpu()}"
    if find_spec("cupy") is None:
        missing["compile"] = "needs the extra compile: CuPy is not installed"
    for item in items:
        for marker, reason in missing.items():
            if marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session):
    gc.freeze()  # tests and modules live to the end, and no collection of garbage walks through them


@pytest.fixture(autouse=True)
def _freed(request):
    """Free GPU memory after each test: all workers share the GPU, and each would keep its largest allocation."""
    yield
    if "gpu" in request.keywords:
        import cupy

        if cupy.get_default_memory_pool().free_bytes() > 1 << 28:
            cupy.get_default_memory_pool().free_all_blocks()
        if "torch" in sys.modules:
            sys.modules["torch"].cuda.empty_cache()


@pytest.fixture
def rng():
    return np.random.default_rng(20261121)


@pytest.fixture
def numpy_for_cupy(monkeypatch):
    """Replace CuPy by a module of NumPy functions with the device properties of an H200."""
    runtime = SimpleNamespace(
        getDeviceProperties=lambda _: {"name": b"NVIDIA H200"},
        memGetInfo=lambda: (1 << 40, 1 << 40),
        runtimeGetVersion=lambda: 13020,
        driverGetVersion=lambda: 13000,
    )
    cupy = ModuleType("cupy")
    cupy.__getattr__ = lambda name: getattr(np, name)
    cupy.__version__ = "14.2.0"
    device = SimpleNamespace(id=0, synchronize=lambda: None, use=lambda: None)
    cupy.cuda = SimpleNamespace(runtime=runtime, Device=lambda _=0: device)
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
