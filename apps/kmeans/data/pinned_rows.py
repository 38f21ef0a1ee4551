"""X in host memory or in a file, pinned in place, for kernels that read it through the link."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import Rows, in_place
from tsapps.kernels.arrays import address
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.runtime.pin_in_place import PinningError
from tsapps.kernels.system.host_memory import available_host_memory
from tsapps.kernels.system.mapped_files import mapped_files
from tsapps.kernels.system.printable import shown

__all__ = ["copied_windows", "is_half", "pin", "pinnable"]

# Maximum size of a file that is pinned, as a fraction of the available host memory: no other program can use its pages.
_MOST_PINNED = 0.75
# Number of windows in GPU memory: kernels read one while the next ones are copied.
_WINDOWS = 3


def is_half(x_dtype: np.dtype, dtype: np.dtype) -> bool:
    """Return True if X has a 16-bit floating-point type, which kernels of the working type `dtype` read as it is."""
    return x_dtype.name in ("float16", "bfloat16") and dtype == np.float32


def pinnable(source: Rows, dtype: np.dtype) -> np.ndarray | None:
    """Return X as one array in host memory or of a mapped file, or None if kernels cannot read it as such.

    Parameters
    ----------
    source : Rows
    dtype : {float32, float64}
        The working dtype.
    """
    readable = source.device is None and (source.dtype == dtype or is_half(source.dtype, dtype))
    return in_place(source) if readable else None


def pin(array: np.ndarray, machine: Machine) -> Any:
    """Pin an array that `pinnable` returned; return the `PinnedArray`.

    CUDA does not return from pinning pages of a file that are copied when they are written. So a file is pinned only if
    it is mapped for reading, and not privately.

    Raises
    ------
    PinningError
        If the first pages cannot be pinned, if they are those of a file that is mapped privately or for writing, or if
        those of a file would take most of the host memory.
    """
    files = [file for file in mapped_files(address(array), address(array) + array.nbytes) if not file.is_shared_memory]
    for file in files:
        if file.writable or not file.shared:
            how = "for writing" if file.writable else "privately"
            raise PinningError(f"its file {shown(file.path)} is mapped {how}: map it for reading, as open_matrix does")
    available = available_host_memory() if files else 0
    if files and array.nbytes > _MOST_PINNED * available:
        raise PinningError(f"its file has {array.nbytes} bytes, of which {available} fit in host memory")
    return machine.pin_in_place(array)


def copied_windows(machine: Machine, pinned: Any, rows: int) -> Iterator[tuple[int, Any]]:
    """Yield (first row, copy on the GPU) of the windows of a `PinnedArray`, as its pages become pinned.

    The copy engine reads the link at its full rate, whatever the alignment of the array; kernels do not.

    Parameters
    ----------
    machine : Machine
    pinned : PinnedArray
    rows : int
        Number of rows of a window; the last may have fewer.

    Yields
    ------
    start : int
    window : array of shape (rows, d)
        Valid until the next window is requested.

    Raises
    ------
    PinningError
        If the system does not pin a page.
    """
    X, copies, xp = pinned.array, machine.stream(), machine.xp
    n, rows = len(X), min(rows, len(X))
    row_bytes, source = X.itemsize * X.shape[1], _bytes_of(X)
    slots = [(xp.empty((rows, X.shape[1]), X.dtype), machine.event(), machine.event()) for _ in range(_WINDOWS)]
    for *_, read in slots:
        read.record()  # earlier work on the current stream may still read the memory of a slot
    try:
        for turn, start in enumerate(range(0, n, rows)):
            slot, copied, read = slots[turn % _WINDOWS]
            window = slot[: min(rows, n - start)]
            to, begin = _bytes_of(window), start * row_bytes
            copies.wait_event(read)
            for first, end in pinned.pieces(begin, begin + len(to)):
                machine.copy(to[first - begin : end - begin], source[first:end], copies)
            copied.record(copies)
            machine.current_stream().wait_event(copied)
            yield start, window
            read.record()
    finally:
        copies.synchronize()  # copies write to the slots


def _bytes_of(array: Any) -> Any:
    """Return the bytes of a contiguous array, as an array."""
    return array.reshape(-1).view(np.uint8)
