"""Peak GPU memory of a call: counted by CuPy's pool, by torch, or read from the driver."""

import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from tsapps.bench.common.memory import peak_bytes


class Pool:
    """A pool whose arrays are numbers of bytes."""

    used = 100

    def malloc(self, size):
        self.used += size
        return size

    def used_bytes(self):
        return self.used


@pytest.fixture
def pool(monkeypatch):
    """A module in place of CuPy with a `Pool`, and `cupy.cuda.allocate` for its allocator."""
    pool, cupy = Pool(), ModuleType("cupy")
    cupy.get_default_memory_pool = lambda: pool
    cupy.cuda = SimpleNamespace(allocate=pool.malloc)
    cupy.cuda.set_allocator = lambda allocate: setattr(cupy.cuda, "allocate", allocate)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return pool


def test_peak_of_a_pool(pool):
    cupy = sys.modules["cupy"]

    def call():
        cupy.cuda.allocate(50)
        pool.used -= 50
        cupy.cuda.allocate(30)
        cupy.cuda.allocate(5)
        pool.used -= 5

    assert peak_bytes(call, "cupy") == 50
    assert pool.used == 130
    assert cupy.cuda.allocate == pool.malloc
    assert peak_bytes(lambda: None, "cupy") == 0


def test_the_allocator_is_restored_after_an_error(pool):
    def call():
        raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        peak_bytes(call, "cupy")
    assert sys.modules["cupy"].cuda.allocate == pool.malloc


def test_unknown_allocators():
    with pytest.raises(KeyError):
        peak_bytes(lambda: None, "malloc")


@pytest.mark.gpu
def test_peak_of_cupy():
    import cupy

    def call():
        first = cupy.empty(64 << 20, cupy.uint8)
        del first
        return cupy.empty(32 << 20, cupy.uint8)

    for _ in range(2):  # the second time from blocks that the pool has kept
        assert 64 << 20 <= peak_bytes(call, "cupy") < 66 << 20


@pytest.mark.gpu
def test_peak_of_the_driver():
    from cupy.cuda import runtime

    def call():
        address = runtime.malloc(256 << 20)
        time.sleep(0.1)
        runtime.free(address)

    # Tests of other workers may allocate or free memory at the same time.
    assert peak_bytes(call, "driver") > 128 << 20


@pytest.mark.gpu
def test_peak_of_torch():
    torch = pytest.importorskip("torch")

    def call():
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        torch.empty(32 << 20, dtype=torch.uint8, device="cuda")

    assert 64 << 20 <= peak_bytes(call, "torch") < 66 << 20
