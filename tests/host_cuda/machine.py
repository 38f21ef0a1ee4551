"""A machine that runs the kernels' own source on the CPU, so that tests run the project's launchers without a GPU."""

import contextlib
import ctypes
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from host_cuda import harness
from tsapps.kernels.arrays import address
from tsapps.kernels.gpu_specs import KNOWN
from tsapps.kernels.runtime.launch import pack

# What a launch may have of dynamic shared memory without asking.
_SHARED_BYTES = 48 << 10


def _empty(shape, dtype=np.float64, order="C"):
    """Return an array of bytes 0xFF: NaN in floats, −1 in integers, as what was never written may be anything."""
    array = np.empty(shape, dtype, order)
    array.view(np.uint8).fill(0xFF) if array.ndim and array.flags.c_contiguous else array.fill(-1)
    return array


def placed(array, offset=0):
    """Return a copy that begins `offset` elements after a multiple of 256 bytes, as memory of a GPU does."""
    room = np.zeros(array.nbytes + 256 + offset * array.itemsize, np.uint8)
    begin = -room.ctypes.data % 256 + offset * array.itemsize
    copy = room[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class HostKernel:
    """A kernel built for the CPU when it is first launched."""

    def __init__(self, source, names, name):
        self.name, self._given, self._at = name, (source, names), names.index(name)
        self.max_dynamic_shared_size_bytes = 0

    def __call__(self, grid, block, arguments, shared_mem=0):
        _, addresses = packed = pack(arguments)
        self.launch(grid, block, arguments, addresses, shared_mem)
        del packed  # which the addresses point to

    def launch(self, grid, block, arguments, addresses, shared_mem):
        """Launch it with packed arguments, whose sizes have to be those of its parameters."""
        assert shared_mem <= max(_SHARED_BYTES, self.max_dynamic_shared_size_bytes), "shared memory was not asked for"
        library = _library(*self._given)
        sizes = np.zeros(64, np.uint64)
        count = library[f"sizes_kernel_{self._at}"](sizes.ctypes.data_as(ctypes.c_void_p))
        given = [one.nbytes if isinstance(one, np.generic) else 8 for one in arguments]
        assert given == sizes[:count].tolist(), f"{self.name} has parameters of other sizes"
        dimensions = np.array((*grid, 1, 1)[:3] + (*block, 1, 1)[:3], np.uint32)
        library.call(f"launch_kernel_{self._at}", dimensions, int(shared_mem), addresses)


@cache
def _library(source, names):
    """Return the library of some kernels of a source."""
    exports = "".join(f"EXPORT_KERNEL(kernel_{number}, {name})\n" for number, name in enumerate(names))
    return harness.build(f"{source}\n{exports}")


class HostLaunch:
    """A launch of a `HostKernel`, as a `BoundLaunch`."""

    def __init__(self, kernel, grid, block, arguments, shared_mem):
        self._launch = kernel.launch, grid, block, arguments
        values, self._addresses = pack(arguments)
        self._words, self._shared_mem = values.view(np.uint64), shared_mem
        self._places = ((self._addresses - np.uintp(values.ctypes.data)) // np.uintp(8)).tolist()

    def change(self, place, value, word=0):
        self._words[self._places[place] + word] = value

    def __call__(self):
        launch, *given = self._launch
        launch(*given, self._addresses, self._shared_mem)


class _Stream:
    ptr = 0

    def synchronize(self):
        pass

    def wait_event(self, event):
        pass


class _Event:
    def record(self, stream=None):
        pass

    def synchronize(self):
        pass


class HostMachine:
    """The CPU as a `Machine`: a GPU by its description, whose launches are done when they return.

    Parameters
    ----------
    multiprocessors : int
        Which decide grids.
    gpu : GpuSpec
        All else that launchers ask of it.
    memory : int
        The bytes that arrays may take.
    """

    # NumPy, whose uninitialised arrays can be told.
    xp = SimpleNamespace(**{**vars(np), "empty": _empty})
    index = 0
    pinned, stream, current_stream, event = staticmethod(_empty), _Stream, _Stream, _Event

    def __init__(self, multiprocessors=2, gpu=KNOWN["H200"], memory=1 << 34):
        self.gpu, self.memory = replace(gpu, multiprocessors=multiprocessors), memory

    def current(self):
        return contextlib.nullcontext()

    def free_bytes(self):
        return self.memory

    def workspace(self, size, counts):
        return _empty(size, np.uint8), np.zeros(counts, np.uint32)

    def kernels(self, source, *names):
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        return [HostKernel(text, names, name) for name in names]

    def private_kernels(self, source, names, variable):
        text = source.read_text(encoding="utf-8") + f'extern "C" void* variable() {{ return &{variable}; }}\n'
        address_of_variable = _library(text, tuple(names))["variable"]
        address_of_variable.restype = ctypes.c_void_p
        return [HostKernel(text, tuple(names), name) for name in names], address_of_variable()

    def bind(self, kernel, grid, block, arguments, shared_mem=0, *, dependent=True):
        return HostLaunch(kernel, grid, block, arguments, shared_mem)

    def copy(self, to, source, stream=None):
        assert to.nbytes == source.nbytes
        ctypes.memmove(address(to), address(source), source.nbytes)

    def bind_copy(self, to, source, size):
        return lambda: ctypes.memmove(to, source, size)

    def fill(self, array, byte):
        ctypes.memset(address(array), byte, array.nbytes)
