import time

import pytest

from tsapps.bench.common.timing import CpuClock, repeats_within


@pytest.mark.parametrize(
    ("seconds", "each_ms", "most", "expected"),
    [(1, 100, 20, 10), (1, 1, 9, 9), (1, 5000, 9, 1), (-1, 10, 9, 1), (1, 0, 9, 9)],
)
def test_repeats_within(seconds, each_ms, most, expected):
    assert repeats_within(seconds, each_ms, most) == expected


def test_cpu_clock():
    ms, result = CpuClock().wall_ms(lambda: time.sleep(0.02) or "done")
    assert result == "done"
    assert 20 <= ms < 2000
    assert CpuClock().call_ms(lambda: time.sleep(0.02)) >= 20


@pytest.mark.gpu
def test_gpu_clock():
    cupy = pytest.importorskip("cupy", reason="needs a GPU: CuPy is not installed")
    from tsapps.bench.common.timing import GpuClock

    clock = GpuClock()
    array = cupy.ones(1 << 28, cupy.float32)
    array.sum()
    event = min(clock.call_ms(array.sum) for _ in range(5))
    wall = min(clock.wall_ms(array.sum)[0] for _ in range(5))
    # Not faster than 20 TB/s, and both clocks agree.
    assert event > array.nbytes / 20e9
    assert event == pytest.approx(wall, rel=0.5)
