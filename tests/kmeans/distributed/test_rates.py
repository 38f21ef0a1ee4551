"""Shares of GPUs by their rates, on HostMachines and a clock that each copy advances."""

import pytest
from host_cuda.machine import HostMachine

from tsapps.apps.kmeans.distributed import rates
from tsapps.apps.kmeans.distributed.rates import measured_shares


@pytest.fixture(autouse=True)
def small_copies(monkeypatch):
    monkeypatch.setattr(rates, "_BYTES", 64)


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


class Timed(HostMachine):
    """A GPU whose copies take a number of seconds each, the first one longer."""

    def __init__(self, clock, seconds, **options):
        super().__init__(**options)
        self.clock, self.seconds, self.cold = clock, seconds, 5.0

    def copy(self, to, source, stream=None):
        super().copy(to, source, stream)
        self.clock.seconds += self.seconds + self.cold
        self.cold = 0.0


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([1.0], [1]),
        ([1.0, 1.0], [1, 1]),
        ([1.0, 1.1, 1.05], [1, 1, 1]),
        ([2.0, 1.0], [0.5, 1]),
        ([3, 4, 3], [1, 0.75, 1]),
    ],
)
def test_by_hand(seconds, expected):
    clock = Clock()
    assert measured_shares([Timed(clock, some) for some in seconds], clock) == pytest.approx(expected, rel=1e-12)


def test_a_gpu_without_memory():
    clock = Clock()
    assert measured_shares([Timed(clock, 1.0), Timed(clock, 2.0, memory=255)], clock) == [1, 1]
    assert measured_shares([Timed(clock, 1.0), Timed(clock, 2.0, memory=256)], clock) == [1, 0.5]
