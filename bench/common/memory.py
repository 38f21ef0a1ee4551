"""Peak GPU memory of a call, by the allocator of the library that runs it.

CuPy and torch count the bytes of their arrays. For a library that allocates by CUDA itself, another process reads how
much memory is free on the GPU while the call runs: the library may hold Python's lock, so that a thread could not.
"""

import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["peak_bytes"]

# Seconds between two readings of the free memory.
_INTERVAL = 5e-4


def peak_bytes(call: Callable[[], Any], allocator: str) -> int:
    """Return the largest number of bytes of GPU memory that a call held in addition to those in use before it.

    Parameters
    ----------
    call : callable
    allocator : {"cupy", "torch", "driver"}
        "driver" measures the GPU's free memory twice per millisecond. Memory that other processes allocate then counts
        too, and a shorter peak may be missed.
    """
    gc.collect()
    return {"cupy": _peak_of_cupy, "torch": _peak_of_torch, "driver": _peak_of_driver}[allocator](call)


def _peak_of_cupy(call: Callable[[], Any]) -> int:
    import cupy

    pool = cupy.get_default_memory_pool()
    before = peak = int(pool.used_bytes())

    def allocate(size: int) -> Any:
        nonlocal peak
        memory = pool.malloc(size)
        peak = max(peak, int(pool.used_bytes()))
        return memory

    cupy.cuda.set_allocator(allocate)
    try:
        call()
    finally:
        cupy.cuda.set_allocator(pool.malloc)
    return peak - before


def _peak_of_torch(call: Callable[[], Any]) -> int:
    from torch import cuda

    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    before = int(cuda.memory_allocated())
    call()
    return int(cuda.max_memory_allocated()) - before


def _peak_of_driver(call: Callable[[], Any]) -> int:
    import cupy

    # Blocks that pools keep free would hide new allocations.
    cupy.get_default_memory_pool().free_all_blocks()
    # -P: modules of this folder are not on the path of the process.
    command = [sys.executable, "-P", __file__, str(int(cupy.cuda.runtime.getDevice()))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = int(process.stdout.readline())
        try:
            call()
            cupy.cuda.Device().synchronize()
        finally:
            process.stdin.close()
        return before - int(process.stdout.readline())


def _read_free_bytes(device: int) -> None:
    """Print the free bytes of a GPU, and the least number of them until the standard input ends."""
    from cupy.cuda import runtime

    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    runtime.setDevice(device)
    least = int(runtime.memGetInfo()[0])
    print(least, flush=True)
    threading.Thread(target=wait_for_end).start()
    while not ended.wait(_INTERVAL):
        least = min(least, int(runtime.memGetInfo()[0]))
    print(least, flush=True)


if __name__ == "__main__":
    _read_free_bytes(int(sys.argv[1]))
