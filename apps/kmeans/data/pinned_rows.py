"""X in host memory or in a file, pinned in place, for kernels that read it through the link."""

from collections.abc import Iterator
from mmap import mmap
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import Rows, in_place
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.system.host_memory import available_host_memory

__all__ = ["HALF_TYPES", "copied_windows", "pin", "pinnable"]

#: The 16-bit floating-point types.
HALF_TYPES = ("float16", "bfloat16")
# Maximum size of a file that is pinned, as a fraction of the available host memory: no other program can use its pages.
_MOST_PINNED = 0.75
# Number of windows in GPU memory: kernels read one while the next is copied.
_WINDOWS = 2


def pinnable(source: Rows, dtype: np.dtype) -> np.ndarray | None:
    """Return X as one array in host memory or of a mapped file, or None if kernels cannot read it as such.

    Parameters
    ----------
    source : Rows
    dtype : {float32, float64}
        The working dtype.
    """
    readable = source.dtype == dtype or (source.dtype.name in HALF_TYPES and dtype == np.float32)
    return in_place(source) if source.device is None and readable else None


def pin(array: np.ndarray, machine: Machine) -> Any:
    """Pin an array that `pinnable` returned; return the `PinnedArray`.

    Raises
    ------
    OSError
        If the pages cannot be pinned, or those of a file would take most of the host memory.
    """
    available = available_host_memory() if _is_of_file(array) else 0
    if available and array.nbytes > _MOST_PINNED * available:
        raise OSError(f"its file has {array.nbytes} bytes, of which {available} fit in host memory")
    return machine.pin_in_place(array)


def copied_windows(machine: Machine, pinned: Any, rows: int) -> Iterator[tuple[int, Any]]:
    """Yield (first row, copy on the GPU) of the windows of a `PinnedArray`, as its pages become pinned.

    The copy engine reads the link at its full rate, whatever the alignment of the array; kernels do not.

    Parameters
    ----------
    machine : Machine
    pinned : PinnedArray
    rows : int
        Number of rows of a window.

    Raises
    ------
    OSError
        If the system does not pin a page.
    """
    X = pinned.on_gpu
    (n, d), row_bytes, stream = X.shape, X.itemsize * X.shape[1], machine.stream()
    rows = min(rows, n)
    slots = [(machine.xp.empty((rows, d), X.dtype), machine.event(), machine.event()) for _ in range(_WINDOWS)]
    bytes_of_x = X.reshape(-1).view(np.uint8)
    for *_, read in slots:
        read.record()  # earlier work on the current stream may read the memory of a slot
    try:
        for number, start in enumerate(range(0, n, rows)):
            window, copied, read = slots[number % _WINDOWS]
            window = window[: min(rows, n - start)]
            to, begin = window.reshape(-1).view(np.uint8), start * row_bytes
            stream.wait_event(read)
            for first, end in pinned.pieces(begin, begin + window.nbytes):
                machine.copy(to[first - begin : end - begin], bytes_of_x[first:end], stream)
            copied.record(stream)
            machine.current_stream().wait_event(copied)
            yield start, window
            read.record()
    finally:
        stream.synchronize()  # copies write to the slots


def _is_of_file(array: Any) -> bool:
    """Return True if an array is that of a file that is mapped into memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap)
