"""Roofline of the GPU: bandwidth of a read stream and throughput of large matrix products, measured in each run.

The floor of a benchmark is the larger of bytes ÷ bandwidth and flops ÷ throughput.
"""

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tsapps.bench.common.timing import GpuClock, median

__all__ = ["Ceilings", "Streams", "measure", "measure_matmul_tflops", "measure_read_gbs", "measure_streams"]

_STREAM_BYTES = 16 << 30
_MATMUL_SIZE = 8192
_REPEATS = 7

# Each thread issues four 16-byte loads and exits: on an H200 this reads 5 % faster than a grid-strided loop. A branch
# that is almost never taken uses the sum, so that the compiler keeps every load.
_READ_STREAM = r"""
extern "C" __global__ void __launch_bounds__(256)
read_stream(const uint4* __restrict__ data, size_t count, unsigned* out)
{
    const size_t first = (size_t)blockIdx.x * 1024 + threadIdx.x;
    uint4 v[4] = {};
    #pragma unroll
    for (int j = 0; j < 4; ++j) if (first + j * 256 < count) v[j] = data[first + j * 256];
    unsigned sum = 0;
    #pragma unroll
    for (int j = 0; j < 4; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    if (sum == 0x9e3779b9u) *out = sum;
}
"""


# Each thread reads READS and writes WRITES 16-byte vectors and exits.
_MIXED_STREAM = r"""
extern "C" __global__ void __launch_bounds__(256) mixed_stream(const uint4* __restrict__ data, uint4* __restrict__ out)
{
    uint4 sum = {};
    #pragma unroll
    for (int j = 0; j < READS; ++j) {
        const uint4 v = data[(size_t)blockIdx.x * (READS * 256) + j * 256 + threadIdx.x];
        sum.x ^= v.x, sum.y ^= v.y, sum.z ^= v.z, sum.w ^= v.w;
    }
    #pragma unroll
    for (int j = 0; j < WRITES; ++j) out[(size_t)blockIdx.x * (WRITES * 256) + j * 256 + threadIdx.x] = sum;
}
"""
# Vectors that a thread reads and writes, by mix.
_MIXES = ((8, 1), (4, 1), (4, 2), (4, 4), (2, 4), (1, 4), (1, 8), (0, 4))


@dataclass(frozen=True)
class Streams:
    """Measured bandwidth of one GPU as a function of the share of writes.

    Attributes
    ----------
    points : tuple of (float, float)
        Share of writes, ascending from 0 to 1, and bandwidth in 10⁹ bytes per second.
    """

    points: tuple[tuple[float, float], ...]

    def milliseconds(self, read: int, written: int) -> float:
        """Return the time of a stream with these bytes read and written; interpolates the time per byte."""
        fractions, rates = zip(*self.points, strict=True)
        return (
            float(np.interp(written / (read + written), fractions, [1 / rate for rate in rates]))
            * (read + written)
            / 1e6
        )


@dataclass(frozen=True)
class Ceilings:
    """Measured peak rates of one GPU.

    Attributes
    ----------
    read_gbs : float
        Bandwidth of a read-only stream over several GB, in 10⁹ bytes per second.
    matmul_tflops : dict of str to float
        Throughput of 8192³ products by unit: "float64", "tf32", "float16", "bfloat16". Empty without torch.
    """

    read_gbs: float
    matmul_tflops: dict[str, float] = field(default_factory=dict)


def measure(clock: GpuClock) -> Ceilings:
    """Measure the peak rates of the current GPU."""
    return Ceilings(measure_read_gbs(clock), measure_matmul_tflops(clock))


def measure_read_gbs(clock: GpuClock, n_bytes: int | None = None) -> float:
    """Measure the bandwidth of a read stream on the current GPU, in 10⁹ bytes per second; by default of a long one."""
    import cupy

    size = n_bytes or min(_STREAM_BYTES, cupy.cuda.runtime.memGetInfo()[0] // 4 // 16 * 16)
    data = cupy.random.default_rng(0).random(size // 4, dtype=cupy.float32)
    out = cupy.zeros(1, cupy.uint32)
    kernel = cupy.RawKernel(_READ_STREAM, "read_stream")
    count = data.nbytes // 16
    arguments = ((-(-count // 1024),), (256,), (data, cupy.uint64(count), out))
    kernel(*arguments)
    return data.nbytes / median(clock.call_ms(lambda: kernel(*arguments)) for _ in range(_REPEATS)) / 1e6


def measure_streams(clock: GpuClock) -> Streams:
    """Measure the bandwidth of streams with several shares of writes on the current GPU."""
    import cupy

    size = min(_STREAM_BYTES, cupy.cuda.runtime.memGetInfo()[0] // 4) // 2
    data, out = (cupy.random.default_rng(0).random(size // 4, dtype=cupy.float32) for _ in range(2))
    points = [(0.0, measure_read_gbs(clock))]
    for reads, writes in _MIXES:
        flags = (f"-DREADS={reads}", f"-DWRITES={writes}")
        kernel = cupy.RawKernel(_MIXED_STREAM, "mixed_stream", options=flags)
        blocks = size // (max(reads, writes) * 256 * 16)
        n_bytes = blocks * (reads + writes) * 256 * 16
        kernel((blocks,), (256,), (data, out))
        ms = median(clock.call_ms(lambda: kernel((blocks,), (256,), (data, out))) for _ in range(_REPEATS))  # noqa: B023
        points.append((writes / (reads + writes), n_bytes / ms / 1e6))
    return Streams(tuple(points))


def measure_matmul_tflops(clock: GpuClock) -> dict[str, float]:
    """Measure the throughput of large products on the current GPU, in 10¹² flop/s by unit; empty without torch."""
    try:
        import torch
    except ImportError:
        text = "roofline: torch is not installed, so the throughput of products and floor_ms are not measured"
        print(text, file=sys.stderr)  # stdout may be the JSON of a command
        return {}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # float32 operands use the tensor cores as tf32
    try:
        return {
            "float64": _rate(clock, torch, torch.float64),
            "tf32": _rate(clock, torch, torch.float32),
            "float16": _rate(clock, torch, torch.float16),
            "bfloat16": _rate(clock, torch, torch.bfloat16),
        }
    finally:
        torch.set_float32_matmul_precision(before)


def _rate(clock: GpuClock, torch: Any, dtype: Any) -> float:
    a, b = (torch.randn(_MATMUL_SIZE, _MATMUL_SIZE, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    for _ in range(2):
        torch.mm(a, b, out=out)
    ms = median(clock.call_ms(lambda: torch.mm(a, b, out=out)) for _ in range(_REPEATS))
    return 2 * _MATMUL_SIZE**3 / ms / 1e9
