"""Pinning of host memory in place, so that a GPU reads it without a copy, through the link (zero-copy memory).

Pinned pages have the same address for host and GPU, so kernels read an array in host memory, or a file that is mapped
into memory, as they read GPU memory: only more slowly.
"""

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import pairwise
from threading import Lock

import numpy as np

from tsapps.kernels.arrays import address

__all__ = ["PinnedArray"]

# Bytes that one call pins, and number of threads that call: one call for all pages takes twice as long.
_PART, _THREADS = 256 << 20, 4
# cudaMemoryTypeHost: what CUDA says of memory that is already pinned.
_PINNED = 1
# cudaHostRegisterReadOnly; without it, pages that are mapped for reading only cannot be pinned.
_READ_ONLY = 8

# The pages that this module has pinned, by the (first byte, end) of their array.
_pages: dict[tuple[int, int], "_Pages"] = {}
_lock = Lock()


class PinnedArray:
    """A host array whose pages are pinned, in the background, until `release`.

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
        The same elements, for kernels of this GPU. Before a kernel reads them, `pieces` must have waited for them.

    Raises
    ------
    OSError
        If the system does not pin the first pages, or the GPU cannot read pinned pages in place.
    """

    def __init__(self, array: np.ndarray, index: int) -> None:
        import cupy

        place = address(array)
        self._array, self._index, self._place = array, index, place
        with _lock:
            self._shared = self._pages_of((place, place + array.nbytes))
        memory = cupy.cuda.UnownedMemory(place, array.nbytes, array, index)
        self.on_gpu = cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0))

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts (first byte, end) of the bytes from `begin` to `end` that one copy may read, once pinned.

        Raises
        ------
        OSError
            If the system does not pin their pages.
        """
        if self._shared is None:
            yield begin, end
            return
        for first, last in self._shared.pinned(self._place + begin, self._place + end):
            yield first - self._place, last - self._place

    def release(self) -> None:
        """Release the pages, unless another object needs them, after the kernels that read them have ended."""
        from cupy.cuda import Device

        with Device(self._index) as device, _lock:
            device.synchronize()
            pages, self._shared = self._shared, None
            if pages is None:
                return
            pages.users -= 1
            if pages.users == 0:
                del _pages[pages.range]
                pages.release()

    def _pages_of(self, whole: tuple[int, int]) -> "_Pages | None":
        """Return the pages of the array; None if the caller of tsapps has pinned them."""
        from cupy.cuda import Device, runtime

        pages = _pages.get(whole)
        if pages is None:
            if any(whole[0] < end and first < whole[1] for first, end in _pages):
                raise OSError("another fit has pinned some of its pages")
            with Device(self._index):
                if all(runtime.pointerGetAttributes(byte).type == _PINNED for byte in (whole[0], whole[1] - 1)):
                    return None
            pages = _pages[whole] = _Pages(whole, self._index)
        pages.users += 1
        try:
            next(pages.pinned(whole[0], whole[0] + 1))
        except OSError:
            pages.users -= 1
            if pages.users == 0:
                del _pages[whole]
                pages.release()
            raise
        return pages


class _Pages:
    """The pages of an array, which threads pin part by part; no two parts have a page in common."""

    def __init__(self, whole: tuple[int, int], index: int) -> None:
        from cupy.cuda import Device

        self.range, self.users, self._index = whole, 0, index
        attributes = Device(index).attributes
        if not attributes.get("CanUseHostPointerForRegisteredMem"):
            raise OSError(f"the driver of GPU {index} has no common addresses for host and GPU")
        self._flags = _READ_ONLY if attributes.get("HostRegisterReadOnlySupported") else 0
        first, end = whole
        self._parts = list(pairwise([first, *range((first // _PART + 1) * _PART, end, _PART), end]))
        self._threads = ThreadPoolExecutor(_THREADS, "tsapps-pin")
        self._done: list[Future[None]] = [self._threads.submit(self._pin, part) for part in self._parts]

    def pinned(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the intersections with the parts of the bytes from `begin` to `end`, each once it is pinned."""
        from cupy.cuda import runtime

        for part, done in zip(self._parts, self._done, strict=True):
            if part[0] < end and begin < part[1]:
                try:
                    done.result()
                except runtime.CUDARuntimeError as error:
                    raise OSError(f"its pages cannot be pinned: {error}") from error
                yield max(begin, part[0]), min(end, part[1])

    def release(self) -> None:
        """Release what has been pinned, and pin no more."""
        for done in self._done:
            done.cancel()
        list(self._threads.map(self._unpin, self._parts, self._done))
        self._threads.shutdown()

    def _pin(self, part: tuple[int, int]) -> None:
        from cupy.cuda import Device, runtime

        with Device(self._index):
            runtime.hostRegister(part[0], part[1] - part[0], self._flags)

    def _unpin(self, part: tuple[int, int], done: "Future[None]") -> None:
        from cupy.cuda import Device, runtime

        try:
            done.result()
        except (CancelledError, runtime.CUDARuntimeError):
            return  # was not pinned
        with Device(self._index):
            runtime.hostUnregister(part[0])
