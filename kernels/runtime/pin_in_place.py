"""Pinning of host memory in place, so that a GPU reads it without a copy, through the link (zero-copy memory).

Pinned pages have the same address for host and GPU, so kernels read an array in host memory, or a file that is mapped
into memory, as they read GPU memory: only more slowly.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np

from tsapps.kernels.arrays import address

__all__ = ["PinnedArray", "PinningError"]

# Bytes that one call pins, and number of threads that call: one call for all pages takes twice as long. While a call
# pins pages, no other thread can launch kernels.
_PART, _THREADS = 128 << 20, 2
# cudaMemoryTypeHost: what CUDA says of memory that is already pinned.
_PINNED = 1
# cudaHostRegisterPortable: for all GPUs. cudaHostRegisterReadOnly: without it, pages that are mapped for reading only
# cannot be pinned.
_PORTABLE, _READ_ONLY = 1, 8

# What this module has pinned, by the (first byte, end) of the array.
_pages: dict[tuple[int, int], "_Pages"] = {}
_lock = Lock()


class PinningError(OSError):
    """The system does not pin the pages of an array, or the GPU cannot read pinned pages in place."""


class PinnedArray:
    """A host array whose pages are pinned when they are first asked for, until `release`.

    Objects for the same array, and for parts of it, share the pages.

    Parameters
    ----------
    array : numpy.ndarray
        Row-major, in host memory or a file that is mapped into memory; kernels must not write it.
    index : int
        CUDA's number of the GPU.

    Raises
    ------
    PinningError
        If the system does not pin the first pages, or the GPU cannot read pinned pages in place.
    """

    def __init__(self, array: np.ndarray, index: int) -> None:
        self.array, self._index = array, index
        self._range = address(array), address(array) + array.nbytes
        with _lock:
            # None if the caller of tsapps has pinned the pages.
            self._pages: _Pages | None = self._pages_of_array()
        try:
            next(self.pieces(0, 1))
        except BaseException:  # Ctrl-C too: pages that stay pinned would be taken for the caller's
            self.release()
            raise

    @cached_property
    def on_gpu(self) -> Any:
        """The same elements, a `cupy.ndarray` for kernels of this GPU; pins all pages.

        Raises PinningError if the system does not pin a page.
        """
        import cupy

        if self._pages is not None:
            self._pages.pin_all(*self._range)
        memory = cupy.cuda.UnownedMemory(self._range[0], self.array.nbytes, self.array, self._index)
        return cupy.ndarray(self.array.shape, self.array.dtype, cupy.cuda.MemoryPointer(memory, 0))

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Pin the bytes from `begin` to `end`, and yield (first byte, end) of each piece once it is pinned.

        One copy may read a piece, but must not cross the pages that two calls have pinned.

        Raises
        ------
        PinningError
            If the system does not pin a page of a piece.
        """
        if self._pages is None:
            yield begin, end
            return
        place = self._range[0]
        for first, last in self._pages.pinned(place + begin, place + end):
            yield first - place, last - place

    def release(self) -> None:
        """Release the pages, unless another object needs them, after the kernels that read them have ended."""
        from cupy.cuda import Device

        try:
            with Device(self._index) as device:
                device.synchronize()
        finally:
            with _lock:
                pages, self._pages = self._pages, None
                if pages is not None:
                    pages.users -= 1
                if pages is not None and pages.users == 0:
                    del _pages[pages.place, pages.end]
                    pages.release()

    def _pages_of_array(self) -> "_Pages | None":
        from cupy.cuda import Device, runtime

        place, end = self._range
        for pages in _pages.values():
            if pages.place <= place and end <= pages.end:
                pages.users += 1
                return pages
        if any(place < other_end and other < end for other, other_end in _pages):
            raise PinningError("another fit has pinned some of its pages")
        with Device(self._index):
            ends = (byte for first, last in _parts(place, end) for byte in (first, last - 1))
            if all(runtime.pointerGetAttributes(byte).type == _PINNED for byte in ends):
                return None
        attributes = Device(self._index).attributes
        if not attributes.get("CanUseHostPointerForRegisteredMem"):
            raise PinningError(f"the driver of GPU {self._index} has no common addresses for host and GPU")
        flags = _PORTABLE | (_READ_ONLY if attributes.get("HostRegisterReadOnlySupported") else 0)
        pages = _pages[self._range] = _Pages(place, end, self._index, flags)
        return pages


class _Pages:
    """The pages from address `place` to `end`, pinned part by part; `users` objects need them."""

    def __init__(self, place: int, end: int, index: int, flags: int) -> None:
        self.place, self.end, self.users, self._index, self._flags = place, end, 1, index, flags
        # Not the caller's thread: what Ctrl-C interrupts there is pinned or not, and known to be so.
        self._threads = ThreadPoolExecutor(_THREADS, "tsapps-pin")
        self._parts = _parts(place, end)
        self._done: dict[tuple[int, int], Future[None]] = {}
        self._asking = Lock()

    def pinned(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the intersections of the bytes from `begin` to `end` with the parts, each once its part is pinned."""
        for part in self._within(begin, end):
            self._wait(part)
            yield max(part[0], begin), min(part[1], end)

    def pin_all(self, begin: int, end: int) -> None:
        """Pin the pages of the bytes from `begin` to `end`."""
        for part in self._within(begin, end):
            self._begin(part)
        for part in self._within(begin, end):
            self._wait(part)

    def _within(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts that have some of the bytes from `begin` to `end`."""
        return [part for part in self._parts if part[0] < end and begin < part[1]]

    def release(self) -> None:
        """Release the pages that are pinned, and pin no others."""
        for done in list(self._done.values()):
            done.cancel()
        self._threads.shutdown()
        pinned = [part for part, done in self._done.items() if not done.cancelled() and done.exception() is None]
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(self._unpin, pinned))

    def _begin(self, part: tuple[int, int]) -> Future[None]:
        with self._asking:
            done = self._done.get(part)
            if done is None:
                done = self._done[part] = self._threads.submit(self._pin, *part)
            return done

    def _wait(self, part: tuple[int, int]) -> None:
        from cupy.cuda import runtime

        try:
            self._begin(part).result()
        except runtime.CUDARuntimeError as error:
            raise PinningError(f"its pages cannot be pinned: {error}") from error

    def _pin(self, first: int, end: int) -> None:
        from cupy.cuda import Device, runtime

        with Device(self._index):
            runtime.hostRegister(first, end - first, self._flags)

    def _unpin(self, part: tuple[int, int]) -> None:
        from cupy.cuda import Device, runtime

        with Device(self._index):
            runtime.hostUnregister(part[0])


def _parts(place: int, end: int) -> list[tuple[int, int]]:
    """Return the (first byte, end) of parts of an array that have no page in common."""
    return list(pairwise([place, *range((place // _PART + 1) * _PART, end, _PART), end]))
