"""`PinnedArray` on a stand-in for CUDA's runtime, which knows the pages that are pinned."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event, Semaphore, Timer
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest

from tsapps.kernels.runtime import pin_in_place
from tsapps.kernels.runtime.pin_in_place import PinnedArray, PinningError

_PAGE = 4096


class CudaError(RuntimeError):
    pass


class Runtime:
    """Pins pages, but no page twice, and none from byte `limit` on."""

    CUDARuntimeError = CudaError

    def __init__(self):
        self.parts, self.flags, self.limit = {}, set(), 1 << 62

    @staticmethod
    def pages(place, size):
        return set(range(place // _PAGE, -(-(place + size) // _PAGE)))

    def hostRegister(self, place, size, flags):  # noqa: N802
        if place + size > self.limit:
            raise CudaError("cudaErrorMemoryAllocation: out of memory")
        pages = self.pages(place, size)
        if any(pages & self.pages(*other) for other in list(self.parts.items())):
            raise CudaError("cudaErrorHostMemoryAlreadyRegistered")
        self.parts[place] = size
        self.flags.add(flags)

    def hostUnregister(self, place):  # noqa: N802
        del self.parts[place]

    def pointerGetAttributes(self, place):  # noqa: N802
        pinned = any(first <= place < first + size for first, size in list(self.parts.items()))
        return SimpleNamespace(type=int(pinned))


class Device:
    attributes = MappingProxyType({"CanUseHostPointerForRegisteredMem": 1, "HostRegisterReadOnlySupported": 1})

    def __init__(self, index):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def synchronize(self):
        pass


@pytest.fixture
def runtime(numpy_for_cupy, monkeypatch):
    import sys

    cupy, runtime = sys.modules["cupy"], Runtime()
    cuda = SimpleNamespace(
        runtime=runtime,
        Device=Device,
        UnownedMemory=lambda place, size, owner, index: owner,
        MemoryPointer=lambda memory, offset: memory,
    )
    cupy.ndarray = lambda shape, dtype, memory: memory
    monkeypatch.setattr(cupy, "cuda", cuda, raising=False)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(pin_in_place, "_PART", 4 * _PAGE)
    yield runtime
    assert not pin_in_place._pages
    assert not runtime.parts


def array_of(pages):
    """Return bytes that begin 16 bytes after a page, as large arrays of NumPy do."""
    room = np.zeros((pages + 1) * _PAGE, np.uint8)
    begin = -room.ctypes.data % _PAGE + 16
    return room[begin : begin + pages * _PAGE - 20]


def test_parts_are_pinned_once_and_have_no_page_in_common(runtime):
    array = array_of(23)
    pinned, place = PinnedArray(array, 0), array.ctypes.data
    assert pinned.on_gpu is array
    parts = sorted(runtime.parts.items())
    assert [first + size for first, size in parts[:-1]] == [first for first, _ in parts[1:]]
    assert (parts[0][0], sum(parts[-1])) == (place, place + array.nbytes)
    assert all(first % (4 * _PAGE) == 0 for first, _ in parts[1:])
    assert runtime.flags == {1 | 8}
    pinned.release()
    pinned.release()  # does nothing


def test_objects_for_the_same_array_share_its_pages(runtime):
    array = array_of(9)
    first, second = PinnedArray(array, 0), PinnedArray(array, 0)
    assert first.on_gpu is array
    first.release()
    assert sum(runtime.parts.values()) == array.nbytes
    second.release()


@pytest.mark.parametrize("some", [slice(5 * _PAGE), slice(_PAGE, None), slice(6 * _PAGE, 7 * _PAGE), slice(1)], ids=str)
def test_a_part_of_an_array_that_is_pinned_shares_its_pages(some, runtime):
    array = array_of(9)
    whole, part = PinnedArray(array, 0), PinnedArray(array[some], 0)
    whole.release()
    assert part.on_gpu.nbytes == array[some].nbytes
    place, end = part.on_gpu.ctypes.data, part.on_gpu.ctypes.data + part.on_gpu.nbytes
    assert all(
        (first < end and place < first + size) or first == array.ctypes.data for first, size in runtime.parts.items()
    )
    pieces = list(part.pieces(0, part.on_gpu.nbytes))
    assert (pieces[0][0], pieces[-1][1]) == (0, part.on_gpu.nbytes)
    assert all(end == first for (_, end), (first, _) in pairwise(pieces))
    part.release()


def test_pages_of_which_another_array_has_pinned_some(runtime):
    array = array_of(9)
    other = PinnedArray(array[_PAGE : 7 * _PAGE], 0)
    for part in (array, array[: 5 * _PAGE], array[6 * _PAGE :]):
        with pytest.raises(OSError, match="another fit has pinned some of its pages"):
            PinnedArray(part, 0)
    other.release()


def test_memory_that_the_caller_has_pinned(runtime):
    array = array_of(9)
    runtime.hostRegister(array.ctypes.data, array.nbytes, 0)
    PinnedArray(array, 0).release()
    assert runtime.parts == {array.ctypes.data: array.nbytes}
    runtime.hostUnregister(array.ctypes.data)


def test_memory_of_which_the_caller_has_pinned_the_ends(runtime):
    array = array_of(23)
    place = array.ctypes.data
    runtime.hostRegister(place, _PAGE, 0)
    runtime.hostRegister(place + array.nbytes - _PAGE, _PAGE, 0)
    before = dict(runtime.parts)
    with pytest.raises(PinningError, match="AlreadyRegistered"):
        PinnedArray(array, 0)
    assert runtime.parts == before
    for one in before:
        runtime.hostUnregister(one)


def test_pieces_are_pinned_when_they_are_yielded(runtime):
    """Of all bytes, some, and some within one part of four pages."""
    array = array_of(23)
    pinned, place = PinnedArray(array, 0), array.ctypes.data
    part = -place % (4 * _PAGE)
    for begin, end in ((0, array.nbytes), (part - 5, part + 4 * _PAGE + 1), (part, part + 4 * _PAGE), (7, 8)):
        pieces = list(pinned.pieces(begin, end))
        assert [first for first, _ in pieces] + [end] == [begin] + [last for _, last in pieces]
        for first, last in pieces:
            assert any(at <= place + first and place + last <= at + size for at, size in runtime.parts.items())
    pinned.release()


def test_pages_are_pinned_when_they_are_asked_for(runtime):
    array = array_of(63)
    pinned = PinnedArray(array, 0)
    part = -array.ctypes.data % (4 * _PAGE)
    assert sum(runtime.parts.values()) == part
    list(pinned.pieces(part, part + 1))
    assert sum(runtime.parts.values()) == part + 4 * _PAGE
    pinned.release()


def test_a_release_ends_the_threads(runtime, monkeypatch):
    """As after Ctrl-C in a fit: what the threads have not begun to pin is never pinned."""
    array, pin, begun, goes_on = array_of(63), runtime.hostRegister, Semaphore(0), Event()

    def slow(place, *others):
        if place != array.ctypes.data:
            begun.release()
            assert goes_on.wait(10)
        pin(place, *others)

    monkeypatch.setattr(runtime, "hostRegister", slow)
    pinned = PinnedArray(array, 0)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: pinned.on_gpu)
        assert begun.acquire(timeout=10)
        Timer(0.1, goes_on.set).start()
        pinned.release()
    assert not runtime.parts


def test_ctrl_c_while_the_first_pages_are_pinned(runtime, monkeypatch):
    def interrupted(pinned, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr(PinnedArray, "pieces", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PinnedArray(array_of(23), 0)


def test_pages_are_released_after_a_fault_of_the_gpu(runtime, monkeypatch):
    def fail(_):
        raise CudaError("cudaErrorIllegalAddress")

    pinned = PinnedArray(array_of(9), 0)
    monkeypatch.setattr(Device, "synchronize", fail)
    with pytest.raises(CudaError, match="IllegalAddress"):
        pinned.release()


def test_first_pages_that_cannot_be_pinned(runtime):
    runtime.limit = 0
    with pytest.raises(PinningError, match="its pages cannot be pinned: cudaErrorMemoryAllocation"):
        PinnedArray(array_of(23), 0)


def test_later_pages_that_cannot_be_pinned(runtime):
    array = array_of(23)
    runtime.limit = array.ctypes.data + 12 * _PAGE
    pinned = PinnedArray(array, 0)
    found = []
    with pytest.raises(PinningError, match="its pages cannot be pinned: cudaErrorMemoryAllocation"):
        found.extend(end for _, end in pinned.pieces(0, array.nbytes))
    assert 4 * _PAGE < max(found) <= 12 * _PAGE
    with pytest.raises(PinningError, match="its pages cannot be pinned"):
        _ = pinned.on_gpu
    pinned.release()


def test_a_driver_without_common_addresses(runtime, monkeypatch):
    monkeypatch.setattr(Device, "attributes", {})
    with pytest.raises(OSError, match="the driver of GPU 0 has no common addresses"):
        PinnedArray(array_of(9), 0)
