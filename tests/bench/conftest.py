import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest


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
    device = SimpleNamespace(id=0, synchronize=lambda: None)
    cupy.cuda = SimpleNamespace(runtime=runtime, Device=lambda: device)
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
