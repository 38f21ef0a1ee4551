"""What the GPU can do at most: the rate of a read stream, and of large matrix products, measured where they are used.

A benchmark's floor is the larger of its bytes over the one and its flops over the other.
"""

from dataclasses import dataclass, field
from typing import Any

from bench.timing import GpuClock, median

__all__ = ["Ceilings", "measure", "measure_read_gbs"]

_STREAM_BYTES = 16 << 30
_MATMUL_SIZE = 8192
_REPEATS = 7

# Each thread has four 16-byte loads in flight and is done: on an H200 this reads 5 % faster than a grid-strided loop.
# The sum is used, in a branch that is almost never taken, so that no load is dropped.
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


@dataclass(frozen=True)
class Ceilings:
    """Rates of one GPU.

    Attributes
    ----------
    read_gbs : float
        Read-only stream over several GB, in 10⁹ bytes a second.
    matmul_tflops : dict of str to float
        Products of 8192³ by unit: "float64", "tf32", "float16", "bfloat16". Empty where torch is not installed.
    """

    read_gbs: float
    matmul_tflops: dict[str, float] = field(default_factory=dict)


def measure(clock: GpuClock) -> Ceilings:
    """Measure the ceilings of the current GPU."""
    return Ceilings(measure_read_gbs(clock), _matmul_tflops(clock))


def measure_read_gbs(clock: GpuClock) -> float:
    """Measure the rate of a read stream on the current GPU, in 10⁹ bytes a second."""
    import cupy

    size = min(_STREAM_BYTES, cupy.cuda.runtime.memGetInfo()[0] // 4 // 16 * 16)
    data = cupy.random.default_rng(0).random(size // 4, dtype=cupy.float32)
    out = cupy.zeros(1, cupy.uint32)
    kernel = cupy.RawKernel(_READ_STREAM, "read_stream")
    count = data.nbytes // 16
    arguments = ((-(-count // 1024),), (256,), (data, cupy.uint64(count), out))
    kernel(*arguments)
    return data.nbytes / median(clock.step_ms(lambda: kernel(*arguments)) for _ in range(_REPEATS)) / 1e6


def _matmul_tflops(clock: GpuClock) -> dict[str, float]:
    try:
        import torch
    except ImportError:
        print("ceilings: torch is not installed, so the matrix rates are not measured and floor_ms is left out")
        return {}
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # f32 operands go to the tensor cores as tf32
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
    ms = median(clock.step_ms(lambda: torch.mm(a, b, out=out)) for _ in range(_REPEATS))
    return 2 * _MATMUL_SIZE**3 / ms / 1e9
