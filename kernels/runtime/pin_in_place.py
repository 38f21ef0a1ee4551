"""Pinning of host memory in place, so that a GPU reads it without a copy, through the link (zero-copy memory).

Pinned pages have the same address for host and GPU, so kernels read an array in host memory, or a file that is mapped
into memory, as they read GPU memory: only more slowly.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np

from tsapps.kernels.arrays import address

__all__ = ["PinnedArray"]

# Bytes that one call pins, and number of threads that call: one call for all pages takes twice as long.
_PART, _THREADS = 256 << 20, 4
# cudaMemoryTypeHost: what CUDA says of memory that is already pinned.
_PINNED = 1
# cudaHostRegisterPortable: for all GPUs. cudaHostRegisterReadOnly: without it, pages that are mapped for reading only
# cannot be pinned.
_PORTABLE, _READ_ONLY = 1, 8

# What this module has pinned: (first byte, end) of each array, and the number of `PinnedArray` objects for it.
_users: dict[tuple[int, int], int] = {}
_lock = Lock()


class PinnedArray:
    """A host array whose pages are pinned until `release`.

    Objects for the same array share the pages.

    Parameters
    ----------
    array : numpy.ndarray
        Row-major, in host memory or a file that is mapped into memory; kernels must not write it.
    index : int
        CUDA's number of the GPU.

    Attributes
    ----------
    on_gpu : cupy.ndarray
        The same elements, for kernels of this GPU.

    Raises
    ------
    OSError
        If the system does not pin the pages, or the GPU cannot read pinned pages in place.
    """

    def __init__(self, array: np.ndarray, index: int) -> None:
        import cupy

        place = address(array)
        self._array, self._index, self._range = array, index, (place, place + array.nbytes)
        with _lock:
            self._owns = self._pin()
        memory = cupy.cuda.UnownedMemory(place, array.nbytes, array, index)
        self.on_gpu = cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0))

    def release(self) -> None:
        """Release the pages, unless another object needs them, after the kernels that read them have ended."""
        from cupy.cuda import Device

        try:
            with Device(self._index) as device:
                device.synchronize()
        finally:
            with _lock:
                owned, self._owns = self._owns, False
                if owned:
                    _users[self._range] -= 1
                if owned and _users[self._range] == 0:
                    del _users[self._range]
                    self._each_part(self._unpin, self._parts())

    def _pin(self) -> bool:
        """Pin the pages; return False if the caller of tsapps has pinned them."""
        from cupy.cuda import Device, runtime

        place, end = self._range
        if self._range in _users:
            _users[self._range] += 1
            return True
        if any(place < other_end and other < end for other, other_end in _users):
            raise OSError("another fit has pinned some of its pages")
        with Device(self._index):
            ends = (byte for first, last in self._parts() for byte in (first, last - 1))
            if all(runtime.pointerGetAttributes(byte).type == _PINNED for byte in ends):
                return False
        attributes = Device(self._index).attributes
        if not attributes.get("CanUseHostPointerForRegisteredMem"):
            raise OSError(f"the driver of GPU {self._index} has no common addresses for host and GPU")
        flags = _PORTABLE | (_READ_ONLY if attributes.get("HostRegisterReadOnlySupported") else 0)
        done: list[tuple[int, int]] = []

        def pin(part: tuple[int, int]) -> None:
            with Device(self._index):
                runtime.hostRegister(part[0], part[1] - part[0], flags)
            done.append(part)

        try:
            self._each_part(pin, self._parts())
        except BaseException as error:  # Ctrl-C too: pages that stay pinned would be taken for the caller's
            self._each_part(self._unpin, done)
            if isinstance(error, runtime.CUDARuntimeError):
                raise OSError(f"its pages cannot be pinned: {error}") from error
            raise
        _users[self._range] = 1
        return True

    def _unpin(self, part: tuple[int, int]) -> None:
        from cupy.cuda import Device, runtime

        with Device(self._index):
            runtime.hostUnregister(part[0])

    def _parts(self) -> list[tuple[int, int]]:
        """Return the (first byte, end) of parts of the array that have no page in common."""
        place, end = self._range
        return list(pairwise([place, *range((place // _PART + 1) * _PART, end, _PART), end]))

    @staticmethod
    def _each_part(work: Any, parts: list[tuple[int, int]]) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(work, parts))
