"""`CudaMachine.current` on a stand-in for CuPy, which makes no context for the GPU that a thread has by default."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident, local
from types import SimpleNamespace

import pytest

from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.runtime import machine


class Runtime:
    """CUDA's runtime: each thread has device 0, and a context from its first call of `setDevice` on."""

    def __init__(self):
        self.devices, self.calls = local(), []

    def getDevice(self):  # noqa: N802
        return getattr(self.devices, "number", 0)

    def setDevice(self, number):  # noqa: N802
        self.devices.number, self.devices.has_context = number, True
        self.calls.append((get_ident(), number))

    def launch(self):
        assert getattr(self.devices, "has_context", False), "invalid device context"
        return self.getDevice()


@pytest.fixture
def runtime(monkeypatch):
    runtime = Runtime()

    class Device:
        def __init__(self, number):
            self.number, self.before = number, []

        def __enter__(self):
            self.before.append(runtime.getDevice())
            if self.before[-1] != self.number:
                runtime.setDevice(self.number)

        def __exit__(self, *_):
            before = self.before.pop()
            if before != self.number:
                runtime.setDevice(before)

    cuda = SimpleNamespace(get_current_stream=print, Stream=print, Event=print, Device=Device, runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(empty_pinned=print))
    monkeypatch.setattr(machine, "live", lambda index: KNOWN["H200"])
    monkeypatch.setattr(machine, "_thread", local())
    return runtime


@pytest.mark.parametrize("index", [0, 1])
def test_a_new_thread_can_launch(index, runtime):
    of = machine.CudaMachine(index)
    current = of.current()  # is entered in other threads than this one

    def launch(_):
        with current:
            return runtime.launch()

    with ThreadPoolExecutor(1) as thread:
        assert list(thread.map(launch, range(3))) == [index] * 3
    calls = [number for _, number in runtime.calls]
    assert calls == ([0] if index == 0 else [0, *[1, 0] * 3])
    assert launch(0) == index
    assert len({thread for thread, _ in runtime.calls}) == 2


def test_the_device_of_the_caller_is_restored(runtime):
    runtime.setDevice(1)
    with machine.CudaMachine(0).current():
        assert runtime.launch() == 0
    assert runtime.getDevice() == 1
