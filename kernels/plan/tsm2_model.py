"""The performance model of TSM2 (Algorithm 5), and the roofline: a lower bound on the time of every kernel.

C (m × w) = A (m × k) · B (k × w), A large and w small. In TSM2 a thread computes one row of C, t2 columns at a time,
and loads t3 elements of A at a time. A block of t1 threads holds t1 × t2 elements of B in shared memory. So A is read
⌈w/t2⌉ times. The model finds the (t1, t2, t3) that keep enough loads or operations in flight to saturate the unit that
bounds the product. Symbols: s bytes per element, P peak flop/s, BW bandwidth in bytes/s, SMs the number of
multiprocessors, latency that of memory or of arithmetic, c = `SETUP_REGISTERS`; threads, registers and shared memory
without a letter are those of a multiprocessor::

    registers             R = c + (3·t2 + 2·t3) · s/4      per thread: next and current B, sums; next and current A
    shared memory         S = t2·s                         bytes per thread
    occupancy             Occ = min(threads, registers/R, shared memory/S), a multiple of t1
    memory                Util = min(1, Occ·t3·s / (latency·BW/SMs))        Little's law
    arithmetic            Util = min(1, Occ·t2·t3 / (latency·P/SMs))
    threshold             t2* = P·s/BW                     solves t2·t3/P = t3·s/BW
    f_mem = ⌈w/t2⌉·m·k·s / (BW·Util)    f_comp = m·k·w / (P·Util)

Source: Chen et al., "TSM2: Optimizing tall-and-skinny matrix-matrix multiplication on GPUs", ICS 2019, sections 3.6.2
and 3.6.3, Algorithm 5. The formulas are reconstructed from the text.

Operations are counted in two ways. A peak counts a fused multiply-add as two operations. The paper's thresholds (K40c
40, M40 6, P100 50 in float64) follow only if the work of the product counts a multiply-add as one operation.
``flops_per_fma=1``, the default, is the paper's convention. With ``flops_per_fma=2`` the thresholds halve to the
physical crossover (20, 3, 25), and no prediction is below the roofline of its arithmetic.

Comparison with the paper's choices, as (t2, t3, t1) in float64 at w = 16:

- K40c, 16, 4, 128: `choose` returns 16, 3, 128. t2 = w at all w of the paper. But t3 = 3 already saturates the memory
  (t3 = 1 at w = 2 and 4, t3 = 2 at w = 8). Only a latency of 358 to 476 cycles would require t3 = 4; the measured
  latency is 331 cycles.
- M40, 8, 4, 256: `choose` returns 8, 1, 128. The product is bound by arithmetic, which every t3 saturates.
- P100, 4, 4, 128: `choose` returns 16, 2, 256. No c and no latency give t2 = 4: with fewer columns at a time, more
  threads are resident, but not enough to make up for more passes over A. The paper's choice has a reason outside the
  model.

The model predicts the same time for the paper's choices and for those of `choose` on the K40c and the M40, and four
times as long for the paper's choice on the P100. Given the paper's t2 and t3, `block_threads` returns the paper's t1 on
all three GPUs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Any

import numpy as np

from tsapps.kernels.gpu_specs import GpuSpec

__all__ = [
    "Prediction",
    "block_threads",
    "choose",
    "compute_seconds",
    "compute_utilisation",
    "descend",
    "floor_seconds",
    "memory_seconds",
    "memory_utilisation",
    "occupancy",
    "predict",
    "registers",
    "shared_memory",
    "threshold",
]

#: c, the registers per thread for pointers, sizes and counters. The paper measures c but does not print its value. This
#: value is calibrated, for all devices: only with c = 12 to 16 does `block_threads` return the paper's t1 for its (t2,
#: t3) at w = 16 on all three GPUs. c = 15 and 16 also give the paper's t1 on the K40c at w = 2 and 4, not at w = 8.
SETUP_REGISTERS = 16
#: Maximum registers per thread: instructions encode a register in eight bits, and one code is the constant zero.
MAX_REGISTERS = 255
#: The values of t1 from which `block_threads` chooses. Blocks of fewer than 128 threads cannot fill the 2048 threads of
#: a K40c's multiprocessor, which holds at most 16 blocks. A block has at most 1024 threads.
BLOCKS = (128, 256, 512, 1024)
#: The largest t3 that `choose` and `descend` consider: with more registers, sums of more columns of C are better.
T3_MAX = 8
_WARP = 32
_ITEMSIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Prediction:
    """A predicted time in seconds, and the resource that bounds the time: ``"memory"`` or ``"compute"``."""

    seconds: float
    bound: str


def _itemsize(dtype: Any, *, arithmetic: bool = True) -> tuple[str, int]:
    """Return the name and the bytes per element of a dtype; with `arithmetic`, only float64 and float32 are valid."""
    known = ("float64", "float32") if arithmetic else tuple(_ITEMSIZES)
    try:
        name = dtype if isinstance(dtype, str) and dtype in _ITEMSIZES else np.dtype(dtype).name
    except TypeError:
        name = repr(dtype)
    if name not in known:
        raise ValueError(f"dtype is {name}; expected one of {', '.join(known)}")
    return name, _ITEMSIZES[name]


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer):
            raise TypeError(f"{name} is {size!r}; expected an int")
        if size < 1:
            raise ValueError(f"{name} is {size}; expected at least 1")


def _check_convention(flops_per_fma: int) -> None:
    if flops_per_fma not in (1, 2):
        raise ValueError(f"flops_per_fma is {flops_per_fma!r}; expected 1 (the paper's count) or 2 (the peak's)")


# The formulas of the model for real numbers t2 and t3, which gradient descent needs.


def _registers(itemsize: int, t2: float, t3: float) -> float:
    return SETUP_REGISTERS + (3 * t2 + 2 * t3) * itemsize / 4


def _occupancy(device: GpuSpec, itemsize: int, t2: float, t3: float) -> float:
    return min(
        device.max_threads,
        device.registers / _registers(itemsize, t2, t3),
        device.shared_memory / (t2 * itemsize),
    )


def _memory_utilisation(device: GpuSpec, itemsize: int, threads: float, t3: float) -> float:
    need = device.memory_latency / device.clock_hz * device.bandwidth / device.multiprocessors
    return min(1.0, threads * t3 * itemsize / need)


def _compute_utilisation(device: GpuSpec, name: str, threads: float, t2: float, t3: float, flops_per_fma: int) -> float:
    need = device.fma_latency(name) / device.clock_hz * device.peak(name) / device.multiprocessors
    return min(1.0, threads * t2 * t3 * flops_per_fma / need)


def registers(dtype: Any, t2: int, t3: int) -> int:
    """Return R (head of this file), the number of 32-bit registers per thread; with more than 255, registers spill."""
    _check_sizes(t2=t2, t3=t3)
    return round(_registers(_itemsize(dtype)[1], t2, t3))


def shared_memory(dtype: Any, t2: int) -> int:
    """Return S, the bytes of shared memory per thread; a block of t1 threads uses t1·S bytes."""
    _check_sizes(t2=t2)
    return t2 * _itemsize(dtype)[1]


def occupancy(device: GpuSpec, dtype: Any, t1: int, t2: int, t3: int) -> int:
    """Return the occupancy: the number of threads that a multiprocessor holds at once.

    Parameters
    ----------
    device : GpuSpec
    dtype : {"float32", "float64"} or an equivalent NumPy dtype
    t1, t2, t3 : int
        Threads per block, columns of C at a time, and elements of A loaded at a time; at least 1.

    Returns
    -------
    int
        A multiple of t1; 0 if no block fits.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid.
    """
    _check_sizes(t1=t1, t2=t2, t3=t3)
    _, itemsize = _itemsize(dtype)
    if t1 * shared_memory(dtype, t2) > device.shared_memory_per_block:
        return 0
    return floor(_occupancy(device, itemsize, t2, t3) / t1) * t1


def memory_utilisation(device: GpuSpec, dtype: Any, t1: int, t2: int, t3: int) -> float:
    """Return the fraction of the bandwidth that the loads in flight sustain. Arguments as for `occupancy`."""
    threads = occupancy(device, dtype, t1, t2, t3)
    return _memory_utilisation(device, _itemsize(dtype)[1], threads, t3)


def compute_utilisation(device: GpuSpec, dtype: Any, t1: int, t2: int, t3: int, *, flops_per_fma: int = 1) -> float:
    """Return the fraction of the peak that the operations in flight sustain. Arguments as for `occupancy`."""
    _check_convention(flops_per_fma)
    threads = occupancy(device, dtype, t1, t2, t3)
    return _compute_utilisation(device, _itemsize(dtype)[0], threads, t2, t3, flops_per_fma)


def threshold(device: GpuSpec, dtype: Any, *, flops_per_fma: int = 1) -> float:
    """Return t2*, the largest t2 at which reading A takes at least as long as the arithmetic.

    Parameters
    ----------
    device : GpuSpec
    dtype : {"float32", "float64"} or an equivalent NumPy dtype
    flops_per_fma : {1, 2}
        Operations that a multiply-add of the product counts: 1 as in the paper, 2 as in the peak.

    Returns
    -------
    float
        P·s / (BW·flops_per_fma).

    Raises
    ------
    ValueError
        If an argument is invalid, or the device has no peak for the dtype.
    """
    _check_convention(flops_per_fma)
    name, itemsize = _itemsize(dtype)
    return device.peak(name) * itemsize / (device.bandwidth * flops_per_fma)


def memory_seconds(device: GpuSpec, m: int, k: int, w: int, dtype: Any, t1: int, t2: int, t3: int) -> float:
    """Return f_mem, the seconds to read A ⌈w/t2⌉ times; infinite if no block fits. Arguments as for `predict`."""
    _check_sizes(m=m, k=k, w=w)
    utilisation = memory_utilisation(device, dtype, t1, t2, t3)
    return -(-w // t2) * m * k * _itemsize(dtype)[1] / (device.bandwidth * utilisation) if utilisation else inf


def compute_seconds(
    device: GpuSpec, m: int, k: int, w: int, dtype: Any, t1: int, t2: int, t3: int, *, flops_per_fma: int = 1
) -> float:
    """Return f_comp, the seconds of the arithmetic; infinite if no block fits. Arguments as for `predict`."""
    _check_sizes(m=m, k=k, w=w)
    utilisation = compute_utilisation(device, dtype, t1, t2, t3, flops_per_fma=flops_per_fma)
    return flops_per_fma * m * k * w / (device.peak(_itemsize(dtype)[0]) * utilisation) if utilisation else inf


def predict(
    device: GpuSpec, m: int, k: int, w: int, dtype: Any, t1: int, t2: int, t3: int, *, flops_per_fma: int = 1
) -> Prediction:
    """Predict the time of TSM2 with prefetch.

    Loads and arithmetic overlap, so the slower of the two determines the time. As in the paper, the model ignores reads
    of B and writes of C, and assumes that there are enough rows to fill the GPU.

    Parameters
    ----------
    device : GpuSpec
    m, k, w : int
        A is m × k, B is k × w; at least 1.
    dtype : {"float32", "float64"} or an equivalent NumPy dtype
    t1, t2, t3 : int
        Threads per block, columns of C at a time, and elements of A loaded at a time; at least 1.
    flops_per_fma : {1, 2}
        Operations that a multiply-add of the product counts: 1 as in the paper, 2 as in the peak.

    Returns
    -------
    Prediction

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or no block of t1 threads fits a multiprocessor.
    """
    memory = memory_seconds(device, m, k, w, dtype, t1, t2, t3)
    compute = compute_seconds(device, m, k, w, dtype, t1, t2, t3, flops_per_fma=flops_per_fma)
    if memory == inf:
        raise ValueError(
            f"no block of t1={t1}, t2={t2}, t3={t3} in {_itemsize(dtype)[0]} fits {device.name}; "
            f"expected fewer threads or smaller tiles"
        )
    return Prediction(compute, "compute") if compute > memory else Prediction(memory, "memory")


def block_threads(device: GpuSpec, dtype: Any, t2: int, t3: int) -> int:
    """Choose t1 for given t2 and t3.

    The paper times every t1 that divides the occupancy. This function selects the t1 of `BLOCKS` with the most resident
    threads. Among equals it selects the largest t1, with which B is read the fewest times.
    """
    return max(BLOCKS, key=lambda t1: (occupancy(device, dtype, t1, t2, t3), t1))


def choose(device: GpuSpec, m: int, k: int, w: int, dtype: Any, *, flops_per_fma: int = 1) -> tuple[int, int, int]:
    """Choose t1, t2 and t3 by the objective of Algorithm 5, with an exhaustive search.

    If w ≤ t2*, the product is memory-bound: minimize f_mem over 1 ≤ t2 ≤ w. Otherwise take the faster of the smallest
    f_comp over t2* ≤ t2 ≤ w and the smallest f_mem over t2 < t2*. A *tile* is a pair (t2, t3). Many tiles have equal
    times, which the paper does not discuss. Among equals, the smallest time by `predict` wins, because arithmetic at
    its peak may still wait for many passes over A; then the fewest registers. `block_threads` finally gives t1.

    Returns
    -------
    tuple of int
        (t1, t2, t3). Arguments and errors as for `predict`.
    """
    _check_sizes(m=m, k=k, w=w)
    limit = threshold(device, dtype, flops_per_fma=flops_per_fma)
    best: tuple[tuple[float, float, int], int, int] | None = None
    # The paper uses gradient descent, as `descend` does. The domain has a few hundred points, so this search tries all
    # of them. It is exact, and can use ⌈w/t2⌉, which has no gradient.
    for t2 in range(1, min(w, MAX_REGISTERS) + 1):
        for t3 in range(1, T3_MAX + 1):
            used = registers(dtype, t2, t3)
            if used > MAX_REGISTERS or not occupancy(device, dtype, BLOCKS[0], t2, t3):
                continue
            # t1 is not known yet, so the occupancy is a multiple of a warp instead of t1.
            memory = memory_seconds(device, m, k, w, dtype, _WARP, t2, t3)
            compute = compute_seconds(device, m, k, w, dtype, _WARP, t2, t3, flops_per_fma=flops_per_fma)
            objective = compute if w > limit and t2 >= limit else memory
            rank = (objective, max(memory, compute), used)
            if best is None or rank < best[0]:
                best = rank, t2, t3
    if best is None:
        raise ValueError(f"no tile fits {device.name}, not even t2 = t3 = 1 in {_itemsize(dtype)[0]}")
    _, t2, t3 = best
    return block_threads(device, dtype, t2, t3), t2, t3


def descend(device: GpuSpec, w: int, dtype: Any, *, flops_per_fma: int = 1) -> tuple[int, int]:
    """Choose t2 and t3 by the paper's gradient descent: from t2 = t3 = 1, step 0.1, tolerance 1e-4, rounded at the end.

    Some choices are ours, because the paper does not state them. The objective is the time relative to one pass over A,
    or to the arithmetic at its peak, because a fixed step has no meaning in seconds. ⌈w/t2⌉ becomes w/t2, and no count
    is rounded during the descent. Steps are clipped to the bounds on t2 and to 1 ≤ t3 ≤ `T3_MAX`. The descent stops
    when neither t2 nor t3 changes by more than 1e-4.

    For a memory-bound product with w ≤ 32, the descent ends at the t2 of `choose` and within one of its t3. For a
    compute-bound product, it remains at its start, t2 = ⌈t2*⌉ and t3 = 1: the units are saturated there, and the
    gradient is zero. For larger w the descent reaches tiles with more registers than a thread can have, a limit that
    Algorithm 5 does not include.

    Returns
    -------
    tuple of int
        (t2, t3). Arguments and errors as for `choose`.
    """
    _check_sizes(w=w)
    name, itemsize = _itemsize(dtype)
    limit = threshold(device, dtype, flops_per_fma=flops_per_fma)

    def memory(t2: float, t3: float) -> float:
        return w / t2 / _memory_utilisation(device, itemsize, _occupancy(device, itemsize, t2, t3), t3)

    def compute(t2: float, t3: float) -> float:
        threads = _occupancy(device, itemsize, t2, t3)
        return 1 / _compute_utilisation(device, name, threads, t2, t3, flops_per_fma)

    if w <= limit:
        return _descent(memory, 1.0, float(w))
    by_compute = _descent(compute, float(max(1, ceil(limit))), float(w))
    if limit <= 1:
        return by_compute
    by_memory = _descent(memory, 1.0, float(max(1, ceil(limit) - 1)))
    # Compare both times in units of one pass over A: the arithmetic at its peak takes w/t2* units.
    return by_compute if w / limit * compute(*by_compute) <= memory(*by_memory) else by_memory


def _descent(objective: Callable[[float, float], float], lowest: float, highest: float) -> tuple[int, int]:
    """Descend over lowest ≤ t2 ≤ highest and 1 ≤ t3 ≤ T3_MAX, from the smallest values of both."""
    t2, t3, step, stop, h = lowest, 1.0, 0.1, 1e-4, 1e-6
    # At a kink of the objective a fixed step oscillates near the minimum, so the number of steps is limited.
    for _ in range(100_000):
        slope2 = (objective(t2 + h, t3) - objective(t2 - h, t3)) / (2 * h)
        slope3 = (objective(t2, t3 + h) - objective(t2, t3 - h)) / (2 * h)
        next2 = min(max(t2 - step * slope2, lowest), highest)
        next3 = min(max(t3 - step * slope3, 1.0), float(T3_MAX))
        change = max(abs(next2 - t2), abs(next3 - t3))
        t2, t3 = next2, next3
        if change < stop:
            break
    return round(t2), round(t3)


def floor_seconds(device: GpuSpec, m: int, k: int, w: int, dtype: Any, unit: str) -> float:
    """Return the roofline time: a lower bound for every kernel of a product.

    Parameters
    ----------
    device : GpuSpec
    m, k, w : int
        A is m × k, B is k × w; at least 1.
    dtype : {"float64", "float32", "float16", "bfloat16"} or an equivalent NumPy dtype
        The dtype of A, B and C.
    unit : str
        The unit that multiplies, one of the device's peaks: ``"float64"``, ``"tf32"`` …

    Returns
    -------
    float
        max((m·k + k·w + m·w)·s / bandwidth, 2·m·k·w / peak); a multiply-add counts as two operations.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the device has no such unit.
    """
    _check_sizes(m=m, k=k, w=w)
    _, itemsize = _itemsize(dtype, arithmetic=False)
    return max((m * k + k * w + m * w) * itemsize / device.bandwidth, 2 * m * k * w / device.peak(unit))
