"""A kernel's launch with its grid and its arguments, packed once: for what is launched again and again.

CuPy looks at every argument of every launch, some 10 µs of the host's time for a kernel of fifteen; and iterations of
Lloyd's algorithm on small data are four or five kernels in 30 µs.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

__all__ = ["PackedLaunch", "pack"]

# What every argument begins at a multiple of: as much as any type of CUDA C++ is aligned to.
_ALIGNMENT = 16


def pack(arguments: Iterable[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Put a kernel's arguments side by side.

    Parameters
    ----------
    arguments : iterable
        NumPy scalars and structures, by value, and arrays of CuPy, by address.

    Returns
    -------
    values : numpy.ndarray of bytes
    addresses : numpy.ndarray of uintp
        Where each argument lies, in `values`, 16 bytes or more apart.
    """
    values, offsets = bytearray(), []
    for argument in arguments:
        offsets.append(len(values))
        values += argument.tobytes() if isinstance(argument, np.generic) else np.uintp(argument.data.ptr).tobytes()
        values += bytes(-len(values) % _ALIGNMENT)
    held = np.frombuffer(values, np.uint8)
    return held, np.array(offsets, np.uintp) + np.uintp(held.ctypes.data)


class PackedLaunch:
    """A launch that takes no more than the current stream, as often as it is called.

    Parameters
    ----------
    kernel : cupy.RawKernel or cupy.cuda.Function
    grid, block : sequence of int
        Up to three numbers each.
    arguments : sequence
        As for `pack`. What they hold stays alive with this.
    shared_mem : int
        Bytes of dynamic shared memory.
    """

    def __init__(
        self, kernel: Any, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any], shared_mem: int = 0
    ) -> None:
        import cupy

        self._arguments = arguments
        values, self._addresses = pack(arguments)
        # Where each argument is, in words of eight bytes.
        self._words, self._places = values.view(np.uint64), ((self._addresses - values.ctypes.data) // 8).tolist()
        sizes = (*grid, 1, 1)[:3] + (*block, 1, 1)[:3]
        of_device = kernel.kernel if isinstance(kernel, cupy.RawKernel) else kernel
        self._stream = cupy.cuda.get_current_stream
        self._launch = partial(cupy.cuda.driver.launchKernel, of_device.ptr, *sizes, shared_mem)
        self._first = int(self._addresses.ctypes.data)

    def point(self, place: int, address: int) -> None:
        """Have an argument, by its place from 0, point elsewhere from the next launch on; not for several threads."""
        self._words[self._places[place]] = address

    def __call__(self) -> None:
        """Launch it on the current stream."""
        self._launch(self._stream().ptr, self._first, 0)
